r"""Deterministic bounds on the optimality gap for Gaussians in dual form: (b) and (d) of docs/theory/certificates.md.

Both are a part for the mean, $\tfrac12|c|^2$ in the metric $(K^{-1} + W)^{-1}$ with W = 0 (the prior's curvature alone)
or W the curvature of the data terms on a region, and a part for the covariance,
$J(S) = \sum_n(\gamma_n - s_n)v_n - (\log|B_\gamma| - \log|B_s|)$, $B_s = I + S^{1/2}KS^{1/2}$: a Cholesky factor each.
The gap is that to the best of all Gaussians, since it is in the family.
"""

import math
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, eigh

from provi.certificates.bounds import GapBound
from provi.certificates.dual_iterative import iterative_bounds
from provi.certificates.dual_pass import DualPass, dual_pass, site_weights, sited_norm
from provi.certificates.dual_rounding import log_det_of_sites, log_det_rounding
from provi.certificates.local_region import NAME as LOCAL
from provi.certificates.local_region import region_bound
from provi.core.memory import available_bytes
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.site_solver import factors_fit

NAMES = ("linearisation (b)", LOCAL)
LARGEST_FACTORISED = 5000
"""Number of data up to which the bounds factorise matrices of that size."""


def dual_bounds(target: Any, family: DualGaussian, point: DualPoint) -> tuple[GapBound, ...]:
    """The two bounds at `point`, for a log-concave likelihood; for many data that of `dual_iterative`."""
    size, itemsize = family.num_sites, 8
    if family.root is None and (size > LARGEST_FACTORISED or not factors_fit(size, itemsize, available_bytes())):
        return iterative_bounds(target, family, point)
    if not target.likelihood.log_concave or family.root is not None:
        return _no_bounds(f"the {target.likelihood.name} likelihood is not log-concave")
    try:
        at = dual_pass(target, family, point)
        numbers = (at.gradient, at.weight, at.gradient_error, at.weight_error)
        if not all(np.isfinite(x).all() for x in numbers):
            return _no_bounds("the mean of a data term under q is infinite, or beyond the quadrature")
        covariance = covariance_part(at)
        return linearisation_bound(at, covariance), local_bound(at, covariance)
    except LinAlgError:
        return _no_bounds("rounding has left K without a Cholesky factor: add jitter, or use float64")
    except OverflowError:
        return _no_bounds("too far from the optimum: the bounds are beyond the range of numbers")


def _no_bounds(reason: str) -> tuple[GapBound, ...]:
    return tuple(GapBound(name, math.inf, "proven", detail=reason) for name in NAMES)


def covariance_part(at: DualPass) -> float:
    r"""J of every matrix within the error of S: $J(S) + \epsilon|I - S^{-1}|_F + \epsilon^2/(2(\lambda - \epsilon)^2)$.

    $\epsilon = \sum_n\epsilon_nv_n$. From $K^{-1} + \Gamma \succeq \lambda(K^{-1} + S)$ with
    $\lambda = \min(1, \min_n\gamma_n/s_n)$ every eigenvalue of S is at least $\lambda$, and
    $|S - I|_F \le \sum_n|\gamma_n - s_n|v_n$.
    """
    excess = at.excess
    value = float(np.sum(excess * at.variance)) - (log_det_of_sites(at.gram, at.weight) - at.log_det)
    value += log_det_rounding(at.prior, at.weight) + log_det_rounding(at.prior, at.precision)
    value += float(np.sum(np.abs(excess) * (at.variance_error + len(excess) * np.finfo(float).eps * at.variance)))
    error = float(np.sum(at.weight_error * (at.variance + at.variance_error)))
    smallest = least_ratio(at.weight, at.precision)
    if not smallest > 2 * error:
        return math.inf
    slope = float(np.sum(np.abs(excess) * at.variance)) / smallest
    return max(value, 0.0) + error * slope + 0.5 * (error / (smallest - error)) ** 2


def linearisation_bound(at: DualPass, covariance: float) -> GapBound:
    r"""(b): $\tfrac12c'Kc + J(S)$; an error of $\epsilon_n$ in $c_n$ moves $|c|_K$ by at most
    $\epsilon_n\sqrt{K_{nn}}$."""
    error = float(np.sum(at.gradient_error * np.sqrt(at.prior.size)))
    mean = 0.5 * (math.sqrt(sited_norm(at, None)) + error) ** 2
    return GapBound(NAMES[0], float(mean + covariance), "proven")


def local_bound(at: DualPass, covariance: float) -> GapBound:
    r"""(d): `local_region`, with $H_R = C'(K^{-1} + W)C$, W the curvature of the terms on the region."""
    likelihood = at.likelihood
    if likelihood.self_concordance is None:
        return GapBound(NAMES[1], math.inf, "proven", detail="the link is not self-concordant")
    spread, whitened = np.sqrt(at.variance), at.covariance
    error = float(np.sum(at.gradient_error * spread))
    # |S - I|_F^2 is a sum over e_i e_j V_ij^2, whose rounding is that of the two V.
    square = max(float(at.excess @ (whitened**2) @ at.excess), 0.0)
    square += 2 * float(np.sum(np.abs(at.excess) * np.sqrt((at.variance + at.variance_error) * at.variance_error))) ** 2
    size = math.sqrt(square) + float(np.sum(at.weight_error * (at.variance + at.variance_error)))
    slack = at.centre_error + np.sqrt(at.variance_error)

    def at_radius(radius: float) -> tuple[float, float]:
        weights = np.asarray(site_weights(likelihood, at.centre, spread, np.asarray(radius), slack))
        smallest = _least_eigenvalue(at, whitened, weights)
        if not smallest > 0:
            return smallest, math.inf
        return smallest, 0.5 * (math.sqrt(sited_norm(at, weights)) + error / math.sqrt(smallest)) ** 2

    norm = math.sqrt(max(float(at.gradient @ whitened @ at.gradient), 0.0)) + error
    return region_bound(covariance, size, norm, at_radius)


def least_ratio(weights: np.ndarray, precision: np.ndarray) -> float:
    """min(1, min w_n / s_n) over the sites with s_n > 0: K^-1 + W >= this times K^-1 + S."""
    real = precision > 0
    return min(1.0, float(np.min(weights[real] / precision[real], initial=1.0)))


def _least_eigenvalue(at: DualPass, covariance: np.ndarray, weights: np.ndarray) -> float:
    r"""A lower bound on the least eigenvalue of $C'(K^{-1} + W)C = I - C'(S - W)C$: with E the positive part of S - W,
    $1 - \lambda_{\max}(E^{1/2}VE^{1/2})$; or the ratio bound, if that is better."""
    root = np.sqrt(np.maximum(at.precision - weights, 0.0))
    inner = root[:, None] * covariance * root[None, :]
    last = len(root) - 1
    largest = float(eigh(inner, eigvals_only=True, subset_by_index=[last, last], check_finite=False)[0])
    slack = float(np.sum(root**2 * at.variance_error)) + 8 * len(root) * np.finfo(float).eps
    return max(1.0 - largest - slack, least_ratio(weights, at.precision))
