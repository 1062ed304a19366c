"""What the laws are made of: what a compiled program is looked up by, how many there were, which types there are."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core import interpreter

_COMPILED = "/jax/core/compile/backend_compile_duration"


def signature(tree: Any) -> tuple[Any, ...]:
    """What `jax.jit` looks a compiled program up by: the structure with its static fields, and each leaf's type.

    A Python number among the leaves would be part of the program under `eqx.filter_jit`, or a weak type under
    `jax.jit`: there is none.
    """
    leaves, structure = jax.tree.flatten(tree)
    bare = [leaf for leaf in leaves if isinstance(leaf, bool | int | float | complex)]
    assert not bare, f"Python numbers {bare} are leaves of {type(tree).__name__}: another value compiles again"
    types = tuple(jax.typeof(leaf) if hasattr(leaf, "dtype") else leaf for leaf in leaves)
    return structure, types


def assert_one_program(first: Any, second: Any, numbers_differ: bool = True) -> None:
    """Two members that differ in their numbers: one compiled program serves both."""
    assert signature(first) == signature(second)
    if numbers_differ:
        leaves = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
        different = [not np.array_equal(a, b) for a, b in leaves if hasattr(a, "dtype")]
        assert any(different), "the row's number changes nothing"


def floating(tree: Any) -> set[Any]:
    """The floating types of the leaves, arrays or shapes."""
    dtypes = (leaf.dtype for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))
    return {np.dtype(dtype) for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}


@contextmanager
def compilations() -> Iterator[list[float]]:
    """A list that has one entry for each program that is compiled, or traced to be interpreted, inside the block."""
    found: list[float] = []
    trace = interpreter._traced

    def traced(*args: Any) -> Any:
        found.append(0.0)
        return trace(*args)

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == _COMPILED:
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    interpreter._traced = traced
    try:
        yield found
    finally:
        interpreter._traced = trace
        jax.monitoring.unregister_event_duration_listener(listen)


def assert_equal_bits(first: Any, second: Any) -> None:
    """Same structure, same types, same numbers."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def final_classes(package: str, base: type) -> set[type]:
    """All classes of a kind that a user could meet in `package`: exported or not, but for abstract and private ones."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        importlib.import_module(module.name)
    exported = {getattr(root, name) for name in root.__all__}
    found, waiting = set(), [base]
    while waiting:
        children = waiting.pop().__subclasses__()
        waiting += children
        found |= {child for child in children if child.__module__.startswith(f"{package}.")}
    found |= {thing for thing in exported if inspect.isclass(thing) and issubclass(thing, base)}
    return {kind for kind in found if not kind.__name__.startswith(("Abstract", "_"))}
