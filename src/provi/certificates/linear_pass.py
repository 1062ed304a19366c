r"""One pass over the data of a linear model at q, in float64: the whitened gradient with a bound on its error.

With $z = m + Cu$, $\tilde x_n = C'x_n$, $\sigma_n = |\tilde x_n|$: $g = C'L_0(m - \mu_0) + \sum_n\alpha_n\tilde x_n$,
$S = C'L_0C + \sum_n\gamma_n\tilde x_n\tilde x_n'$ with $\alpha_n = E\ell_n'$,
$\gamma_n = E[\ell_n'(\mu_n + \sigma_nt)t]/\sigma_n$. An error of $\epsilon$ in $\alpha_n$ moves $g$ by at most
$\epsilon\sigma_n$, one in $\gamma_n$ moves $S$ by $\epsilon\sigma_n^2$.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.prior_rounding import whitened_prior
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.families.marginals import marginal_quadrature
from provi.families.scales import Diagonal, Symmetric, Triangular
from provi.targets.linear_models import AbstractLinearModel
from provi.targets.link_moments import LinkMoments, MomentErrors, quadrature_moments
from provi.targets.row_blocks import Rows, keep, sum_over_rows

QUADRATURE_ERROR, LARGEST_SPREAD, LARGEST_TAIL = 1e-9, 10.0, 1e-12
"""Accuracy of the rules for other bases than the normal, the spread up to which it was tested, and the share of the
last nodes up to which the mean of an unbounded link is trusted."""


@dataclasses.dataclass(frozen=True)
class WhitenedPass:
    """Gradient and curvature at q in its own coordinates, with error bounds; host arrays in float64.

    - `loc`, `root`: m, C; `prior`: C'L_0C, within `prior_error`; `lower`: C'HC, H the global curvature bound;
      `likelihood`: S - C'L_0C.
    - `gradient`: g; `curvature`: S; `gradient_error`, `curvature_error`: on |g| and |S|_F.
    - `diagonal`: the family's.
    """

    loc: np.ndarray
    root: np.ndarray
    prior: np.ndarray
    prior_error: float
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
    lower = root.T @ target.curvature_lower_bound() @ root
    return WhitenedPass(
        loc=loc,
        root=root,
        prior=prior.curvature,
        prior_error=prior.curvature_error,
        lower=(lower + lower.T) / 2,
        likelihood=likelihood,
        gradient=prior.gradient + np.asarray(slope),
        curvature=prior.curvature + likelihood,
        gradient_error=float(slope_error) + prior.gradient_error,
        curvature_error=float(weight_error) + prior.curvature_error,
        diagonal=family.scale == "diagonal",
    )


def line_arguments(target: AbstractLinearModel, family: LocationScale) -> tuple[Any, Any]:
    """The target in float64, and the rule of the base (None for the normal one)."""
    check_normal(target, family)

    def widened(leaf: Any) -> Any:
        # A large design that is in float64 already is not copied.
        return np.asarray(leaf, np.float64) if eqx.is_inexact_array(leaf) and leaf.dtype != np.float64 else leaf

    double = jax.tree.map(widened, target)
    rule = None if isinstance(family.base, Normal) else marginal_quadrature(family.base, family.dim)
    return double, rule


def check_normal(target: AbstractLinearModel, family: LocationScale) -> None:
    """A model with variance offsets adds Gaussian noise to each row: only a Gaussian is closed under that."""
    if target.has_variance_offset and not isinstance(family.base, Normal):
        raise ValueError(
            f"{type(target).__name__} needs a Gaussian family, not base {family.base.name!r}: pass "
            f"family=provi.families.Gaussian({family.dim})."
        )


def square_root(point: Point) -> np.ndarray:
    """A matrix C with CC' the covariance, on the host in float64."""
    match point.scale:
        case Diagonal(diagonal=diagonal):
            return np.diag(np.asarray(diagonal, np.float64))
        case Triangular(matrix=matrix) | Symmetric(matrix=matrix):
            return np.asarray(matrix, np.float64)
        case scale:
            return np.linalg.cholesky(np.asarray(scale.covariance(), np.float64))


@eqx.filter_jit
def _pass(target: AbstractLinearModel, loc: Any, root: Any, rule: Any) -> Any:
    # A sum of N products is off by at most N eps times the sum of their magnitudes; rows themselves by dim eps.
    rounding = (target.num_terms + 8 * target.dim) * jnp.finfo(root.dtype).eps

    def sums(block: Rows, real: Any) -> Any:
        rows = block.design @ root
        centre, variance = block.design @ loc, jnp.sum(rows**2, axis=1)
        total = block.total_variance(variance)
        moments, errors = keep(real, moments_and_errors(target, centre, total, block.response, rule))
        gram = rows.T @ (moments.weight[:, None] * rows)
        # An offset moves what a row's moments are, not how they enter the gradient.
        slope_error = (errors.slope + rounding * jnp.abs(moments.slope)) * jnp.sqrt(variance)
        weight_error = (errors.weight + rounding * jnp.abs(moments.weight)) * variance
        return rows.T @ moments.slope, gram, jnp.sum(slope_error), jnp.sum(weight_error)

    return sum_over_rows(target, sums)


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
    """`local_curvature` of all rows of `target`, which is in float64, at q = (loc, root)."""

    def sums(block: Rows, real: Any) -> Any:
        rows = block.design @ root
        spread = jnp.sqrt(jnp.sum(rows**2, axis=1))
        rows = jnp.where(real[:, None], rows, 0)
        return local_curvature(target, rows, block.design @ loc, spread, radius, block.variance_offset)

    return sum_over_rows(target, sums)


@eqx.filter_jit
def local_curvature(
    target: AbstractLinearModel, rows: Any, centre: Any, spread: Any, radius: Any, offset: Any = None
) -> Any:
    r"""$\sum_n\kappa_n\tilde x_n\tilde x_n'$, a lower bound on the curvature in v while |v|, |D|_F <= `radius`.

    With $q_n = M\sigma_n\rho$, M the self-concordance of the link,
    $\kappa_n = e^{-3q_n/2}(1 + q_n)^{-1/2}\,\kappa(\mu_n, \sigma_n(1 + q_n)^{-1/2})$, where
    $\kappa(\mu, \sigma) = m_0 - m_1^2/m_2$, $m_j = E[t^j\ell''(\mu + \sigma t)]$: docs/theory/certificates.md, (d).
    With a variance `offset` the moments are those of the smoothed link, `smoothed_moments`.
    """
    change = target.self_concordance * spread * radius
    zeroth, first, second, error = smoothed_moments(target, centre, spread / jnp.sqrt(1 + change), offset)
    # The smallest value of (m0 - e) + 2 b m1 + b^2 (m2 - e) over b: right for all moments within the error.
    safe = jnp.where(second > error, second - error, 1)
    kappa = jnp.where(second > error, zeroth - error - first**2 / safe, 0)
    weight = jnp.exp(-1.5 * change) / jnp.sqrt(1 + change) * jnp.maximum(kappa, 0)
    return rows.T @ (weight[:, None] * rows)


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
