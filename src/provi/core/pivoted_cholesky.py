"""Partial pivoted Cholesky factor of a positive semidefinite matrix that is known by its columns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from provi.core.types import Count, Vector


class PivotedCholesky(NamedTuple):
    r"""$K \approx P P'$, with $K - P P'$ positive semidefinite.

    `factor` is P, of shape (n, rank); `residual` the diagonal of $K - PP'$, whose sum bounds every norm of the error;
    `pivots` the indices chosen, in order; `num_pivots` how many of them count: later columns of P are zero.
    """

    factor: Float[Array, "dim rank"]
    residual: Vector
    pivots: Int[Array, " rank"]
    num_pivots: Count


def pivoted_cholesky(column: Callable[[Count], Vector], diagonal: Vector, rank: int) -> PivotedCholesky:
    r"""The greedy low-rank factor: each step takes the column with the largest residual variance.

    $i = \arg\max d$, $p = (K_{:i} - P P_{i:}') / \sqrt{d_i}$, $d \leftarrow d - p^2$. Costs `rank` columns of K and
    $O(n\,\mathrm{rank}^2)$ operations. It stops adding columns when $\max d \le n\,\epsilon \max_i K_{ii}$, the size
    of rounding, so that a matrix of low rank (equal points, one long length scale) gives no division by zero.

    **Arguments:**

    - `column`: i -> K[:, i], traceable in i.
    - `diagonal`: the diagonal of K.
    - `rank`: the number of columns of the factor, at most n are used.

    **Returns:** a `PivotedCholesky`.
    """
    dim, dtype = diagonal.shape[0], diagonal.dtype
    rank = min(rank, dim)
    rounding = dim * jnp.finfo(dtype).eps * jnp.max(diagonal)

    def step(index: Any, carry: Any) -> Any:
        rows, residual, pivots, used = carry
        pivot = jnp.argmax(residual).astype(jnp.int32)
        variance = residual[pivot]
        active = variance > rounding
        new = (column(pivot) - rows[:, pivot] @ rows) / jnp.sqrt(jnp.where(active, variance, 1))
        new = jnp.where(active, new, 0)
        # A pivot's own variance is used up exactly; others can become negative by rounding only.
        residual = jnp.maximum(residual - new**2, 0).at[pivot].min(jnp.where(active, 0, jnp.inf))
        return rows.at[index].set(new), residual, pivots.at[index].set(pivot), used + active

    pivots, used = jnp.zeros(rank, jnp.int32), jnp.zeros((), jnp.int32)
    start = (jnp.zeros((rank, dim), dtype), diagonal, pivots, used)
    rows, residual, pivots, used = jax.lax.fori_loop(0, rank, step, start)
    return PivotedCholesky(rows.T, residual, pivots, used)
