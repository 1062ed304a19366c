r"""Natural-gradient descent for linear models, with exact expectations and a step size that proves its own descent.

In the mean parameters $(m, V + mm')$ of a Gaussian $q$, mirror descent on the likelihood part with the prior
treated exactly is (paper 002's closed form; $P = V^{-1}$, prior $N(\mu_0, L_0^{-1})$, $r = 1/(1 + \beta)$)

$$P_+ = rP + (1-r)(L_0 + X'\Gamma X), \qquad m_+ = m - (1-r)P_+^{-1}\bigl(L_0(m - \mu_0) + X'\alpha\bigr),$$

$\alpha_n = E\ell_n'$, $\gamma_n = E\ell_n''$ under $q$: integrals on a line. A trial is accepted when
$F(q) - F(q_+) \ge \tfrac12(1 + 1/\beta)KL(q\|q_+)$, half of what `natural.trial` derives, else $\beta$ is reduced.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular

from provi.algorithms.base import check_parts
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.natural.trial import (
    AbstractTrialDescent,
    StepRule,
    Trial,
    plain_share,
    rounding_slack,
    step_share,
)
from provi.core.arguments import device_array
from provi.core.interpreter import instant_jit
from provi.core.types import Count, Flag, Matrix, Scalar, Vector
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point, square_root
from provi.families.marginals import marginal_quadrature
from provi.families.scales import Diagonal, Symmetric, Triangular
from provi.targets.likelihoods.moments import quadrature_moments
from provi.targets.linear_model import AbstractLinearModel, fast_products
from provi.targets.row_sums import Rows, keep, projections, sum_over_rows, weighted_sums

_GROWTH, _LARGEST_STEP, _POINT_VARIANCE = 4.0, 1e8, 1e-6


class Evaluation(eqx.Module):
    """One pass over the data at q: the negative ELBO, the likelihood part of it, X'alpha and X' diag(gamma) X."""

    negative_elbo: Scalar
    likelihood: Scalar
    slope: Vector
    curvature: Matrix


class NaturalGradientState(eqx.Module):
    """The accepted member of the family with its precision and evaluation, the step size, the step number.

    - `stage`: 0 while only the location means something, 1 when the point is to be evaluated, 2 in the iteration.
    - `failures`: trials rejected in a row. - `gradient_norms`: |C' grad_m| and |C' P C - I|_F, dimensionless: the gap
      is about half the sum of their squares.
    """

    point: Point
    precision: Matrix
    evaluation: Evaluation
    step_size: Scalar
    step: Count
    stage: Count
    failures: Count
    gradient_norms: tuple[Scalar, Scalar]


class NaturalGradient(AbstractTrialDescent):
    r"""The iteration above; one step is one pass over the data, whether the trial is accepted or not.

    `step_size` is the first beta; it is quadrupled after a success and divided by four after a failure. For a diagonal
    scale the location moves by the full Newton matrix, the scale by its diagonal, and a trial is accepted when the
    negative ELBO falls by a share of what its slope promises (Armijo). `from_curvature` starts from the location of the
    start only, with the inverse curvature of the potential there as covariance, at the cost of one pass. Without
    `exact` a large float32 table on a GPU is read by `core.row_kernels`, five times as fast: products of matrices are
    then rounded to bfloat16, and the end of the run may be a little off, which the certificate sees.

    **Requires** a linear model and a triangular, symmetric or diagonal scale; any base.
    **Guarantee**: descent at every accepted step (above); what is left is bounded by the certificate, not a priori.
    **Cost per step** O(N d^2 + d^3).
    """

    from_curvature: Any = eqx.field(default=False, converter=lambda value: np.asarray(value, bool))
    step_size: Any = eqx.field(
        default=1e8, converter=lambda value: np.asarray(value, float) if isinstance(value, int | float) else value
    )
    rule: Any = None
    exact: bool = eqx.field(static=True, default=True)
    guarantee: Guarantee | None = eqx.field(static=True, default=None)

    settled: ClassVar[int] = 2

    def step_rule(self):
        return StepRule(_GROWTH, _LARGEST_STEP, _GROWTH)

    def resolve(self, target, family):
        check_parts(target, family, None)
        if not isinstance(target, AbstractLinearModel):
            raise ValueError(
                f"NaturalGradient needs a linear model such as targets.LogisticRegression, not "
                f"{type(target).__name__}. Use StochasticNaturalGradient() for any other log density."
            )
        if family.scale == "low_rank":
            raise ValueError("NaturalGradient has no low-rank form: use scale='diagonal' or 'triangular'.")
        if isinstance(family.base, Normal):
            return self
        check_normal(target, family)
        rule = tuple(jnp.asarray(x, target.dtype) for x in marginal_quadrature(family.base, family.dim))
        return eqx.tree_at(lambda a: a.rule, self, rule, is_leaf=lambda x: x is None)

    def init(self, point):
        dim, dtype = point.loc.shape[0], point.loc.dtype
        # Made on the host: outside a compiled function every operation of JAX is compiled by itself.
        infinite, one = device_array(np.asarray(np.inf, dtype)), device_array(np.ones((), dtype))
        vector, matrix = device_array(np.zeros(dim, dtype)), device_array(np.zeros((dim, dim), dtype))
        return NaturalGradientState(
            point,
            precision_of(point),
            Evaluation(infinite, infinite, vector, matrix),
            device_array(np.asarray(self.step_size, dtype)),
            step=device_array(np.asarray(0)),
            stage=device_array(np.where(self.from_curvature, 0, 1)),
            failures=device_array(np.asarray(0)),
            gradient_norms=(one, one),
        )

    def attempt(self, state, target, family, beta, moving):
        old = state.evaluation
        whitener = target.prior.whitener()
        prior_precision = whitener.T @ whitener
        share = step_share(beta)
        wanted = prior_precision + old.curvature
        gradient = prior_precision @ (state.point.loc - target.prior.mean) + old.slope
        diagonal = family.scale == "diagonal"
        goal = jnp.diag(jnp.diagonal(wanted)) if diagonal else wanted
        precision = jnp.where(moving, state.precision + share * (goal - state.precision), state.precision)
        newton = cho_solve((jnp.linalg.cholesky(wanted if diagonal else precision), True), gradient)
        loc = jnp.where(moving, state.point.loc - share * newton, state.point.loc)
        trial = Point(loc, scale_from_precision(precision, family.scale))
        new = evaluate(target, family, trial, self.rule, whitener, state.stage > 0, self.exact)
        promised = 1e-4 * share * jnp.dot(gradient, newton)
        if not diagonal:
            promised = plain_share(beta) * _divergence(state, trial, precision)
        value = new.negative_elbo
        enough = value <= old.negative_elbo - promised + rounding_slack(loc.dtype, old.likelihood)
        # After stage 0 the curvature at the centre is the precision to begin with; nothing is known of its ELBO.
        new = eqx.tree_at(lambda e: e.negative_elbo, new, jnp.where(state.stage == 0, jnp.inf, value))
        centre = prior_precision + new.curvature
        precision = jnp.where(state.stage == 0, jnp.diag(jnp.diagonal(centre)) if diagonal else centre, precision)
        norms = _whitened_norms(trial, new, target, prior_precision)
        stage, zero = jnp.minimum(state.stage + 1, self.settled), jnp.zeros_like(state.failures)
        better = NaturalGradientState(trial, precision, new, state.step_size, state.step, stage, zero, norms)
        same = eqx.tree_at(lambda s: s.failures, state, state.failures + 1)
        return Trial(better, same, value, enough)


def evaluate(
    target: AbstractLinearModel,
    family: LocationScale,
    point: Point,
    rule: Any,
    whitener: Matrix,
    spread: Flag,
    exact: bool = True,
) -> Evaluation:
    """One pass over the data; without `spread` the data see the location only. `exact`: as in `NaturalGradient`."""
    dtype = point.loc.dtype
    root = point.scale.apply(jnp.eye(family.dim, dtype=dtype)).T  # C
    fused = not exact and fast_products(target)

    def sums(rows: Rows, real: Any) -> Any:
        projected, summed = projections, weighted_sums
        if fused:
            from provi.core import row_kernels  # for a GPU only

            projected, summed = row_kernels.projections, row_kernels.weighted_sums
        elif rows.by_columns:
            projected = _projections_by_columns
        centre, own = projected(rows.design, point.loc, root)
        variance = rows.total_variance(jnp.where(spread, own, _POINT_VARIANCE))
        if rule is None:
            moments = target.gaussian_moments(centre, variance, rows.response)
        else:
            moments = quadrature_moments(
                lambda eta: target.link_potential(eta, rows.response), centre, jnp.sqrt(variance), rule
            )
        moments = keep(real, moments)
        # Rows in their millions: each is a small part of the sum.
        return jnp.sum(moments.value, dtype=jnp.float64), *summed(rows.design, moments.slope, moments.weight)

    sizes = sum_over_rows(target, sums, at_once=fused)
    likelihood, slope, curvature = (x.astype(dtype) for x in sizes)
    prior = target.prior.potential(point.loc) + 0.5 * jnp.sum((whitener @ root) ** 2)
    negative_elbo = likelihood + prior - family.entropy(point)
    return Evaluation(negative_elbo, likelihood, slope, (curvature + curvature.T) / 2)


@instant_jit
def exact_negative_elbo(target: AbstractLinearModel, family: LocationScale, point: Point, rule: Any = None) -> Scalar:
    """In one pass over the data; `rule`: of another base than the normal (`line_arguments`)."""
    return evaluate(target, family, point, rule, target.prior.whitener(), jnp.ones((), bool)).negative_elbo


def _projections_by_columns(design: Any, loc: Any, root: Any) -> tuple[Any, Any]:
    """The same of a transposed table of columns: half the time of the product from the other side."""
    product = jnp.dot(root.T, design.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.dot(design, loc, precision=jax.lax.Precision.HIGHEST), jnp.sum(product**2, axis=0)


def first_location(target: AbstractLinearModel) -> np.ndarray:
    r"""The prior mean; for counts the ridge regression of their logarithms, $(L_0 + X'WX)^{-1}(L_0\mu_0 + X'W\log y)$.

    From the prior mean a Newton step towards a count of 10^6 overflows, and so do all that are 10^12 times shorter.
    """
    mean = np.asarray(target.prior.mean, np.float64)
    if jax.eval_shape(target.likelihood.working_response, target.response) is None:
        return mean
    curvature, slope = (np.asarray(x) for x in _working_sums(target, mean))
    try:
        found = mean + np.linalg.solve(target.prior.precision_matrix() + curvature, slope)
    except np.linalg.LinAlgError:  # singular to rounding, of columns whose scales are far apart
        return mean
    return found if np.isfinite(found).all() else mean


@instant_jit
def _working_sums(target: AbstractLinearModel, mean: Any) -> Any:
    r"""$X'WX$ and $X'W(r - X\mu_0)$ of the working responses r."""

    def sums(rows: Rows, real: Any) -> Any:
        working: Any = target.likelihood.working_response(rows.response)
        response, weight = working[0], jnp.where(real, working[1], 0)[:, None]
        left = jnp.where(real, response - rows.design @ mean, 0)
        return rows.design.T @ (weight * rows.design), rows.design.T @ (weight[:, 0] * left)

    return sum_over_rows(target, sums, dtype=jnp.float64)


def precision_of(point: Point) -> Matrix:
    """(CC')^-1, computed on the host in float64."""
    root = square_root(point)
    precision = np.linalg.inv(root @ root.T)
    return device_array((precision + precision.T) / 2, point.loc.dtype)


def scale_from_precision(precision: Matrix, kind: str) -> Any:
    """The scale C of the given kind with CC' = P^-1."""
    match kind:
        case "diagonal":
            return Diagonal(1 / jnp.sqrt(jnp.diagonal(precision)))
        case "symmetric":
            values, vectors = jnp.linalg.eigh(precision)
            root = (vectors / jnp.sqrt(values)[None, :]) @ vectors.T
            return Symmetric((root + root.T) / 2)
        case _:
            # P = K'K with K lower triangular is the Cholesky factorisation of P with its axes reversed; C = K^-1.
            factor = jnp.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1].T
            return Triangular(solve_triangular(factor, jnp.eye(precision.shape[0], dtype=precision.dtype), lower=True))


