r"""Sums over the rows of a large table on a GPU, each in one reading of it: the two halves of a linear model's pass.

XLA writes what stands between two products to memory and reads it again: of a pass with a full covariance, 64 bytes
move for every number of the table. Here nothing of the table's size is written:

* `projections`: $x_n'm$ and $|C'x_n|^2$ of every row, two numbers a row;
* `weighted_sums`: $\sum_n a_nx_n$ and $\sum_n w_nx_nx_n'$;
* `gradient_sums`: $\sum_n t(x_n'z, y_n)$ and $\sum_n t'(x_n'z, y_n)x_n$, the two halves of a gradient in one.

Between the first two stands what the model says of a row, $(a_n, w_n)$ from two numbers, which may be any likelihood.
On an H200 the two take 2 times as long as reading the table twice (`benchmarks/gpu_glm.py`). Within the third stands
the term itself, so it takes those whose operations the compiler of kernels has (`compiles`).

Precision: $x_n'm$ and the vectors are computed in float32. The two matrix products round their factors to bfloat16 (an
error of up to 1/256 in every number, of either sign) and add up in float32, runs of rows in float64. So they are for
steps, never for proofs: a step needs a curvature to a few per cent. Where columns nearly cancel in $C'x_n$, as those
of a year and an intercept do, that is not enough; the certificate then says so, and `structures.linear` goes on with
exact products.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

LARGEST_WIDTH, FEWEST_ROWS = 512, 2**16
"""Columns up to which a row's product with C is held by one block of threads; rows from which the kernels pay."""

_GRADIENT_NUMBERS, _GRADIENT_RUN, _GRADIENT_WARPS = 1024, 512, 4
"""Numbers of the table that a block of threads of `gradient_sums` holds; the rows that it adds up; its threads / 32.
The fastest of 27 choices on an H200, 2.27 to 3.76 ms for 8 GB: few numbers a thread, and the next ones on their way."""

_OPERATIONS = frozenset(
    "abs add add_any convert_element_type copy div eq exp expm1 ge gt le log log1p logistic lt max min mul ne neg "
    "select_n sign sqrt square sub broadcast_in_dim integer_pow stop_gradient".split()
)
"""Operations of which the compiler of kernels has been seen to take each."""

_TILE, _DEPTH, _RUN = 128, 32, 2**15
"""Columns of a tile of the matrix; rows, or columns, of one product; rows that are added up in float32. The fastest of
18 choices tried on an H200 with 256 columns: `projections` 4.7 to 28 ms, `weighted_sums` 4.7 to 23 ms."""


def supported(table: Any) -> bool:
    """Whether the kernels are for this table: float32, on a GPU, not too wide, and long."""
    fits = 16 <= table.shape[1] <= LARGEST_WIDTH and table.shape[0] >= FEWEST_ROWS
    return fits and table.dtype == jnp.float32 and jax.default_backend() == "gpu"


def projections(table: Any, loc: Any, root: Any) -> tuple[Any, Any]:
    """x_n' `loc` and |`root`' x_n|^2 of each row x_n of `table` (rows, columns)."""
    rows, columns = table.shape
    width = _power_of_two(columns)
    height = 128 if width <= 256 else 64
    padded = jnp.zeros((width, width), jnp.bfloat16).at[:columns, :columns].set(root.astype(jnp.bfloat16))
    centre = jnp.zeros(width, jnp.float32).at[:columns].set(loc.astype(jnp.float32))
    blocks = -(-rows // height)
    out = jax.ShapeDtypeStruct((blocks * height,), jnp.float32)
    means, variances = pl.pallas_call(
        functools.partial(_project, rows=rows, columns=columns, height=height, width=width),
        out_shape=(out, out),
        grid=(blocks,),
        in_specs=[_whole(table.shape), _whole((width,)), _whole((width, width))],
        out_specs=(pl.BlockSpec((height,), lambda i: (i,)),) * 2,
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=3),
        interpret=_interpreted(),
    )(table, centre, padded)
    return means[:rows], variances[:rows]


