r"""Means over independent batches of antithetic draws: everything that the Monte-Carlo certificates read of a target.

Whitened coordinates at $q = (m, C)$: $z = m + C(v + u)$, $w = C'\nabla\phi(z)$. Each of the $R$ batches has its own
shift $v_b$ and its own pairs $\pm u_i$, drawn in chunks of a fixed size. The number of chunks is an array, so that
more draws do not compile anything anew, and draws are made again from their key instead of being stored.
"""

from functools import partial
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.devices import over_draws
from provi.core.interpreter import weighed_jit
from provi.core.types import Count, Flag, Matrix, RandomKey, Scalar, Vector
from provi.families.bases import AbstractBase
from provi.targets.base import AbstractFiniteSum, AbstractTarget, autodiff

NUM_BATCHES = 32
"""R: the confidence bounds take batch means as Gaussian and learn their covariance from R of them."""

LARGEST_DENSE = 1000
"""Dimension up to which d x d matrices are formed: R of them take 256 MB at this size."""

NUMBERS_AT_ONCE = 2**23
"""Data terms times draws that are evaluated together: 64 MiB of doubles; on the CPU fewer are as fast."""

PerBatch: TypeAlias = Float[Array, " batches"]
Pairs: TypeAlias = Float[Array, "batches pairs dim"]


class Frame(eqx.Module):
    """The coordinates of q in which everything is computed, in the target's floating type.

    - `loc`: m. - `factor`: C, a matrix, or its diagonal for a diagonal family.
    - `whitener`: W with |W r|^2 >= r' (C'HC)^-1 r, where H is a lower bound of the Hessian; a matrix, the diagonal
      of one, or None when no H is known.
    - `claimed`: mu >= 0, what the free test of convexity demands of every segment between two draws.
    """

    loc: Vector
    factor: Matrix | Vector
    whitener: Matrix | Vector | None
    claimed: Scalar


class BatchMeans(eqx.Module):
    """Means over each batch, in float64.

    - `value`: phi(z); `magnitude`: |phi(z)|. - `gradient`: w. - `moment`: w u' - (I + A) u u' or, in a diagonal
      family, its diagonal, with the centre A; the symmetric part is G_b - A.
    - `hessian`: w u' - u u' over all batches together, in a diagonal family of at most `LARGEST_DENSE` dimensions.
    - `fisher`: |w - u|^2; `relative_fisher`: |W (w + C' grad log q)|^2. Both are zero unless asked for.
    - `least`: not a mean: zero, or the smallest excess of the curvature between the draws of a pair over the claimed
      one if it is negative, which refutes the claim; in units that depend on the pair.
    """

    value: PerBatch
    magnitude: PerBatch
    gradient: Float[Array, "batches dim"]
    moment: Float[Array, "batches dim dim"] | Float[Array, "batches dim"]
    hessian: Matrix | None
    fisher: PerBatch
    relative_fisher: PerBatch
    least: PerBatch


@partial(weighed_jit, trips=100, calls=4, loops=1)
def batch_means(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    frame: Frame,
    centre: Matrix | Vector,
    shifts: Float[Array, "batches dim"],
    first_chunk: Count,
    num_chunks: Count,
    chunk: int,
    with_fisher: Flag,
) -> BatchMeans:
    """The means over `num_chunks` times `chunk` antithetic pairs in each batch.

    **Arguments:**

    - `centre`: A, a symmetric matrix, a vector in a diagonal family: a guess of G made from other draws. If it is good,
      w - u - A u has little left of w that is linear in u, and with it goes most of the noise of the products.
    - `shifts`: v_b, one a batch. - `first_chunk`: the number of the first chunk; the numbers and `key` fix the draws.
    - `chunk`: pairs of a batch in a chunk, a power of two. - `with_fisher`: whether to compute `fisher`.
    """

    def add(index: Count, sums: BatchMeans) -> BatchMeans:
        part = _chunk_means(jax.random.fold_in(key, index), target, base, frame, centre, shifts, chunk, with_fisher)
        total = jax.tree.map(lambda old, new: old + new.astype(old.dtype), sums, part)
        return eqx.tree_at(lambda means: means.least, total, jnp.minimum(sums.least, part.least))

    dim, full = frame.loc.shape[0], frame.factor.ndim == 2
    number, vector = jnp.zeros(NUM_BATCHES), jnp.zeros((NUM_BATCHES, dim))
    moment = jnp.zeros((NUM_BATCHES, dim, dim)) if full else vector
    hessian = None if full or dim > LARGEST_DENSE else jnp.zeros((dim, dim))
    start = BatchMeans(number, number, vector, moment, hessian, number, number, number)
    sums = jax.lax.fori_loop(first_chunk, first_chunk + num_chunks, add, start)
    means = jax.tree.map(lambda total: total / num_chunks, sums)
    return eqx.tree_at(lambda means: means.least, means, sums.least)


