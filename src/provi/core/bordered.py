r"""Positive definite matrices with a block tridiagonal part and a dense border, and what can be had of their inverses.

$$H = \begin{pmatrix}T & C\\C' & D\end{pmatrix}, \qquad T_{kj} = 0 \text{ for } |k - j| > 1,$$

n blocks of b rows each, and p rows in the border. Grouped models have T block diagonal, one block a group; chains and
graphs in a good order have it tridiagonal; with n = 0 the matrix is dense. With $T = LL'$, $G = T^{-1}C$ and the Schur
complement $S^{-1} = D - C'G$,

$$H^{-1} = \begin{pmatrix}T^{-1} + GSG' & -GS\\-SG' & S\end{pmatrix}, \qquad
\log\det H = \log\det T + \log\det S^{-1}.$$

Of $T^{-1}$ the diagonal blocks and those beside it are computed (Takahashi's recursion): all that variances of rows
need whose entries lie in neighbouring blocks. $O(nb^3 + nb^2p + nbp^2 + p^3)$ operations.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

_UNROLLED = 3
"""Blocks up to this size are factored entry by entry, for all blocks at once: LAPACK is called block by block."""


class Bordered(eqx.Module):
    """`diagonal` (n, b, b); `below` (n - 1, b, b), the blocks T[k + 1, k], or None; `border` (n, b, p); `corner`."""

    diagonal: Any
    below: Any
    border: Any
    corner: Any

    def multiply(self, inner: Any, outer: Any) -> tuple[Any, Any]:
        """H times a vector, given and returned as its parts (n, b) and (p,)."""
        top = jnp.einsum("kij,kj->ki", self.diagonal, inner) + self.border @ outer
        if self.below is not None:
            top = top.at[1:].add(jnp.einsum("kij,kj->ki", self.below, inner[:-1]))
            top = top.at[:-1].add(jnp.einsum("kji,kj->ki", self.below, inner[1:]))
        return top, jnp.einsum("kbp,kb->p", self.border, inner) + self.corner @ outer


class Factor(eqx.Module):
    """What the inverse of a `Bordered` matrix is known by.

    - `lower`: L[k, k]; `beside`: L[k + 1, k] or None. - `inverse`, `inverse_beside`: blocks of T^-1.
    - `solved`: G. - `schur_lower`: the Cholesky factor of S^-1. - `log_det`: of H.
    """

    lower: Any
    beside: Any
    inverse: Any
    inverse_beside: Any
    border: Any
    solved: Any
    schur_lower: Any
    log_det: Any

    def solve(self, inner: Any, outer: Any) -> tuple[Any, Any]:
        """H^-1 times a vector, or a matrix with its columns last: parts (n, b, ...) and (p, ...)."""
        first = _solve_blocks(self, inner)
        rest = outer - jnp.tensordot(jnp.moveaxis(self.border, 2, 0), first, axes=[[1, 2], [0, 1]])
        outer = _cholesky_solve(self.schur_lower, rest)
        return first - jnp.tensordot(self.solved, outer, axes=[[2], [0]]), outer

    def root(self, inner: Any, outer: Any) -> tuple[Any, Any]:
        """R times standard normal numbers, RR' = H^-1."""
        outer = solve_triangular(self.schur_lower, outer, lower=True, trans=1)
        return _solve_transposed(self, inner) - self.solved @ outer, outer

    def row_variances(self, index: Any, values: Any, border: Any) -> Any:
        """a'H^-1 a of rows a: `values` at the places `index` of T (r a row), and dense over the border."""
        rest = border
        local = jnp.zeros(len(border))
        if index.shape[1]:
            size = self.inverse.shape[1]
            block, place = index // size, index % size
            for i in range(index.shape[1]):
                rest = rest - values[:, i, None] * self.solved[block[:, i], place[:, i]]
                for j in range(i + 1):
                    entry = self._entry(block[:, i], place[:, i], block[:, j], place[:, j])
                    local = local + (1 if i == j else 2) * values[:, i] * values[:, j] * entry
        if not rest.shape[1]:
            return local
        white = solve_triangular(self.schur_lower, rest.T, lower=True)
        return local + jnp.sum(white**2, axis=0)

    def _entry(self, block: Any, place: Any, other: Any, second: Any) -> Any:
        """An entry of T^-1 in the same block, or in neighbouring ones."""
        same = self.inverse[block, place, second]
        if self.inverse_beside is None:
            return jnp.where(block == other, same, 0.0)
        last = self.inverse_beside.shape[0] - 1
        under = self.inverse_beside[jnp.clip(other, 0, last), place, second]
        above = self.inverse_beside[jnp.clip(block, 0, last), second, place]
        found = jnp.where(block == other + 1, under, jnp.where(other == block + 1, above, 0.0))
        return jnp.where(block == other, same, found)


def factorise(matrix: Bordered) -> Factor:
    """The factor of a positive definite matrix; not-a-numbers where it is not."""
    size = matrix.diagonal.shape[1]
    if not matrix.diagonal.shape[0]:
        lower = inverse = matrix.diagonal
        beside = inverse_beside = None
        solved = matrix.border
    elif matrix.below is None:
        lower, inverse = small_factor(matrix.diagonal)
        beside = inverse_beside = None
        solved = jnp.einsum("kij,kjp->kip", inverse, matrix.border)
    else:
        lower, beside, inverse, inverse_beside = _tridiagonal(matrix.diagonal, matrix.below)
        solved = _solve_chain(lower, beside, matrix.border)
    schur = matrix.corner - jnp.einsum("kbp,kbq->pq", matrix.border, solved)
    schur_lower = jnp.linalg.cholesky((schur + schur.T) / 2) if schur.shape[0] else schur
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(schur_lower)))
    if size:
        log_det = log_det + 2 * jnp.sum(jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)))
    return Factor(lower, beside, inverse, inverse_beside, matrix.border, solved, schur_lower, log_det)


