r"""The numbers of one Monte-Carlo check: upper confidence bounds from R batches, put together into bounds on the gap.

The covariance part of a Monte-Carlo bound: the largest J(I + G) when G is known to lie in a ball around A.

The radius is measured in the metric of $S = I + A$: $\xi = |L^{-1}(G - A)L^{-T}|_F$ with $S = LL'$.
"""

import dataclasses
import math

import numpy as np
from scipy.linalg import solve_triangular

from provi.certificates.bounds import log_det_gap, log_det_gap_from_norm, mean_upper_bound, squared_norm_upper_bound
from provi.certificates.monte_carlo.batch_minima import BatchMinima, times_rows

ROUNDING = 64.0
"""Units in the last place of its largest numbers that the user's gradient is granted; a convention, not a bound."""


def log_det_gap_in_ball(centre: np.ndarray, radius: float) -> float:
    r"""An upper bound of J(I + G) over all symmetric G within `radius` of the `centre` A.

    With E = L^-1 (G - A) L^-T, J(S + LEL') = J(S) + <A, E> + [tr E - log det(I + E)]: the second term is at most
    |A|_F radius, the third is J of a matrix at distance radius from the identity. For A = 0 the bound is attained.

    **Arguments:**

    - `centre`: a symmetric matrix, or a vector for a diagonal one; I + A positive definite. - `radius`: xi.
    """
    if not radius < 1:
        return math.inf
    eigenvalues = 1 + (centre if centre.ndim == 1 else np.linalg.eigvalsh(centre))
    return log_det_gap(eigenvalues) + float(np.linalg.norm(centre)) * radius + log_det_gap_from_norm(radius)


