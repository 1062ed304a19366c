"""Sums over the rows of a linear model, a block at a time: the one place where a pass over the data is made.

A pass holds one block and what it adds up to, wherever the rows are. Proofs ask for `dtype=float64`: each block is
widened when its turn comes, and the data stay as they are.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import blas

from provi.core.host_primitives import fills
from provi.core.host_program import by_hand

_NUMBERS_AT_ONCE, _NUMBERS_IN_CACHE, _FEWEST_ROWS, _MOST_ROWS = 2**23, 2**20, 4096, 2**16
"""Numbers of a block on an accelerator, and on a processor, whose caches hold what stands between two products: with
2^20 a fit of 200,000 x 100 rows took 0.56 times as long as with 2^23, and with 2^19 0.62 times. Moments take some
thirty numbers a row, so that tables of few columns have fewer rows in a block there: each thread holds one."""


class RowNumbers(eqx.Module):
    """What rows bring along where no table holds it: their responses, offsets and weights (None: zeros, ones).

    It stands where else the response of a row is, and a `RowLikelihood` reads it.
    """

    value: Any
    offset: Any = None
    weight: Any = None


class Rows(eqx.Module):
    """Some rows x_n of a linear model, their responses, and their variance offsets or `None`."""

    design: Any
    response: Any
    variance_offset: Any = None
    by_columns: bool = eqx.field(static=True, default=False)
    """Whether the design is a transposed table of columns: products are quicker from the other side."""

    def total_variance(self, variance: Any) -> Any:
        """The variance of the linear predictor, with that of its independent noise."""
        return variance if self.variance_offset is None else variance + self.variance_offset


def block_size(target: Any) -> int:
    """The largest number of rows that a pass holds at once."""
    stream = getattr(target, "stream", None)
    if stream is not None:
        return stream.tile_rows
    if jax.default_backend() != "cpu":
        return max(_FEWEST_ROWS, _NUMBERS_AT_ONCE // target.dim)
    return min(max(_FEWEST_ROWS, _NUMBERS_IN_CACHE // target.dim), _MOST_ROWS)


def sum_over_rows(
    target: Any,
    function: Callable[[Rows, Any], Any],
    combine: Callable = jnp.add,
    dtype: Any = None,
    at_once: bool = False,
) -> Any:
    """The sum over the blocks of `function(rows, real)`, a pytree of arrays whose shapes do not depend on the block.

    Rows with `real` false belong to another block and must count for nothing. A model of few rows is one block.
    `combine` may be another operation under which zero changes nothing, such as the maximum of shares.
    `dtype`: what the floating numbers of a block are widened to; None leaves them as they are.
    `at_once`: all rows that are here are one block, for a function that needs little memory itself.
    """
    stream, division = getattr(target, "stream", None), target.division
    if stream is not None:

        def tile(k: Any) -> Any:
            columns, response, real = stream.tile(k)
            return function(_widened(Rows(columns.T, response, by_columns=True), dtype), real)

        return _sum_over_blocks(tile, stream.num_tiles, combine)
    data = target.row_data()
    if division is None or division.terms is None:
        return _in_blocks(target, data, None, function, combine, dtype, at_once)

    def own(part: Any, first: Any) -> Any:
        # Blocks are runs of one device's rows: a run across devices would have to be brought together.
        return _in_blocks(target, part, division.terms - first, function, combine, dtype, at_once)

    return division.sum(own, data, combine)


def _in_blocks(
    target: Any, data: Any, real: Any, function: Callable, combine: Callable, dtype: Any, at_once: bool
) -> Any:
    """The sum over the rows of `data`, of which the first `real` count, or all (None)."""
    terms, most = jax.tree.leaves(data)[0].shape[0], block_size(target)
    if at_once or terms <= most:
        counted = jnp.ones(terms, bool) if real is None else jnp.arange(terms) < real
        return function(_widened(target.rows(data), dtype), counted)
    num_blocks = -(-terms // most)
    size = -(-terms // num_blocks)

    def block(k: Any) -> Any:
        # The last block begins early enough to be full: padding would copy the data.
        start = jnp.minimum(k * size, terms - size)
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(jnp.asarray(x), start, size), data)
        place = start + jnp.arange(size)
        counted = place >= k * size if real is None else (place >= k * size) & (place < real)
        return function(_widened(target.rows(part), dtype), counted)

    return _sum_over_blocks(block, num_blocks, combine)


def _sum_over_blocks(block: Callable[[Any], Any], num_blocks: int, combine: Callable) -> Any:
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(block, jnp.zeros((), int)))

    def add(sums: Any, k: Any) -> Any:
        return jax.tree.map(combine, sums, block(k)), None

    return jax.lax.scan(add, zero, jnp.arange(num_blocks))[0]


_HIGHEST = jax.lax.Precision.HIGHEST

_TRIANGULAR: dict[str, Any] = {kind: getattr(blas, name) for kind, name in (("f", "strmm"), ("d", "dtrmm"))}

_CHUNK = 1024
"""Rows that NumPy works on at a time: what stands between two products then stays in the cache."""


def _chunks(table: Any) -> list[slice]:
    return [slice(first, min(first + _CHUNK, len(table))) for first in range(0, len(table), _CHUNK)]


@fills
def _row_products(table: Any, matrix: Any, out: Any = None) -> Any:
    found = np.empty((len(table), matrix.shape[1]), table.dtype) if out is None else out
    multiply = _multiplication(matrix)
    for rows in _chunks(table):
        multiply(table[rows], found[rows])
    return found


def _projected(table: Any, vector: Any, matrix: Any) -> list[Any]:
    centre, norms = np.empty(len(table), table.dtype), np.empty(len(table), table.dtype)
    multiply, buffer = _multiplication(matrix), np.empty((min(_CHUNK, len(table)), matrix.shape[1]), table.dtype)
    for rows in _chunks(table):
        part, product = table[rows], buffer[: rows.stop - rows.start]
        np.matmul(part, vector, out=centre[rows])
        multiply(part, product)
        np.vecdot(product, product, out=norms[rows])
    return [centre, norms]


def _weighted(table: Any, slopes: Any, weights: Any) -> list[Any]:
    signed = bool((weights < 0).any())
    factors, buffer = weights if signed else np.sqrt(weights), np.empty_like(table[:_CHUNK])
    slope, gram = np.zeros(table.shape[1], table.dtype), np.zeros(2 * table.shape[1:], table.dtype)
    for rows in _chunks(table):
        part, scaled = table[rows], buffer[: rows.stop - rows.start]
        slope += slopes[rows] @ part
        np.multiply(part, factors[rows, None], out=scaled)
        gram += (part if signed else scaled).T @ scaled
    return [slope, gram]


def _magnitudes(table: Any, matrix: Any) -> Any:
    found = np.empty((len(table), matrix.shape[1]), table.dtype)
    for rows in _chunks(table):
        np.matmul(np.abs(table[rows]), matrix, out=found[rows])
    return found


def _real_gram(table: Any, real: Any) -> Any:
    rows = table if real.all() else table[real]
    return rows.T @ rows


def _multiplication(matrix: Any) -> Callable[[Any, Any], Any]:
    """Rows times a matrix, into a table of their own: half the work where it is square and triangular."""
    lower = next(
        (lower for lower in (True, False) if not (np.triu(matrix, 1) if lower else np.tril(matrix, -1)).any()), None
    )
    if lower is None or matrix.shape[0] != matrix.shape[1]:
        return lambda rows, out: np.matmul(rows, matrix, out=out)
    function = _TRIANGULAR[matrix.dtype.char]
    # BLAS counts by columns: its matrices are transposed.
    turned = np.ascontiguousarray(matrix).T

    def multiply(rows: Any, out: Any) -> None:
        out[:] = rows
        found = function(1.0, turned, out.T, lower=not lower, overwrite_b=1)
        if not np.shares_memory(found, out):
            out[:] = found.T

    return multiply


@by_hand(_row_products, 2, 2)
def products(design: Any, root: Any) -> Any:
    """x_n'C of every row."""
    return jnp.dot(design, root, precision=_HIGHEST)


