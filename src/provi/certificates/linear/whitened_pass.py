r"""One pass over the data of a linear model at q, in float64: the whitened gradient with a bound on its error.

With $z = m + Cu$, $\tilde x_n = C'x_n$, $\sigma_n = |\tilde x_n|$: $g = C'L_0(m - \mu_0) + \sum_n\alpha_n\tilde x_n$,
$S = C'L_0C + \sum_n\gamma_n\tilde x_n\tilde x_n'$ with $\alpha_n = E\ell_n'$,
$\gamma_n = E[\ell_n'(\mu_n + \sigma_nt)t]/\sigma_n$. An error of $\epsilon$ in $\alpha_n$ moves $g$ by at most
$\epsilon\sigma_n$, one in $\gamma_n$ moves $S$ by $\epsilon\sigma_n^2$.

Rounding moves $\tilde x_n$ by at most $\delta_n = 2d\epsilon\sum_i|x_{ni}|\,|C_i|$ ($C_i$ a row of C) and $\mu_n$ by
$\nu_n = 2d\epsilon|x_n|'|m|$: more than $\epsilon\sigma_n$ where columns cancel. With T the farthest standard deviation
that counts, $d\alpha/d\mu = \gamma$, $|d\alpha/d\sigma| = |E\,t\ell''| \le T\gamma$,
$|d\gamma/d\mu| \le T\gamma/\sigma$ and $|d\gamma/d\sigma| = |E(t^2 - 1)\ell''|/\sigma \le T^2\gamma/\sigma$.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from provi.certificates.bounds import local_weights
from provi.families.location_scale import LocationScale, Point, square_root
from provi.families.marginals import line_arguments
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors, quadrature_moments
from provi.targets.linear_model import AbstractLinearModel, Rows, keep, sum_over_rows
from provi.targets.priors import GaussianPrior

# A Gaussian prior N(mu, K) seen from q = (m, C), with bounds on the rounding: F^-1 C and F^-1 (m - mu), FF' = K.
#
# A triangular system solved in floating point has the exact solution of $(F + \Delta)x = b$ with
# $|\Delta| \le n\epsilon|F|$ entry by entry (Higham, Accuracy and Stability, theorem 8.5), so
# $|\hat x - x| \le n\epsilon|F^{-1}||F||\hat x|$ to first order; twice that is taken here.
#
# F itself is rounded: $FF' = K + \Delta$, $|\Delta_{ij}| \le \eta r_ir_j$, $r_i^2 = K_{ii}$ (theorem 10.3). From
# $K^{-1} = L + L\Delta L + L\Delta K^{-1}\Delta L$, $L = (FF')^{-1}$, what is meant, $x'K^{-1}y$, is off by at most
# $\eta(r'|Lx|)(r'|Ly|)/(1 - \beta)$ where $\beta = \eta|\,|F^{-1}|r\,|^2 \ge \eta r'|L|r$. For a kernel matrix with
# small
# jitter both are far more than the rounding of the products that follow.


_EPS, _LARGEST_RELATIVE = float(np.finfo(float).eps), 0.1


@dataclasses.dataclass(frozen=True)
class WhitenedPrior:
    r"""`scale` = F^-1 C and `shift` = F^-1 (m - mu), with bounds on the error of every entry.

    - `scale_reach`, `shift_reach`: $\sqrt{\eta/(1 - \beta)}\,r'|Lx|$ for each column x of C and for m - mu: x'K^-1y is
      x'Ly up to the product of two of them. Infinite if K is singular to working precision.
    """

    scale: np.ndarray
    shift: np.ndarray
    scale_error: np.ndarray
    shift_error: np.ndarray
    scale_reach: np.ndarray
    shift_reach: float

    @property
    def gradient(self) -> np.ndarray:
        """C' K^-1 (m - mu)."""
        return self.scale.T @ self.shift

    @property
    def gradient_error(self) -> float:
        """On the norm of the gradient."""
        scale, shift = np.abs(self.scale), np.abs(self.shift)
        product = scale.T @ (self.shift_error + 2 * len(shift) * _EPS * shift)
        product += self.scale_error.T @ (shift + self.shift_error)
        return float(np.linalg.norm(product + self.scale_reach * self.shift_reach))

    @property
    def curvature(self) -> np.ndarray:
        """C' K^-1 C."""
        product = self.scale.T @ self.scale
        return (product + product.T) / 2

    @property
    def curvature_error(self) -> float:
        """On the Frobenius norm of the curvature."""
        scale, error = float(np.linalg.norm(self.scale)), float(np.linalg.norm(self.scale_error))
        rounding = 2 * len(self.shift) * _EPS * scale**2
        return 2 * scale * error + error**2 + rounding + float(np.sum(self.scale_reach**2))

    @property
    def energy(self) -> tuple[float, float]:
        """(tr C' K^-1 C + (m - mu)' K^-1 (m - mu)) / 2, and a bound on its error."""
        total, error = 0.0, 0.5 * (float(np.sum(self.scale_reach**2)) + self.shift_reach**2)
        for value, bound in ((self.scale, self.scale_error), (self.shift, self.shift_error)):
            size = 0.5 * float(np.sum(value**2))
            total += size
            error += float(np.sum(np.abs(value) * bound)) + 0.5 * float(np.sum(bound**2)) + value.size * _EPS * size
        return total, error