def in_metric_of(centre: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """L^-1 X L^-T for each X in `moments` (R, d, d), or X / (1 + A) for vectors (R, d), as rows of length d^2 or d."""
    if centre.ndim == 1:
        return moments / (1 + centre)[None, :]
    if centre.any():
        inverse = solve_triangular(np.linalg.cholesky(np.eye(len(centre)) + centre), np.eye(len(centre)), lower=True)
        moments = inverse @ moments @ inverse.T
    return moments.reshape(moments.shape[0], -1)


def next_centre(centre: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """The centre for the next check's draws: zero, or the estimate of G from this check's, whichever promises more.

    A ball around zero has the radius |E G|, without the noise of a centre, but J blows up when it reaches 1, at a
    gap of about 0.3 nats; farther away the ball has to be put around an estimate. The draws of the next check are
    independent of this choice.

    **Arguments:**

    - `centre`: A of this check. - `moments`: G_b - A, one for each batch, symmetric matrices or vectors.
    """
    count, zero = moments.shape[0], np.zeros_like(centre)
    mean = moments.mean(axis=0)
    estimate = centre + mean
    if not np.isfinite(estimate).all():
        return zero
    eigenvalues = 1 + (estimate if estimate.ndim == 1 else np.linalg.eigvalsh(estimate))
    if eigenvalues.min() <= 0:
        return zero
    noise = np.sum(in_metric_of(estimate, moments - mean[None]) ** 2) / (count * (count - 1))
    around_estimate = log_det_gap_in_ball(estimate, math.sqrt(2 * float(noise)))
    return estimate if around_estimate < log_det_gap_from_norm(float(np.linalg.norm(estimate))) else zero


@dataclasses.dataclass(frozen=True)
class CheckValues:
    """Bounds on the gap: (e), (f), in the metric of q; and on KL(q || p). Infinite where there is none.

    - `least_decrease`: a lower confidence limit of what the minimisation gains, E[lhat_b(0) - lhat_b(v_b)], which more
      draws in a batch can only lower: above an earlier bound of it, `decrease`, it says that one of them is wrong.
    """

    constants_free: float = math.inf
    strong_convexity: float = math.inf
    metric_of_q: float = math.inf
    kl: float = math.inf
    decrease: float = math.inf
    least_decrease: float = -math.inf

    @property
    def best(self) -> float:
        """The smaller of (e) and (f)."""
        return min(self.constants_free, self.strong_convexity)


@dataclasses.dataclass(frozen=True)
class Unseen:
    """What the draws of a check may have missed, added to the radii of g and G: never zero.

    - `location`, `covariance`: what the audit finds along lines where fewer than ten of the draws fall.
    - `num_draws`: of the check. A set that none of n draws hit has a probability of up to log(1/delta)/n; there the
      residual w - u is granted to be as large as its root mean square, or 1, the size of a draw (a rule of three).
    - `moved`: by how much rounding moves the points, in standard deviations of q.
    """

    location: float
    covariance: float
    num_draws: int
    moved: float = 0.0

    def slack(self, fisher: float, dim: int, delta: float) -> tuple[float, float]:
        """For |g| and for |G|_F, in q's coordinates."""
        missed = math.log(1 / delta) / self.num_draws
        residual = max(1.0, math.sqrt(fisher))
        return self.location + missed * residual, self.covariance + missed * residual * math.sqrt(dim)


def check_values(
    found: BatchMinima,
    whitener: np.ndarray | None,
    has_score: bool,
    centre: np.ndarray,
    delta: float,
    epsilon: float,
    unseen: Unseen,
) -> CheckValues:
    """The bounds, which hold all together with probability 1 - `delta`, asymptotically in the number of draws.

    **Arguments:**

    - `whitener`: W, or None. - `has_score`: whether the KL can be bounded. - `centre`: A, chosen before these draws.
    - `epsilon`: the relative rounding error of the potential. - `unseen`: what these draws may have missed.
    """
    first = found.first
    if not all(np.isfinite(x).all() for x in (first.gradient, first.moment, found.decrease, found.moment)):
        return CheckValues()
    # Statements made: mean decrease, G at v_b, G at 0, g in the metric of q; with H also g in that of H, and the KL;
    # and the lower limit of the decrease.
    share = delta / (5 if whitener is None else 7)
    dim = first.gradient.shape[1]
    fisher = float(np.mean(first.fisher))
    missed, missed_covariance = unseen.slack(fisher, dim, share)
    # What rounding of the user's code may do: to a mean of potentials and, here, to a difference of two; to gradients.
    rounding = 4 * epsilon * first.magnitude
    rounded = (ROUNDING * epsilon + 4 * unseen.moved) * (math.sqrt(fisher) + math.sqrt(dim))
    missed, missed_covariance = missed + rounded, missed_covariance + rounded * math.sqrt(dim)
    decrease = mean_upper_bound(found.decrease + found.remainder + rounding, share)
    location = 0.5 * (math.sqrt(2 * max(decrease, 0.0)) + missed) ** 2
    there = _covariance_part(found.moment, centre, share, missed_covariance)
    here = _covariance_part(first.moment, centre, share, missed_covariance)
    near = 0.5 * (math.sqrt(squared_norm_upper_bound(first.gradient @ first.gradient.T, share)) + missed) ** 2 + here
    least = 2 * float(np.mean(found.decrease)) - mean_upper_bound(found.decrease, share)
    if whitener is None:
        return CheckValues(location + there, math.inf, near, math.inf, decrease, least)
    rows = times_rows(whitener, first.gradient)
    norm = float(np.abs(whitener).max() if whitener.ndim == 1 else np.linalg.norm(whitener, 2))
    far = 0.5 * (math.sqrt(squared_norm_upper_bound(rows @ rows.T, share)) + norm * missed) ** 2 + here
    kl = 0.5 * mean_upper_bound(first.relative_fisher, share) if has_score else math.inf
    return CheckValues(location + there, far, near, kl, decrease, least)


def next_guesses(found: BatchMinima, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centre and the inverse Hessian, (I + G)^-1 at v = 0, for the next check."""
    moments, hessian = _symmetric(found.first.moment), found.first.hessian
    mean = centre + np.mean(moments, axis=0) if hessian is None else (hessian + hessian.T) / 2
    return next_centre(centre, moments), _inverse(mean)


def _inverse(excess: np.ndarray) -> np.ndarray:
    """(I + X)^-1, with eigenvalues of I + X below 1/4, more often noise than not, raised to it."""
    if not np.isfinite(excess).all():
        return np.eye(len(excess)) if excess.ndim == 2 else np.ones(len(excess))
    if excess.ndim == 1:
        return 1 / np.maximum(1 + excess, 0.25)
    values, vectors = np.linalg.eigh(excess)
    return (vectors / np.maximum(1 + values, 0.25)[None, :]) @ vectors.T


def _covariance_part(moment: np.ndarray, centre: np.ndarray, share: float, missed: float) -> float:
    rows = in_metric_of(centre, _symmetric(moment))
    smallest = 1 + float((centre if centre.ndim == 1 else np.linalg.eigvalsh(centre)).min())
    radius = math.sqrt(squared_norm_upper_bound(rows @ rows.T, share)) + missed / smallest
    return log_det_gap_in_ball(centre, radius)


def _symmetric(moment: np.ndarray) -> np.ndarray:
    return moment if moment.ndim == 2 else (moment + np.swapaxes(moment, 1, 2)) / 2
