r"""The best approximation itself, to machine precision: the oracle that bounds and runs are measured against.

Its Newton iterations are compiled loops of their own, not `runtime`'s: what a run is measured against must not share
its code, and there is nothing to record, resume or budget.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular

from provi.core.arguments import double_precision
from provi.core.compilation import program_jit
from provi.core.types import Count, Flag, Matrix, Scalar, Vector
from provi.diagnostics.exact import (
    LineRule,
    as_double,
    check_linear,
    exact_negative_elbo,
    line_rule,
    link_moments,
    prior_whitener,
)
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget
from provi.targets.gaussian import Gaussian
from provi.targets.linear_model import AbstractLinearModel

TOLERANCE, ACCEPTABLE, LARGEST_ITERATIONS, LARGEST_SPREAD = 1e-11, 1e-8, 500, 25.0
"""Gradient norms to stop at and to accept when rounding stops the progress; the range of the quadrature."""
_MOST_NARROWINGS = 600  # 4^600 is beyond floating point, where nothing becomes finite any more


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The minimiser of the negative ELBO over a location-scale family.

    - `point`: w*; `negative_elbo`: its exact negative ELBO; `mode`: the minimiser of the potential.
    - `gradient_norm`: of the exact negative ELBO at `point` in the coordinates whitened by q, where it is
      dimensionless: the gap is about half its square.
    """

    point: Point
    negative_elbo: float
    mode: np.ndarray
    gradient_norm: float


class _Iterate(eqx.Module):
    """Location, precision, objective, gradient and curvature in the location, wanted precision, gradient norm."""

    loc: Vector
    precision: Matrix
    objective: Scalar
    gradient: Vector
    curvature: Matrix
    wanted: Matrix
    norm: Scalar


@double_precision
def linear_model_optimum(target: AbstractTarget, family: LocationScale) -> Optimum:
    r"""The minimiser of $f(m, C) = E\phi(m + Cu) - \log\det C$ for a linear model or a Gaussian target.

    By sphericity $\nabla_C E\phi = (S^{-1} + \sum_n w_n a_na_n')\,C$ with $w_n = E[\ell'(\eta_n + s_nt)t]/s_n$,
    $s_n = |C'a_n|$, so at the optimum $(CC')^{-1} = P := S^{-1} + A'\mathrm{diag}(w)A$ (full covariance) or
    $c_i^{-2} = P_{ii}$ (diagonal). The damped fixed-point iteration $\Lambda \leftarrow (1-r)\Lambda + rP$,
    $m \leftarrow m - r\Lambda^{-1}\nabla_mf$ ($P^{-1}$ for a diagonal scale) is natural-gradient descent; $r$ is
    halved until $f$ falls.

    **Arguments:**

    - `target`: an `AbstractLinearModel` or a `Gaussian`.
    - `family`: scale "triangular", "symmetric" or "diagonal"; any base.
    """
    if family.scale not in ("triangular", "symmetric", "diagonal"):
        raise ValueError(f"family must have a triangular, symmetric or diagonal scale, not {family.scale!r}.")
    if family.dim != target.dim:
        raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}.")
    if isinstance(target, Gaussian):
        mode, covariance = target.exact_posterior()
        precision = target.density.precision_matrix()
        if family.scale == "diagonal":
            covariance = np.diag(1 / np.diagonal(precision))
        point, norm = family.point_from_covariance(mode, covariance), 0.0
    else:
        model = as_double(check_linear(target))
        rule = line_rule(model, family)
        mode, hessian = _find_mode(model)
        found = _solve(model, rule, mode, hessian, family.scale == "diagonal")
        covariance, norm = np.linalg.inv(np.asarray(found.precision)), float(found.norm)
        _check(model, covariance, norm)
        point = family.point_from_covariance(np.asarray(found.loc), (covariance + covariance.T) / 2)
    return Optimum(point, float(exact_negative_elbo(target, family, point)), np.asarray(mode), norm)


def _check(model: AbstractLinearModel, covariance: np.ndarray, norm: float) -> None:
    rows, (lower, upper) = model.rows(model.row_data()), model.curvature
    design = np.asarray(rows.design)
    variance = rows.total_variance(np.einsum("ni,ij,nj->n", design, covariance, design, optimize=True))
    spread = float(np.sqrt(np.max(np.asarray(variance))))
    if lower != upper and spread > LARGEST_SPREAD:
        raise ValueError(
            f"A linear predictor has standard deviation {spread:.3g} under the optimum, beyond the {LARGEST_SPREAD:g} "
            f"that the quadrature resolves. Standardise the columns of X or take a narrower prior."
        )
    if not norm <= ACCEPTABLE:
        raise RuntimeError(f"The optimum was not found: the whitened gradient norm stays at {norm:.3g}.")


