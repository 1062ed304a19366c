"""q in its own coordinates, for linear models and any density: the potential there, and its mean under q."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.algorithms.natural.natural_gradient import line_arguments
from provi.certificates.comparison import mean_likelihood
from provi.certificates.distance.conjugate import DensityProblem, RowProblem
from provi.certificates.distance.dual_bound import Energy
from provi.certificates.linear.bounds import row_rounding
from provi.core.devices import on_host
from provi.core.interpreter import instant_jit
from provi.families.location_scale import LocationScale, Point, square_root
from provi.targets.base import AbstractTarget, outer_spectrum
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import whitened_prior
from provi.targets.row_sums import Rows, sum_over_rows

EPS = float(np.finfo(float).eps)


def linear_problem(
    target: AbstractLinearModel, family: LocationScale, point: Point
) -> tuple[RowProblem, Energy] | None:
    """A Gaussian q and a linear model, in float64; None where a mean under q is not finite."""
    root, loc = square_root(point), np.asarray(point.loc, np.float64)
    double, rule = line_arguments(target, family)
    prior = whitened_prior(target.prior, root, loc)
    mean, error = (float(x) for x in mean_likelihood(double, loc, root, rule))
    here, size = (float(x) for x in _likelihood_at(double, loc))
    error += target.num_terms * EPS * size + 4 * EPS * (abs(mean) + abs(here))
    value = mean - here + 0.5 * float(np.sum(prior.scale**2))
    error += 0.5 * prior.curvature_error * math.sqrt(len(loc)) + 4 * len(loc) * EPS * abs(value)
    if not (math.isfinite(value) and math.isfinite(error)):
        return None
    divided = double.division is not None
    # Rows on several devices stay there; those that fill up count zero times.
    design = double.design.astype(np.float64) if divided else np.asarray(double.design, np.float64)
    row_error, centre_error = (on_host(x) for x in _row_rounding(design, loc, root))
    centre, response = on_host(design @ loc), np.asarray(double.response, np.float64)
    centre_error = centre_error + np.asarray(double.likelihood.shift_error(centre, response))
    problem = RowProblem(
        design=design,
        root=root,
        centre=centre,
        response=response,
        likelihood=double.likelihood,
        prior_curvature=prior.curvature,
        prior_gradient=prior.gradient,
        curvature_error=prior.curvature_error,
        gradient_error=prior.gradient_error,
        row_error=row_error,
        centre_error=centre_error,
        largest_weight=float(target.curvature[1]),
        quadratic=target.curvature[0] == target.curvature[1] or target.self_concordance == 0,
        multiples=(np.arange(len(centre)) < target.num_terms).astype(np.float64) if divided else None,
    )
    return problem, Energy(value, error)


_row_rounding = instant_jit(row_rounding)


@instant_jit
def _likelihood_at(target: AbstractLinearModel, loc: Any) -> tuple[Any, Any]:
    """The likelihood part of the potential, and the sum of the magnitudes of its terms."""

    def sums(block: Rows, real: Any) -> tuple[Any, Any]:
        values = jnp.where(real, target.link_potential(block.design @ loc, block.response), 0)
        return jnp.sum(values), jnp.sum(jnp.abs(values))

    return sum_over_rows(target, sums, dtype=jnp.float64)


def density_problem(target: AbstractTarget, point: Point, curvature: np.ndarray) -> tuple[DensityProblem, Energy]:
    """A Gaussian q and any density whose Hessian is at least `curvature`; its mean under q is left to draws."""
    root, loc = square_root(point), np.asarray(point.loc, np.float64)
    bounds, smooth = target.curvature_bounds(), target.constants.smoothness
    upper = None
    if bounds is not None and bounds[1] is not None:
        upper = root.T @ bounds[1] @ root
    elif smooth.status in ("proven", "declared") and smooth.value is not None:
        upper = float(smooth.value) * (root.T @ root)
    if upper is not None:
        upper = (upper + upper.T) / 2 + 1e-12 * float(np.trace(upper)) * np.eye(len(loc))
    return DensityProblem(target, loc, root, curvature), Energy(None, 0.0, upper)


def curvature_lower_bound(target: AbstractTarget) -> np.ndarray | None:
    """H, proven or declared and positive definite, as a matrix; None where there is none."""
    bound = target.curvature_lower_bound()
    if bound is not None and outer_spectrum(bound)[0] > 0:
        return bound
    constant = target.constants.strong_convexity
    if constant.status not in ("proven", "declared") or not (constant.value and constant.value > 0):
        return None
    return float(constant.value) * np.eye(target.dim)
