"""The parts of the bound on KL(q || posterior), each against brute force or closed forms."""

import math

import numpy as np
import pytest
from scipy import special, stats

from provi.certificates.distance.bound import least_content, total_variation
from provi.certificates.distance.conjugate import conjugates
from provi.certificates.distance.dual_bound import (
    Energy,
    bernstein_bound,
    dual_bound,
    log_mean_lower_bound,
    quadratic_tail,
    skewed_bound,
)
from provi.certificates.distance.problems import linear_problem
from provi.families import Gaussian
from provi.targets import GeneralisedLinearModel
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise, Poisson
from provi_lab.bench.distance_oracle import bend, potential, slope

DELTA, REPETITIONS, FALSE_ALARM = 0.1, 1000, 1e-4
ALLOWED = stats.binom.isf(FALSE_ALARM, REPETITIONS, DELTA)
"""Misses in 1000 repetitions at confidence 0.9 that chance explains, but for one time in 10,000."""


def rare(rng, count):
    """Zero but for one draw in 200, which most samples of 50 do not see."""
    return (rng.random(count) < 0.005).astype(float)


LAWS = {
    "uniform": (lambda rng, count: rng.random(count), 0.5),
    "even coin": (lambda rng, count: (rng.random(count) < 0.5).astype(float), 0.5),
    "rare": (rare, 0.005),
    "skewed": (lambda rng, count: rng.random(count) ** 8, 1 / 9),
}


@pytest.mark.parametrize("name", LAWS)
def test_bernstein_bound_is_valid_for_few_draws(name):
    draw, mean = LAWS[name]
    for count in (10, 50, 2000):
        rng = np.random.default_rng(count)
        bounds = np.array([bernstein_bound(draw(rng, count), 1.0, math.log(2 / DELTA)) for _ in range(REPETITIONS)])
        assert np.sum(bounds < mean) <= ALLOWED
    assert np.median(bounds) < mean + 0.05


EXPONENTS = {
    "normal": (lambda rng, count: rng.normal(size=count), 0.5),
    "narrow": (lambda rng, count: 1e-3 * rng.normal(size=count), 5e-7),
    "often nothing": (lambda rng, count: np.where(rng.random(count) < 0.7, -np.inf, 0.0), math.log(0.3)),
    "rarely large": (lambda rng, count: np.where(rng.random(count) < 1e-3, 6.0, 0.0), math.log1p(1e-3 * math.expm1(6))),
    "without a mean": (lambda rng, count: -2 * np.log(rng.random(count)), math.inf),
}


@pytest.mark.parametrize("name", EXPONENTS)
@pytest.mark.parametrize("clips", [(-1.0, 1.0), (-5.0, 0.3), (-0.1, 4.0), (-50.0, 8.0)])
def test_log_mean_lower_bound_is_below_the_log_mean(name, clips):
    """Whatever the clips, also where they cut off most of the law; never a number that is not one."""
    draw, expected = EXPONENTS[name]
    for count in (20, 500):
        rng = np.random.default_rng(count)
        bounds = np.array([log_mean_lower_bound(draw(rng, count), *clips, DELTA) for _ in range(REPETITIONS)])
        assert not np.isnan(bounds).any()
        assert np.sum(bounds > expected) <= ALLOWED


def test_log_mean_lower_bound_is_sharp_with_many_draws():
    draws = np.random.default_rng(0).normal(size=200_000)
    assert 0.47 < log_mean_lower_bound(draws, -4.0, 4.0, 0.01) < 0.5


def test_draws_that_are_not_finite_count_as_nothing():
    draws = np.concatenate([np.zeros(900), np.full(50, -np.inf), np.full(50, np.nan)])
    found = log_mean_lower_bound(draws, -1.0, 0.5, 0.01)
    assert -0.5 < found < math.log(0.9)
    assert log_mean_lower_bound(np.full(100, np.nan), -1.0, 0.5, 0.01) == -math.inf


def test_skewed_bound_covers_and_takes_no_zero_spread_for_certainty():
    rng = np.random.default_rng(0)
    bounds = [skewed_bound(rng.exponential(size=200), DELTA) for _ in range(REPETITIONS)]
    assert np.sum(np.asarray(bounds) < 1) <= ALLOWED
    assert skewed_bound(np.full(512, 3.0), 0.01) > 3.0
    for tiny in (0.0, 1e-120, 1e-300):  # the cube of such a spread is zero
        assert np.isfinite(skewed_bound(tiny * np.arange(512.0), 0.01))