@program_jit
def _find_mode(model: AbstractLinearModel) -> tuple[Vector, Matrix]:
    """The minimiser of the potential by Newton's method with halving, and the Hessian there."""
    rows = model.rows(model.row_data())
    whitener, design = prior_whitener(model.prior), rows.design
    slope = jax.grad(lambda eta: jnp.sum(model.smoothed_link(eta, rows)))

    def hessian(z: Vector) -> Matrix:
        curvature = jax.jvp(slope, (design @ z,), (jnp.ones(model.num_terms, z.dtype),))[1]
        return whitener.T @ whitener + design.T @ (curvature[:, None] * design)

    def step(carry: Any) -> Any:
        z, rate, _, count = carry
        gradient = jax.grad(model.potential)(z)
        move = jnp.linalg.solve(hessian(z), gradient)
        decrement = jnp.sqrt(jnp.abs(jnp.dot(gradient, move)))
        slack = 1e-13 * (1 + jnp.abs(model.potential(z)))
        better = model.potential(z - rate * move) <= model.potential(z) + slack
        moved = jnp.where(better, z - rate * move, z)
        return moved, jnp.where(better, jnp.minimum(1.0, 2 * rate), rate / 2), decrement, count + 1

    start = (model.prior.mean, jnp.ones(()), jnp.asarray(jnp.inf), jnp.zeros((), int))
    z = jax.lax.while_loop(lambda c: (c[2] > 1e-13) & (c[3] < 200), step, start)[0]
    return z, hessian(z)


def _evaluate(model: AbstractLinearModel, rule: LineRule, loc: Vector, precision: Matrix, diagonal: bool) -> _Iterate:
    """Objective and gradients at (m, Lambda^-1), up to the constants of the objective."""
    whitener = prior_whitener(model.prior)
    factor = jnp.linalg.cholesky(precision)
    rows = model.rows(model.row_data())
    variance = jnp.sum(solve_triangular(factor, rows.design.T, lower=True) ** 2, axis=0)
    moments = link_moments(model, rule, rows.design @ loc, jnp.sqrt(rows.total_variance(variance)))
    prior_precision = whitener.T @ whitener
    gradient = prior_precision @ (loc - model.prior.mean) + rows.design.T @ moments.slope
    wanted = prior_precision + rows.design.T @ (moments.weight[:, None] * rows.design)
    curvature = (wanted + wanted.T) / 2
    wanted = jnp.diag(jnp.diagonal(wanted)) if diagonal else curvature
    trace = jnp.sum(solve_triangular(factor, whitener.T, lower=True) ** 2)
    log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
    objective = jnp.sum(moments.value) + model.prior.potential(loc) + 0.5 * trace + log_det
    half = solve_triangular(factor, wanted, lower=True)
    residual = solve_triangular(factor, half.T, lower=True) - jnp.eye(loc.shape[0])
    white = solve_triangular(factor, gradient, lower=True)
    norm = jnp.sqrt(jnp.sum(residual**2) + jnp.sum(white**2))
    return _Iterate(loc, precision, objective, gradient, curvature, wanted, norm)


@program_jit
def _solve(model: AbstractLinearModel, rule: LineRule, mode: Vector, hessian: Matrix, diagonal: bool) -> _Iterate:
    """The damped fixed-point iteration from the Laplace approximation."""
    first = jnp.diag(jnp.diagonal(hessian)) if diagonal else hessian

    def unfinished(carry: Any) -> Flag:
        current, _, _, stalled, count = carry
        return (current.norm > TOLERANCE) & (stalled < 20) & (count < LARGEST_ITERATIONS)

    def step(carry: Any) -> Any:
        current, rate, best, stalled, count = carry
        precision = (1 - rate) * current.precision + rate * current.wanted
        # A diagonal precision is a poor metric for the location of correlated columns.
        metric = current.curvature if diagonal else precision
        move = cho_solve((jnp.linalg.cholesky(metric), True), current.gradient)
        trial = _evaluate(model, rule, current.loc - rate * move, precision, diagonal)
        # Near the optimum differences of the objective are rounding, and the gradient decides.
        slack = 1e-12 * (1 + jnp.abs(current.objective))
        lower = trial.objective < current.objective - slack
        level = (trial.objective <= current.objective + slack) & (trial.norm < current.norm)
        better = (lower | level) & jnp.isfinite(trial.norm)
        following = jax.tree.map(lambda new, old: jnp.where(better, new, old), trial, current)
        progress = following.norm < 0.99 * best
        # Above the acceptable norm patience is unlimited: far from the optimum the norm may rise for long.
        stalled = jnp.where(progress | (best > ACCEPTABLE / 10), 0, stalled + 1)
        rate = jnp.where(better, jnp.minimum(1.0, 2 * rate), rate / 2)
        return following, rate, jnp.minimum(best, following.norm), stalled, count + 1

    current = _narrow_enough(model, rule, mode, first, diagonal)
    zero: Count = jnp.zeros((), int)
    return jax.lax.while_loop(unfinished, step, (current, jnp.ones(()), current.norm, zero, zero))[0]


def _narrow_enough(
    model: AbstractLinearModel, rule: LineRule, loc: Vector, precision: Matrix, diagonal: bool
) -> _Iterate:
    """The start, with a larger precision where the objective of an unbounded link is infinite."""
    return jax.lax.while_loop(
        lambda carry: ~jnp.isfinite(carry[0].objective) & (carry[1] < _MOST_NARROWINGS),
        lambda carry: (_evaluate(model, rule, loc, 4 * carry[0].precision, diagonal), carry[1] + 1),
        (_evaluate(model, rule, loc, precision, diagonal), jnp.zeros((), int)),
    )[0]
