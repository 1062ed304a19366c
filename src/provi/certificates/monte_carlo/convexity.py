"""A search for directions in which a target is less convex than was claimed, by Lanczos' method at draws of q and
beyond them; and the segment between two draws on which a target is less convex than was claimed, once one is known to
exist.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.algorithms.natural.modes import BatchedPotential
from provi.certificates.certificate import Counterexample
from provi.certificates.monte_carlo.batch_minima import times_rows
from provi.certificates.monte_carlo.batch_sums import Frame, batch_of, curvature_excess, pair_gradients, times
from provi.certificates.monte_carlo.whitened_frame import claimed_convexity, scale_factor
from provi.core.arguments import check_count, device_array, double_precision
from provi.core.interpreter import weighed_jit
from provi.core.randomness import key_of
from provi.core.types import Count, Draws, Matrix, RandomKey, Scalar, Vector
from provi.families.bases import AbstractBase
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget, autodiff

PRODUCTS = 24
"""Hessian-vector products at a point. Negative curvature that matters is not at the 25th digit of a spectrum."""

_NODES = 33
"""On each segment between two modes."""

STRETCHES = (2.0, 4.0, 8.0, 32.0, 128.0)
"""Draws are also taken so many times as far out: q lies where a potential is convex, whatever it does elsewhere. At
draws of q alone a regression with an unknown scale, and one with Student's errors, passed for log-concave."""


@double_precision
def find_negative_curvature(
    target: AbstractTarget,
    family: LocationScale,
    point: Point,
    *,
    seed: int,
    num_points: int = 16,
    tolerance: float | None = None,
) -> Counterexample | None:
    r"""A direction $x$ at a draw $z$ of q, at its mean, or farther out, with $x'\nabla^2\phi(z)x < \mu|x|^2$, or None.

    $\mu$ is the strong convexity that was claimed and not refuted, else 0. Lanczos' method looks for the smallest
    eigenvalue of $C'(\nabla^2\phi(z) - \mu I)C$, in whose coordinates q is round, with 24 products at each point.
    None is no proof of convexity: other points, and directions that so few products miss, remain.

    **Arguments:**

    - `point`: the member q of `family` around which to search.
    - `seed`: of the draws. - `num_points`: points tried, the mean first; about as many again lie beyond (`STRETCHES`).
    - `tolerance`: relative to the largest curvature met at the point, with mu, what is granted to rounding; the square
      root of the machine precision by default.
    """
    if family.dim != target.dim:
        raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}.")
    check_count("num_points", num_points)
    factor = jnp.asarray(scale_factor(point), target.dtype)
    loc = jnp.asarray(point.loc, target.dtype)
    claimed = claimed_convexity(target.constants)
    granted = float(np.sqrt(np.finfo(target.dtype).eps)) if tolerance is None else float(tolerance)
    found = _least_curvatures(
        key_of(seed), target, family.base, loc, factor, device_array(claimed, target.dtype), num_points
    )
    points, directions, excess, largest = (np.asarray(x, np.float64) for x in found)
    # What is rounded is the Hessian, and mu I is a part of it: all of it where the claim is exact.
    widest = np.asarray(factor, np.float64) ** 2
    largest = largest + claimed * float((widest if widest.ndim == 1 else widest.sum(axis=0)).max())
    # Not finite is no counter-example: the density may have a boundary.
    usable = np.isfinite(excess) & np.isfinite(largest) & (largest > 0)
    ratios = np.where(usable, np.where(usable, excess, 0.0) / np.where(usable, largest, 1.0), 0.0)
    worst = int(np.argmin(ratios))
    if not ratios[worst] < -granted:
        return None
    length = float(np.linalg.norm(directions[worst]))
    curvature = float(excess[worst]) / length**2 + claimed
    return Counterexample(points[worst], directions[worst] / length, curvature, claimed)


@double_precision
def counterexample_between(
    target: AbstractTarget, places: np.ndarray, batch: int, tolerance: float | None = None
) -> Counterexample | None:
    r"""The segment between two of `places` on which the potential is least convex, if it is less so than was claimed.

    A convex potential has one mode. Between two, its slope s along the way from one to the other rises and falls again:
    on a piece of length l the average curvature is $(s_{j+1} - s_j)/l < 0$, however narrow the ridge between them is.

    **Arguments:**

    - `places`: modes, and the mean of q, one a row. - `batch`: points at a time, of a program that is compiled already.
    - `tolerance`: relative to the slopes, what is granted to rounding; the square root of the machine precision.
    """
    claimed = claimed_convexity(target.constants)
    granted = float(np.sqrt(np.finfo(target.dtype).eps)) if tolerance is None else float(tolerance)
    evaluate, worst, found = BatchedPotential(target, batch), 0.0, None
    times_between = np.linspace(0.0, 1.0, _NODES)
    for one, other in itertools.combinations(np.asarray(places, np.float64), 2):
        length = float(np.linalg.norm(other - one))
        if not length > 0:
            continue
        nodes = one + times_between[:, None] * (other - one)
        values, gradients = evaluate(nodes)
        slopes = gradients @ (other - one) / length
        piece = length / (_NODES - 1)
        excess = np.diff(slopes) - claimed * piece
        size = np.abs(slopes[:-1]) + np.abs(slopes[1:]) + (np.abs(values[:-1]) + np.abs(values[1:])) / length
        # Not finite is no counter-example: the density may have a boundary.
        ratios = np.where(np.isfinite(excess) & np.isfinite(size), excess / np.maximum(size, 1e-300), 0.0)
        index = int(np.argmin(ratios))
        if ratios[index] < min(-granted, worst):
            worst, curvature = ratios[index], float(excess[index]) / piece + claimed
            found = Counterexample(nodes[index], nodes[index + 1] - nodes[index], curvature, claimed)
    return found