@pytest.mark.parametrize("start", [-8.0, -1.0, 0.0, 2.0])
def test_quadratic_tail_in_one_dimension_is_above_the_worst_event(start):
    """The worst event of probability p is the largest |v|, or less of it where start + w v^2 / 2 is negative there."""
    for weight in (1e-3, 0.5, 30.0):
        for probability in (1e-6, 1e-3, 0.2):
            edge = max(-float(special.ndtri(probability / 2)), math.sqrt(max(-2 * start / weight, 0)))
            mass = 2 * stats.norm.sf(edge)
            square = mass + 2 * edge * stats.norm.pdf(edge)
            worst = start * mass + 0.5 * weight * square
            found = quadratic_tail(np.asarray([weight]), start, probability)
            assert worst <= found <= 8 * worst + 2 * probability * abs(start) + 1e-12


def test_quadratic_tail_of_many_weights_is_above_the_worst_event_of_a_large_sample():
    rng = np.random.default_rng(1)
    weights = np.asarray([3.0, 1.0, 0.2, -0.5, -0.9])
    values = np.sort(-2.0 + 0.5 * rng.normal(size=(1_000_000, 5)) ** 2 @ weights)[::-1]
    for probability in (1e-3, 1e-2, 0.1):
        worst = np.sum(np.maximum(values[: int(1e6 * probability)], 0)) / 1e6
        assert 0.98 * worst <= quadratic_tail(weights, -2.0, probability) <= 3 * worst
    assert quadratic_tail(np.asarray([-0.5, -0.1]), 1.0, 0.01) == 0.01


def row_problem(link, design, response, sd, mean, covariance):
    likelihood = {"logit": BernoulliLogit(), "poisson": Poisson(), "gaussian": GaussianNoise(1.0)}[link]
    target, family = GeneralisedLinearModel(design, response, likelihood, sd), Gaussian(design.shape[1])
    found = linear_problem(target, family, family.point_from_covariance(mean, covariance))
    assert found is not None
    return found


def maximum(link, design, response, sd, mean, root, u):
    """f*(u) by damped Newton steps, to the last digits."""
    rows, centre = design @ root, design @ mean

    def negative(w):
        prior = 0.5 * (np.sum((mean + root @ w) ** 2) - np.sum(mean**2)) / sd**2
        with np.errstate(over="ignore"):
            return np.sum(potential(link, centre + rows @ w, response, 1.0) - first) + prior - u @ w

    first, w = potential(link, centre, response, 1.0), np.zeros(len(u))
    for _ in range(200):
        eta = centre + rows @ w
        gradient = rows.T @ slope(link, eta, response, 1.0) + root.T @ (mean + root @ w) / sd**2 - u
        hessian = rows.T @ (bend(link, eta, response, 1.0)[:, None] * rows) + root.T @ root / sd**2
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while not negative(w - size * step) <= negative(w) and size > 1e-9:
            size /= 2
        w = w - size * step
    assert np.linalg.norm(gradient) < 1e-6
    return -negative(w)


@pytest.mark.parametrize("link", ["logit", "poisson", "gaussian"])
@pytest.mark.parametrize("sd", [1.0, 100.0])
def test_conjugates_are_above_the_optimum_and_close(link, sd):
    """Above it in the coordinates of any q; within the tolerance in those of a q about as wide as the posterior."""
    rng = np.random.default_rng(3)
    design = rng.normal(size=(12, 2))
    response = {"logit": rng.integers(0, 2, 12), "poisson": rng.poisson(2.0, 12), "gaussian": rng.normal(size=12)}[link]
    response = response.astype(float)
    mean, covariance = np.asarray([0.2, -0.1]), np.asarray([[0.4, 0.1], [0.1, 0.3]])
    for width in (1.0, 0.1):
        problem, _ = row_problem(link, design, response, sd, mean, width * covariance)
        points = rng.normal(size=(6, 2))
        found = conjugates(problem, points, 1e-8)
        assert found is not None
        exact = np.array([maximum(link, design, response, sd, mean, problem.root, u) for u in points])
        assert np.all(found.upper >= exact - 1e-9 * (1 + np.abs(exact)))
        if width == 0.1 and (link, sd) != ("logit", 100.0):  # of which the slopes of 12 terms do not reach all u
            assert np.all(found.upper <= exact + 1e-6)


