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

from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.families.marginals import marginal_quadrature
from provi.families.scales import Diagonal, Symmetric, Triangular
from provi.targets.linear_models import AbstractLinearModel
from provi.targets.link_moments import LinkMoments, MomentErrors, quadrature_moments

QUADRATURE_ERROR, LARGEST_SPREAD, LARGEST_TAIL = 1e-9, 10.0, 1e-12
"""Accuracy of the rules for other bases than the normal, the spread up to which it was tested, and the share of the
last nodes up to which the mean of an unbounded link is trusted."""


@dataclasses.dataclass(frozen=True)
class WhitenedPass:
    """Gradient and curvature at q in its own coordinates, with error bounds; host arrays in float64.

    - `root`: C; `prior`: C'L_0C; `lower`: C'HC, H the target's global curvature bound; `likelihood`: S - C'L_0C.
    - `gradient`: g; `curvature`: S; `gradient_error`, `curvature_error`: on |g| and |S|_F.
    - `rows`, `centre`, `spread`: x~_n, mu_n, sigma_n on the device, for the local bound. `diagonal`: the family's.
    """

    root: np.ndarray
    prior: np.ndarray
    lower: np.ndarray
    likelihood: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray
    gradient_error: float
    curvature_error: float
    rows: Any
    centre: Any
    spread: Any
    diagonal: bool


def whitened_pass(target: AbstractLinearModel, family: LocationScale, point: Point) -> WhitenedPass:
    """Evaluate at `point`; a low-rank member counts as one of the family of all covariances."""
    root, loc = square_root(point), np.asarray(point.loc, np.float64)
    double, rule = line_arguments(target, family)
    rows, centre, spread, slope, gram, errors = _pass(double, loc, root, rule)
    prior_precision = target.prior.precision_matrix()
    prior = root.T @ prior_precision @ root
    gradient = root.T @ (prior_precision @ (loc - double.prior.mean)) + np.asarray(slope)
    likelihood = (np.asarray(gram) + np.asarray(gram).T) / 2
    lower = root.T @ target.curvature_lower_bound() @ root
    slope_error, weight_error = float(errors[0]), float(errors[1])
    return WhitenedPass(
        root=root,
        prior=(prior + prior.T) / 2,
        lower=(lower + lower.T) / 2,
        likelihood=likelihood,
        gradient=gradient,
        curvature=(prior + prior.T) / 2 + likelihood,
        gradient_error=slope_error,
        curvature_error=weight_error,
        rows=rows,
        centre=centre,
        spread=spread,
        diagonal=family.scale == "diagonal",
    )


def line_arguments(target: AbstractLinearModel, family: LocationScale) -> tuple[Any, Any]:
    """The target in float64, and the rule of the base (None for the normal one)."""
    double = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) if eqx.is_inexact_array(leaf) else leaf, target)
    rule = None if isinstance(family.base, Normal) else marginal_quadrature(family.base, family.dim)
    return double, rule


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
    design, response = jnp.asarray(target.design), jnp.asarray(target.response)
    rows = design @ root
    variance = jnp.sum(rows**2, axis=1)
    centre, spread = design @ loc, jnp.sqrt(variance)
    moments, errors = moments_and_errors(target, centre, variance, response, rule)
    gram = rows.T @ (moments.weight[:, None] * rows)
    slope = rows.T @ moments.slope
    # A sum of N products is off by at most N eps times the sum of their magnitudes; rows themselves by dim eps.
    rounding = (design.shape[0] + 8 * design.shape[1]) * jnp.finfo(rows.dtype).eps
    slope_error = jnp.sum((errors.slope + rounding * jnp.abs(moments.slope)) * spread)
    weight_error = jnp.sum((errors.weight + rounding * jnp.abs(moments.weight)) * variance)
    return rows, centre, spread, slope, gram, (slope_error, weight_error)


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
def local_curvature(target: AbstractLinearModel, rows: Any, centre: Any, spread: Any, radius: Any) -> Any:
    r"""$\sum_n\kappa_n\tilde x_n\tilde x_n'$, a lower bound on the curvature in v while |v|, |D|_F <= `radius`.

    With $q_n = M\sigma_n\rho$, M the self-concordance of the link,
    $\kappa_n = e^{-3q_n/2}(1 + q_n)^{-1/2}\,\kappa(\mu_n, \sigma_n(1 + q_n)^{-1/2})$, where
    $\kappa(\mu, \sigma) = m_0 - m_1^2/m_2$, $m_j = E[t^j\ell''(\mu + \sigma t)]$: docs/theory/certificates.md, (d).
    """
    change = target.self_concordance * spread * radius
    zeroth, first, second, error = target.curvature_moments(centre, spread / jnp.sqrt(1 + change))
    # The smallest value of (m0 - e) + 2 b m1 + b^2 (m2 - e) over b: right for all moments within the error.
    safe = jnp.where(second > error, second - error, 1)
    kappa = jnp.where(second > error, zeroth - error - first**2 / safe, 0)
    weight = jnp.exp(-1.5 * change) / jnp.sqrt(1 + change) * jnp.maximum(kappa, 0)
    return rows.T @ (weight[:, None] * rows)