def whitened_prior(prior: GaussianPrior, root: np.ndarray, loc: np.ndarray) -> WhitenedPrior:
    """In float64, for q = (`loc`, `root`)."""
    factor = np.asarray(prior.factor, np.float64)
    deviation = loc - np.asarray(prior.mean, np.float64)
    if factor.ndim < 2:
        factor = np.broadcast_to(factor, (prior.dim,))
        scale, shift = root / factor[:, None], deviation / factor
        return WhitenedPrior(
            scale, shift, 2 * _EPS * np.abs(scale), 2 * _EPS * np.abs(shift), np.zeros_like(deviation), 0.0
        )
    scale, shift = (solve_triangular(factor, x, lower=True) for x in (root, deviation))
    inverse = np.abs(solve_triangular(factor, np.eye(prior.dim), lower=True))
    growth = 2 * prior.dim * _EPS * (inverse @ np.abs(factor))
    size = np.linalg.norm(factor, axis=1)
    # A factor in float32 was rounded once more.
    unit = (prior.dim + 2) * _EPS + 2 * float(np.finfo(np.asarray(prior.factor).dtype).eps)
    relative = unit * float(np.sum((inverse @ size) ** 2))
    if not max(float(np.linalg.norm(growth, np.inf)), relative) < _LARGEST_RELATIVE:
        unknown = np.full_like(shift, math.inf)
        return WhitenedPrior(scale, shift, np.zeros_like(scale), np.zeros_like(shift), unknown, math.inf)
    # L x is itself known to about 1 + |growth|, twice.
    unit *= (1 + _LARGEST_RELATIVE) ** 4 / (1 - relative)
    columns, column = (size @ np.abs(solve_triangular(factor, x, lower=True, trans=1)) for x in (scale, shift))
    return WhitenedPrior(
        scale,
        shift,
        growth @ np.abs(scale),
        growth @ np.abs(shift),
        math.sqrt(unit) * columns,
        math.sqrt(unit) * float(column),
    )


QUADRATURE_ERROR, LARGEST_SPREAD, LARGEST_TAIL = 1e-9, 10.0, 1e-12
"""Accuracy of the rules for other bases than the normal, the spread up to which it was tested, and the share of the
last nodes up to which the mean of an unbounded link is trusted."""

_FARTHEST = 12.0
"""Standard deviations beyond which a Gaussian has no mass in float64."""


@dataclasses.dataclass(frozen=True)
class WhitenedPass:
    """Gradient and curvature at q in its own coordinates, with error bounds; host arrays in float64.

    - `loc`, `root`: m, C; `prior`: C'L_0C rounded down, so that the true one less this one is positive semi-definite;
      `lower`: the same for C'HC, H the global curvature bound; `likelihood`: S less `prior`.
    - `gradient`: g; `curvature`: S; `gradient_error`, `curvature_error`: on |g| and |S|_F.
    - `diagonal`: the family's.
    """

    loc: np.ndarray
    root: np.ndarray
    prior: np.ndarray
    lower: np.ndarray
    likelihood: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray
    gradient_error: float
    curvature_error: float
    diagonal: bool


