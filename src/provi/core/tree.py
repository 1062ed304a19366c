"""Vector-space arithmetic on pytrees of arrays: the parameter space R^d x V and its gradients."""

from typing import Any

import jax
import jax.numpy as jnp

from provi.core.types import Flag, Scalar


def add_scaled(x: Any, factor: Any, y: Any) -> Any:
    """x + factor * y, leaf by leaf."""
    return jax.tree.map(lambda a, b: a + factor * b, x, y)


def scale(factor: Any, x: Any) -> Any:
    """factor * x."""
    return jax.tree.map(lambda a: factor * a, x)


def subtract(x: Any, y: Any) -> Any:
    """x - y."""
    return jax.tree.map(jnp.subtract, x, y)


def zeros_like(x: Any) -> Any:
    """The origin of the space `x` lives in."""
    return jax.tree.map(jnp.zeros_like, x)


def inner(x: Any, y: Any) -> Scalar:
    """Euclidean inner product <x, y>."""
    terms = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), x, y))
    return jnp.sum(jnp.stack(terms))


def squared_norm(x: Any) -> Scalar:
    """|x|^2 = <x, x>."""
    return inner(x, x)


def select(condition: Any, x: Any, y: Any) -> Any:
    """x where the scalar `condition` holds, else y."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def all_finite(x: Any) -> Flag:
    """True when no leaf holds a NaN or an infinity."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(x)]))