def pair_gradients(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    frame: Frame,
    shifts: Float[Array, "batches dim"],
    chunk: int,
) -> tuple[Pairs, Float[Array, "2 batches pairs"], Pairs, Pairs]:
    """One chunk of draws: u, phi at m + C(v + u) and m + C(v - u), and the two gradients w there."""
    dim, dtype = target.dim, frame.loc.dtype
    # The barrier stops XLA from making the draws anew in each of the places that read them.
    u = jax.lax.optimization_barrier(base.sample(key, NUM_BATCHES * chunk, dim, dtype))
    u, centre = u.reshape(NUM_BATCHES, chunk, dim), shifts.astype(dtype)[:, None, :]
    points = frame.loc[None, :] + times(frame.factor, jnp.stack([centre + u, centre - u]).reshape(-1, dim))
    rows, gradient = _rows_at_once(target, points.shape[0]), partial(autodiff, target)
    blocks = points.reshape(-1, rows, dim)
    values, gradients = jax.lax.map(lambda block: over_draws(target.division, gradient, block), blocks)
    gradients = gradients.reshape(-1, dim)
    transposed = frame.factor if frame.factor.ndim == 1 else frame.factor.T
    plus, minus = times(transposed, gradients).reshape(2, NUM_BATCHES, chunk, dim)
    return u, values.reshape(2, NUM_BATCHES, chunk), plus, minus


def curvature_excess(
    frame: Frame, u: Pairs, values: Float[Array, "2 batches pairs"], plus: Pairs, minus: Pairs
) -> tuple[Float[Array, "batches pairs"], Float[Array, "batches pairs"]]:
    r"""By how much each pair exceeds the claimed curvature, and its average curvature on the segment between the two.

    Convexity demands $(\nabla\phi(z_+) - \nabla\phi(z_-))'(z_+ - z_-) \ge \mu |z_+ - z_-|^2$; in whitened coordinates
    the two sides are $2(w_+ - w_-)'u$ and $4\mu|Cu|^2$. And it demands that each value lie above the tangent at the
    other end by half of that: a finite jump, which no gradient shows, is below. What rounding may have done, the square
    root of the machine precision relative to gradients and values, and the rounding of the points, is granted.
    """
    root = jnp.sqrt(jnp.finfo(u.dtype).eps)
    moved = 4 * displacement(frame.loc, frame.factor)
    length = jnp.sum(times(frame.factor, u) ** 2, axis=2)
    inner = jnp.sum((plus - minus) * u, axis=2) / 2
    size = jnp.sum((jnp.abs(plus) + jnp.abs(minus)) * jnp.abs(u), axis=2) + frame.claimed * length
    size = size + moved / root * jnp.sum(jnp.abs(plus) + jnp.abs(minus) + jnp.abs(u), axis=2)
    slopes = inner - frame.claimed * length + root * size
    rise = values[0] - values[1]
    above = jnp.minimum(rise - 2 * jnp.sum(minus * u, axis=2), 2 * jnp.sum(plus * u, axis=2) - rise) / 2
    granted = root * (size + jnp.abs(values[0]) + jnp.abs(values[1]))
    tangents = above - frame.claimed * length + granted
    # Where a value is not finite, gradients alone are asked: the density may have a boundary. And where gradients of
    # another pair refute the claim, they are the plainer counterexample: hence the small factor.
    jumped = jnp.isfinite(tangents) & (tangents < 0) & (slopes >= 0)
    return jnp.where(jumped, 1e-9 * tangents, slopes), jnp.where(jumped, above, inner) / length


