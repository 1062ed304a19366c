r"""The modes of a density: quasi-Newton searches from many points, what is distinct of their ends, the evidence there.

The searches (`quasi_newton`) run in step through one compiled program, the potential and its gradient at as many
points as there are searches. The same program gives the evidence around each mode, by importance sampling from the
Gaussians $q_k = N(m_k, H_k^{-1})$ of the modes together: with draws z of their mixture $\bar q$ in equal parts,
$\hat Z_k = \mathrm{mean}\big(r_k(z)\, p(z) / \bar q(z)\big)$, where $r_k = \hat Z_k q_k / \sum_j \hat Z_j q_j$ says to
whom a draw belongs, so that what two modes share is counted once: their sum is the mean of $p/\bar q$. These are
estimates, too low where the Gaussians are too narrow.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from provi.algorithms.natural.laplace import curvature_factor
from provi.algorithms.natural.quasi_newton import descend
from provi.core.arguments import check_count, double_precision
from provi.core.interpreter import weighed_jit
from provi.core.limits import NO_LIMIT, Clock
from provi.core.types import Draws
from provi.targets.base import AbstractTarget, autodiff

STARTS, FEW_STARTS, MANY_DIMENSIONS = 16, 4, 1000
"""Searches by default, and above `MANY_DIMENSIONS`, where the memory of each is large."""

_ROUNDS, _MOST_MODES, _CALLS = 300, 8, 24
_MORE_STARTS, _MOST_LOOKS = 3, 2
"""Where a first look finds several modes: times as many searches in a second one, and looks beyond the first."""
_POLISHES, _CONVERGED, _NEAR, _LEVEL = 4, 1e-3, 0.5, 0.1
_DIVISIONS, _REACH = 20, 0.999
_NEGLIGIBLE = 1e-4
"""A share of the evidence below which a mode is not reported: a saddle's neighbourhood, a shelf far out."""


@dataclasses.dataclass(frozen=True, eq=False)
class Mode:
    """A local maximum of the density, in the free coordinates z, and the Gaussian there.

    - `location`, `factor`: z, and F with FF' the inverse Hessian of the potential; a vector F is its diagonal.
    - `log_density`: log p there, up to the target's constant. - `log_evidence`: log of the integral of p around it, an
      estimate. - `share`: of the evidence of all modes that were found. - `searches`: how many ended here.
    - `converged`: whether it is a maximum to within what a Newton step would still gain.
    """

    location: np.ndarray
    factor: np.ndarray
    log_density: float
    log_evidence: float
    share: float
    searches: int
    converged: bool

    @property
    def covariance(self) -> np.ndarray:
        """FF', the inverse Hessian."""
        return np.diag(self.factor**2) if self.factor.ndim == 1 else self.factor @ self.factor.T


