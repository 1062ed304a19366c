r"""(f'): bound (f) from any number of draws, for a potential whose Hessian lies between two known matrices.

Whitened coordinates at $q = (m, C)$, base normal: $w(u) = C'\nabla\phi(m + Cu)$, $K_0 \preceq Dw \preceq K_1$. Let
$r(u) = w(u) - Su$ with a fixed $S = I + A \succ 0$, and split it at the antithetic pair: $e(u) = (w(u) + w(-u))/2$,
$o(u) = (r(u) - r(-u))/2$. Then $g = Ew = Ee$, $G - A = E\,\mathrm{sym}(o\,u')$, and

- $De(u) = (Dw(u) - Dw(-u))/2$ lies between $\pm(K_1 - K_0)/2$: $|W(e(u) - e(0))| \le L_e|u|$;
- $o(0) = 0$ and $Do$ is a mean of two $Dw - S$: $|o(u)| \le L_o|u|$, $L_o = \max(|K_1 - S|, |S - K_0|)$. With $S = LL'$
  the matrix $X = \mathrm{sym}(L^{-1}o\,u'L^{-T})$ has $|X|_F \le L_o|S^{-1}|\,|u|^2$.

**The mean of n draws of a vector $Y$ with $|Y| \le b$.** (1) $|\bar Y - EY| \le a + \sqrt{a^2 + 2\sigma^2\ell/n}$ with
probability $1 - \delta$, $\ell = \log(2/\delta)$, $a = 2b\ell/(3n)$, $\sigma^2 \ge E|Y|^2$ (Pinelis 1994, theorem 3.4,
in a Hilbert space, weakened from Bennett's form to Bernstein's; $|Y - EY| \le 2b$). (2) $T = |Y|^2 \ge 0$ has $ET^2 \le
b^2ET$ and $e^{-x} \le 1 - x + x^2/2$ for $x \ge 0$, so $\bar T \ge ET - \sqrt{2b^2ET\log(1/\delta)/n}$, hence $\sigma
:= \sqrt{\bar T} + b\sqrt{2\log(1/\delta)/n} \ge \sqrt{ET}$, with probability $1 - \delta$. (3) If $Y = Y(u)$ is
Lipschitz with constant $\lambda$, then $s = \sqrt{\bar T}$, a norm of all draws' values together, is Lipschitz in all
draws together, with constant $\lambda/\sqrt n$: $s \ge Es - \lambda\sqrt{2\log(1/\delta)/n}$ with probability $1 -
\delta$, and $(Es)^2 = ET - \mathrm{Var}\,s \ge ET - \lambda^2/n$ (Poincare). So $\sigma^2 := (s +
\lambda\sqrt{2\log(1/\delta)/n})^2 + \lambda^2/n$ will do too: for $W(e - c)$ with $\lambda = L_e$, and for $X$, $|X|_F
\le \rho|S^{-1}|^{1/2}|L^{-1}o|$ inside the ball, with that of $L^{-1}o$, $\lambda = |S^{-1}|^{1/2}L_o$. The smaller
$\sigma$ is taken.

**Truncation.** $Y = X\,1\{|u| \le \rho\}$ has $b = L_o|S^{-1}|\rho^2$, and what is cut off has a mean of at most
$L_o|S^{-1}|E[|u|^2; |u| > \rho] = L_o|S^{-1}|\,d\,P(\chi^2_{d+2} > \rho^2)$. For $g$ with a fixed vector c:
$Y = W(e - c)\,1\{|u| \le \rho\}$, $b = |W(w(0) - c)| + L_e\rho$, and cut off is at most $|W(w(0) - c)|P(|u| > \rho) +
L_eE[|u|; |u| > \rho]$. So $|Wg| \le |Wc + \bar Y| + $ (1) $+$ the rest.

**Without truncation**, for $g$: $x = |W\bar e|$ is a Lipschitz function of all n draws together, with constant
$L_e/\sqrt n$, so it falls below its mean by more than $L_e\sqrt{2\log(1/\delta)/n}$ with probability $\delta$ at most,
and its mean is at least $|Wg|$ (Jensen): $|Wg| \le x + L_e\sqrt{2\log(1/\delta)/n}$. The smaller of the two is taken.

All seven statements hold together with probability $1 - \delta$ when each has $\delta/7$. S and c come from earlier
draws, $\rho$ from n alone. Nothing is asymptotic: the bound is as valid with ten draws as with a million, only larger.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from provi.certificates.bounds import log_det_gap_from_norm, spend
from provi.certificates.monte_carlo.batch_minima import times_rows
from provi.certificates.monte_carlo.batch_sums import (
    LARGEST_DENSE,
    NUM_BATCHES,
    Frame,
    displacement,
    pair_gradients,
    times,
)
from provi.certificates.monte_carlo.check_values import ROUNDING, log_det_gap_in_ball
from provi.core.arguments import device_array
from provi.core.interpreter import weighed_jit
from provi.core.types import Count, Matrix, RandomKey, Scalar, Vector
from provi.families.bases import AbstractBase, Normal
from provi.families.location_scale import LocationScale
from provi.targets.base import AbstractTarget, autodiff

NAME = "strong convexity, finite sample (f')"
FIRST_PAIRS, GROWTH = 1024, 4
"""Pairs of draws in the first check, and how many times as many there are in the next."""

_FIRST_CHUNK = 2**29
"""Chunks are numbered from here: draws that no other part of a certificate uses."""

_STATEMENTS = 7


@dataclasses.dataclass(frozen=True)
class FiniteSample:
    """The bound, the gradients that it took, and on what it rests or why it is infinite."""

    value: float
    num_gradients: int
    detail: str


@dataclasses.dataclass(frozen=True)
class Slopes:
    """Matrices K_0 <= Dw <= K_1 in q's coordinates, or vectors for multiples of the identity; W; and L_e."""

    low: np.ndarray
    high: np.ndarray
    whitener: np.ndarray
    even: float
    grounds: str

    def odd(self, centre: np.ndarray) -> float:
        """L_o with S = I + `centre`."""
        if self.low.ndim == 1:
            stretch = 1 + (centre if centre.ndim == 1 else np.linalg.eigvalsh(centre))
            return max(float(self.high.max() - stretch.min()), float(stretch.max() - self.low.min()), 0.0)
        seen = np.eye(len(centre)) + (np.diag(centre) if centre.ndim == 1 else centre)
        above, below = np.linalg.eigvalsh(self.high - seen), np.linalg.eigvalsh(seen - self.low)
        return max(float(above[-1]), float(below[-1]), 0.0) + _slack(self.high) + _slack(seen)