def displacement(loc: Any, factor: Any) -> Any:
    """By how much rounding moves a point m + Cu, in standard deviations of q: large where |m| is many of them."""
    xp: Any = np if isinstance(loc, np.ndarray) else jnp
    spread = xp.abs(factor) if factor.ndim == 1 else xp.linalg.norm(factor, axis=1)
    return jnp.finfo(loc.dtype).eps * xp.max(xp.abs(loc) / spread)


def times(matrix: Matrix | Vector, rows: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """M x for each row x, where a vector stands for a diagonal matrix."""
    return rows * jnp.expand_dims(matrix, range(rows.ndim - 1)) if matrix.ndim == 1 else rows @ matrix.T


def _chunk_means(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    frame: Frame,
    centre: Matrix | Vector,
    shifts: Float[Array, "batches dim"],
    chunk: int,
    with_fisher: Flag,
) -> BatchMeans:
    u, values, plus, minus = pair_gradients(key, target, base, frame, shifts, chunk)
    # Antithetic draws: the even part of w meets u in no product, the odd part has mean zero.
    even, odd = (plus + minus) / 2, (plus - minus) / 2
    residual = odd - u
    unexplained = residual - times(centre.astype(u.dtype), u)

    def fisher() -> tuple[PerBatch, PerBatch]:
        plain = jnp.mean(jnp.sum(even**2 + residual**2, axis=2), axis=1)
        if frame.whitener is None or not base.has_score:
            return plain, jnp.zeros_like(plain)
        weight = base.radial_weight(jnp.sum(u**2, axis=2), target.dim)[:, :, None]
        relative = times(frame.whitener, even) ** 2 + times(frame.whitener, odd - weight * u) ** 2
        return plain, jnp.mean(jnp.sum(relative, axis=2), axis=1)

    full, zeros = frame.factor.ndim == 2, jnp.zeros(NUM_BATCHES, u.dtype)
    plain, relative = jax.lax.cond(with_fisher, fisher, lambda: (zeros, zeros))
    return BatchMeans(
        value=jnp.mean(values, axis=(0, 2)),
        magnitude=jnp.mean(jnp.abs(values), axis=(0, 2)),
        gradient=jnp.mean(even, axis=1),
        moment=jnp.einsum("bci,bcj->bij", unexplained, u) / chunk if full else jnp.mean(unexplained * u, axis=1),
        hessian=None
        if full or target.dim > LARGEST_DENSE
        else jnp.einsum("bci,bcj->ij", residual, u) / (NUM_BATCHES * chunk),
        fisher=plain,
        relative_fisher=relative,
        least=jnp.min(curvature_excess(frame, u, values, plus, minus)[0], axis=1),
    )


def batch_of(target: AbstractTarget, count: int) -> int:
    """How many of `count` gradients to evaluate together: a divisor, as a remainder would be compiled apart.

    Batches are short programs of long vectors, which take no compiler (`core.interpreter`).
    """
    most = _rows_at_once(target, 64)
    return max(size for size in range(1, most + 1) if count % size == 0)


def _rows_at_once(target: AbstractTarget, num_draws: int) -> int:
    """How many of `num_draws` (a power of two) gradients to evaluate together, so that memory stays bounded."""
    terms = target.num_terms if isinstance(target, AbstractFiniteSum) else target.dim
    rows = num_draws
    while rows > 16 and rows * terms > NUMBERS_AT_ONCE:
        rows //= 2
    return rows
