r"""What all bounds on the gap share: the object, the function J, bound (d), confidence from draws, how one is printed.

Bound (d) of docs/theory/certificates.md: a region that provably holds the best member, and the curvature on it.

On $R = \{|v| \le \rho, |D|_F \le \rho\}$ the curvature in v is at least $H_R$, that of $-\log\det$ at least $c = (1 +
\rho)^{-2}$. With $Q^2 = |g|^2_{H_R^{-1}} + |S - I|_F^2/c$, every point that is as good as q has $|v|_{H_R} \le
|g|_{H_R^{-1}} + Q$ and $|D|_F \le |S - I|_F/c + Q/\sqrt c$. If both put it inside R, the best member is inside, and the
gap is at most $\tfrac12|g|^2_{H_R^{-1}} + J(S)$.

Upper confidence bounds are for a mean, and for the squared norm of a mean vector. Both take R >= 16 independent batches
and hold with probability 1 - delta when the batch means are what their docstrings say, up to the error that
`benchmarks/confidence_calibration.py` measures: the formulas contain no non-asymptotic inequality, so their level is
calibrated by simulation and not proven.
"""

import dataclasses
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import special  # not scipy.stats, which takes half a second to import


@dataclasses.dataclass(frozen=True)
class GapBound:
    """An upper bound on f(w) - f*, in nats.

    - `name`: which of the bounds of docs/theory/certificates.md; `value`: infinite where it does not apply.
    - `status`: 'proven': deterministic, or valid for any number of draws at its `confidence`, from properties of the
      target that are proven or declared; 'statistical': the `confidence` is asymptotic, as batch means are taken to be
      Gaussian and the tails were audited only; 'conditional': it rests on an assumption that `detail` names.
    - `confidence`: None for a deterministic bound, otherwise the probability with which it holds.
    - `num_samples`: gradients of the log density that it used; `detail`: what it assumes or why it is infinite.
    """

    name: str
    value: float
    status: str
    confidence: float | None = None
    num_samples: int = 0
    detail: str = ""


def on_grounds_of(likelihood: Any, bounds: tuple[GapBound, ...], normal: bool = True) -> tuple[GapBound, ...]:
    """The bounds, conditional where the errors of the likelihood's means are estimates and not bounds.

    `normal`: whether the base is, whose law the proofs of a user's likelihood are about.
    """
    if likelihood.errors_proven and (normal or likelihood.grounds[0] == "proven"):
        return bounds
    reason = f"quadrature resolves the {likelihood.name} likelihood, also in its tails (its errors are estimates)"
    return tuple(dataclasses.replace(bound, status="conditional", detail=bound.detail or reason) for bound in bounds)


STATUSES = ("proven", "statistical", "conditional")
"""What a bound may be, the best first."""


def log_det_gap(eigenvalues: np.ndarray) -> float:
    r"""J(S) = tr(S - I) - log det S = sup over B > 0 of log det B - <S, B - I>, from the eigenvalues of S.

    Infinite unless S is positive definite.
    """
    if not (eigenvalues > 0).all():
        return math.inf
    excess = eigenvalues - 1.0
    # log1p keeps the digits of J ~ |S - I|^2 / 2 near its zero; the difference is never negative but by rounding.
    return float(np.sum(np.maximum(excess - np.log1p(excess), 0.0)))


def log_det_gap_from_norm(norm: float) -> float:
    r"""The largest J(I + G) over all symmetric G with |G|_F <= norm: -norm - log(1 - norm), infinite from 1 on.

    x - log(1 + x) grows faster to the left of zero, and convexity puts all of the norm into one eigenvalue.
    """
    return -norm - math.log1p(-norm) if norm < 1 else math.inf


LOCAL = "local curvature (d)"
_FIRST_RADIUS, _LARGEST_RADIUS, _MOST_RADII, _LARGEST_UNIT = 3.0, 30.0, 4, 1e50
"""Radii to try, in multiples of the whitened gradient norm; each costs a pass, or a factorisation or two."""