def known_slopes(target: AbstractTarget, family: LocationScale, frame: Frame) -> Slopes | None:
    """K_0, K_1 and what follows; None without both curvature bounds, a normal base and double precision."""
    if frame.whitener is None or not isinstance(family.base, Normal) or frame.loc.dtype != jnp.float64:
        return None
    factor, whitener = np.asarray(frame.factor, np.float64), np.asarray(frame.whitener, np.float64)
    dense = family.dim <= LARGEST_DENSE
    bounds, grounds = target.curvature_bounds() if dense else None, "proven bounds of the Hessian"
    claimed, smooth = float(frame.claimed), target.constants.smoothness
    if bounds is not None and bounds[1] is not None:
        matrix = factor if factor.ndim == 2 else np.diag(factor)
        low, high = matrix.T @ bounds[0] @ matrix, matrix.T @ bounds[1] @ matrix
        slack = _slack(np.abs(matrix).T @ np.abs(bounds[1]) @ np.abs(matrix)) * np.eye(family.dim)
        low, high = (low + low.T) / 2 - slack, (high + high.T) / 2 + slack
    elif smooth.status in ("proven", "declared") and smooth.value is not None:
        grounds = f"smoothness {float(smooth.value):.4g} ({smooth.status})"
        if factor.ndim == 1 and not dense:
            low, high = claimed * factor**2, float(smooth.value) * factor**2
            low, high = np.full(family.dim, low.min()), np.full(family.dim, high.max())
        else:
            own = np.diag(factor**2) if factor.ndim == 1 else factor.T @ factor
            slack = _slack(own) * np.eye(family.dim)
            low, high = claimed * (own - slack), float(smooth.value) * (own + slack)
    else:
        return None
    return Slopes(low, high, whitener, _even_slope(whitener, high - low), grounds)


def _even_slope(whitener: np.ndarray, width: np.ndarray) -> float:
    """L_e: |W D| / 2 over -width <= D <= width is at most |W||width| / 2 and |W width^1/2||width^1/2| / 2."""
    norm = float(np.abs(whitener).max()) if whitener.ndim == 1 else float(np.linalg.norm(whitener, 2))
    if width.ndim == 1:
        return norm * max(float(width.max()), 0.0) / 2
    values, vectors = np.linalg.eigh(width)
    values = np.maximum(values + _slack(width), 0.0)
    root = (vectors * np.sqrt(values)) @ vectors.T
    seen = root * whitener[:, None] if whitener.ndim == 1 else whitener @ root
    largest = float(values[-1])
    return min(norm * largest, float(np.linalg.norm(seen, 2)) * math.sqrt(largest)) / 2 * (1 + 1e-12)


