"""Monte-Carlo certificates against closed forms and the exact optimum: above the true gap, and not far above."""

import numpy as np
import pytest

from certificates.monte_carlo_problems import (
    check_above_the_true_gap,
    logistic_density,
    near_optimum,
    perturbed,
    problem,
    values,
)
from provi.certificates.monte_carlo.bounds import NAMES, monte_carlo_bounds
from provi.families import LocationScale
from provi.targets import Gaussian


@pytest.mark.parametrize("name", ["logistic3", "logistic10", "logistic30", "poisson5"])
def test_every_bound_is_above_the_true_gap(name):
    check_above_the_true_gap(name)


def gaussian_gap(precision, mean, loc, factor):
    """KL(q || p) of two Gaussians: the gap, because the best q is p."""
    seen = factor.T @ precision @ factor
    away = loc - mean
    return 0.5 * (away @ precision @ away + np.trace(seen) - len(mean) - np.linalg.slogdet(seen)[1])


def test_gaussian_target_in_closed_form():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    precision, mean = root @ root.T + np.eye(4), rng.normal(size=4)
    target, family = Gaussian(mean, precision=precision), LocationScale(4)
    exact = np.linalg.cholesky(np.linalg.inv(precision))
    loc, factor = mean + exact @ [0.2, -0.1, 0.0, 0.1], exact @ np.diag([1.1, 0.95, 1.0, 1.05])
    gap = gaussian_gap(precision, mean, loc, factor)
    certificate = monte_carlo_bounds(target, family, family.point(loc, factor), seed=1, max_gradients=60_000)
    found = values(certificate)
    # The covariance part from convexity alone is twice the truth; the location part is exact in (e) and (f).
    for name in NAMES:
        assert gap < found[name] < 2.5 * gap, (name, gap, found)
    assert certificate.kl is not None and gap < certificate.kl < 4 * gap
    seen = factor.T @ precision
    expected = np.sum((seen @ factor - np.eye(4)) ** 2) + np.sum((seen @ (loc - mean)) ** 2)
    assert abs(certificate.fisher - expected) < 6 * certificate.fisher_error


def test_large_gap_is_finite_because_the_ball_moves():
    target, family, optimum = problem("logistic10")
    point, gap = perturbed(target, family, optimum, 0.6, 3)
    assert gap > 1
    certificate = monte_carlo_bounds(target, family, point, max_gradients=60_000)
    assert gap < values(certificate)[NAMES[0]] < 6 * gap


def test_stops_when_the_bound_is_small_enough():
    family, point, gap = near_optimum()
    target = logistic_density(strong_convexity=1.0)
    all_of_it = monte_carlo_bounds(target, family, point, max_gradients=120_000)
    enough = monte_carlo_bounds(target, family, point, max_gradients=120_000, wanted=8 * gap)
    assert enough.num_gradients < all_of_it.num_gradients / 2
    assert values(enough)[NAMES[0]] <= 8 * gap
