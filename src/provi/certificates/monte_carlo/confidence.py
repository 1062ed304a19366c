r"""Upper confidence bounds from independent batch means: for a mean, and for the squared norm of a mean vector.

Both take R >= 16 independent batches and hold with probability 1 - delta when the batch means are what their
docstrings say, up to the error that `benchmarks/confidence_calibration.py` measures: the formulas contain no
non-asymptotic inequality, so their level is calibrated by simulation and not proven.
"""

import math

import numpy as np
from scipy import special  # not scipy.stats, which takes half a second to import

# Below this number the variance and the largest eigenvalue are too uncertain for the corrections made here.
MIN_BATCHES = 16


def mean_upper_bound(samples: np.ndarray, delta: float) -> float:
    r"""An upper 1 - delta confidence bound on the mean of R independent scalars of shape (R,).

    Meant for energies: non-negative and skewed to the right, at worst like half the square of one Gaussian number,
    for which the t-interval misses eight times too often at R = 16, delta = 0.01. See `mean_bound_from_moments`.
    Infinite when a sample is not finite.
    """
    samples = np.asarray(samples, dtype=np.float64)
    _check(samples.shape[0], delta)
    if not np.isfinite(samples).all():
        return math.inf
    mean, variance, lowest = np.asarray([samples.mean(), samples.var(ddof=1), samples.min()])[:, None]
    return mean_bound_from_moments(mean, variance, lowest, samples.shape[0], delta).item()


def mean_bound_from_moments(
    mean: np.ndarray, variance: np.ndarray, lowest: np.ndarray, num_batches: int, delta: float
) -> np.ndarray:
    r"""The larger of the t-bound and a gamma bound, from the moments of R samples and their lowest value (vectorised).

    If the samples are Gamma(shape k), their sum is Gamma(R k) up to scale and, with P the regularised incomplete
    gamma function, mean * R k / P^-1(R k, delta) is an exact bound. Here k is 1 / c with c = variance / mean^2.

    - That c comes from R samples is paid for as in the Gaussian case: delta becomes the normal tail probability of
      the quantile t of Student's distribution, so that the bound tends to the t-bound as k grows.
    - A small sample hides its own skewness, so c is multiplied by 1 + 4 c t / sqrt(R). The 4 is calibrated: it is what
      the log-normal distribution with sigma = 1/2 needs, which is more skewed than the gamma of equal variance.
    - k is at least 1/2, the chi-square distribution with one degree of freedom.

    A sample below -mean is no energy: then the t-bound stands alone. (Not already below zero, because rounding and
    inexact minimisation make small energies slightly negative.) Skewness that an additive constant hides is not
    found: a large constant plus a skewed variable has the coverage of the t-bound.
    """
    t = -special.stdtrit(num_batches - 1, delta)
    t_bound = mean + t * np.sqrt(variance / num_batches)
    positive = mean > 0
    scale = np.where(positive, mean, 1.0)
    dispersion = variance / scale**2
    inflated = np.clip(dispersion * (1.0 + 4.0 * dispersion * t / math.sqrt(num_batches)), 1e-12, 2.0)
    shape = num_batches / inflated
    with np.errstate(divide="ignore"):  # a delta far below 1e-12 has no quantile in double precision: infinite
        gamma_bound = scale * shape / special.gammaincinv(shape, special.ndtr(-t))
    return np.where(positive & (lowest >= -mean), np.maximum(t_bound, gamma_bound), t_bound)


def squared_norm_upper_bound(gram: np.ndarray, delta: float) -> float:
    r"""An upper 1 - delta confidence bound on |mu|^2 from the Gram matrix X X' (R, R) of R vectors X_b ~ N(mu, Sigma).

    Neither mu, Sigma nor the dimension is needed: with S the sample covariance, the unbiased estimate
    |X_bar|^2 - tr S / R of |mu|^2 and the eigenvalues of S are functions of the Gram matrix.
    See `squared_norm_bound_from_moments`. Infinite when an entry is not finite.
    """
    gram = np.asarray(gram, dtype=np.float64)
    num_batches = gram.shape[0]
    _check(num_batches, delta)
    if gram.shape != (num_batches, num_batches):
        raise ValueError(f"gram must be square, X @ X.T of the batch vectors, but has shape {gram.shape}.")
    if not np.isfinite(gram).all():
        return math.inf
    row_means = gram.mean(axis=0)
    centred = gram - row_means[None, :] - row_means[:, None] + row_means.mean()
    eigenvalues = np.maximum(np.linalg.eigvalsh(centred), 0.0) / (num_batches - 1)
    unbiased = (gram.sum() - np.trace(gram)) / (num_batches * (num_batches - 1))
    moments = np.asarray([unbiased, eigenvalues.sum(), np.sum(eigenvalues**2), eigenvalues[-1]])[:, None]
    return squared_norm_bound_from_moments(moments, num_batches, delta).item()


