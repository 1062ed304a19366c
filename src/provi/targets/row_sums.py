"""Sums over the rows of a linear model, a block at a time: the one place where a pass over the data is made.

A pass holds one block and what it adds up to, wherever the rows are. Proofs ask for `dtype=float64`: each block is
widened when its turn comes, and the data stay as they are.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

_NUMBERS_AT_ONCE, _NUMBERS_IN_CACHE, _FEWEST_ROWS = 2**23, 2**20, 4096
"""Numbers of a block on an accelerator, and on a processor, whose caches hold what stands between two products: with
2^20 a fit of 200,000 x 100 rows took 0.56 times as long as with 2^23, and with 2^19 0.62 times."""


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
    at_once = _NUMBERS_IN_CACHE if jax.default_backend() == "cpu" else _NUMBERS_AT_ONCE
    return max(_FEWEST_ROWS, at_once // target.dim)


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


def weighted_gram(design: Any, weights: Any, precision: Any = jax.lax.Precision.HIGHEST) -> Any:
    r"""$\sum_n w_nx_nx_n'$ of the rows, as $S'S$ with $s_n = \sqrt{w_n}\,x_n$ unless a weight is negative.

    A product of a matrix with itself is half the work, which NumPy's BLAS makes use of. Every entry of it is rounded
    five times beside the additions, against three of $X'(wX)$.
    """

    def of_roots(design: Any, weights: Any) -> Any:
        roots = jnp.sqrt(weights)[:, None] * design
        return jnp.dot(roots.T, roots, precision=precision)

    def general(design: Any, weights: Any) -> Any:
        return jnp.dot(design.T, weights[:, None] * design, precision=precision)

    return jax.lax.cond(jnp.any(weights < 0), general, of_roots, design, weights)


def keep(real: Any, moments: Any) -> Any:
    """The pytree of numbers, one a row, with zeros for the rows that are not real."""
    return jax.tree.map(lambda x: jnp.where(real, x, 0), moments)


def _widened(rows: Any, dtype: Any) -> Any:
    def widen(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != dtype else leaf

    return rows if dtype is None else jax.tree.map(widen, rows)