@weighed_jit
def _least_curvatures(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    loc: Vector,
    factor: Matrix | Vector,
    claimed: Scalar,
    num_points: int,
) -> tuple[Draws, Draws, Float[Array, " draws"], Float[Array, " draws"]]:
    """For each point: z, C d for the unit Ritz vector d, its excess d'C'(Hessian - mu)Cd, the largest |Ritz value|."""
    draw_key, start_key = jax.random.split(key)
    draws = base.sample(draw_key, num_points, target.dim, loc.dtype).at[0].set(0.0)
    few = draws[1 : max(2, num_points // len(STRETCHES))]
    draws = jnp.concatenate([draws, *(stretch * few for stretch in STRETCHES)])
    points = loc[None, :] + times(factor, draws)
    transposed = factor if factor.ndim == 1 else factor.T
    starts = jax.random.normal(start_key, points.shape, loc.dtype)

    def product(z: Vector, vector: Vector) -> Vector:
        moved = times(factor, vector)
        image = jax.jvp(lambda at: autodiff(target, at)[1], (z,), (moved,))[1]
        return times(transposed, image - claimed * moved)

    def search(block: tuple[Draws, Draws]) -> tuple[Draws, Float[Array, " draws"], Float[Array, " draws"]]:
        directions, values, largest = _smallest_ritz_pairs(product, *block)
        return times(factor, directions), values, largest

    blocks = (x.reshape(-1, batch_of(target, len(points)), target.dim) for x in (points, starts))
    directions, values, largest = jax.lax.map(search, tuple(blocks))
    return points, directions.reshape(points.shape), values.ravel(), largest.ravel()


def _smallest_ritz_pairs(
    product: Any, places: Draws, starts: Draws
) -> tuple[Draws, Float[Array, " draws"], Float[Array, " draws"]]:
    """At each place the unit Ritz vector of the smallest Ritz value, that value, and the largest absolute one.

    The basis Q of the Krylov space and the images AQ are kept, so that Q'AQ needs no three-term recursion. Where the
    space is exhausted, what is left is rounding: normalised all the same it is a fresh direction, or zero. All places
    are in one loop: JAX traces a loop three times over where it makes one of many.
    """
    count, dim = starts.shape
    size = min(PRODUCTS, dim)

    def extend(index: Any, place: Vector, basis: Array, images: Array) -> tuple[Array, Array]:
        image = product(place, basis[index])
        rest = image - basis.T @ (basis @ image)
        rest = rest - basis.T @ (basis @ rest)
        length = jnp.linalg.norm(rest)
        following = rest / jnp.where(length > 0, length, 1.0)
        # One more round makes it orthogonal also when almost all of it was rounding.
        following = following - basis.T @ (basis @ following)
        length = jnp.linalg.norm(following)
        following = following / jnp.where(length > 0, length, 1.0)
        return basis.at[index + 1].set(following), images.at[index].set(image)

    def extend_all(index: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return jax.vmap(extend, (None, 0, 0, 0))(index, places, *carry)

    def pair(basis: Array, images: Array) -> tuple[Vector, Scalar, Scalar]:
        projected = basis[:size] @ images[:size].T
        values, vectors = jnp.linalg.eigh((projected + projected.T) / 2)
        return basis[:size].T @ vectors[:, 0], values[0], jnp.max(jnp.abs(values))

    empty = jnp.zeros((count, size + 1, dim), starts.dtype)
    first = empty.at[:, 0].set(starts / jnp.linalg.norm(starts, axis=1, keepdims=True))
    return jax.vmap(pair)(*jax.lax.fori_loop(0, size, extend_all, (first, empty)))


def refuting_segment(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    frame: Frame,
    shifts: np.ndarray,
    chunks: range,
    chunk: int,
) -> Counterexample:
    """The least convex pair of the draws of `batch_means`, made again: the certificates keep only that there is one.

    **Arguments:** as for `batch_means`; `chunks` are the numbers of the chunks.
    """
    smallest, found = np.inf, None
    for index in chunks:
        excess, *segment = _least_convex_pair(key, target, base, frame, jnp.asarray(shifts), jnp.asarray(index), chunk)
        if found is None or float(excess) < smallest:
            smallest, found = float(excess), segment
        if smallest < 0:
            break
    if found is None:
        raise ValueError("chunks is empty; give the range of chunk numbers that the draws were made from.")
    curvature, u, v = (np.asarray(x, np.float64) for x in found)
    ends = np.asarray(frame.loc)[None, :] + times_rows(np.asarray(frame.factor, np.float64), np.stack([v - u, v + u]))
    return Counterexample(ends[0], ends[1] - ends[0], float(curvature), float(frame.claimed))


@weighed_jit
def _least_convex_pair(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    frame: Frame,
    shifts: Float[Array, "batches dim"],
    index: Count,
    chunk: int,
) -> tuple[Scalar, Scalar, Vector, Vector]:
    """(excess, curvature, u, v) of one chunk."""
    u, values, plus, minus = pair_gradients(jax.random.fold_in(key, index), target, base, frame, shifts, chunk)
    excess, curvature = curvature_excess(frame, u, values, plus, minus)
    where = jnp.unravel_index(jnp.argmin(excess), excess.shape)
    return excess[where], curvature[where], u[where], shifts[where[0]]
