"""The rows of a linear model, a block at a time: what a pass over the data may hold in memory."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

_NUMBERS_AT_ONCE, _FEWEST_ROWS = 2**23, 4096


class Rows(eqx.Module):
    """Some rows x_n of a linear model, their responses, and their variance offsets or `None`."""

    design: Any
    response: Any
    variance_offset: Any = None

    def total_variance(self, variance: Any) -> Any:
        """The variance of the linear predictor, with that of its independent noise."""
        return variance if self.variance_offset is None else variance + self.variance_offset


def block_size(target: Any) -> int:
    """The largest number of rows that a pass holds at once."""
    return max(_FEWEST_ROWS, _NUMBERS_AT_ONCE // target.dim)


def sum_over_rows(target: Any, function: Callable[[Rows, Any], Any], combine: Callable = jnp.add) -> Any:
    """The sum over the blocks of `function(rows, real)`, a pytree of arrays whose shapes do not depend on the block.

    Rows with `real` false belong to another block and must count for nothing. A model of few rows is one block.
    `combine` may be another operation under which zero changes nothing, such as the maximum of shares.
    """
    data, terms = target.row_data(), target.num_terms
    most = block_size(target)
    if terms <= most:
        return function(target.rows(data), jnp.ones(terms, bool))
    num_blocks = -(-terms // most)
    size = -(-terms // num_blocks)

    def block(k: Any) -> Any:
        # The last block begins early enough to be full: padding would copy the data.
        start = jnp.minimum(k * size, terms - size)
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(jnp.asarray(x), start, size), data)
        return function(target.rows(part), start + jnp.arange(size) >= k * size)

    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(block, jnp.zeros((), int)))

    def add(sums: Any, k: Any) -> Any:
        return jax.tree.map(combine, sums, block(k)), None

    return jax.lax.scan(add, zero, jnp.arange(num_blocks))[0]


def keep(real: Any, moments: Any) -> Any:
    """The pytree of numbers, one a row, with zeros for the rows that are not real."""
    return jax.tree.map(lambda x: jnp.where(real, x, 0), moments)