@by_hand(_projected, 2, 1, 2)
def projections(design: Any, loc: Any, root: Any) -> tuple[Any, Any]:
    """x_n'm and |C'x_n|^2 of every row."""
    product = jnp.dot(design, root, precision=_HIGHEST)
    return jnp.dot(design, loc, precision=_HIGHEST), jnp.sum(product**2, axis=1)


@by_hand(_weighted, 2, 1, 1)
def weighted_sums(design: Any, slopes: Any, weights: Any) -> tuple[Any, Any]:
    r"""The sums of $s_nx_n$ and of $w_nx_nx_n'$, the latter as $S'S$ with rows $\sqrt{w_n}\,x_n$ unless a weight is
    negative.

    A product of a matrix with itself is half the work, which NumPy's BLAS makes use of. Every entry of it is rounded
    five times beside the additions, against three of $X'(wX)$.
    """

    def of_roots(design: Any, weights: Any) -> Any:
        roots = jnp.sqrt(weights)[:, None] * design
        return jnp.dot(roots.T, roots, precision=_HIGHEST)

    def general(design: Any, weights: Any) -> Any:
        return jnp.dot(design.T, weights[:, None] * design, precision=_HIGHEST)

    gram = jax.lax.cond(jnp.any(weights < 0), general, of_roots, design, weights)
    return jnp.dot(design.T, slopes, precision=_HIGHEST), gram


@by_hand(_magnitudes, 2, 2)
def magnitudes(design: Any, vectors: Any) -> Any:
    """|X| times the columns of `vectors`."""
    return jnp.dot(jnp.abs(design), vectors, precision=_HIGHEST)


@by_hand(_real_gram, 2, 1)
def real_gram(design: Any, real: Any) -> Any:
    """X'X of the rows that are real."""
    return design.T @ jnp.where(real[:, None], design, 0)


def weighted_gram(design: Any, weights: Any) -> Any:
    """The second of `weighted_sums` alone."""
    return weighted_sums(design, jnp.zeros_like(weights), weights)[1]


def keep(real: Any, moments: Any) -> Any:
    """The pytree of numbers, one a row, with zeros for the rows that are not real."""
    return jax.tree.map(lambda x: jnp.where(real, x, 0), moments)


def _widened(rows: Any, dtype: Any) -> Any:
    def widen(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != dtype else leaf

    return rows if dtype is None else jax.tree.map(widen, rows)
