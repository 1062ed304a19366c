"""Constraints on a pytree of parameters: as the user writes them, and as maps from free coordinates."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Scalar
from provi.targets.transforms.scalar import AbstractBijection, HalfLine, Real
from provi.targets.transforms.vector import CorrelationCholesky, CorrelationMatrix, Ordered, Simplex

_NAMED = {
    "real": Real(),
    "positive": HalfLine(),
    "simplex": Simplex(),
    "ordered": Ordered(),
    "correlation matrix": CorrelationMatrix(),
    "correlation cholesky": CorrelationCholesky(),
}


def read_constraints(constraints: Any, example: Any) -> tuple[AbstractBijection, ...]:
    """A bijection for each leaf of `example`, in the order of `jax.tree.leaves`.

    **Arguments:**

    - `constraints`: one constraint for everything; or a pytree of them like `example`, or a dictionary by name
        (`{"scale": "positive"}`, `{"group.scale": "positive"}`), in which what is left out is real. A constraint is
        None, the name of a set, or `provi.targets.interval(a, b)`. One that stands where `example` has a subtree
        holds for all of it.
    - `example`: the pytree of parameters.
    """
    given = {_name(path): spec for path, spec in _leaves(constraints)}
    used: set[str] = set()
    chosen = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(example):
        name = _name(path)
        fitting = [stem for stem in given if stem in ("", name) or name.startswith(f"{stem}.")]
        nearest = max(fitting, key=len, default=None)
        used.update(fitting)
        bijection = Real() if nearest is None else _bijection(nearest, given[nearest])
        try:
            bijection.free_shape(np.shape(leaf))
        except ValueError as error:
            raise ValueError(f"constraints of {name or 'the parameters'!r}: {error}.") from None
        chosen.append(bijection)
    unknown = sorted(set(given) - used)
    if unknown:
        known = ", ".join(_name(path) or "(a bare array)" for path, _ in jax.tree_util.tree_leaves_with_path(example))
        raise ValueError(f"constraints names {', '.join(unknown)}, but the parameters are: {known}.")
    return tuple(chosen)


def _leaves(constraints: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(
        constraints, is_leaf=lambda node: node is None or isinstance(node, AbstractBijection)
    )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _bijection(name: str, spec: Any) -> AbstractBijection:
    if spec is None:
        return Real()
    if isinstance(spec, AbstractBijection):
        return spec
    if isinstance(spec, str) and spec in _NAMED:
        return _NAMED[spec]
    raise ValueError(
        f"constraints of {name or 'the parameters'!r} is {spec!r}; it must be None, provi.targets.interval(a, b), "
        f"or one of: {', '.join(_NAMED)}."
    )


def constrained(bijections: Sequence[AbstractBijection], free: Any) -> Any:
    """The user's pytree from the pytree of free coordinates."""
    leaves, structure = jax.tree.flatten(free)
    return jax.tree.unflatten(structure, [b.forward(x) for b, x in zip(bijections, leaves, strict=True)])


def log_determinant(bijections: Sequence[AbstractBijection], free: Any) -> Scalar:
    """log |det| of `constrained`: the sum over the leaves."""
    terms = [b.log_det(x) for b, x in zip(bijections, jax.tree.leaves(free), strict=True)]
    return jnp.sum(jnp.stack(terms))


def unconstrained(argument: str, bijections: Sequence[AbstractBijection], values: Any) -> Any:
    """The free coordinates of the user's pytree; a `ValueError` names `argument` and the leaf outside its set.

    The values are concrete arrays, of the right structure and shapes.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(values)
    free = []
    for bijection, (path, leaf) in zip(bijections, paths, strict=True):
        if not bijection.contains(np.asarray(leaf, np.float64)):
            where = f"{argument} ({_name(path)})" if path else argument
            raise ValueError(f"{where} must be {bijection.description}; it is {np.asarray(leaf)}.")
        free.append(bijection.inverse(jnp.asarray(leaf)))
    return jax.tree.unflatten(structure, free)


def zeros_for(bijections: Sequence[AbstractBijection], example: Any) -> Any:
    """Free coordinates 0: the middle of each constraint."""
    leaves, structure = jax.tree.flatten(example)
    free = [jnp.zeros(b.free_shape(x.shape), x.dtype) for b, x in zip(bijections, leaves, strict=True)]
    return jax.tree.unflatten(structure, free)
