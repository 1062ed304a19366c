"""Monte-Carlo certificates of other families: diagonal, low rank, another base; and other precisions."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from certificates.monte_carlo_problems import (
    LOGISTIC,
    check_above_the_true_gap,
    logistic_density,
    near_optimum,
    problem,
    values,
)
from provi.certificates.monte_carlo.bounds import NAMES, monte_carlo_bounds
from provi.certificates.monte_carlo.finite_sample import NAME
from provi.diagnostics import exact_negative_elbo, linear_model_optimum
from provi.families import LocationScale
from provi.targets import Gaussian, LogDensity, LogisticRegression


@pytest.mark.parametrize("name", ["linear4", "diagonal6", "laplace5"])
def test_every_bound_is_above_the_true_gap(name):
    check_above_the_true_gap(name)


def test_exact_optimum_of_a_gaussian_is_certified_to_rounding():
    target, family, optimum = problem("linear4")
    certificate = monte_carlo_bounds(target, family, optimum.point, max_gradients=5_000)
    # The residuals vanish identically, and equal curvature bounds leave nothing for a draw to miss.
    found = values(certificate)
    assert found.pop(NAME) < 1e-12
    # Nothing is known of what the draws did not see: a width of zero is never taken for one.
    assert 0 < min(found.values()) <= max(found.values()) < 1e-3
    assert certificate.kl is not None and certificate.kl < 1e-12


def test_float32():
    family, point, gap = near_optimum()
    target = LogisticRegression(np.asarray(LOGISTIC.design, np.float32), np.asarray(LOGISTIC.response))
    certificate = monte_carlo_bounds(target, family, point, max_gradients=20_000)
    assert gap < values(certificate)[NAMES[0]] < 6 * gap
    assert all("float32" in bound.detail for bound in certificate.bounds)
    # Without a curvature bound, rounding leaves a gradient that times 10^6 dominates: valid, and useless.
    blind = monte_carlo_bounds(logistic_density(jnp.float32, log_concave=True), family, point, max_gradients=20_000)
    assert blind.bounds[0].value > gap


def test_low_rank_is_certified_against_all_covariances():
    family = LocationScale(3, scale="low_rank", rank=1)
    full, point, gap = near_optimum()
    deviations = np.sqrt(np.diagonal(np.asarray(point.scale.covariance())))
    certificate = monte_carlo_bounds(LOGISTIC, family, family.point(point.loc, deviations), max_gradients=20_000)
    same = family.point(point.loc, deviations).scale.covariance()
    there = exact_negative_elbo(LOGISTIC, full, full.point_from_covariance(point.loc, np.asarray(same)))
    gap = float(there) - linear_model_optimum(LOGISTIC, full).negative_elbo
    assert gap < values(certificate)[NAMES[0]] < 6 * gap
    assert "low-rank" in certificate.bounds[0].detail
    large = LocationScale(1001, scale="low_rank", rank=1)
    target = Gaussian(np.zeros(1001))
    refused = monte_carlo_bounds(target, large, large.point(np.zeros(1001)))
    assert refused.num_gradients == 0 and "1000" in refused.bounds[0].detail


def test_mean_field_in_many_dimensions_needs_no_matrix():
    dim = 1001
    target = LogDensity(lambda z: -jnp.sum(jnp.cosh(z)), dim, strong_convexity=1.0)
    family = LocationScale(dim, scale="diagonal")
    certificate = monte_carlo_bounds(target, family, family.point(np.zeros(dim), 0.8), max_gradients=30_000)
    # f = d (exp(c^2/2) - log c) at m = 0 is smallest where c^2 exp(c^2/2) = 1.
    spread = np.linspace(0.5, 1.0, 20_001)
    objective = np.exp(spread**2 / 2) - np.log(spread)
    gap = dim * (math.exp(0.32) - math.log(0.8) - objective.min())
    assert gap < values(certificate)[NAMES[0]] < 6 * gap