def whitened_pass(target: AbstractLinearModel, family: LocationScale, point: Point) -> WhitenedPass:
    """Evaluate at `point`; a low-rank member counts as one of the family of all covariances."""
    root, loc = square_root(point), np.asarray(point.loc, np.float64)
    double, rule = line_arguments(target, family)
    slope, gram, slope_error, weight_error = _pass(double, loc, root, rule)
    prior = whitened_prior(target.prior, root, loc)
    likelihood = (np.asarray(gram) + np.asarray(gram).T) / 2
    # Every term has at least t0 / t1 of its curvature at q everywhere.
    least, most = target.curvature
    share = least / most if least > 0 and math.isfinite(most) else 0.0
    lower, lower_error = prior.curvature, prior.curvature_error
    if share > 0:
        lower, lower_error = lower + share * likelihood, lower_error + share * float(weight_error)
    curvature, below = prior.curvature + likelihood, rounded_down(prior.curvature, prior.curvature_error)
    return WhitenedPass(
        loc=loc,
        root=root,
        prior=below,
        lower=rounded_down(lower, lower_error),
        likelihood=curvature - below,
        gradient=prior.gradient + np.asarray(slope),
        curvature=curvature,
        gradient_error=float(slope_error) + prior.gradient_error,
        curvature_error=float(weight_error) + prior.curvature_error,
        diagonal=family.scale == "diagonal",
    )


def rounded_down(matrix: np.ndarray, error: float) -> np.ndarray:
    """A matrix below every one within `error` of `matrix`, by enough that Cholesky factors, eigenvalues and solutions
    computed from it in float64 are those of a matrix that is so, too."""
    rounding = 16 * len(matrix) * np.finfo(float).eps * float(np.trace(np.abs(matrix)))
    return matrix - (error + rounding) * np.eye(len(matrix)) if math.isfinite(error) else matrix


@eqx.filter_jit
def _pass(target: AbstractLinearModel, loc: Any, root: Any, rule: Any) -> Any:
    # A sum of N products is off by at most N eps times the sum of their magnitudes.
    rounding = (target.num_terms + 8) * jnp.finfo(root.dtype).eps
    steepness = 0.0 if target.self_concordance is None else target.self_concordance

    def sums(block: Rows, real: Any) -> Any:
        rows = block.design @ root
        centre, variance = block.design @ loc, jnp.sum(rows**2, axis=1)
        total = block.total_variance(variance)
        moments, errors = keep(real, moments_and_errors(target, centre, total, block.response, rule))
        gram = rows.T @ (moments.weight[:, None] * rows)
        # An offset moves what a row's moments are, not how they enter the gradient.
        spread, weight, slope = jnp.sqrt(variance), jnp.abs(moments.weight), jnp.abs(moments.slope)
        row_error, centre_error = row_rounding(block.design, loc, root)
        # Where the link's curvature grows with t, the mean of it lies farther out.
        far = _FARTHEST + steepness * spread
        moved = weight * (centre_error + far * row_error)
        slope_error = (errors.slope + rounding * slope + moved) * spread + slope * row_error
        weight_error = (errors.weight + rounding * weight) * variance
        weight_error += weight * (2 * row_error * spread + row_error**2) + far * moved * spread
        return rows.T @ moments.slope, gram, jnp.sum(slope_error), jnp.sum(weight_error)

    return sum_over_rows(target, sums)


def row_rounding(design: Any, loc: Any, root: Any) -> tuple[Any, Any]:
    """Bounds on the rounding of each row x'C, in its norm, and of each x'm."""
    unit, size = 2 * design.shape[1] * jnp.finfo(root.dtype).eps, jnp.abs(design)
    return unit * (size @ jnp.sqrt(jnp.sum(root**2, axis=1))), unit * (size @ jnp.abs(loc))