@dataclasses.dataclass(frozen=True, eq=False)
class Modes:
    """What a search for modes has found: `found`, by their evidence, the most first; prints itself.

    - `num_searches`: how many began; `num_settled`: how many of them ended of themselves.
    - `evaluations`: of the potential and its gradient. - `reason`: why no search was made, where none was.
    - `chosen`: the number of the mode that is nearest to q; `missed`: the share of the evidence at modes that are
      beyond what q reaches, by the estimates.
    """

    found: tuple[Mode, ...]
    num_searches: int
    num_settled: int
    evaluations: int
    chosen: int = 0
    missed: float = 0.0
    reason: str = ""

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self):
        return iter(self.found)

    def __getitem__(self, index: int) -> Mode:
        return self.found[index]

    @property
    def shares(self) -> np.ndarray:
        """Of the evidence, of each mode: estimates that sum to one."""
        return np.asarray([mode.share for mode in self.found])

    @property
    def searched(self) -> bool:
        """Whether more than one search was made, so that another mode could have been found."""
        return self.num_searches > 1

    def seen_from(self, mean: np.ndarray, covariance: np.ndarray) -> "Modes":
        """With what q reaches: modes within the ellipsoid that holds 0.999 of the Gaussian with these moments.

        `covariance`: a matrix, or the vector of its diagonal.
        """
        if not self.found:
            return self
        away = np.stack([mode.location for mode in self.found]) - mean
        solved = away / covariance if covariance.ndim == 1 else np.linalg.solve(covariance, away.T).T
        distances = np.sum(away * solved, axis=1)
        beyond = distances > special.chdtri(len(mean), 1 - _REACH)
        missed = float(self.shares[beyond].sum()) if len(self) > 1 else 0.0
        return dataclasses.replace(self, chosen=int(np.argmin(distances)), missed=missed)

    def moment_errors(self, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        r"""What modes that are out of reach add to each coordinate's moments, in deviations and |log ratio|.

        With a share s at a distance d, the mean is off by $sd$ and the variance lacks $s(1-s)d^2$; of several, sums.
        """
        spread, away = np.diagonal(covariance), np.stack([mode.location for mode in self.found]) - mean
        beyond = np.sum(away * np.linalg.solve(covariance, away.T).T, axis=1) > special.chdtri(len(mean), 1 - _REACH)
        shares, away = self.shares[beyond, None], away[beyond]
        shift = np.sum(shares * away, axis=0)
        whole = spread + np.maximum(np.sum(shares * away**2, axis=0) - shift**2, 0.0)
        return np.maximum(np.abs(shift) / np.sqrt(whole), 0.5 * np.log(whole / spread))

    def __str__(self) -> str:
        if not self.searched:
            return f"Modes were not searched for: {self.reason or 'one start'}."
        ended = f"{self.num_settled} of {self.num_searches} searches ended"
        if not self.found[0].converged:
            return f"No mode found, only points from where the density still grows ({ended})."
        if len(self) == 1:
            return f"One mode found: {ended}, and {self.found[0].searches} were there."
        shares = ", ".join(_percent(share) for share in self.shares)
        return (
            f"{len(self)} modes found ({ended}), with about {shares} of the evidence (estimates, by draws around "
            f"each); q is at number {self.chosen + 1}."
        )

    def __repr__(self) -> str:
        return f"<provi.Modes: {self}>"


def not_searched(reason: str) -> Modes:
    """What a fit says that has made no search."""
    return Modes((), 0, 0, 0, reason=reason)


def _percent(share: float) -> str:
    return f"{share:.2g}" if share < 0.01 else f"{100 * share:.3g}%"


@double_precision
def find_modes(
    target: AbstractTarget,
    *,
    starts: int | None = None,
    seed: int = 0,
    diagonal: bool = False,
    clock: Clock = NO_LIMIT,
    evaluate: "BatchedPotential | None" = None,
) -> Modes:
    """Look for the modes of `target` from `starts` points at once.

    **Arguments:**

    - `starts`: how many searches; by default 16, or 4 above 1000 dimensions, and where they end in more than one mode
      three times as many more, once again if these find another: a density of two modes may have a third, which few
      starts lead to. The points are `target.search_points`.
    - `seed`: of these points, and of the draws for the evidence.
    - `diagonal`: take the Hessian's diagonal only, as is done above 1000 dimensions in any case.
    - `clock`: the searches end when a quarter of its time is used up.
    - `evaluate`: the program, where the caller has it.

    **Returns:** `Modes`, at least one: where no search converges, the lowest point that was reached.
    """
    looks = 0 if starts is not None else _MOST_LOOKS
    starts, enough = usual_starts(target) if starts is None else check_count("starts", starts), clock.left * 0.75
    evaluate = BatchedPotential(target, starts) if evaluate is None else evaluate

    def goes_on() -> bool:
        return not clock.limited or clock.left > enough

    ended = descend(evaluate, target.search_points(starts, seed), _ROUNDS, goes_on)
    points, values, settled = ended.points, ended.values, int(ended.settled.sum())
    if not np.isfinite(values).any():
        raise ValueError(
            f"The log density or its gradient is not finite at any of {starts} starts. Pass start= where they are."
        )
    places = _distinct(target, evaluate, points, values, diagonal)
    for look in range(looks):
        known = sum(place.converged for place in places)
        if known < 2 or not goes_on():
            break
        other = int(np.random.SeedSequence((seed, look + 1)).generate_state(1)[0])
        fresh = target.search_points(1 + _MORE_STARTS * starts, other)[1:]  # the first is the default again
        for some in np.split(fresh, _MORE_STARTS):
            ended = descend(evaluate, some, _ROUNDS, goes_on)
            points, values = np.concatenate([points, ended.points]), np.concatenate([values, ended.values])
            settled += int(ended.settled.sum())
        places = _distinct(target, evaluate, points, values, diagonal)
        if sum(place.converged for place in places) <= known:
            break
    proper = [place for place in places if place.converged] or places[:1]
    log_evidence = _evidence(evaluate, proper, target.dim, seed)
    shares = np.exp(log_evidence - _log_sum(log_evidence))
    order = [k for k in np.argsort(-shares, kind="stable") if shares[k] >= _NEGLIGIBLE or k == np.argmax(shares)]
    modes = tuple(
        dataclasses.replace(
            proper[k], log_evidence=float(log_evidence[k]), share=float(shares[k] / shares[order].sum())
        )
        for k in order
    )
    return Modes(modes, len(points), settled, evaluate.evaluations)


def usual_starts(target: AbstractTarget) -> int:
    """How many searches are made where nobody says."""
    return STARTS if target.dim <= MANY_DIMENSIONS else FEW_STARTS


class BatchedPotential:
    """The potential and its gradient at rows of points, `size` at a time through one compiled program."""

    def __init__(self, target: AbstractTarget, size: int) -> None:
        self.target, self.size, self.evaluations = target, size, 0

    def __call__(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values (n,) and gradients (n, dim), in NumPy, float64."""
        values, gradients = [], []
        for first in range(0, len(rows), self.size):
            some = rows[first : first + self.size]
            filled = np.concatenate([some, np.repeat(some[:1], self.size - len(some), axis=0)])
            value, gradient = _values_and_gradients(self.target, jnp.asarray(filled, self.target.dtype))
            values.append(np.asarray(value, np.float64)[: len(some)])
            gradients.append(np.asarray(gradient, np.float64)[: len(some)])
            self.evaluations += self.size
        return np.concatenate(values), np.concatenate(gradients)


@partial(weighed_jit, trips=100, calls=60)
def _values_and_gradients(target: AbstractTarget, rows: Draws):
    return jax.vmap(partial(autodiff, target))(rows)


def _distinct(
    target: AbstractTarget, evaluate: BatchedPotential, points: np.ndarray, values: np.ndarray, diagonal: bool
) -> list[Mode]:
    """The ends of the searches without repetitions, the lowest first, each polished by steps of Newton's method.

    Two ends are one where they are within half a deviation of each other, by the Hessian of the lower: along a ridge,
    which is flat, that is any distance.
    """
    found: list[Mode] = []
    for row in np.argsort(values, kind="stable"):
        if not math.isfinite(values[row]):
            break
        near = next((k for k, mode in enumerate(found) if _same(mode, points[row], float(values[row]))), None)
        if near is None and len(found) < _MOST_MODES:
            mode = _polished(target, evaluate, points[row], diagonal)
            near = next((k for k, other in enumerate(found) if _same(other, mode.location, -mode.log_density)), None)
            if near is None:
                found.append(mode)
                continue
        if near is not None:
            found[near] = dataclasses.replace(found[near], searches=found[near].searches + 1)
    return found


def _same(mode: Mode, point: np.ndarray, value: float) -> bool:
    return bool(abs(value + mode.log_density) <= _LEVEL and np.linalg.norm(_whitened(mode, point)) <= _NEAR)


def _whitened(mode: Mode, points: np.ndarray) -> np.ndarray:
    """F^-1 (z - m), for one point or rows."""
    away = (points - mode.location).T
    if mode.factor.ndim == 1:
        return (away.T / mode.factor).T
    from scipy.linalg import solve_triangular

    return solve_triangular(mode.factor, away, lower=True)


def _polished(target: AbstractTarget, evaluate: BatchedPotential, point: np.ndarray, diagonal: bool) -> Mode:
    """The mode next to where a search ended, by Newton's steps with the Hessian at that end."""
    factor, least = curvature_factor(target, point, diagonal)
    value, gradient = (part[0] for part in evaluate(point[None]))
    for _ in range(_POLISHES):
        step = factor * factor * gradient if factor.ndim == 1 else factor @ (factor.T @ gradient)
        decrement = float(gradient @ step) / 2
        if not decrement > 1e-3 * _CONVERGED:
            break
        new, new_gradient = (part[0] for part in evaluate((point - step)[None]))
        if not (new < value and np.isfinite(new_gradient).all()):
            break
        point, value, gradient = point - step, new, new_gradient
    scaled = factor * gradient if factor.ndim == 1 else factor.T @ gradient
    converged = float(scaled @ scaled) / 2 <= _CONVERGED and least > 0
    return Mode(point, factor, -float(value), math.nan, math.nan, 1, bool(converged))


def _evidence(evaluate: BatchedPotential, modes: list[Mode], dim: int, seed: int) -> np.ndarray:
    """log Z_k of each mode, by draws of all their Gaussians together."""
    rng, number = np.random.default_rng((seed, 2)), len(modes)
    each = -(-_CALLS * evaluate.size // number)
    draws = rng.standard_normal((number, each, dim))
    draws[:, 1::2] = -draws[:, 0 : 2 * (each // 2) : 2]  # both sides: skew does not tilt the estimate
    z = np.concatenate([_moved(mode, u) for mode, u in zip(modes, draws, strict=True)])
    log_p = -evaluate(z)[0]
    log_q = np.stack([_log_normal(mode, z) for mode in modes])
    log_mixture = _log_sum(log_q, axis=0) - math.log(number)
    # A density that is not finite at a draw is zero there.
    log_weights = np.where(np.isfinite(log_p), log_p, -np.inf) - log_mixture
    found = np.full(number, _log_sum(log_weights) - math.log(number * len(z)))
    for _ in range(_DIVISIONS if number > 1 else 0):
        belongs = found[:, None] + log_q
        belongs = belongs - _log_sum(belongs, axis=0)
        found = _log_sum(belongs + log_weights, axis=1) - math.log(len(z))
    laplace = np.asarray([mode.log_density - _log_normal(mode, mode.location[None])[0] for mode in modes])
    return np.where(np.isfinite(found), found, laplace)


def _log_sum(values: np.ndarray, axis: int | None = None) -> Any:
    return special.logsumexp(values, axis=axis)


def _moved(mode: Mode, u: np.ndarray) -> np.ndarray:
    return mode.location + (u * mode.factor if mode.factor.ndim == 1 else u @ mode.factor.T)


def _log_normal(mode: Mode, z: np.ndarray) -> np.ndarray:
    """log N(z; m, FF') of rows."""
    diagonal = mode.factor if mode.factor.ndim == 1 else np.diagonal(mode.factor)
    squares = np.sum(_whitened(mode, z) ** 2, axis=0)
    return -squares / 2 - float(np.sum(np.log(np.abs(diagonal)))) - len(diagonal) * math.log(2 * math.pi) / 2
