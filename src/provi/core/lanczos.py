"""Extreme eigenvalues of a symmetric operator that is known only through its action on vectors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import RandomKey, Scalar, Vector


def extreme_eigenvalues(
    matvec: Callable[[Vector], Vector], key: RandomKey, dim: int, num_iterations: int, dtype: Any
) -> tuple[Scalar, Scalar]:
    """The smallest and the largest Ritz value of a symmetric operator, by Lanczos' method.

    Ritz values lie inside the spectrum: the largest eigenvalue is at least the second result, the
    smallest at most the first. With `num_iterations >= dim` both are exact up to rounding. The basis
    is reorthogonalised in full, twice, and where the Krylov space is exhausted the method goes on from a
    fresh direction, so that a repeated eigenvalue hides nothing.

    **Arguments:**

    - `matvec`: v -> A v.
    - `key`: a random key, for the starting directions.
    - `dim`: the size of A.
    - `num_iterations`: the number of products; at most `dim` are made.
    - `dtype`: the floating type of the vectors.

    **Returns:** (smallest, largest).
    """
    size = min(num_iterations, dim)
    fresh = jax.random.normal(key, (size + 1, dim), dtype)
    tolerance = 10 * dim * jnp.finfo(dtype).eps

    def step(index: Any, carry: Any) -> Any:
        basis, diagonal, off_diagonal, magnitude = carry
        vector = basis[index]
        image = matvec(vector)
        rayleigh = jnp.dot(vector, image)
        residual = _orthogonalise(basis, image)
        length = jnp.linalg.norm(residual)
        magnitude = jnp.maximum(magnitude, jnp.linalg.norm(image))
        exhausted = length <= tolerance * magnitude
        following = jnp.where(exhausted, _orthogonalise(basis, fresh[index + 1]), residual)
        return (
            basis.at[index + 1].set(_normalise(following)),
            diagonal.at[index].set(rayleigh),
            off_diagonal.at[index].set(jnp.where(exhausted, 0.0, length)),
            magnitude,
        )

    basis = jnp.zeros((size + 1, dim), dtype).at[0].set(_normalise(fresh[0]))
    start = (basis, jnp.zeros(size, dtype), jnp.zeros(size, dtype), jnp.zeros((), dtype))
    _, diagonal, off_diagonal, _ = jax.lax.fori_loop(0, size, step, start)
    inner = off_diagonal[: size - 1]
    ritz = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(inner, 1) + jnp.diag(inner, -1))
    return ritz[0], ritz[-1]


def _orthogonalise(basis: Float[Array, "rows dim"], vector: Vector) -> Vector:
    # Once leaves components of the size of the cancellation; twice is enough (Kahan and Parlett).
    once = vector - basis.T @ (basis @ vector)
    return once - basis.T @ (basis @ once)


def _normalise(vector: Vector) -> Vector:
    length = jnp.linalg.norm(vector)
    return vector / jnp.where(length > 0, length, 1.0)