def moments_and_errors(
    target: AbstractLinearModel, centre: Any, variance: Any, response: Any, rule: Any
) -> tuple[LinkMoments, MomentErrors]:
    """The moments of every row and bounds on their errors; `rule` is None for the normal base.

    A rule's errors are infinite beyond the spread that it was tested for, and where an unbounded link is not small
    at the rule's last nodes: there the mean itself may be infinite.
    """
    if rule is None:
        return target.gaussian_moments(centre, variance, response), target.moment_errors(centre, variance, response)
    spread = jnp.sqrt(variance)

    def link(eta):
        return target.link_potential(eta, response)

    moments = quadrature_moments(link, centre, spread, rule)
    nodes, weights = (jnp.asarray(x) for x in rule)
    tail = weights[-1] * nodes[-1] * sum(jnp.abs(link(centre + sign * spread * nodes[-1])) for sign in (-1, 1))
    # The last node of a bounded base is an ordinary one: it has a weight.
    bounded = (weights[-1] > LARGEST_TAIL) | (tail <= LARGEST_TAIL * (1 + jnp.abs(moments.value)))
    trusted = (spread <= LARGEST_SPREAD) & bounded
    return moments, jax.tree.map(
        lambda moment: jnp.where(trusted, QUADRATURE_ERROR * (1 + jnp.abs(moment)), jnp.inf),
        MomentErrors(moments.value, moments.slope, moments.weight),
    )


@eqx.filter_jit
def curvature_on_region(target: AbstractLinearModel, loc: Any, root: Any, radius: Any) -> Any:
    """`local_curvature` of all rows of `target`, which is in float64, at q = (loc, root), and its rounding."""

    def sums(block: Rows, real: Any) -> Any:
        rows = block.design @ root
        spread = jnp.sqrt(jnp.sum(rows**2, axis=1))
        row_error, centre_error = row_rounding(block.design, loc, root)
        slack = centre_error + (1 + radius) * row_error
        weight = row_weights(target, block.design @ loc, spread, radius, block.variance_offset, slack)
        weight = jnp.where(real, weight, 0)
        return rows.T @ (weight[:, None] * rows), jnp.sum(weight * (2 * spread + row_error) * row_error)

    return sum_over_rows(target, sums)


@eqx.filter_jit
def local_curvature(
    target: AbstractLinearModel, rows: Any, centre: Any, spread: Any, radius: Any, offset: Any = None
) -> Any:
    r"""$\sum_n\kappa_n\tilde x_n\tilde x_n'$, a lower bound on the curvature in v while |v|, |D|_F <= `radius`."""
    return rows.T @ (row_weights(target, centre, spread, radius, offset, 0.0)[:, None] * rows)


def row_weights(target: AbstractLinearModel, centre: Any, spread: Any, radius: Any, offset: Any, slack: Any) -> Any:
    """`local_region.local_weights` of rows whose terms are smoothed by a variance `offset`, or not (None)."""

    def moments(deviation: Any) -> tuple:
        return smoothed_moments(target, centre, deviation, offset)

    assert target.self_concordance is not None
    return local_weights(target.self_concordance, moments, spread, radius, slack)


def smoothed_moments(target: AbstractLinearModel, centre: Any, deviation: Any, offset: Any) -> tuple:
    r"""$E[t^j\psi''(\mu + st)]$, j = 0, 1, 2, for $\psi(\eta) = E\ell(\eta + \sqrt\kappa e)$, and their error.

    With $T = (st + \sqrt\kappa e)/\sqrt{s^2 + \kappa}$ and $r = s/\sqrt{s^2 + \kappa}$ the conditional law of t is
    $N(rT, 1 - r^2)$, so they are $m_0$, $rm_1$ and $r^2m_2 + (1 - r^2)m_0$ of the link at the total deviation.
    """
    if offset is None:
        return target.curvature_moments(centre, deviation)
    total = jnp.sqrt(deviation**2 + offset)
    zeroth, first, second, error = target.curvature_moments(centre, total)
    share = jnp.where(total > 0, deviation / jnp.where(total > 0, total, 1), 1)
    return zeroth, share * first, share**2 * second + (1 - share**2) * zeroth, error