def _project(
    table: Any, loc: Any, root: Any, means: Any, variances: Any, *, rows: int, columns: int, height: int, width: int
) -> None:
    own = jnp.minimum(pl.program_id(0) * height + jnp.arange(height), rows - 1)
    depth = min(_DEPTH, width)

    def step(k: Any, carry: Any) -> Any:
        product, mean = carry
        start = k * depth
        part = _part(table, own, start, depth, columns)
        mean += jnp.sum(part * loc[pl.ds(start, depth)][None, :], axis=1)
        factor = root[pl.ds(start, depth), :]
        product += jnp.dot(part.astype(jnp.bfloat16), factor, preferred_element_type=jnp.float32)
        return product, mean

    zeros = jnp.zeros((height, width), jnp.float32), jnp.zeros(height, jnp.float32)
    product, mean = jax.lax.fori_loop(0, width // depth, step, zeros)
    means[:] = mean
    variances[:] = jnp.sum(product * product, axis=1)


def weighted_sums(table: Any, slopes: Any, weights: Any) -> tuple[Any, Any]:
    """The sums of `slopes` x_n and of `weights` x_n x_n' over the rows, in float64; negative weights count as zero."""
    rows, columns = table.shape
    width = _power_of_two(columns)
    tile = min(_TILE, width)
    tiles = width // tile
    pairs = [(i, j) for i in range(tiles) for j in range(i, tiles)]
    runs = -(-rows // _RUN)
    grams, sums = pl.pallas_call(
        functools.partial(_add_up, rows=rows, columns=columns, tile=tile, tiles=tiles),
        out_shape=(
            jax.ShapeDtypeStruct((runs, len(pairs), tile, tile), jnp.float32),
            jax.ShapeDtypeStruct((runs, len(pairs), tile), jnp.float32),
        ),
        grid=(len(pairs), runs),  # pairs of tiles of the same rows run together, and find them in the cache
        in_specs=[_whole(table.shape), _whole((rows,)), _whole((rows,))],
        out_specs=(
            pl.BlockSpec((None, None, tile, tile), lambda p, r: (r, p, 0, 0)),
            pl.BlockSpec((None, None, tile), lambda p, r: (r, p, 0)),
        ),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=4),
        interpret=_interpreted(),
    )(table, slopes.astype(jnp.float32), jnp.maximum(weights, 0).astype(jnp.float32))
    grams, sums = jnp.sum(grams, axis=0, dtype=jnp.float64), jnp.sum(sums, axis=0, dtype=jnp.float64)
    gram, gradient = jnp.zeros((width, width), grams.dtype), jnp.zeros(width, sums.dtype)
    for p, (i, j) in enumerate(pairs):
        at_i, at_j = slice(i * tile, (i + 1) * tile), slice(j * tile, (j + 1) * tile)
        gram = gram.at[at_i, at_j].set(grams[p])
        if i != j:
            gram = gram.at[at_j, at_i].set(grams[p].T)
        else:
            gradient = gradient.at[at_i].set(sums[p])
    return gradient[:columns], gram[:columns, :columns]


def _add_up(
    table: Any, slopes: Any, weights: Any, grams: Any, sums: Any, *, rows: int, columns: int, tile: int, tiles: int
) -> None:
    pair, first = pl.program_id(0), pl.program_id(1) * _RUN
    # Pairs are (0, 0), (0, 1), ..., (1, 1), ...: i counts the rows of the triangle that end before this one.
    i = sum(((pair >= end).astype(jnp.int32) for end in _ends(tiles)), jnp.zeros((), jnp.int32))
    j = pair - (i * tiles - i * (i - 1) // 2) + i

    def step(k: Any, carry: Any) -> Any:
        gram, total = carry
        at = first + k * _DEPTH + jnp.arange(_DEPTH)
        own = jnp.minimum(at, rows - 1)
        root = jnp.where(at < rows, jnp.sqrt(weights[own]), 0.0)[:, None]
        slope = jnp.where(at < rows, slopes[own], 0.0)[:, None]
        left = _part(table, own, i * tile, tile, columns)
        right = _part(table, own, j * tile, tile, columns)
        lefts, rights = (left * root).astype(jnp.bfloat16), (right * root).astype(jnp.bfloat16)
        return gram + jnp.dot(lefts.T, rights, preferred_element_type=jnp.float32), total + left * slope

    zeros = jnp.zeros((tile, tile), jnp.float32), jnp.zeros((_DEPTH, tile), jnp.float32)
    steps = jnp.minimum(_RUN, rows - first + _DEPTH - 1) // _DEPTH
    gram, total = jax.lax.fori_loop(0, steps, step, zeros)
    grams[:, :] = gram
    sums[:] = jnp.sum(total, axis=0)


def compiles(term: Callable, dtype: Any) -> bool:
    """Whether `gradient_sums` takes t(eta, y): it holds no array, and its operations are among those of kernels."""
    from jax.extend.core import jaxprs_in_params

    one = jax.ShapeDtypeStruct((16,), dtype)

    def known(jaxpr: Any) -> bool:
        inner = [list(jaxprs_in_params(eqn.params)) for eqn in jaxpr.eqns]
        names = {eqn.primitive.name for eqn, parts in zip(jaxpr.eqns, inner, strict=True) if not parts}
        return names <= _OPERATIONS and all(known(part) for parts in inner for part in parts)

    program = jax.make_jaxpr(_with_slope(term))(one, one)
    return not program.consts and known(program.jaxpr)


def _with_slope(term: Callable) -> Callable:
    """t and its derivative in eta, entry by entry."""
    return lambda eta, y: jax.jvp(lambda x: term(x, y), (eta,), (jnp.ones_like(eta),))


def gradient_sums(table: Any, response: Any, z: Any, term: Callable) -> tuple[Any, Any]:
    """The sums of t(x_n'z, y_n) and of its gradient in z, in float64; `term` is t, entry by entry."""
    rows, columns = table.shape
    width = _power_of_two(columns)
    centre = jnp.zeros(width, jnp.float32).at[:columns].set(z.astype(jnp.float32))
    height = min(_GRADIENT_NUMBERS // width, _GRADIENT_RUN)
    runs = -(-rows // _GRADIENT_RUN)
    values, sums = pl.pallas_call(
        functools.partial(_gradient, term=_with_slope(term), rows=rows, columns=columns, height=height, width=width),
        out_shape=(
            jax.ShapeDtypeStruct((runs, height), jnp.float32),
            jax.ShapeDtypeStruct((runs, width), jnp.float32),
        ),
        grid=(runs,),
        in_specs=[_whole(table.shape), _whole((rows,)), _whole((width,))],
        out_specs=(pl.BlockSpec((None, height), lambda r: (r, 0)), pl.BlockSpec((None, width), lambda r: (r, 0))),
        compiler_params=plgpu.CompilerParams(num_warps=_GRADIENT_WARPS),
        interpret=_interpreted(),
    )(table, response.astype(jnp.float32), centre)
    return jnp.sum(values, dtype=jnp.float64), jnp.sum(sums, axis=0, dtype=jnp.float64)[:columns]


def _gradient(
    table: Any,
    response: Any,
    z: Any,
    values: Any,
    sums: Any,
    *,
    term: Callable,
    rows: int,
    columns: int,
    height: int,
    width: int,
) -> None:
    first, centre = pl.program_id(0) * _GRADIENT_RUN, z[:][None, :]

    def rows_of(k: Any) -> Any:
        at = first + k * height + jnp.arange(height)
        own = jnp.minimum(at, rows - 1)
        return at < rows, _part(table, own, 0, width, columns), response[own]

    def step(k: Any, carry: Any) -> Any:
        value, total, (real, part, y) = carry
        following = rows_of(k + 1)  # on its way from memory while these rows are worked on
        term_value, slope = term(jnp.sum(part * centre, axis=1), y)
        value += jnp.where(real, term_value, 0.0)
        return value, total + part * jnp.where(real, slope, 0.0)[:, None], following

    zeros = jnp.zeros(height, jnp.float32), jnp.zeros((height, width), jnp.float32)
    steps = (jnp.minimum(_GRADIENT_RUN, rows - first) + height - 1) // height
    value, total, _ = jax.lax.fori_loop(0, steps, step, (*zeros, rows_of(0)))
    values[:] = value
    sums[:] = jnp.sum(total, axis=0)


def _ends(tiles: int) -> list[int]:
    """Where the rows of the triangle of pairs end, but for the last."""
    return [sum(tiles - k for k in range(i)) for i in range(1, tiles)]


def _part(table: Any, own: Any, start: Any, size: int, columns: int) -> Any:
    """Columns `start` ... of these rows, zero beyond the last column."""
    if columns % size == 0:
        return table[own, pl.ds(start, size)]
    at = start + jnp.arange(size)
    return jnp.where((at < columns)[None, :], table[own[:, None], jnp.minimum(at, columns - 1)[None, :]], 0.0)


def _whole(shape: tuple[int, ...]) -> Any:
    return pl.BlockSpec(shape, lambda *_: (0,) * len(shape))


def _power_of_two(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())


def _interpreted() -> bool:
    """Without a GPU the kernels are carried out step by step, for tests."""
    return jax.default_backend() != "gpu"
