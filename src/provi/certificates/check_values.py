"""The numbers of one Monte-Carlo check: upper confidence bounds from R batches, put together into bounds on the gap."""

import dataclasses
import math

import numpy as np

from provi.certificates.batch_minima import BatchMinima, times_rows
from provi.certificates.confidence import mean_upper_bound, squared_norm_upper_bound
from provi.certificates.log_det_ball import in_metric_of, log_det_gap_in_ball, next_centre


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
