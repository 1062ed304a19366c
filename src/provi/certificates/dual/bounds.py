r"""Deterministic bounds on the optimality gap for Gaussians in dual form: (b) and (d) of docs/theory/certificates.md.

Both are a part for the mean, $\tfrac12|c|^2$ in the metric $(K^{-1} + W)^{-1}$ with W = 0 (the prior's curvature alone)
or W the curvature of the data terms on a region, and a part for the covariance,
$J(S) = \sum_n(\gamma_n - s_n)v_n - (\log|B_\gamma| - \log|B_s|)$, $B_s = I + S^{1/2}KS^{1/2}$: a Cholesky factor each.
The gap is that to the best of all Gaussians, since it is in the family.

For many data there is a third that needs no factor of an N x N matrix: as (b), $\tfrac12c'Kc + J(S)$, $S = I +
C'\mathrm{diag}(e)C$, $e = \gamma - s$, $CC' = V$, with J bounded by traces: the eigenvalues $x_i$ of $S - I = C'E_+C -
C'E_-C$ satisfy $\sum_i(x_i)_+ \le \mathrm{tr}\,C'E_+C = \tau_+ = \sum_n(e_n)_+v_n$ and $\sum_i(x_i)_- \le \tau_-$ (the
sum of the positive eigenvalues is the largest $\mathrm{tr}\,\Pi(S - I)$ over projections, and $-C'E_-C \preceq 0$).
With $h(x) = x - \log(1 + x)$, convex with h(0) = 0 and hence superadditive on either side of zero,

$$J(S) = \sum_ih(x_i) \le h(\tau_+) + h(-\tau_-), \qquad \tau_- < 1.$$

Only variances enter, and the bounds on them of `families.site_solver`. An error of $\delta$ in $v_n$ moves $E\ell_n'$
by at most $\tfrac12\delta\sup|E\ell'''|$ and $\gamma_n$ by $\tfrac12\delta\sup|E\ell''''|$. By parts, with $t_1$ the
largest curvature, $|E\ell'''| = |E\,t\ell''|/\sigma \le t_1\sqrt{2/\pi}/\sigma$ and $|E\ell''''| = |E(t^2 - 1)\ell''|/v
\le t_1E|t^2 - 1|/v < t_1/v$; self-concordance gives $|E\ell'''| \le M\gamma$. For the Poisson likelihood, whose
curvature has no bound, every derivative has the mean $\gamma$.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, eigh

from provi.certificates.bounds import LOCAL, GapBound, on_grounds_of, region_bound
from provi.certificates.dual.dual_pass import (
    EPS,
    ROUNDING,
    DualPass,
    dual_pass,
    log_det_of_sites,
    log_det_rounding,
    prior_in_double,
    site_weights,
    sited_norm,
)
from provi.core.arguments import available_bytes, device_array
from provi.core.interpreter import instant_quick_jit
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.site_solver import SiteSolver, factorise, factors_fit, site_solver, target_jitter
from provi.kernels.rows import is_streamed
from provi.targets.likelihoods import Poisson

NAME = "linearisation (b), by traces"
_TOLERANCE = 1e-6
"""Of the variances, relative."""


def iterative_bounds(
    target: Any, family: DualGaussian, point: DualPoint, solver: SiteSolver | None = None
) -> tuple[GapBound, ...]:
    """The bound at `point`, in float64, on the device of K; `solver` is one of K, if the caller has it.

    Without one the variances come from a Cholesky factor where there is room for it: conjugate gradients cost more
    operations. Its rounding is that of `dual_pass`.
    """
    family.check_target(target)
    likelihood = target.likelihood
    if not likelihood.log_concave or family.root is not None:
        return _no_bound(f"the {likelihood.name} likelihood is not log-concave")
    largest = float(likelihood.curvature[1])
    if not math.isfinite(largest) and not isinstance(likelihood.plain, Poisson):
        return _no_bound("the curvature of the link is not bounded")
    prior = prior_in_double(family, jnp)
    if not math.isfinite(prior.unit):
        return _no_bound("no bound on the rounding of this kernel's entries is known, and they are not stored")
    likelihood, response, a, s = (
        jax.tree.map(_double, x) for x in (likelihood, target.response, point.dual_mean, point.site_precision)
    )
    pad = 0.0
    streamed = is_streamed(family.gram)
    if solver is None and not streamed and factors_fit(family.num_sites, 8, available_bytes()):
        found = _evaluate_factored(prior.gram, likelihood, response, prior.mean, a, s, prior.factor_error(s))
    else:
        if solver is None or solver.gram.dtype != np.float64:
            solver = site_solver(prior.gram, np.asarray(target_jitter(target), np.float64))
        # P is rounded, and so are the entries it is made of: its residual is larger by at most this.
        pad = solver.factor.shape[1] * (EPS + prior.unit)
        solver = eqx.tree_at(lambda x: x.residual, solver, device_array(np.asarray(solver.residual) + pad * prior.size))
        found = _evaluate(solver, likelihood, response, prior.mean, a, s, np.asarray(_TOLERANCE))
    variance, error, moments, errors, squared = jax.tree.map(np.asarray, found)
    gradient, relative, root = a + moments.slope, ROUNDING * len(s) * EPS, np.sqrt(prior.size)
    # P is rounded, so that B' >= (1 - strain) M instead of M.
    strain = pad * prior.trace(s)
    if not strain < 0.5:
        return _no_bound("the site precisions are too large for float64")
    # As in `dual_rounding`; |K_nm| <= sqrt(k_n k_m) bounds the rounding of Ka.
    error = error / (1 - strain) + variance * prior.factor_error(s)
    # PP' may exceed K - jI by `pad`, and with it v_M, a lower bound, v: as for an error of K.
    error += relative * prior.size + 2 * (prior.unit + pad) * (prior.size + variance * float(s @ prior.size))
    moved = (relative + prior.unit) * root * float(root @ np.abs(a)) + prior.mean_error
    farthest = np.abs(prior.mean) + root * float(root @ np.abs(a))
    moved = moved + np.asarray(likelihood.shift_error(farthest, response))
    slope_error, weight_error = _moved(likelihood, largest, moments.weight, variance, error, moved)
    slope_error += errors.slope + relative * np.abs(moments.slope)
    weight_error += errors.weight + relative * moments.weight
    numbers = (moments.slope, moments.weight, slope_error, weight_error, squared, variance)
    if not all(np.isfinite(x).all() for x in numbers):
        return _no_bound("the mean of a data term under q is infinite, or beyond the quadrature")
    # Of c'Kc: |c|'|K||c| <= (sum sqrt(k_n) |c_n|)^2, where |c|'|Kc| may have cancelled.
    rounding = (relative + prior.unit) * float(root @ np.abs(gradient)) ** 2
    norm = math.sqrt(max(float(squared), 0.0) + rounding) + float(np.sum(slope_error * root))
    upper, excess = variance + error, moments.weight - s
    more = float(np.sum(np.maximum(excess + weight_error, 0.0) * upper)) * (1 + relative)
    less = float(np.sum(np.maximum(weight_error - excess, 0.0) * upper)) * (1 + relative)
    if less >= 1:
        return _no_bound("too far from the optimum: S may not be positive definite")
    covariance = (more - math.log1p(more)) + (-less - math.log1p(-less))
    return on_grounds_of(target.likelihood, (GapBound(NAME, float(0.5 * norm**2 + covariance), "proven"),))


def _moved(
    likelihood: Any, largest: float, weight: np.ndarray, variance: np.ndarray, error: np.ndarray, moved: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the errors of slopes and weights from `error` in each variance and `moved` in each mean."""
    if not math.isfinite(largest):  # Poisson: the weight is exp(mean + variance / 2)
        with np.errstate(over="ignore"):
            change = weight * np.expm1(0.5 * error + moved)
        return change, change
    least = np.maximum(variance - error, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        fourth = np.where(error > 0, 0.5 * error * largest / least, 0.0)
        third = np.where(error > 0, 0.5 * error * largest * math.sqrt(2 / math.pi) / np.sqrt(least), 0.0)
        sideways = np.where(moved > 0, moved * largest * math.sqrt(2 / math.pi) / np.sqrt(least), 0.0)
    weight_error = np.minimum(fourth + sideways, largest)
    constant = likelihood.self_concordance
    if constant is not None:
        third = np.minimum(third, 0.5 * error * float(constant) * np.minimum(weight + weight_error, largest))
    return third + moved * np.minimum(weight + weight_error, largest), weight_error


@instant_quick_jit
def _evaluate(
    solver: SiteSolver, likelihood: Any, response: Any, mean: Any, dual_mean: Any, precision: Any, tolerance: Any
) -> Any:
    found = solver.variances(jnp.asarray(precision), tolerance)
    return found.value, found.error, *_at_sites(solver.gram, found.value, likelihood, response, mean, dual_mean)


@instant_quick_jit
def _evaluate_factored(
    gram: Any, likelihood: Any, response: Any, mean: Any, dual_mean: Any, precision: Any, factor_error: Any
) -> Any:
    variance = factorise(gram, jnp.asarray(precision)).variance
    return variance, variance * factor_error, *_at_sites(gram, variance, likelihood, response, mean, dual_mean)


def _at_sites(gram: Any, variance: Any, likelihood: Any, response: Any, mean: Any, dual_mean: Any) -> Any:
    """The moments of the terms, bounds on their errors, and c'Kc."""
    response, mean, dual_mean = (jnp.asarray(x) for x in (response, mean, dual_mean))
    centre = mean + gram @ dual_mean
    moments = likelihood.moments(centre, variance, response)
    errors = likelihood.moment_errors(centre, variance, response)
    gradient = dual_mean + moments.slope
    return moments, errors, jnp.sum(gradient * (gram @ gradient))


def _no_bound(reason: str) -> tuple[GapBound, ...]:
    return (GapBound(NAME, math.inf, "proven", detail=reason),)


def _double(leaf: Any) -> Any:
    return np.asarray(leaf, np.float64) if eqx.is_inexact_array(leaf) else leaf


NAMES = ("linearisation (b)", LOCAL)
LARGEST_FACTORISED = 5000
"""Number of data up to which the bounds factorise matrices of that size."""


def dual_bounds(target: Any, family: DualGaussian, point: DualPoint) -> tuple[GapBound, ...]:
    """The two bounds at `point`, for a log-concave likelihood; for many data that of `dual_iterative`."""
    size, itemsize = family.num_sites, 8
    large = size > LARGEST_FACTORISED or not factors_fit(size, itemsize, available_bytes())
    if family.root is None and (large or is_streamed(family.gram)):
        return iterative_bounds(target, family, point)
    if not target.likelihood.log_concave or family.root is not None:
        return _no_bounds(f"the {target.likelihood.name} likelihood is not log-concave")
    try:
        at = dual_pass(target, family, point)
        numbers = (at.gradient, at.weight, at.gradient_error, at.weight_error)
        if not all(np.isfinite(x).all() for x in numbers):
            return _no_bounds("the mean of a data term under q is infinite, or beyond the quadrature")
        covariance = covariance_part(at)
        return on_grounds_of(target.likelihood, (linearisation_bound(at, covariance), local_bound(at, covariance)))
    except LinAlgError:
        return _no_bounds("rounding has left K without a Cholesky factor: add jitter, or use float64")
    except OverflowError:
        return _no_bounds("too far from the optimum: the bounds are beyond the range of numbers")


def refuted_site(target: Any, family: DualGaussian, point: DualPoint) -> Any:
    """A counterexample to what the user declared of the likelihood, within reach of q; None for the package's own."""
    if target.likelihood.grounds[0] == "proven" or not target.likelihood.log_concave:
        return None
    from provi.certificates.linear.refutation import link_counterexample  # a default fit has no need of it

    if is_streamed(family.gram):
        centre, deviation = (np.asarray(x, np.float64) for x in _streamed_marginals(family, point))
        return link_counterexample(target.likelihood, centre, deviation**2, np.asarray(target.response, np.float64))
    at = dual_pass(target, family, point)
    return link_counterexample(target.likelihood, at.centre, at.variance, at.response)


@instant_quick_jit
def _streamed_marginals(family: DualGaussian, point: DualPoint) -> Any:
    return family.mean(point), family.marginal_standard_deviation(point)


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
        weights = np.asarray(site_weights(likelihood, at.centre, spread, np.asarray(radius), slack, at.response))
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