def region_bound(
    covariance: float, size: float, gradient_norm: float, at_radius: Callable[[float], tuple[float, float]]
) -> GapBound:
    """The bound from the first radius that is large enough.

    **Arguments:**

    - `covariance`: J(S). - `size`: |S - I|_F. - `gradient_norm`: |g|. All with their errors added.
    - `at_radius`: the least eigenvalue of H_R (zero or less: none), and |g|^2 / 2 in its inverse.
    """
    unit = math.hypot(gradient_norm, size)
    if not math.isfinite(covariance):
        return GapBound(LOCAL, math.inf, "proven", detail="too far from the optimum: S is not positive definite")
    radius = _FIRST_RADIUS * unit
    # |D| <= radius needs size (1 + radius)^2 < radius, so that no region can hold a size of 1/4.
    for _ in range(_MOST_RADII if size < 0.25 and unit < _LARGEST_UNIT else 0):
        smallest, mean = at_radius(radius)
        if not smallest > 0:
            break
        needed = needed_radius(radius, size, smallest, mean)
        if needed < radius:
            return bound_on_region(radius, mean + covariance)
        if needed > _LARGEST_RADIUS * unit:
            break
        radius = 1.2 * needed  # a wider region has less curvature, so it needs a little more than was asked for
    return GapBound(LOCAL, math.inf, "proven", detail="too far from the optimum: no region holds the best member")


def needed_radius(radius: float, size: float, smallest: float, mean: float) -> float:
    """How far from q the best member may be if it is within `radius`; above zero, `smallest` and `mean` as in
    `region_bound`."""
    steepness = (1 + radius) ** -2.0
    total = math.sqrt(2 * mean + size**2 / steepness)
    needed = (math.sqrt(2 * mean) + total) / math.sqrt(smallest)
    return max(needed, size / steepness + total / math.sqrt(steepness))


def bound_on_region(radius: float, value: float) -> GapBound:
    """Bound (d), of a region that holds the best member."""
    return GapBound(LOCAL, float(value), "proven", detail=f"on a region of radius {radius:.2g} around q")


def local_weights(
    self_concordance: float, moments: Callable[[Any], tuple], spread: Any, radius: Any, slack: Any
) -> Any:
    r"""$\kappa_n$: lower bounds on the curvature of each term in its mean while |v|, |D|_F <= `radius`; traced.

    With $q_n = M(\sigma_n\rho + \text{slack}_n)$, M the self-concordance of the link and `slack` the errors of its mean
    and deviation, $\kappa_n = e^{-3q_n/2}(1 + q_n)^{-1/2}\,\kappa(\mu_n, \sigma_n(1 + q_n)^{-1/2})$, where
    $\kappa(\mu, \sigma) = m_0 - m_1^2/m_2$, and `moments`(sigma) are $m_j = E[t^j\ell''(\mu + \sigma t)]$, j = 0, 1, 2,
    and a bound on their errors.
    """
    change = self_concordance * (spread * radius + slack)
    zeroth, first, second, error = moments(spread / jnp.sqrt(1 + change))
    # The smallest value of (m0 - e) + 2 b m1 + b^2 (m2 - e) over b: right for all moments within the error.
    safe = jnp.where(second > error, second - error, 1)
    kappa = jnp.where(second > error, zeroth - error - first**2 / safe, 0)
    return jnp.exp(-1.5 * change) / jnp.sqrt(1 + change) * jnp.maximum(kappa, 0)


def at_most(value: float, digits: int = 3) -> str:
    """An upper bound with `digits` significant digits, rounded up: read back, the text is never below the bound."""
    text = f"{value:.{digits}g}"
    if not math.isfinite(value) or float(text) >= value:
        return text
    # Decimal(value) is the float exactly, so this rounding is the only one.
    return f"{float(Context(digits, ROUND_CEILING).create_decimal(Decimal(value))):.{digits}g}"


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
