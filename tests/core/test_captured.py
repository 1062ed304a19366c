"""The fingerprint of what a function reads from outside: the same while that is, another one when it changes."""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.captured import captured

DATA = np.arange(3.0)
SCALE = 2.0
TABLE = {"rows": [1, 2, (3, DATA)]}


def helper(z):
    return z * SCALE


def by_a_helper(z):
    return helper(z)


def in_a_comprehension(z):
    return [z + x for x in DATA]


def through_a_container(z):
    return z + TABLE["rows"][0]


def recursive(z):
    return z if SCALE > 0 else recursive(z - 1)


compiled = jax.jit(helper)


def by_jit(z):
    return compiled(z)


def set_globals(**values):
    """A copy of nothing: the module's variables are changed where the functions see them."""
    globals().update(values)


@pytest.mark.parametrize(
    ("function", "change"),
    [
        (helper, {"SCALE": 3.0}),
        (helper, {"SCALE": 2}),
        (by_a_helper, {"SCALE": 3.0}),
        (by_a_helper, {"helper": lambda z: z * 5 * SCALE}),
        (in_a_comprehension, {"DATA": np.array([0.0, 1.0, 4.0])}),
        (in_a_comprehension, {"DATA": np.arange(3)}),
        (in_a_comprehension, {"DATA": jnp.asarray([0.0, 1.0, 5.0])}),
        (through_a_container, {"TABLE": {"rows": [1, 2, (4, DATA)]}}),
        (recursive, {"SCALE": -1.0}),
        (by_jit, {"SCALE": 3.0}),
    ],
)
def test_another_value_of_a_variable_is_seen(function, change):
    before = {name: globals()[name] for name in change}
    first = captured(function)
    assert captured(function) == first
    set_globals(**change)
    try:
        assert captured(function) != first
    finally:
        set_globals(**before)
    assert captured(function) == first


def test_arrays_changed_in_place_and_equal_copies():
    values = np.arange(4.0)

    def function(z, weight=(1.0, 2.0)):
        return z + values * weight[0]

    first = captured(function)
    values[2] = 7.0
    assert captured(function) != first
    values = np.arange(4.0)
    assert captured(function) == first
    function.__defaults__ = ((1.0, 3.0),)
    assert captured(function) != first


def test_partial_functions_and_methods():
    class Model:
        def run(self, z):
            return z

    assert captured(functools.partial(helper, z=1.0)) == captured(functools.partial(helper, z=1.0))
    assert captured(functools.partial(helper, z=1.0)) != captured(functools.partial(helper, z=2.0))
    # An object may hold anything.
    model = Model()
    assert captured(model.run) != captured(model.run)


def test_what_cannot_be_compared_is_never_the_same():
    settings = types.SimpleNamespace(scale=1.0)
    assert captured(lambda z: z * settings.scale) != captured(lambda z: z * settings.scale)
    texts = np.array(["a", None], object)
    assert captured(lambda z: texts) != captured(lambda z: texts)


def test_variables_of_the_users_modules(monkeypatch):
    module = types.ModuleType("settings_of_a_user")
    module.__file__, module.SCALE = "/home/user/settings_of_a_user.py", 1.0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(globals(), "settings", module)
    function = eval("lambda z: z * settings.SCALE", globals())
    first = captured(function)
    assert captured(function) == first
    module.SCALE = 2.0
    assert captured(function) != first


def test_functions_that_are_defined_anew():
    """Equal where code and variables are; arguments count by name, since a model is called with them."""

    def made(slope, module=np):
        def function(z, weight=1.0):
            return module.exp(slope * z) * weight

        return function

    assert captured(made(2.0)) == captured(made(2.0))
    assert len({captured(made(2.0)), captured(made(3.0)), captured(made(2.0, jnp))}) == 3
    assert captured(lambda a, b: a - b) != captured(lambda b, a: b - a)
    assert captured(lambda a, *, b: a - b) != captured(lambda a, b: a - b)


def test_a_decorator_of_a_package_is_not_all_that_it_returns():
    def wrapped(slope):
        @functools.lru_cache
        def inner(z):
            return slope * z

        @functools.singledispatch
        def other(z):
            return slope * z

        return inner, other

    for first, second in zip(wrapped(2.0), wrapped(3.0), strict=True):
        assert captured(first) != captured(second)


def test_which_of_two_functions_is_called_a_second_time():
    up, down = eval("lambda z: z + 1"), eval("lambda z: z - 1")

    def three(first, second, third):
        return lambda z: first(second(third(z)))

    assert captured(three(up, down, up)) != captured(three(up, down, down))
    assert captured(three(up, down, up)) == captured(three(up, down, up))
