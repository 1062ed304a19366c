"""The table of n surrogates' statistics and its running mean: made in blocks, read and written a batch at a time.

How much memory a table of surrogates will take, known and compared with what there is before anything is made.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from provi.algorithms.incremental.surrogates import AbstractSurrogate
from provi.core.arguments import available_bytes
from provi.core.types import Count, Indices, RandomKey

_BLOCK_BYTES = 2**25
"""The size of the blocks in which all n terms are worked through."""


def num_bytes(shapes: Any) -> int:
    """The memory that arrays of these shapes take."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def block_size(num_terms: int, row: Any, batch: int) -> int:
    """Terms worked on together when all n are: a batch's worth, and more where their arrays, like `row`, are small."""
    most = min(num_terms, max(batch, _BLOCK_BYTES // max(1, num_bytes(row))))
    num_blocks = -(-num_terms // most)
    return -(-num_terms // num_blocks)


def empty_table(num_terms: int, row: Any) -> Any:
    """Zeros for n terms; `row` holds the shapes of a batch of one."""
    return jax.tree.map(lambda x: jnp.zeros((num_terms, *x.shape[1:]), x.dtype), row)


def empty_mean(row: Any) -> Any:
    """A mean of no terms: zeros, in single precision at least."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape[1:], jnp.promote_types(x.dtype, jnp.float32)), row)


def take(table: Any, rows: Indices) -> Any:
    """The entries of `rows`."""
    # XLA turns a gather of one row into a slice, which it repeats wherever it is used, even after the row has been
    # overwritten: for that it would copy the whole table at each visit. A gather of two it carries out.
    twice = jnp.concatenate([rows, rows]) if rows.shape[0] == 1 else rows
    return jax.tree.map(lambda x: x[twice][: rows.shape[0]], table)


def put(table: Any, rows: Indices, new: Any) -> Any:
    """The table with new entries at `rows`; indices beyond its end are left out. In place inside a compiled loop."""
    return jax.tree.map(lambda x, y: x.at[rows].set(y.astype(x.dtype), mode="drop"), table, new)


def where_rows(keep: Bool[Array, " batch"], new: Any, old: Any) -> Any:
    """`new` in the rows that are kept, else `old`."""
    return jax.tree.map(lambda x, y: jnp.where(keep.reshape(-1, *[1] * (x.ndim - 1)), x, y), new, old)


def last_occurrences(rows: Indices) -> Bool[Array, " batch"]:
    """False where an index comes again later in the batch: each term's surrogate is replaced once a visit."""
    if rows.shape[0] == 1:
        return jnp.ones(1, bool)
    order = jnp.argsort(rows, stable=True)
    ordered = rows[order]
    last = jnp.concatenate([ordered[1:] != ordered[:-1], jnp.ones(1, bool)])
    return jnp.zeros(rows.shape[0], bool).at[order].set(last)


def fold_blocks(num_terms: int, block: int, wanted: Any, body: Callable[..., Any], start: Any) -> Any:
    """`body(block number, rows, real, carry)` over all n terms in blocks if the flag `wanted` holds, else `start`.

    `real` is False for places beyond the last term, whose index is n - 1. A loop without turns, unlike a conditional,
    leaves the table where it is.
    """

    def turn(k: Count, carry: Any) -> Any:
        places = k * block + jnp.arange(block)
        return body(k, jnp.minimum(places, num_terms - 1), places < num_terms, carry)

    num_blocks = jnp.where(wanted, -(-num_terms // block), 0)
    return jax.lax.fori_loop(jnp.zeros_like(num_blocks), num_blocks, turn, start)


def add_rows(surrogate: AbstractSurrogate, mean: Any, rows: Any, real: Bool[Array, " batch"]) -> Any:
    """The running mean after the real ones of these rows' statistics were counted in."""
    zero = jax.tree.map(jnp.zeros_like, rows)
    return as_like(mean, surrogate.merge(mean, zero, where_rows(real, rows, zero)))


def summed_again(surrogate: AbstractSurrogate, table: Any, mean: Any, wanted: Any) -> Any:
    """The mean from the table, free of what rounding has added up, if the flag `wanted` holds; else `mean`."""
    block = block_size(surrogate.num_terms, mean, 1)
    start = jax.tree.map(lambda m: jnp.where(wanted, jnp.zeros_like(m), m), mean)
    return fold_blocks(
        surrogate.num_terms,
        block,
        wanted,
        lambda k, rows, real, mean: add_rows(surrogate, mean, take(table, rows), real),
        start,
    )


def round_rows(key: RandomKey, new: Any, rows: Indices, dtype: Any) -> Any:
    r"""The batch's statistics, leading axis b, in the floating type of the table; None leaves them as they are.

    The values themselves are rounded, not only their copy in the table, so that a running mean of them in single
    precision is the mean of the table. XLA keeps more digits than a conversion to bfloat16 and back asks for unless it
    is told to drop them, as here.

    Rounding to bfloat16 (8 bits) is stochastic: up with the probability that makes it right on average. To nearest, all
    rows would err alike, by up to $2^{-9}$ of a parameter, and an iteration with smaller steps than that would stop.
    Key, row and place of an entry in it are hashed, which is cheaper than JAX's own random bits and does not depend on
    how the row is divided among devices.
    """
    if dtype is None:
        return new
    if jnp.dtype(dtype) != jnp.bfloat16:
        return jax.tree.map(lambda x: _nearest(x, dtype), new)
    seed = _hashed(jax.random.bits(key, (), jnp.uint32) ^ (rows.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)))

    def one(x: Array) -> Array:
        place = jnp.arange(x[0].size, dtype=jnp.uint32).reshape(1, *x.shape[1:])
        added = _hashed(place ^ seed.reshape(-1, *[1] * (x.ndim - 1))) >> 16
        bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) + added
        return jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32).astype(jnp.bfloat16)

    return jax.tree.map(one, new)


def _hashed(x: Array) -> Array:
    """MurmurHash3's last step, a permutation of the 32-bit numbers."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _nearest(x: Array, dtype: Any) -> Array:
    info = jnp.finfo(dtype)
    return jax.lax.reduce_precision(x, info.nexp, info.nmant).astype(dtype)


def as_like(like: Any, new: Any) -> Any:
    """`new` in the floating types of `like`, which a loop's state must keep."""
    return jax.tree.map(lambda x, y: jnp.asarray(y, x.dtype), like, new)


_GIB = 2**30


def visit_shapes(surrogate: AbstractSurrogate, parameters: Any) -> Any:
    """Shapes for a batch of one: (statistics, chains, (what is prepared, summary)), from draws if there are any."""

    def visit(key: RandomKey, parameters: Any, rows: Indices) -> Any:
        prepared = surrogate.prepare(parameters, rows)
        chains = surrogate.start_chains(key, parameters, rows, prepared)
        try:
            summary, chains = surrogate.draw(key, parameters, rows, prepared, chains)
        except ValueError as error:  # it has none, and says so
            try:
                summary = surrogate.expect(parameters, rows, prepared)
            except ValueError:
                raise error from None
        new = surrogate.build(parameters, rows, prepared, summary)
        return surrogate.rounded(key, rows, new), chains, (prepared, summary)

    return jax.eval_shape(visit, jax.random.key(0), parameters, jnp.zeros(1, jnp.int32))


def table_bytes(surrogate: AbstractSurrogate, parameters: Any, *, batch: int = 1, shapes: Any = None) -> int:
    r"""The memory that MISSO takes at most, in bytes; on each device, where the surrogate divides its table.

    $$n(r+c)+B(3r+2c+p+3s)+4(m+\theta)$$
    for n rows of statistics (r bytes each) and of chains (c), the mean (m) and the parameters ($\theta$), and for work
    B rows at once, those of a visit or of a block of the first pass: old, new and merged statistics, both chains, what
    is prepared (p), and three summaries (s), the sum, its first half and the latest draw. The mean and the parameters
    are there as they were before a call of the loop, in it, as proposed, and as accepted.

    Not counted: what the surrogate needs for one draw, such as a network's activations, and the data.

    **Arguments:** `batch`: terms visited at once. - `shapes`: those of `visit_shapes`, where they are known.
    """
    shapes = visit_shapes(surrogate, parameters) if shapes is None else shapes
    table, _ = _table_on_a_device(surrogate, shapes[0])
    return table + _other_bytes(surrogate, parameters, batch, shapes)


def _other_bytes(surrogate: AbstractSurrogate, parameters: Any, batch: int, shapes: Any) -> int:
    """All of the formula but the statistics of the n rows."""
    row, chain, (prepared, summary) = shapes
    at_once = block_size(surrogate.num_terms, shapes, batch)
    work = 3 * num_bytes(row) + 2 * num_bytes(chain) + num_bytes(prepared) + 3 * num_bytes(summary)
    mean = jax.eval_shape(lambda: empty_mean(row))
    return surrogate.num_terms * num_bytes(chain) + at_once * work + 4 * (num_bytes(mean) + num_bytes(parameters))


def _table_on_a_device(surrogate: AbstractSurrogate, row: Any) -> tuple[int, int]:
    """The bytes of the table on one device, and the number of devices that hold it."""
    n = surrogate.num_terms
    if type(surrogate).arrange is AbstractSurrogate.arrange or jax.device_count() == 1:
        return n * num_bytes(row), 1
    # Compiled, not run: this tells how the table will lie without making it.
    program = jax.jit(lambda: surrogate.arrange(empty_table(n, row))).lower().compile()
    table = jax.eval_shape(lambda: empty_table(n, row))
    size, devices = 0, 1
    for leaf, sharding in zip(jax.tree.leaves(table), jax.tree.leaves(program.output_shardings), strict=True):
        part = jax.ShapeDtypeStruct(sharding.shard_shape(leaf.shape), leaf.dtype)
        size, devices = size + num_bytes(part), max(devices, len(sharding.device_set))
    return size, devices


def check_memory(surrogate: AbstractSurrogate, parameters: Any, batch: int, shapes: Any) -> None:
    """`ValueError`, with sizes and remedies, if the table and the work on it do not fit."""
    table, devices = _table_on_a_device(surrogate, shapes[0])
    needed, there = table + _other_bytes(surrogate, parameters, batch, shapes), available_bytes(devices)
    if needed > there:
        where = f" on each of {devices} devices" if devices > 1 else ""
        raise ValueError(
            f"{surrogate.num_terms} surrogates need {needed / _GIB:.3g} GiB{where}, {table / _GIB:.3g} GiB of it for "
            f"the table, and {there / _GIB:.3g} GiB are there. Put more data into each term (larger blocks), keep the "
            f"table with table_dtype='bfloat16', divide it among more devices, or take a method without one: "
            f"BlockRule, or PacedMISSO with table=False."
        )
