r"""A deterministic bound on the gap of a Gaussian in dual form that needs no factor of an N x N matrix.

As (b) of docs/theory/certificates.md, $\tfrac12c'Kc + J(S)$, $S = I + C'\mathrm{diag}(e)C$, $e = \gamma - s$,
$CC' = V$, with J bounded by traces: the eigenvalues $x_i$ of $S - I = C'E_+C - C'E_-C$ satisfy
$\sum_i(x_i)_+ \le \mathrm{tr}\,C'E_+C = \tau_+ = \sum_n(e_n)_+v_n$ and $\sum_i(x_i)_- \le \tau_-$ (the sum of the
positive eigenvalues is the largest $\mathrm{tr}\,\Pi(S - I)$ over projections, and $-C'E_-C \preceq 0$). With
$h(x) = x - \log(1 + x)$, convex with h(0) = 0 and hence superadditive on either side of zero,

$$J(S) = \sum_ih(x_i) \le h(\tau_+) + h(-\tau_-), \qquad \tau_- < 1.$$

Only variances enter, and the bounds on them of `families.site_solver`. An error of $\delta$ in $v_n$ moves
$E\ell_n'$ by at most $\tfrac12\delta\sup|E\ell'''|$ and $\gamma_n$ by $\tfrac12\delta\sup|E\ell''''|$. By parts, with
$t_1$ the largest curvature, $|E\ell'''| = |E\,t\ell''|/\sigma \le t_1\sqrt{2/\pi}/\sigma$ and
$|E\ell''''| = |E(t^2 - 1)\ell''|/v \le t_1E|t^2 - 1|/v < t_1/v$; self-concordance gives $|E\ell'''| \le M\gamma$. For
the Poisson likelihood, whose curvature has no bound, every derivative has the mean $\gamma$.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.bounds import GapBound
from provi.certificates.dual_rounding import EPS, ROUNDING, prior_in_double
from provi.core.compilation import quick_jit
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.site_solver import SiteSolver, site_solver, target_jitter
from provi.targets.likelihoods import Poisson

NAME = "linearisation (b), by traces"
_TOLERANCE = 1e-6
"""Of the variances, relative."""


def iterative_bounds(
    target: Any, family: DualGaussian, point: DualPoint, solver: SiteSolver | None = None
) -> tuple[GapBound, ...]:
    """The bound at `point`, in float64; `solver` is one of K, if the caller has it."""
    family.check_target(target)
    likelihood = target.likelihood
    if not likelihood.log_concave or family.root is not None:
        return _no_bound(f"the {likelihood.name} likelihood is not log-concave")
    largest = float(likelihood.curvature[1])
    if not math.isfinite(largest) and not isinstance(likelihood, Poisson):
        return _no_bound("the curvature of the link is not bounded")
    prior = prior_in_double(family)
    if solver is None or solver.gram.dtype != np.float64:
        solver = site_solver(jnp.asarray(prior.gram), np.asarray(target_jitter(target), np.float64))
    likelihood, response, a, s = (
        jax.tree.map(_double, x) for x in (likelihood, target.response, point.dual_mean, point.site_precision)
    )
    # P is rounded: its residual is larger by at most this.
    pad = solver.factor.shape[1] * EPS
    solver = eqx.tree_at(lambda x: x.residual, solver, jnp.asarray(np.asarray(solver.residual) + pad * prior.size))
    found = _evaluate(solver, likelihood, response, prior.mean, a, s, np.asarray(_TOLERANCE))
    variance, error, moments, errors, squared = jax.tree.map(np.asarray, found)
    gradient, relative, root = a + moments.slope, ROUNDING * len(s) * EPS, np.sqrt(prior.size)
    # P is rounded, so that B' >= (1 - strain) M instead of M.
    strain = pad * prior.trace(s)
    if not strain < 0.5:
        return _no_bound("the site precisions are too large for float64")
    # As in `dual_rounding`; |K_nm| <= sqrt(k_n k_m) bounds the rounding of Ka.
    error = error / (1 - strain) + variance * prior.factor_error(s)
    error += relative * prior.size + 2 * prior.unit * (prior.size + variance * float(s @ prior.size))
    moved = (relative + prior.unit) * root * float(root @ np.abs(a)) + prior.mean_error
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
    return (GapBound(NAME, float(0.5 * norm**2 + covariance), "proven"),)


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


@quick_jit
def _evaluate(
    solver: SiteSolver, likelihood: Any, response: Any, mean: Any, dual_mean: Any, precision: Any, tolerance: Any
) -> Any:
    response, mean, dual_mean, precision = (jnp.asarray(x) for x in (response, mean, dual_mean, precision))
    found = solver.variances(precision, tolerance)
    centre = mean + solver.gram @ dual_mean
    moments = likelihood.moments(centre, found.value, response)
    errors = likelihood.moment_errors(centre, found.value, response)
    gradient = dual_mean + moments.slope
    return found.value, found.error, moments, errors, jnp.sum(gradient * (solver.gram @ gradient))


def _no_bound(reason: str) -> tuple[GapBound, ...]:
    return (GapBound(NAME, math.inf, "proven", detail=reason),)


def _double(leaf: Any) -> Any:
    return np.asarray(leaf, np.float64) if eqx.is_inexact_array(leaf) else leaf