def squared_norm_bound_from_moments(moments: np.ndarray, num_batches: int, delta: float) -> np.ndarray:
    r"""The bound on theta = |mu|^2 from `moments`, shape (4, ...): its unbiased estimate, tr S, tr S^2, lambda_max(S).

    Let lambda = lambda_max(Sigma) and tau^2 = tr Sigma^2. The noise does most harm when mu is an eigenvector of
    lambda; with z_1, z_2 standard normal and the noise across mu replaced by a Gaussian of its variance,

        R unbiased = (sqrt(R theta) + sqrt(lambda) z_1)^2 - lambda + sqrt(2 (tau^2 - lambda^2)) z_2.

    (Its lower tail, the one that matters, is lighter than the Gaussian: a weighted sum of chi-squares leans right.)
    The right side is convex in z, so the z for which it falls below its minimum over the disc |z| <= q form a convex
    set outside the disc, hence a part of a half-plane of probability P(z_1 > q). The largest theta whose minimum is
    at most R unbiased is therefore a bound, and it is the maximum over the angle phi in [0, pi/2] of

        sqrt(theta) = q cos(phi) sqrt(lambda / R) + sqrt(unbiased + (lambda + q sin(phi) s) / R),  s the factor of z_2.

    In one dimension this is |X_bar| + q sqrt(lambda / R), exact with Student's q; in many equal dimensions it is
    unbiased + q sqrt(2) tau / R, far below the plug-in |X_bar|^2 ~ tr Sigma / R.

    Estimates, n = R - 1: tau^2 = n^2 / ((n-1)(n+2)) (tr S^2 - (tr S)^2 / n), unbiased for Gaussian vectors; and
    lambda = lambda_max(S) - (tr S - lambda_max(S)) / (n - 1) (Yata and Aoshima 2012), still too large by about
    2 tau / sqrt(n) in many dimensions: a single direction weaker than that cannot be excluded. q is the quantile of
    Student's t with n degrees of freedom at 0.9 delta; the tenth pays for the error of these two (calibrated).
    Batch vectors skewed along mu break it as they break a t-interval: 1.8 delta at R = 16 and batch skewness 0.7.
    """
    unbiased, trace, trace_square, largest = moments
    n = num_batches - 1
    q = -special.stdtrit(n, 0.9 * delta)
    spike = np.maximum(largest - (trace - largest) / (n - 1), 0.0)
    square = n**2 / ((n - 1) * (n + 2)) * (trace_square - trace**2 / n)
    across = np.sqrt(2.0 * np.maximum(square - spike**2, 0.0))
    # The maximum over the angle is flat: 33 points find it to one part in a thousand.
    angle = np.linspace(0.0, math.pi / 2, 33)
    energy = unbiased[..., None] + (spike[..., None] + q * np.sin(angle) * across[..., None]) / num_batches
    norm = q * np.cos(angle) * np.sqrt(spike / num_batches)[..., None] + np.sqrt(np.maximum(energy, 0.0))
    return np.max(norm, axis=-1) ** 2


def spend(delta: float, check: int) -> float:
    """The share delta / 2^(check + 1) of check number 0, 1, 2, ...: all of them together fail at most with delta."""
    if check < 0:
        raise ValueError(f"check must be 0 or more (the first check is 0), got {check}.")
    return delta / 2.0 ** (check + 1)


def _check(num_batches: int, delta: float) -> None:
    if num_batches < MIN_BATCHES:
        raise ValueError(f"at least {MIN_BATCHES} batches are needed, got {num_batches}: split the draws into more.")
    if not 0.0 < delta < 0.5:
        raise ValueError(f"delta must be between 0 and 0.5, got {delta}: it is the probability of a wrong bound.")
