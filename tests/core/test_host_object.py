"""Host objects: numbers to a compiled program, the objects themselves on the host."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.host_object import HostObject, host_object, without_host_objects


class Model:
    def __init__(self, slope, identity=""):
        self.slope, self.identity = slope, identity


class Target(eqx.Module):
    model: HostObject[Model]
    start: jax.Array

    def __call__(self, x):
        def on_host(number, x):
            return np.asarray(host_object(number).slope * x, x.dtype)

        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), self.model.number, x)


def target(slope, identity=""):
    return Target(HostObject(Model(slope, identity)), jnp.zeros(2))


def test_one_program_serves_every_object():
    traced = []

    @eqx.filter_jit
    def evaluate(target, x):
        traced.append(None)
        return target(x)

    targets = [target(slope) for slope in (2.0, 3.0, -1.0)]
    assert [float(evaluate(one, jnp.asarray(5.0))) for one in targets] == [10.0, 15.0, -5.0]
    assert len(traced) == 1


def test_a_target_that_comes_back_from_a_program_has_its_own_object():
    returned = eqx.filter_jit(lambda target: target)
    first, second = target(1.0), target(2.0)
    assert returned(first).model.value is first.model.value
    assert returned(second).model.value is second.model.value is not first.model.value
    assert jax.tree.map(lambda x: x, second).model.value is second.model.value


def test_an_object_goes_with_its_last_target():
    known = weakref.ref((only := target(1.0)).model.value)
    number = np.asarray(only.model.number)
    copy = jax.tree.map(lambda x: x, only)
    del only
    gc.collect()
    assert known() is copy.model.value
    del copy
    gc.collect()
    assert known() is None
    with pytest.raises(KeyError):
        host_object(number)


def test_a_fingerprint_is_of_what_an_object_says_of_itself():
    first, again, other = target(1.0, "one"), target(1.0, "one"), target(1.0, "two")
    rests, texts = zip(*map(without_host_objects, (first, again, other)), strict=True)
    assert texts == ("one", "one", "two")
    assert all(rest.model is None and rest.start.shape == (2,) for rest in rests)
