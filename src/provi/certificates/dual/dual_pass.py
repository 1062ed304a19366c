r"""A Gaussian in dual form at its data, in float64 on the host: gradient, curvature, and bounds on their errors.

With $c = a + \alpha$ and $e = \gamma - s$ the whitened gradient of the negative ELBO is $g = C'c$ in the mean and
$S - I = C'\mathrm{diag}(e)C$ in the scale, $CC' = V$: neither C nor an inverse of K is ever formed.

The prior of a Gaussian in dual form, and the factor of $B = I + S^{1/2}KS^{1/2}$, with bounds on their rounding.

A Cholesky factor computed in floating point is the exact one of $B + \Delta$, $|\Delta| \le N\epsilon\,\mathrm{tr}B$
(Higham, Accuracy and Stability, theorem 10.3). With $B^{-1}S^{1/2}Ke_n = S^{1/2}Ve_n$ and $VSV \preceq V$ it moves $v_n
= K_{nn} - |T_n|^2$ by at most $|\Delta|v_n$, and forming the difference adds $N\epsilon K_{nn}$. An error in K (a
product of N x D matrices, for a linear model) of at most $u\sqrt{k_ik_j}$ in each entry moves $v_n$ by at most $2u(k_n
+ v_n\sum_js_jk_j)$.
"""

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky, solve_triangular

from provi.certificates.bounds import local_weights
from provi.core.interpreter import instant_quick_jit
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.kernels.rows import KernelRows, entry_rounding, in_full

ROUNDING, EPS = 8.0, float(np.finfo(float).eps)
"""Multiple of N eps taken for the relative rounding of sums over N products."""


@dataclasses.dataclass(frozen=True)
class Prior:
    """The prior of the eta in float64: K, its mean, and how they were rounded.

    - `size`: k; `unit`: u, the error of K_ij is at most u sqrt(k_i k_j). Zero for a Gaussian process whose K is stored;
      that of computing an entry (`kernels.rows`) where it is not, and infinite where none is known.
    - `mean_error`: of the mean.
    """

    gram: Any
    mean: np.ndarray
    size: np.ndarray
    unit: float
    mean_error: np.ndarray

    def product_error(self, vector: np.ndarray) -> np.ndarray:
        """A bound on the error of K @ vector, entry by entry."""
        root = np.sqrt(self.size)
        computed = ROUNDING * len(root) * EPS * (np.abs(self.gram) @ np.abs(vector))
        return computed + self.unit * root * float(root @ np.abs(vector))

    def trace(self, sites: np.ndarray) -> float:
        """tr(I + S^(1/2) K S^(1/2))."""
        return len(sites) + float(np.sum(sites * self.size))

    def factor_error(self, sites: np.ndarray) -> float:
        """A bound on the spectral norm of the error of I + S^(1/2) K S^(1/2) whose exact factor was computed."""
        return ((len(sites) + 3) * EPS + self.unit) * self.trace(sites)


def prior_in_double(family: DualGaussian, numbers: Any = np) -> Prior:
    """K and X mu_0 in float64; those of a linear model in float32 are computed anew from its design.

    With `numbers` = `jax.numpy` K stays on its device, for bounds that need nothing of its size on the host.
    """
    if isinstance(family.gram, KernelRows):
        rows = family.gram.astype(np.float64)
        known = entry_rounding(rows.kernel, rows.inputs.shape[1])
        mean, size = np.asarray(family.prior_mean, np.float64), np.asarray(rows.diagonal())
        unit = np.inf if known is None else known
        gram = rows if numbers is jnp else np.asarray(in_full(rows))
        return Prior(gram, mean, size * (1 + min(unit, 1.0)), unit, 4 * EPS * np.abs(mean))
    gram = numbers.asarray(family.gram, np.float64)
    if family.design is None or family.prior is None:
        mean = np.asarray(family.prior_mean, np.float64)
        return Prior(gram, mean, np.asarray(numbers.diagonal(gram)), 0.0, 4 * EPS * np.abs(mean))
    parts = (family.design, family.prior.factor, family.prior.mean)
    design, factor, mean = (numbers.asarray(x, np.float64) for x in parts)
    rows = design @ factor if factor.ndim == 2 else design * factor
    sizes = abs(design) @ abs(factor) if factor.ndim == 2 else abs(rows)
    gram = gram if family.gram.dtype == np.float64 else rows @ rows.T
    unit = 4 * design.shape[1] * EPS
    found = (design @ mean, numbers.sum(sizes**2, axis=1), abs(design) @ abs(mean))
    mean, size, mean_size = (np.asarray(x) for x in found)
    return Prior(gram, mean, size, unit, unit * mean_size)


