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


def log_det_gap_in_ball(centre: np.ndarray, radius: float) -> float:
    r"""An upper bound of J(I + G) over all symmetric G within `radius` of the `centre` A.

    With E = L^-1 (G - A) L^-T, J(S + LEL') = J(S) + <A, E> + [tr E - log det(I + E)]: the second term is at most
    |A|_F radius, the third is J of a matrix at distance radius from the identity. For A = 0 the bound is attained.

    **Arguments:**

    - `centre`: a symmetric matrix, or a vector for a diagonal one; I + A positive definite. - `radius`: xi.
    """
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
    """Bounds on the gap: (e), (f), in the metric of q; and on KL(q || p). Infinite where there is none."""

    constants_free: float = math.inf
    strong_convexity: float = math.inf
    metric_of_q: float = math.inf
    kl: float = math.inf

    def smaller(self, other: "CheckValues") -> "CheckValues":
        """The smaller of each two."""
        return CheckValues(*map(min, dataclasses.astuple(self), dataclasses.astuple(other)))


def check_values(
    found: BatchMinima,
    whitener: np.ndarray | None,
    has_score: bool,
    centre: np.ndarray,
    delta: float,
    epsilon: float,
) -> CheckValues:
    """The bounds, which hold all together with probability 1 - `delta`.

    **Arguments:**

    - `whitener`: W, or None. - `has_score`: whether the KL can be bounded. - `centre`: A, chosen before these draws.
    - `epsilon`: the relative rounding error of the potential.
    """
    first = found.first
    if not all(np.isfinite(x).all() for x in (first.gradient, first.moment, found.decrease, found.moment)):
        return CheckValues()
    # Statements made: mean decrease, G at v_b, G at 0, g in the metric of q; with H also g in that of H, and the KL.
    share = delta / (4 if whitener is None else 6)
    # What rounding may do to a mean of potentials and, here, to a difference of two.
    rounding = 4 * epsilon * first.magnitude
    location = mean_upper_bound(found.decrease + found.remainder + rounding, share)
    there = _covariance_part(found.moment, centre, share)
    here = _covariance_part(first.moment, centre, share)
    near = 0.5 * squared_norm_upper_bound(first.gradient @ first.gradient.T, share) + here
    if whitener is None:
        return CheckValues(location + there, math.inf, near)
    rows = times_rows(whitener, first.gradient)
    far = 0.5 * squared_norm_upper_bound(rows @ rows.T, share) + here
    kl = 0.5 * mean_upper_bound(first.relative_fisher, share) if has_score else math.inf
    return CheckValues(location + there, far, near, kl)


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


def _covariance_part(moment: np.ndarray, centre: np.ndarray, share: float) -> float:
    rows = in_metric_of(centre, _symmetric(moment))
    return log_det_gap_in_ball(centre, math.sqrt(squared_norm_upper_bound(rows @ rows.T, share)))


def _symmetric(moment: np.ndarray) -> np.ndarray:
    return moment if moment.ndim == 2 else (moment + np.swapaxes(moment, 1, 2)) / 2