def _slack(matrix: np.ndarray) -> float:
    return 8 * len(matrix) * float(np.finfo(np.float64).eps) * float(np.linalg.norm(matrix))


def finite_sample_bound(
    key: RandomKey,
    target: AbstractTarget,
    family: LocationScale,
    frame: Frame,
    slopes: Slopes,
    chunk: int,
    *,
    delta: float,
    max_gradients: int,
    wanted: float | None,
) -> FiniteSample:
    """The smallest value over checks with fresh draws, four times as many each time; wrong with probability `delta`.

    Ends when the value is at most `wanted`, or a check lowers it by less than a tenth, or at `max_gradients`.
    """
    at_once, dim = NUM_BATCHES * chunk, family.dim
    centre, origin = np.zeros(frame.factor.shape), np.asarray(_gradient_at(target, frame), np.float64)
    shift, best, used, first, pairs = origin, math.inf, 1, _FIRST_CHUNK, max(FIRST_PAIRS, at_once)
    moved = float(displacement(np.asarray(frame.loc), np.asarray(frame.factor)))
    detail = f"{slopes.grounds}; holds for any number of draws"
    if not np.isfinite(origin).all():
        return FiniteSample(math.inf, used, f"{detail}; infinite: the gradient at the mean of q is not finite")
    for check in range(64):
        affordable = (max_gradients - used) // 2 // at_once * at_once
        if affordable < pairs * GROWTH:  # the last check takes all that is left
            pairs = max(affordable, min(pairs, affordable))
        share = spend(delta, check) / _STATEMENTS
        if pairs < at_once or not _least_radius(slopes.odd(centre), centre, dim, affordable, share) < 1:
            break
        radius = _cut(dim, pairs, share)
        sums = _on_host(
            _sums(
                key,
                target,
                family.base,
                frame,
                *map(device_array, (centre, _inverse_root(centre), shift, origin, radius, slopes.odd(centre))),
                device_array(first),
                device_array(pairs // at_once),
                chunk,
            )
        )
        used, first = used + 2 * pairs, first + pairs // at_once
        if sums.excess > 0:
            return FiniteSample(
                math.inf, used, f"{detail}; refused: gradients differ by more than the claimed smoothness allows"
            )
        value, next_centre = _value(sums, slopes, centre, shift, origin, radius, pairs, share, moved)
        settled, best = value > 0.9 * best, min(best, value)
        if settled or (wanted is not None and best <= wanted) or pairs >= affordable - at_once:
            break
        centre, shift, pairs = next_centre, sums.even, pairs * GROWTH
    if math.isinf(best):
        detail += "; infinite: too few draws for so steep a potential, or q too far from the optimum"
    return FiniteSample(best, used, detail)


class Sums(eqx.Module):
    """Means over n pairs: of e; of Y and |Y|^2 for g and for G; of |w|; and by how much a slope exceeded its bound.

    `even_square`, `odd_square`: of |W(e - c)|^2 and |L^-1 o|^2, which are not cut off.
    """

    even: Vector
    even_square: Scalar
    odd_square: Scalar
    location: Vector
    location_square: Scalar
    moment: Matrix | Vector
    moment_square: Scalar
    size: Scalar
    excess: Scalar


@partial(weighed_jit, trips=100, calls=4, loops=1)
def _sums(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    frame: Frame,
    centre: Matrix | Vector,
    inverse: Matrix | Vector,
    shift: Vector,
    origin: Vector,
    radius: Scalar,
    odd_slope: Scalar,
    first: Count,
    num_chunks: Count,
    chunk: int,
) -> Sums:
    full, dim = frame.factor.ndim == 2, frame.loc.shape[0]
    zero = jnp.zeros((NUM_BATCHES, dim))
    moved = 4 * displacement(frame.loc, frame.factor) * (1 + odd_slope)

    def add(index: Count, sums: Sums) -> Sums:
        u, _, plus, minus = pair_gradients(jax.random.fold_in(key, index), target, base, frame, zero, chunk)
        u, plus, minus = (x.reshape(-1, dim) for x in (u, plus, minus))
        even, odd = (plus + minus) / 2, (plus - minus) / 2
        odd = odd - u - times(centre, u)
        length = jnp.linalg.norm(u, axis=1)
        inside = (length <= radius).astype(u.dtype)
        location = times(frame.whitener, even - shift[None, :])  # pyright: ignore[reportArgumentType]
        left, right = times(inverse, odd), times(inverse, u) if full else u
        even_square, odd_square = (jnp.mean(jnp.sum(x**2, axis=1)) for x in (location, left))
        location, left = location * inside[:, None], left * inside[:, None]
        if full:
            moment = left.T @ right / len(u)
            moment = (moment + moment.T) / 2
            square = (jnp.sum(left**2, axis=1) * jnp.sum(right**2, axis=1) + jnp.sum(left * right, axis=1) ** 2) / 2
        else:
            moment, square = jnp.mean(left * right, axis=0), jnp.sum((left * right) ** 2, axis=1)
        size = jnp.linalg.norm(plus, axis=1) + jnp.linalg.norm(minus, axis=1)
        excess = jnp.linalg.norm(odd, axis=1) - odd_slope * length - (1e-6 + moved) * (size + length + 1)
        part = Sums(
            even=jnp.mean(even - origin[None, :], axis=0),
            even_square=even_square,
            odd_square=odd_square,
            location=jnp.mean(location, axis=0),
            location_square=jnp.mean(jnp.sum(location**2, axis=1)),
            moment=moment,
            moment_square=jnp.mean(square),
            size=jnp.mean(size),
            excess=jnp.max(excess),
        )
        total = jax.tree.map(jnp.add, sums, part)
        return eqx.tree_at(lambda s: s.excess, total, jnp.maximum(sums.excess, part.excess))

    number, moment = jnp.zeros(()), jnp.zeros((dim, dim) if full else (dim,))
    start = Sums(jnp.zeros(dim), number, number, jnp.zeros(dim), number, moment, number, number, number - jnp.inf)
    sums = jax.lax.fori_loop(first, first + num_chunks, add, start)
    means = jax.tree.map(lambda total: total / num_chunks, sums)
    return eqx.tree_at(lambda s: (s.excess, s.even), means, (sums.excess, origin + means.even))


def _value(
    sums: Any,
    slopes: Slopes,
    centre: np.ndarray,
    shift: np.ndarray,
    origin: np.ndarray,
    radius: float,
    pairs: int,
    share: float,
    moved: float,
) -> tuple[float, np.ndarray]:
    """The bound of one check, and the centre for the next one. `moved`: what rounding does to the points."""
    if not all(np.isfinite(x).all() for x in (sums.even, sums.moment, sums.even_square, sums.odd_square)):
        return math.inf, np.zeros_like(centre)
    dim = len(origin)
    steepest = float(slopes.high.max() if slopes.high.ndim == 1 else np.linalg.norm(slopes.high, 2))
    rounding = ROUNDING * float(np.finfo(np.float64).eps) * float(sums.size) + 4 * moved * steepest
    norm = float(np.abs(slopes.whitener).max() if slopes.whitener.ndim == 1 else np.linalg.norm(slopes.whitener, 2))
    whitened = times_rows(slopes.whitener, np.stack([shift, origin - shift, sums.even]))
    away = float(np.linalg.norm(whitened[1]))
    reach = away + slopes.even * radius
    spread = min(
        bounded_root(float(sums.location_square), reach, pairs, share),
        lipschitz_root(float(sums.even_square), slopes.even, pairs, share),
    )
    bounded = (
        float(np.linalg.norm(whitened[0] + sums.location))
        + deviation(spread, reach, pairs, share)
        + away * float(special.gammaincc(dim / 2, radius**2 / 2))
        + slopes.even * tail_moment(dim, radius, 1)
    )
    lipschitz = float(np.linalg.norm(whitened[2])) + slopes.even * math.sqrt(2 * math.log(1 / share) / pairs)
    location = min(bounded, lipschitz) + norm * rounding
    smallest = _smallest(centre)
    steep = slopes.odd(centre) / smallest
    # In a diagonal family `inverse` is all of 1/S, and u is not scaled.
    full = centre.ndim == 2
    scale, lipschitz_odd = (radius * smallest**-0.5, steep * smallest**0.5) if full else (radius, steep)
    spread = min(
        bounded_root(float(sums.moment_square), steep * radius**2, pairs, share),
        scale * lipschitz_root(float(sums.odd_square), lipschitz_odd, pairs, share),
    )
    width = deviation(spread, steep * radius**2, pairs, share)
    width += steep * tail_moment(dim, radius, 2) + math.sqrt(dim) * rounding / smallest
    ball = float(np.linalg.norm(sums.moment)) + width
    covariance = log_det_gap_in_ball(centre, ball) if ball < 1 else math.inf
    return float(0.5 * location**2 + covariance), _next_centre(centre, np.asarray(sums.moment), width)


def bounded_root(square: float, bound: float, num: int, delta: float) -> float:
    """Statement (2): an upper bound on (E|Y|^2)^1/2 from the mean of `num` values |Y|^2, |Y| at most `bound`."""
    return min(math.sqrt(square) + bound * math.sqrt(2 * math.log(1 / delta) / num), bound)


def lipschitz_root(square: float, lipschitz: float, num: int, delta: float) -> float:
    """Statement (3): the same where Y is a Lipschitz function of a standard normal u."""
    return math.hypot(
        math.sqrt(square) + lipschitz * math.sqrt(2 * math.log(1 / delta) / num), lipschitz / math.sqrt(num)
    )


def deviation(spread: float, bound: float, num: int, delta: float) -> float:
    """Statement (1): how far the mean of `num` vectors of norm at most `bound` is from its expectation.

    **Arguments:** `spread`: at least (E|Y|^2)^1/2.
    """
    level = math.log(2 / delta)
    linear = 2 * bound * level / (3 * num)
    return linear + math.sqrt(linear**2 + 2 * spread**2 * level / num)


def tail_moment(dim: int, radius: float, power: int) -> float:
    """E[|u|^power; |u| > radius] of a standard normal u in R^dim."""
    whole = math.exp(special.gammaln((dim + power) / 2) - special.gammaln(dim / 2) + power / 2 * math.log(2))
    return whole * float(special.gammaincc((dim + power) / 2, radius**2 / 2))


def _cut(dim: int, pairs: int, share: float) -> float:
    """The radius at which what is cut off and what the cut costs inside add up to the least."""
    radii = math.sqrt(dim) + np.linspace(0.0, 12.0, 97)
    inside = radii**2 * (10 / 3) * math.log(2 / share) / pairs
    return float(radii[np.argmin([cost + tail_moment(dim, r, 2) for cost, r in zip(inside, radii, strict=True)])])


def _least_radius(odd: float, centre: np.ndarray, dim: int, pairs: int, share: float) -> float:
    """The radius of the ball for G if all that is seen were zero: where it is 1, draws are spent for nothing."""
    if pairs < 1:
        return math.inf
    radius, steep = _cut(dim, pairs, share), odd / _smallest(centre)
    spread = radius * lipschitz_root(0.0, steep, pairs, share)
    return steep * tail_moment(dim, radius, 2) + deviation(spread, steep * radius**2, pairs, share)


def _next_centre(centre: np.ndarray, moment: np.ndarray, width: float) -> np.ndarray:
    """Zero or the estimate of G, whichever promises the smaller bound from `GROWTH` times the draws."""
    zero = np.zeros_like(centre)
    if centre.ndim == 1:
        estimate = centre + (1 + centre) * moment
    else:
        root = np.linalg.cholesky(np.eye(len(centre)) + centre)
        estimate = centre + root @ moment @ root.T
    if _smallest(estimate) < 0.05:
        return zero
    width = width / math.sqrt(GROWTH)
    norm = float(np.linalg.norm(estimate))
    around, here = log_det_gap_in_ball(estimate, width), log_det_gap_from_norm(norm + width)
    return estimate if around < here or (math.isinf(here) and norm > 0.5) else zero


def _smallest(centre: np.ndarray) -> float:
    """The smallest eigenvalue of S = I + A, a little below."""
    value = 1 + float((centre if centre.ndim == 1 else np.linalg.eigvalsh(centre)).min())
    return value - _slack(centre if centre.ndim == 2 else centre[:, None])


def _inverse_root(centre: np.ndarray) -> np.ndarray:
    """L^-1; in a diagonal family 1 / S, the whole of it, as the diagonal of G is compared entry by entry."""
    if centre.ndim == 1:
        return 1 / (1 + centre)
    return np.linalg.inv(np.linalg.cholesky(np.eye(len(centre)) + centre))


@weighed_jit
def _gradient_at(target: AbstractTarget, frame: Frame) -> Vector:
    """w at the mean of q."""
    gradient = autodiff(target, frame.loc)[1]
    return times(frame.factor if frame.factor.ndim == 1 else frame.factor.T, gradient[None, :])[0]


def _on_host(sums: Sums) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), sums)
