"""The distance of q to the posterior, for linear models and any density: the draws, and what is reported of them."""

import math
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from provi.certificates.distance.any_density import any_posterior_bound
from provi.certificates.distance.bound import PosteriorBound
from provi.certificates.distance.dual_bound import QUICK_PILOT, DualBound, dual_bound, quick_bound
from provi.certificates.distance.problems import (
    curvature_lower_bound,
    density_problem,
    linear_problem,
    streamed_problem,
)
from provi.core.interpreter import instant_jit
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget
from provi.targets.linear_model import AbstractLinearModel

_LARGEST_DENSE = 2000
WORK, FEWEST_EVALUATIONS, MOST_EVALUATIONS = 6e8, 2_000, 250_000
"""Work of the final draws, in data terms times (2 + 0.07 columns), about a nanosecond each; evaluations it buys."""


_STREAMED_PASSES, _MOST_POINTS = 7, 2048
"""Where rows are read in blocks: passes that evaluate the draws, some seven, and how many at once, 256 at least. Of
60,000 x 41 rows the bound was 0.20 nats with 128 draws, 0.067 with 256 and 0.030 with 512."""

_prior_variance = instant_jit(lambda prior: prior.variance())


def linear_posterior_bound(
    target: AbstractTarget, family: LocationScale, point: Point, *, confidence: float, seed: int
) -> PosteriorBound | None:
    """For a linear model, or a target that was recognised as one.

    None for a model with variance offsets: its potential is the integrand of an ELBO and no posterior.
    """
    model = target.linear_model()
    if model.has_variance_offset or model.dim > _LARGEST_DENSE or not model.likelihood.log_concave:
        return None
    streamed = model.stream is not None
    if not isinstance(family.base, Normal):
        return None if streamed else posterior_bound(target, family, point, confidence=confidence, seed=seed)
    if streamed:
        return _streamed_bound(model, family, point, confidence, seed)
    found = linear_problem(model, family, point)
    if found is None:
        return None
    bound = dual_bound(*found, delta=1 - confidence, seed=seed, most_evaluations=_evaluations(model))
    return reported(
        bound, np.asarray(_prior_variance(model.prior), np.float64), confidence, model.likelihood.errors_proven
    )


def _streamed_bound(
    model: AbstractLinearModel, family: LocationScale, point: Point, confidence: float, seed: int
) -> PosteriorBound | None:
    """From few draws, all of them together in every pass: looser than from many, and as proven."""
    points = 2 ** int(math.log2(min(_evaluations(model) / _STREAMED_PASSES, _MOST_POINTS)))
    found = streamed_problem(model, family, point, points)
    if found is None:
        return None
    bound = quick_bound(*found, delta=1 - confidence, seed=seed, pairs=points // 2 - QUICK_PILOT)
    variances = np.asarray(_prior_variance(model.prior), np.float64)
    return reported(bound, variances, confidence, model.likelihood.errors_proven)


def posterior_bound(
    target: AbstractTarget, family: LocationScale, point: Point, *, confidence: float, seed: int
) -> PosteriorBound | None:
    """For any density with a lower bound H of its Hessian; None where there is none.

    A q that is not Gaussian needs fourth moments for its confidence.
    """
    if target.dim > _LARGEST_DENSE:
        return None
    if not isinstance(family.base, Normal):
        if not family.base.has_fourth_moment(family.dim):
            return None

        def sample(key: Any, count: int) -> Any:
            return family.sample(key, point, count)

        def log_prob(z: Any) -> Any:
            return family.log_prob(point, z)

        return any_posterior_bound(target, sample, log_prob, confidence=confidence, seed=seed)
    curvature = curvature_lower_bound(target)
    if curvature is None:
        return None
    problem, energy = density_problem(target, point, curvature)
    allowed = int(np.clip(WORK / (1000 * getattr(target, "num_terms", 10)), FEWEST_EVALUATIONS, 40_000))
    bound = dual_bound(problem, energy, delta=1 - confidence, seed=seed, most_evaluations=allowed)
    inverse = solve_triangular(np.linalg.cholesky(curvature), np.eye(target.dim), lower=True)
    # A target in another type than float64 rounds by more than is charged.
    return reported(bound, np.sum(inverse**2, axis=0), confidence, target.dtype == np.float64)


def _evaluations(model: AbstractLinearModel) -> int:
    return int(np.clip(WORK / (model.num_terms * (2 + 0.07 * model.dim)), FEWEST_EVALUATIONS, MOST_EVALUATIONS))


def reported(found: DualBound | None, variances: np.ndarray, confidence: float, exact: bool) -> PosteriorBound | None:
    """The bound to report; `variances` are the diagonal of the inverse of H.

    `exact`: whether the errors of means under q are bounds; what rests on estimates of them is not proven.
    """
    if found is None or not math.isfinite(found.kl):
        return None
    return PosteriorBound(
        kl=found.kl,
        coordinate_error=tuple(float(x) for x in np.sqrt(2 * found.kl * variances)),
        confidence=confidence,
        num_samples=2 * found.num_pairs,
        status="proven" if found.proven and exact else "statistical",
        estimate=found.estimate,
    )
