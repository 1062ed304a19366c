"""How much memory a table of surrogates will take, known and compared with what there is before anything is made."""

from typing import Any

import jax
import jax.numpy as jnp

from provi.algorithms.surrogate_table import block_size, empty_mean, empty_table, num_bytes
from provi.algorithms.surrogates import AbstractSurrogate
from provi.core.memory import available_bytes
from provi.core.types import Indices, RandomKey

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
    if type(surrogate).arrange is AbstractSurrogate.arrange:
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
