r"""The log determinant of a positive definite operator known by its action, by stochastic Lanczos quadrature.

$\log|A| = \mathrm{tr}\log A = E\,z'(\log A)z$ for signs z, each by Gauss quadrature: with T the Lanczos matrix of A
from $z/|z|$, $z'(\log A)z \approx |z|^2e_1'(\log T)e_1$ (Ubaru, Chen and Saad 2017). The standard error is that of the
probes; that of the quadrature falls geometrically with the number of steps, at the rate of conjugate gradients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.conjugate_gradients import Columns
from provi.core.types import RandomKey, Scalar

_PROBES = 32


def stochastic_log_det(
    multiply: Callable[[Columns], Columns],
    key: RandomKey,
    dim: int,
    num_batches: int,
    num_steps: int,
    dtype: Any,
) -> tuple[Scalar, Scalar]:
    """The estimate of log |A| and its standard error over the probes.

    **Arguments:**

    - `multiply`: V -> A V, for columns; A symmetric with positive eigenvalues.
    - `num_batches`: of 32 probes, one after the other; the Lanczos vectors of one are kept at a time.
    - `num_steps`: products of A with each probe, at most `dim` are made.
    """
    found = jax.lax.map(
        lambda own: _quadratures(multiply, own, dim, min(num_steps, dim), dtype), jax.random.split(key, num_batches)
    ).reshape(-1)
    return jnp.mean(found), jnp.std(found, ddof=1) / jnp.sqrt(jnp.asarray(found.shape[0], dtype))


def _quadratures(
    multiply: Callable[[Columns], Columns], key: RandomKey, dim: int, steps: int, dtype: Any
) -> Float[Array, " probes"]:
    """z' (log A) z for each probe of a batch."""
    probes = jax.random.rademacher(key, (dim, _PROBES), dtype) / jnp.sqrt(jnp.asarray(dim, dtype))
    tolerance = 10 * dim * jnp.finfo(dtype).eps

    def step(index: Any, carry: Any) -> Any:
        basis, diagonal, below, alive = carry
        vector = basis[index]
        image = multiply(vector)
        rayleigh = jnp.sum(vector * image, axis=0)
        residual = image
        for _ in range(2):  # twice is enough (Kahan and Parlett)
            residual = residual - jnp.einsum("knp,kp->np", basis, jnp.einsum("knp,np->kp", basis, residual))
        length = jnp.sqrt(jnp.sum(residual**2, axis=0))
        going = alive & (length > tolerance * jnp.abs(rayleigh))
        following = jnp.where(going[None, :], residual / jnp.where(going, length, 1)[None, :], 0)
        # An exhausted Krylov space: what follows is cut off, ones on the diagonal whose logarithm is zero.
        diagonal = diagonal.at[index].set(jnp.where(alive, rayleigh, 1))
        below = below.at[index].set(jnp.where(going, length, 0))
        return basis.at[index + 1].set(following), diagonal, below, going

    basis = jnp.zeros((steps + 1, dim, _PROBES), dtype).at[0].set(probes)
    zero = jnp.zeros((steps, _PROBES), dtype)
    start = (basis, zero, zero, jnp.ones(_PROBES, bool))
    _, diagonal, below, _ = jax.lax.fori_loop(0, steps, step, start)

    def quadrature(diagonal: Any, below: Any) -> Any:
        matrix = jnp.diag(diagonal) + jnp.diag(below[:-1], 1) + jnp.diag(below[:-1], -1)
        values, vectors = jnp.linalg.eigh(matrix)
        return jnp.sum(vectors[0] ** 2 * jnp.log(values))

    return dim * jax.vmap(quadrature, in_axes=(1, 1))(diagonal, below)