def test_rounding_is_charged_where_columns_cancel():
    """A column of ones beside 10^3 + noise: predictors of size 1 are differences of numbers of size 10^3."""
    rng = np.random.default_rng(4)
    design = np.stack([np.ones(30), 1e3 + rng.normal(size=30)], axis=1)
    response = rng.integers(0, 2, 30).astype(float)
    precision = 0.2 * design.T @ design + np.eye(2) / 1e4
    mean = np.asarray([-1e3, 1.0]) * 0.1
    problem, _ = row_problem("logit", design, response, 1e2, mean, np.linalg.inv(precision))
    points = rng.normal(size=(40, 2))
    found = conjugates(problem, points, 1e-6)
    assert found is not None
    # In extended precision, at the places that were found: each is a lower bound of f*.
    long = np.longdouble
    z = mean.astype(long) + found.places.astype(long) @ np.asarray(problem.root, long).T
    eta, first = z @ design.T.astype(long), design.astype(long) @ mean.astype(long)
    sign = np.where(response > 0, -1, 1).astype(long)

    def terms(x):
        return np.sum(np.logaddexp(long(0), sign * x), axis=-1)

    prior = 0.5 * (np.sum(z**2, axis=1) - np.sum(mean.astype(long) ** 2)) / long(1e4)
    lower = np.sum(points.astype(long) * found.places.astype(long), axis=1) - (terms(eta) - terms(first) + prior)
    assert np.all(found.upper >= lower.astype(float))
    assert np.median(found.upper - lower.astype(float)) < 1e-4


def test_without_a_curvature_bound_there_is_no_bound():
    problem, energy = row_problem("logit", np.ones((3, 1)), np.ones(3), 1.0, np.zeros(1), np.eye(1))
    flat = type(problem)(*[getattr(problem, name) for name in problem.__dataclass_fields__])
    object.__setattr__(flat, "prior_curvature", np.zeros((1, 1)))
    assert conjugates(flat, np.zeros((1, 1)), 1e-6) is None
    assert dual_bound(flat, energy, delta=0.01, seed=0, most_evaluations=2000) is None


def test_a_gaussian_posterior_has_its_own_evidence():
    """Equality: -log E exp(-Y) is exact for every q, since Y is constant once A is found."""
    rng = np.random.default_rng(5)
    design, response = rng.normal(size=(20, 3)), rng.normal(size=20)
    precision = design.T @ design + np.eye(3) / 4
    mean = np.linalg.solve(precision, design.T @ response)
    away = np.asarray([0.3, -0.2, 0.1])
    problem, energy = row_problem("gaussian", design, response, 2.0, mean + away, 1.5 * np.linalg.inv(precision))
    exact = 0.5 * (3 * 0.5 - 3 * math.log(1.5) + away @ precision @ away)
    found = dual_bound(problem, energy, delta=0.01, seed=1, most_evaluations=40_000)
    assert found is not None and found.proven
    assert exact <= found.kl <= 1.15 * exact and found.estimate == pytest.approx(exact, rel=0.05)


def test_the_error_of_the_energy_is_added():
    problem, energy = row_problem("logit", np.ones((3, 1)), np.ones(3), 1.0, np.zeros(1), np.eye(1))
    wide = Energy(energy.value, energy.error + 0.25)
    first, second = (dual_bound(problem, e, delta=0.01, seed=0, most_evaluations=2000) for e in (energy, wide))
    assert first is not None and second is not None
    assert second.kl - first.kl == pytest.approx(0.25, abs=1e-9)


def test_total_variation_of_two_point_laws_is_never_above_the_bound():
    """All pairs of laws on two points, and Gaussians, which are nearer to equality."""
    grid = np.linspace(0.001, 0.999, 60)
    for a in grid:
        kl = special.rel_entr(a, grid) + special.rel_entr(1 - a, 1 - grid)
        bounds = np.asarray([total_variation(max(float(x), 0.0)) for x in kl])
        assert np.all(np.abs(a - grid) <= bounds + 1e-12)
    for shift in (0.01, 0.5, 2.0, 6.0):
        assert 2 * stats.norm.cdf(shift / 2) - 1 <= total_variation(shift**2 / 2)
    assert total_variation(math.inf) == 1.0 and total_variation(0.0) == 0.0


def test_least_content_is_the_root_by_brute_force():
    grid = np.linspace(1e-7, 1 - 1e-7, 400_001)
    for share in (0.05, 0.5, 0.94, 0.999):
        for kl in (1e-6, 0.01, 0.3, 2.0):
            possible = grid[special.rel_entr(share, grid) + special.rel_entr(1 - share, 1 - grid) <= kl]
            found = least_content(share, kl)
            assert found <= possible.min() <= found + 1e-5
    assert least_content(0.94, math.inf) == 0.0
    assert least_content(0.94, 0.0) == pytest.approx(0.94)
    assert least_content(0.94, 800.0) >= 0.0