def small_factor(blocks: Any) -> tuple[Any, Any]:
    """Cholesky factors and inverses of many small matrices (n, b, b)."""
    size = blocks.shape[1]
    if size > _UNROLLED:
        lower = jnp.linalg.cholesky(blocks)
        eye = jnp.broadcast_to(jnp.eye(size, dtype=blocks.dtype), blocks.shape)
        inverse = solve_triangular(lower, eye, lower=True)
        return lower, jnp.swapaxes(inverse, 1, 2) @ inverse
    zero = jnp.zeros(blocks.shape[0], blocks.dtype)
    low: list[list[Any]] = [[zero] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            left = blocks[:, i, j] - sum((low[i][k] * low[j][k] for k in range(j)), zero)
            low[i][j] = jnp.sqrt(left) if i == j else left / low[j][j]
    half: list[list[Any]] = [[zero] * size for _ in range(size)]
    for j in range(size):
        half[j][j] = 1 / low[j][j]
        for i in range(j + 1, size):
            half[i][j] = -sum((low[i][k] * half[k][j] for k in range(j, i)), zero) / low[i][i]
    inverse = [
        [sum((half[k][i] * half[k][j] for k in range(max(i, j), size)), zero) for j in range(size)] for i in range(size)
    ]
    return _stacked(low), _stacked(inverse)


def _stacked(entries: list[list[Any]]) -> Any:
    return jnp.stack([jnp.stack(row, axis=1) for row in entries], axis=1)


def _tridiagonal(diagonal: Any, below: Any) -> tuple[Any, Any, Any, Any]:
    """The block Cholesky factor, and the blocks of the inverse on and below the diagonal."""
    eye = jnp.eye(diagonal.shape[1], dtype=diagonal.dtype)

    def forward(carry: Any, blocks: Any) -> tuple[Any, Any]:
        block, under = blocks
        lower = jnp.linalg.cholesky(block - carry @ carry.T)
        half = solve_triangular(lower, eye, lower=True)
        beside = under @ half.T
        return beside, (lower, half, beside)

    padded = jnp.concatenate([below, jnp.zeros_like(below[:1])])
    _, (lower, half, beside) = jax.lax.scan(forward, jnp.zeros_like(diagonal[0]), (diagonal, padded))

    def backward(later: Any, blocks: Any) -> tuple[Any, Any]:
        half, beside = blocks
        step = beside @ half
        here = half.T @ half + step.T @ later @ step
        return here, (here, -later @ step)

    _, (inverse, under) = jax.lax.scan(backward, jnp.zeros_like(diagonal[0]), (half, beside), reverse=True)
    return lower, beside[:-1], inverse, under[:-1]


def _solve_chain(lower: Any, beside: Any, right: Any) -> Any:
    """T^-1 times (n, b, q)."""
    return _backward(lower, beside, _forward(lower, beside, right))


def _forward(lower: Any, beside: Any, right: Any) -> Any:
    padded = jnp.concatenate([jnp.zeros_like(beside[:1]), beside])

    def step(before: Any, blocks: Any) -> tuple[Any, Any]:
        low, under, rhs = blocks
        here = solve_triangular(low, rhs - under @ before, lower=True)
        return here, here

    return jax.lax.scan(step, jnp.zeros_like(right[0]), (lower, padded, right))[1]


def _backward(lower: Any, beside: Any, right: Any) -> Any:
    padded = jnp.concatenate([beside, jnp.zeros_like(beside[:1])])

    def step(after: Any, blocks: Any) -> tuple[Any, Any]:
        low, under, rhs = blocks
        here = solve_triangular(low, rhs - under.T @ after, lower=True, trans=1)
        return here, here

    return jax.lax.scan(step, jnp.zeros_like(right[0]), (lower, padded, right), reverse=True)[1]


def _solve_blocks(factor: Factor, right: Any) -> Any:
    """T^-1 times (n, b) or (n, b, q)."""
    if not right.shape[0]:
        return right
    if factor.beside is None:
        return jnp.einsum("kij,kj...->ki...", factor.inverse, right)
    if right.ndim == 2:
        return _solve_chain(factor.lower, factor.beside, right[:, :, None])[:, :, 0]
    return _solve_chain(factor.lower, factor.beside, right)


def _solve_transposed(factor: Factor, right: Any) -> Any:
    """L'^-1 times (n, b)."""
    if not right.shape[0]:
        return right
    if factor.beside is not None:
        return _backward(factor.lower, factor.beside, right[:, :, None])[:, :, 0]
    if factor.lower.shape[1] > _UNROLLED:
        return solve_triangular(factor.lower, right[:, :, None], lower=True, trans=1)[:, :, 0]
    size, low = factor.lower.shape[1], factor.lower
    found: list[Any] = [None] * size
    for i in reversed(range(size)):
        left = right[:, i] - sum((low[:, k, i] * found[k] for k in range(i + 1, size)), jnp.zeros_like(right[:, i]))
        found[i] = left / low[:, i, i]
    return jnp.stack(found, axis=1)


def _cholesky_solve(lower: Any, right: Any) -> Any:
    if not lower.shape[0]:
        return right
    return solve_triangular(lower, solve_triangular(lower, right, lower=True), lower=True, trans=1)
