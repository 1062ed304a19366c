"""Traced programs that compare equal where they compute the same, and only there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.equal_programs import EqualProgram

X = np.ones(3, np.float32)


def program(function, *arguments):
    return EqualProgram(jax.make_jaxpr(function)(*(arguments or (X,))).jaxpr)


def everything(slope, power=2, steps=3, table=(1.0, 2.0, 3.0), axis=0, name="relu"):
    def function(x):
        y = getattr(jax.nn, name)(slope * x) ** power + jax.scipy.special.xlogy(x, np.asarray(table, np.float32))
        y = jax.lax.fori_loop(0, steps, lambda i, y: jnp.where(y > i, y, jnp.sin(y)), y)
        y = jax.lax.cond(y.sum() > 0, lambda y: y, lambda y: -y, y)
        return jnp.concatenate([y, x]).sum(axis=axis)

    return function


def test_the_same_function_traced_twice():
    first, second = program(everything(2.0)), program(everything(2.0))
    assert first.jaxpr is not second.jaxpr
    assert first == second and hash(first) == hash(second)


@pytest.mark.parametrize(
    "change", [{"slope": 3.0}, {"power": 3}, {"steps": 4}, {"axis": -1}, {"name": "softplus"}, {"name": "gelu"}]
)
def test_another_number_or_operation_anywhere(change):
    same = change == {"axis": -1}  # which JAX makes 0
    assert (program(everything(2.0)) == program(everything(**{"slope": 2.0, **change}))) is same


def test_constants_are_arguments_and_not_part_of_it():
    # A table that is closed over is a constant of the jaxpr, whose values its owner holds beside it.
    first, second = program(everything(2.0)), program(everything(2.0, table=(4.0, 5.0, 6.0)))
    assert first == second


def test_shapes_types_and_weak_types():
    def double(x):
        return x * 2

    same = program(double)
    assert same == program(double) != program(double, np.ones(4, np.float32))
    assert same != program(double, np.ones(3, np.int32)) and same != program(double, np.ones((3, 1), np.float32))
    assert program(double, 1.0) != program(double, np.float32(1.0))


def test_the_order_of_operands_counts():
    assert program(lambda x: x - jnp.sin(x)) != program(lambda x: jnp.sin(x) - x)
    assert program(lambda x, y: x, X, X) != program(lambda x, y: y, X, X)


def with_rule(factor):
    @jax.custom_jvp
    def function(x):
        return x

    function.defjvp(lambda primals, tangents: (primals[0], factor * tangents[0]))
    return function


def test_rules_of_a_users_own_derivatives_cannot_be_compared_and_are_unlike_all_others():
    first, second = program(with_rule(1.0)), program(with_rule(2.0))
    assert first != second and first == first
    assert program(jax.nn.relu) == program(jax.nn.relu)  # those of a package are known by where they stand


def test_functions_of_the_host_are_unlike_all_others():
    def called(function):
        return lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct((3,), np.float32), x)

    assert program(called(np.sin)) != program(called(np.cos))
    assert program(called(functools.partial(np.add, 1))) != program(called(functools.partial(np.add, 2)))
