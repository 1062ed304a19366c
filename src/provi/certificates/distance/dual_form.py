"""The distance of q to the posterior, for a Gaussian process or a linear model with more columns than rows."""

import math
from typing import Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from provi.certificates.distance.bound import PosteriorBound
from provi.certificates.distance.conjugate import RowProblem
from provi.certificates.distance.dual_bound import Energy, dual_bound
from provi.certificates.distance.posterior import FEWEST_EVALUATIONS, MOST_EVALUATIONS, WORK, reported
from provi.certificates.dual.dual_pass import EPS, DualPass, dual_pass, mean_terms
from provi.core.interpreter import instant_jit
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.kernels.rows import is_streamed

_LARGEST_SITES = 2000

_dual_prior_variance = instant_jit(lambda family: family.prior_variance())


def dual_posterior_bound(
    target: Any, family: DualGaussian, point: DualPoint, *, confidence: float, seed: int
) -> PosteriorBound | None:
    """For a Gaussian process, or a linear model with more columns than rows."""
    if not target.likelihood.log_concave or family.num_sites > _LARGEST_SITES or family.root is not None:
        return None
    if is_streamed(family.gram):  # its draws need a factor of K
        return None
    found = dual_problem(target, family, point)
    if found is None:
        return None
    allowed = int(np.clip(WORK / family.num_sites**1.7, FEWEST_EVALUATIONS, MOST_EVALUATIONS))
    bound = dual_bound(*found, delta=1 - confidence, seed=seed, most_evaluations=allowed)
    gram = np.diagonal(np.asarray(family.gram, np.float64))
    variance = gram if family.prior is None else np.asarray(_dual_prior_variance(family), np.float64)
    return reported(bound, variance, confidence, target.likelihood.errors_proven)


def dual_problem(target: Any, family: DualGaussian, point: DualPoint) -> tuple[RowProblem, Energy] | None:
    r"""A Gaussian in dual form, in coordinates in which its prior is standard: $\eta = m_0 + Lv$, $K = LL'$.

    There q has the covariance $(I + L'SL)^{-1} = RR'$ and the mean $L'a$, and nothing is ill-conditioned, however K is.
    With $\eta$ go all other numbers: what was not observed has the same law given $\eta$ under q and under p.
    """
    at = dual_pass(target, family, point)
    count, identity = len(at.centre), np.eye(len(at.centre))
    try:
        lower = cholesky(at.gram, lower=True, check_finite=False)
        inner = cholesky(identity + lower.T @ (at.precision[:, None] * lower), lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return None
    root = solve_triangular(inner, identity, lower=True, check_finite=False).T
    rows = lower @ root
    mean = lower.T @ np.asarray(point.dual_mean, np.float64)
    values, errors, first = (np.asarray(x) for x in mean_terms(at.likelihood, at.centre, at.variance, at.response))
    value = float(np.sum(values - first)) + 0.5 * (count - float(np.sum(at.precision * at.variance)))
    error = float(np.sum(errors)) + _rounding(at, np.asarray(point.dual_mean, np.float64), values, first)
    if not (math.isfinite(value) and math.isfinite(error)):
        return None
    size = np.linalg.norm(lower, axis=1) * float(np.linalg.norm(root))
    relative = 4 * count * EPS
    curvature = target.likelihood.curvature_given(target.response)
    problem = RowProblem(
        design=None,
        root=rows,
        centre=at.centre,
        response=at.response,
        likelihood=at.likelihood,
        prior_curvature=root.T @ root,
        prior_gradient=root.T @ mean,
        curvature_error=relative * float(np.sum(root**2)),
        gradient_error=relative * float(np.linalg.norm(root) * np.linalg.norm(mean)),
        row_error=relative * size,
        centre_error=at.centre_error,
        largest_weight=float(curvature[1]),
        quadratic=curvature[0] == curvature[1] or target.likelihood.self_concordance == 0,
    )
    return problem, Energy(value, error)


def _rounding(at: DualPass, dual_mean: np.ndarray, values: np.ndarray, first: np.ndarray) -> float:
    """Of the mean of the potential, and of K itself: a change of it by u sqrt(k_i k_j) moves ELBO and evidence by at
    most u times the square of a sum over the slopes and site precisions, to first order; four times that is taken."""
    slope = np.abs(at.gradient - dual_mean) + at.gradient_error
    error = float(np.sum(slope * at.centre_error + (at.weight + at.weight_error + at.precision) * at.variance_error))
    error += len(values) * EPS * (float(np.sum(np.abs(values) + np.abs(first))) + len(values))
    unit = (len(values) + 2) * EPS + at.prior.unit
    moved = np.sqrt(at.prior.size) * (np.abs(dual_mean) + slope + at.precision * np.sqrt(at.variance))
    return error + 4 * unit * float(np.sum(moved)) ** 2