def _whitened_norms(
    point: Point, at: Evaluation, target: AbstractLinearModel, prior_precision: Matrix
) -> tuple[Scalar, Scalar]:
    root = point.scale.apply(jnp.eye(point.loc.shape[0], dtype=point.loc.dtype)).T
    gradient = prior_precision @ (point.loc - target.prior.mean) + at.slope
    whitened = root.T @ (prior_precision + at.curvature) @ root
    residual = whitened - jnp.eye(whitened.shape[0], dtype=whitened.dtype)
    if isinstance(point.scale, Diagonal):
        residual = jnp.diagonal(residual)
    return jnp.sqrt(jnp.sum((root.T @ gradient) ** 2)), jnp.sqrt(jnp.sum(residual**2))


def _divergence(state: NaturalGradientState, trial: Point, precision: Matrix) -> Scalar:
    """KL(q || q_+); for another base, that of the Gaussians with the same moments."""
    move = trial.loc - state.point.loc
    trace = jnp.sum(precision * state.point.scale.covariance())
    log_det = trial.scale.log_det() - state.point.scale.log_det()
    return 0.5 * (trace - move.shape[0] + jnp.dot(move, precision @ move)) + log_det


def check_normal(target: AbstractLinearModel, family: LocationScale) -> None:
    """A model with variance offsets adds Gaussian noise to each row: only a Gaussian is closed under that."""
    if target.has_variance_offset and not isinstance(family.base, Normal):
        raise ValueError(
            f"{type(target).__name__} needs a Gaussian family, not base {family.base.name!r}: pass "
            f"family=provi.families.Gaussian({family.dim})."
        )


def line_arguments(target: AbstractLinearModel, family: LocationScale) -> tuple[Any, Any]:
    """The target with all but its rows in float64, and the rule of the base (None for the normal one).

    Rows stay where and as they are: `sum_over_rows(..., dtype=float64)` widens a block at a time.
    """
    check_normal(target, family)
    rows = {id(leaf) for leaf in jax.tree.leaves(target.row_data())}

    def widened(leaf: Any) -> Any:
        narrow = eqx.is_inexact_array(leaf) and leaf.dtype != np.float64 and id(leaf) not in rows
        return np.asarray(leaf, np.float64) if narrow else leaf

    double = jax.tree.map(widened, target)
    rule = None if isinstance(family.base, Normal) else marginal_quadrature(family.base, family.dim)
    return double, rule
