r"""The covariance part of a Monte-Carlo bound: the largest J(I + G) when G is known to lie in a ball around A.

The radius is measured in the metric of $S = I + A$: $\xi = |L^{-1}(G - A)L^{-T}|_F$ with $S = LL'$.
"""

import math

import numpy as np
from scipy.linalg import solve_triangular

from provi.certificates.bounds import log_det_gap, log_det_gap_from_norm


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