def site_factor(gram: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """L and T = L^-1 S^(1/2) K, LL' = I + S^(1/2) K S^(1/2)."""
    root = np.sqrt(precision)
    lower = inner_factor(gram, root)
    return lower, solve_triangular(lower, root[:, None] * gram, lower=True, check_finite=False)


def log_det_of_sites(gram: np.ndarray, precision: np.ndarray) -> float:
    """log |I + S^(1/2) K S^(1/2)|."""
    return 2 * float(np.sum(np.log(np.diagonal(inner_factor(gram, np.sqrt(precision))))))


def log_det_rounding(prior: Prior, precision: np.ndarray) -> float:
    """Error of `log_det_of_sites`: |tr(B^-1 D)| <= |B^-1|_F |D|_F, with all eigenvalues of B at least 1."""
    return float(np.sqrt(len(precision))) * prior.factor_error(precision)


def inner_factor(gram: np.ndarray, root: np.ndarray) -> np.ndarray:
    """The lower Cholesky factor of I + S^(1/2) K S^(1/2), `root` the square roots of s."""
    inner = root[:, None] * gram * root[None, :]
    inner[np.diag_indices_from(inner)] += 1.0
    return cholesky(inner, lower=True, overwrite_a=True, check_finite=False)


_FARTHEST = 12.0
"""Standard deviations beyond which a Gaussian has no mass in float64."""


@dataclasses.dataclass(frozen=True)
class DualPass:
    """What the bounds need; host arrays in float64.

    - `prior`: of eta; `precision`: s; `half`: T with V = K - T'T; `centre`, `variance`: of each eta under q.
    - `gradient`: c; `weight`: gamma; `centre_error`, `variance_error`, ...: on each entry of them.
    - `log_det`: log |I + S^(1/2) K S^(1/2)|; `likelihood`, `response`: for the local bound.
    """

    prior: Prior
    precision: np.ndarray
    half: np.ndarray
    centre: np.ndarray
    centre_error: np.ndarray
    variance: np.ndarray
    variance_error: np.ndarray
    gradient: np.ndarray
    gradient_error: np.ndarray
    weight: np.ndarray
    weight_error: np.ndarray
    log_det: float
    likelihood: Any
    response: np.ndarray

    @property
    def gram(self) -> np.ndarray:
        """K."""
        return self.prior.gram

    @property
    def excess(self) -> np.ndarray:
        """gamma - s."""
        return self.weight - self.precision

    @property
    def covariance(self) -> np.ndarray:
        """V; its entries are off by at most sqrt(x_i x_j), x the `variance_error`."""
        return self.gram - self.half.T @ self.half


def dual_pass(target: Any, family: DualGaussian, point: DualPoint) -> DualPass:
    """Evaluate at `point`: one factorisation, one pass over the data."""
    family.check_target(target)
    family.check_point(point)
    prior = prior_in_double(family)
    dual_mean, precision = (np.asarray(x, np.float64) for x in (point.dual_mean, point.site_precision))
    lower, half = site_factor(prior.gram, precision)
    variance = np.maximum(np.diagonal(prior.gram) - np.sum(half**2, axis=0), 0.0)
    centre, centre_error = prior.mean + prior.gram @ dual_mean, prior.product_error(dual_mean) + prior.mean_error
    variance_error = (ROUNDING * len(variance) * EPS + 2 * prior.unit) * prior.size
    variance_error = variance_error + 2 * prior.factor_error(precision) * variance
    likelihood, response = jax.tree.map(_double, target.likelihood), np.asarray(target.response, np.float64)
    centre_error = centre_error + np.asarray(likelihood.shift_error(centre, response))
    found = jax.tree.map(np.asarray, _moments(likelihood, centre, variance, response))
    moments, errors, (first, second, rate) = found
    with np.errstate(over="ignore", invalid="ignore"):
        # The derivatives hold at q, and on the way to the exact mean and variance up to a factor e^(M |change|).
        growth = 2 * np.exp(rate * (centre_error + rate * variance_error))
        slope_moved = growth * (np.abs(moments.weight) * centre_error + 0.5 * first * variance_error)
        weight_moved = growth * (first * centre_error + second * variance_error)
    relative = ROUNDING * EPS
    return DualPass(
        prior=prior,
        precision=precision,
        half=half,
        centre=centre,
        centre_error=centre_error,
        variance=variance,
        variance_error=variance_error,
        gradient=dual_mean + moments.slope,
        gradient_error=errors.slope + relative * (np.abs(moments.slope) + np.abs(dual_mean)) + slope_moved,
        weight=np.maximum(moments.weight, 0.0),
        weight_error=errors.weight + relative * np.abs(moments.weight) + weight_moved,
        log_det=2 * float(np.sum(np.log(np.diagonal(lower)))),
        likelihood=likelihood,
        response=response,
    )


def sited_norm(at: DualPass, weights: np.ndarray | None) -> float:
    r"""The square of c in the metric (K^-1 + W)^-1, W = diag(weights), rounded up; with None in the metric K.

    $c'Kc - b'B^{-1}b$ with $b = W^{1/2}Kc$. An error $\delta$ of $Kc$ moves it by $c'\delta - 2y'\delta$,
    $y = W^{1/2}B^{-1}b$, and one of B by $|\Delta||B^{-1}b|^2$.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product, error = at.gram @ at.gradient, at.prior.product_error(at.gradient)
        full = float(at.gradient @ product)
        rounding = 2 * float(np.abs(at.gradient) @ error)
        if weights is None:
            return max(full, 0.0) + rounding
        root = np.sqrt(weights)
        lower = inner_factor(at.gram, root)
        white = solve_triangular(lower, root * product, lower=True, check_finite=False)
        solved = solve_triangular(lower, white, lower=True, trans=1, check_finite=False)
        rounding += 4 * float(np.abs(root * solved) @ error) + at.prior.factor_error(weights) * float(solved @ solved)
        return max(full - float(white @ white), 0.0) + rounding


@instant_quick_jit
def _moments(likelihood: Any, centre: Any, variance: Any, response: Any) -> Any:
    centre, variance, response = jnp.asarray(centre), jnp.asarray(variance), jnp.asarray(response)
    moments = likelihood.moments(centre, variance, response)
    changes = _sensitivities(likelihood, centre, variance, response, jnp.abs(moments.weight))
    return moments, likelihood.moment_errors(centre, variance, response), changes


def _sensitivities(likelihood: Any, centre: Any, variance: Any, response: Any, weight: Any) -> Any:
    r"""Bounds on the derivatives of $\gamma = E\ell''(\mu + \sigma u)$ in the mean and in the variance, and M.

    They are $E\ell''u/\sigma$ and $E\ell''(u^2 - 1)/2\sigma^2$: at most $\gamma T/\sigma$ and $\gamma T^2/2\sigma^2$
    with T the farthest u that counts. With $|\ell'''| \le M\ell''$ they are at most $M\gamma$ and $M^2\gamma$ (a
    sigmoid's derivative and an exponential have $|\ell''''| \le \ell''$). For the probit
    $|\ell'''| \le (1 + t_+)\ell''$, and $E[t_+\ell''] \le \gamma Et_+$ since $\ell''$ falls in t: there, and for
    other links without M, it is taken to grow with the distance from the bend.
    """
    spread = jnp.sqrt(variance)
    wide = spread > 0
    inverse = jnp.where(wide, 1 / jnp.where(wide, spread, 1), 1e100)
    rate = likelihood.self_concordance
    if rate is not None:
        rate = jnp.full_like(centre, rate)
        zeroth, odd, even, error = likelihood.curvature_moments(centre, spread, response)
        # Of a narrow q the differences cancel: their rounding counts, too, or a bound would be zero that is none.
        error = error + 8 * EPS * (jnp.abs(zeroth) + jnp.abs(even))
        first, second = (jnp.abs(odd) + error) * inverse, 0.5 * (jnp.abs(even - zeroth) + 2 * error) * inverse**2
    else:
        bend, width = likelihood.bend(response)
        rate = (1 + (jnp.abs(centre - bend) + spread) / width) / width
        first, second = _FARTHEST * weight * inverse, 0.5 * _FARTHEST**2 * weight * inverse**2
    return jnp.minimum(first, rate * weight), jnp.minimum(second, rate**2 * weight), rate


@instant_quick_jit
def site_weights(likelihood: Any, centre: Any, spread: Any, radius: Any, slack: Any, response: Any) -> Any:
    """`local_region.local_weights` of every datum; `slack` bounds the errors of `centre` and `spread`."""
    centre, spread = jnp.asarray(centre), jnp.asarray(spread)
    moments = partial(likelihood.curvature_moments, centre, y=jnp.asarray(response))
    return local_weights(likelihood.self_concordance, moments, spread, radius, slack)


def _double(leaf: Any) -> Any:
    return np.asarray(leaf, np.float64) if eqx.is_inexact_array(leaf) else leaf


def dual_negative_elbo(target: Any, family: DualGaussian, point: DualPoint) -> tuple[float, float]:
    """The negative ELBO in float64, and a bound on the error of its computation."""
    at = dual_pass(target, family, point)
    values, errors = (np.asarray(x) for x in _values(at.likelihood, at.centre, at.variance, at.response))
    dual_mean = np.asarray(point.dual_mean, np.float64)
    trace, mean = float(np.sum(at.precision * at.variance)), float(dual_mean @ (at.gram @ dual_mean))
    with np.errstate(over="ignore", invalid="ignore"):
        slope = np.abs(at.gradient - dual_mean) + at.gradient_error
        error = float(np.sum(errors + slope * at.centre_error + (at.weight + at.weight_error) * at.variance_error))
        error += float(np.abs(dual_mean) @ at.prior.product_error(dual_mean))
        error += float(np.sum(at.precision * at.variance_error)) + log_det_rounding(at.prior, at.precision)
        error += ROUNDING * len(values) * EPS * (float(np.sum(np.abs(values))) + abs(trace) + abs(mean) + at.log_det)
    return float(np.sum(values)) + 0.5 * (at.log_det - trace + mean), error


@instant_quick_jit
def _values(likelihood: Any, centre: Any, variance: Any, response: Any) -> Any:
    centre, variance, response = jnp.asarray(centre), jnp.asarray(variance), jnp.asarray(response)
    return (
        likelihood.moments(centre, variance, response).value,
        likelihood.moment_errors(centre, variance, response).value,
    )


@instant_quick_jit
def mean_terms(likelihood: Any, centre: Any, variance: Any, response: Any) -> Any:
    """The mean of every term under q, a bound on its error, and the term at the mean."""
    centre, response = jnp.asarray(centre), jnp.asarray(response)
    return *_values(likelihood, centre, variance, response), likelihood.potential(centre, response)
