"""MISSO's bounds against simulation, the paper's statement against two small counterexamples, its schedules."""

import re

import numpy as np
import pytest

from provi.schedules import ConstantBatch, FunctionBatch, OffsetPolynomialBatch, PolynomialBatch
from provi.theory import misso


def test_the_visits_probabilities():
    rng = np.random.default_rng(0)
    seen = np.mean([3 in rng.integers(0, 12, size=5) for _ in range(20_000)])
    exact = misso.visit_probability(12, 5, replacement=True)
    assert abs(seen - exact) < 5 * np.sqrt(exact * (1 - exact) / 20_000)  # false alarm 6e-7
    assert misso.visit_probability(12, 5) == pytest.approx(5 / 12)
    assert misso.visit_probability(12, 12) == misso.visit_probability(1, 3, replacement=True) == 1.0
    with pytest.raises(ValueError, match="at most 12"):
        misso.visit_probability(12, 13)


def test_the_age_of_the_table_by_simulation():
    rng = np.random.default_rng(1)
    sizes, n, b, runs = np.array([1.0, 4.0, 9.0, 25.0, 100.0]), 7, 2, 4000
    total = np.zeros((runs, sizes.size + 1))
    for run in range(runs):
        table = np.full(n, 4.0)
        for k, size in enumerate(sizes):
            total[run, k] = np.mean(table**-0.5)
            table[rng.choice(n, b, replace=False)] = size
        total[run, -1] = np.mean(table**-0.5)
    expected = misso.table_noise(sizes, 4, b / n)
    assert np.all(np.abs(total.mean(0) - expected) <= 5 * total.std(0, ddof=1) / runs**0.5 + 1e-12)
    np.testing.assert_allclose(misso.noise_sum(sizes), [1, 1.5, 1.5 + 1 / 3, 2.0333333333333, 2.1333333333333])


def test_the_printed_theorem_fails_at_the_start():
    """n = 1 and the objective as its own surrogate: the error is zero, so L_e may be as small as one likes."""
    smoothness, start = 1e-8, 1.0
    printed = np.sqrt(2 * smoothness * (start**2 / 2 - 0.0))  # K_max = 1, MISO
    assert printed < abs(start)  # g_-(theta_0) = |theta_0|
    corrected = misso.stationarity_bound([1, 1], np.inf, start**2 / 2, smoothness, 0.0, 0.0, 1.0)
    assert corrected >= 0.0  # g_-(theta_1) = 0: theta_1 is the minimiser


@pytest.mark.parametrize("n", [4, 20])
def test_the_printed_theorem_forgets_how_old_surrogates_are(n):
    """L_i = theta^2/2 with noise sigma z theta while M = 1, the same z = +-1 for all: theta_k = -z sigma share_k.

    M = 1 at the start and at visit 0, then no noise: the share of old surrogates is (1 - 1/n)^(k-1) in expectation.
    The corrected bound is reached. The error is zero, so that L_e may be as small as one likes.
    """
    sigma, visits, smoothness = 2.0, 3 * n, 1e-12
    sizes = np.r_[1.0, np.full(visits - 1, 1e30)]
    share = np.r_[0.0, (1 - 1 / n) ** np.arange(visits - 1)]  # theta_0 = 0 is the optimum
    count = np.arange(1, visits + 1)
    printed = sigma / count * np.sum(sizes**-0.5)
    assert np.all((sigma * np.cumsum(share) / count)[2:] > printed[2:])
    corrected = misso.stationarity_bound(sizes, 1, 0.0, smoothness, sigma, sigma, 1 / n)
    measured = sigma * np.cumsum(share[1:]) / count[:-1]
    assert np.all(measured <= corrected) and np.all(corrected <= measured * (1 + 1e-3))


class Quadratics:
    r"""L_i = (theta - a_i)' H_i (theta - a_i)/2 on a ball, quadratic surrogates of curvature 1, noise in the gradients.

    Surrogate: value + <g_i, theta - theta_i> + |theta - theta_i|^2/2, g_i the gradient plus noise of E|.|^2 = s^2/M.
    The error's Hessian is 1 - mean H_i, in [0, 1]: L_e = 1. sup |<noise, theta - theta_i>| <= 2 r |noise|.
    """

    def __init__(self, seed, n=8, dim=3, radius=1.0, sigma=0.5):
        rng = np.random.default_rng(seed)
        self.n, self.dim, self.radius, self.sigma = n, dim, radius, sigma
        vectors = np.linalg.qr(rng.normal(size=(n, dim, dim)))[0]
        self.hessians = np.einsum("nij,nj,nkj->nik", vectors, rng.uniform(0.02, 1, size=(n, dim)), vectors)
        self.centres = rng.normal(size=(n, dim))
        self.value_noise, self.gradient_noise = 2 * radius * sigma, sigma

    def project(self, theta):
        length = np.linalg.norm(theta, axis=-1, keepdims=True)
        return theta * np.minimum(1, self.radius / np.maximum(length, 1e-300))

    def value(self, theta):
        offset = theta[..., None, :] - self.centres
        return 0.5 * np.einsum("...ni,nij,...nj->...", offset, self.hessians, offset) / self.n

    def gradients(self, theta, rows):
        return np.einsum("...ij,...j->...i", self.hessians[rows], theta - self.centres[rows])

    def gradient(self, theta):
        return np.einsum("nij,...nj->...i", self.hessians, theta[..., None, :] - self.centres) / self.n

    def optimum(self):
        theta = np.zeros(self.dim)
        for _ in range(20_000):
            theta = self.project(theta - self.gradient(theta))
        return theta

    def stationarity(self, theta):
        descent, length = -self.gradient(theta), np.linalg.norm(theta, axis=-1, keepdims=True)
        normal = theta / np.maximum(length, 1e-300)
        outwards = np.maximum(np.sum(descent * normal, axis=-1, keepdims=True), 0) * (length > self.radius * (1 - 1e-9))
        return np.linalg.norm(descent - outwards * normal, axis=-1)

    def run(self, rng, theta, sizes, initial, batch, runs):
        """g_- and |grad e|^2 at theta_1, ..., one row a run; surrogates are minimised by projecting the mean."""
        lanes = np.arange(runs)[:, None]
        points = np.broadcast_to(theta, (runs, self.n, self.dim)).copy()

        def noisy(theta, rows, size):
            noise = rng.normal(size=(runs, rows.shape[1], self.dim)) * self.sigma / np.sqrt(self.dim * size)
            return self.gradients(theta[:, None, :], rows) + noise

        every = np.broadcast_to(np.arange(self.n), (runs, self.n))
        theta = np.broadcast_to(theta, (runs, self.dim)).copy()
        slopes = noisy(theta, every, initial)
        records = []
        for size in sizes:
            rows = rng.permuted(every, axis=1)[:, :batch]
            points[lanes, rows], slopes[lanes, rows] = theta[:, None, :], noisy(theta, rows, size)
            theta = self.project(np.mean(points - slopes, axis=1))
            exact = self.gradients(points, every)
            error = np.mean(exact + theta[:, None, :] - points, axis=1) - self.gradient(theta)
            records.append((self.stationarity(theta), np.sum(error**2, axis=-1)))
        measure, squared = np.moveaxis(np.asarray(records), 1, 0)
        return measure.T, squared.T


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("growth", [0.0, 1.0, 2.5])
def test_the_corrected_bounds_hold(batch, growth):
    """200 runs: the mean over the visits, averaged over runs, is below the bound by more than five standard errors."""
    problem, visits, runs = Quadratics(3), 60, 200
    start = problem.project(np.full(3, -2.0))
    sizes = np.ceil((1 + np.arange(visits) * batch // problem.n) ** growth)
    measure, squared = problem.run(np.random.default_rng(7), start, sizes, 1, batch, runs)
    gap = float(problem.value(start) - problem.value(problem.optimum()))
    p = misso.visit_probability(problem.n, batch)
    constants = (sizes, 1, gap, 1.0, problem.value_noise)
    bounds = misso.stationarity_bound(*constants, problem.gradient_noise, p), misso.gradient_bound(*constants, p)
    for values, bound in zip((measure, squared), bounds, strict=True):
        means = np.cumsum(values, axis=1)[:, :-1] / np.arange(1, visits)
        assert np.all(means.mean(axis=0) + 5 * means.std(axis=0, ddof=1) / runs**0.5 <= bound)


@pytest.mark.parametrize("batch", [1, 8])
def test_without_noise(batch):
    """MISO: 2 L_e (L(theta_0) - inf L)/(p K), within a factor of 100 of the truth."""
    problem, visits, runs = Quadratics(5, sigma=0.0), 40, 100
    start = problem.project(np.full(3, 2.0))
    sizes, p = np.ones(visits), misso.visit_probability(problem.n, batch)
    measure, squared = problem.run(np.random.default_rng(9), start, sizes, 1, batch, runs)
    gap = float(problem.value(start) - problem.value(problem.optimum()))
    bound = misso.gradient_bound(sizes, 1, gap, 1.0, 0.0, p)
    np.testing.assert_allclose(bound, 2 * gap / p / np.arange(1, visits))
    means = np.cumsum(squared, axis=1)[:, :-1].mean(axis=0) / np.arange(1, visits)
    assert np.all(means <= bound) and np.all(bound <= 100 * means)
    assert np.all(measure <= np.sqrt(squared) + 1e-12)  # the only reason for not being stationary


def test_markov_chains_cost_more():
    sizes = np.arange(1, 20.0)
    plain = misso.delta(sizes, 1, 1.0, 2.0, 0.3, 0.25)
    biased = misso.delta(sizes, 1, 1.0, 2.0, 0.3, 0.25, markov=True)
    age = misso.table_noise(sizes, 1, 0.25)
    extra = age[1] / 0.25 + np.cumsum(sizes[1:] ** -0.5)
    np.testing.assert_allclose(biased - plain, 2 * 2.0 * 0.3 * extra)


@pytest.mark.parametrize(
    ("schedule", "holds", "words"),
    [
        (ConstantBatch(100), False, "is constant"),
        (PolynomialBatch(1, 1.0), False, r"K\^-0.25"),
        (OffsetPolynomialBatch(10, 2), False, "log K"),
        (PolynomialBatch(10, 2.5), True, r"2.5 > 2"),
        (OffsetPolynomialBatch(10, 2.1, 0.5), True, r"2.1 > 2"),
        (PolynomialBatch(10, 2.5, 150), False, "cap of 150"),
        (PolynomialBatch(1, 1.0, 40), False, "cap of 40"),
        (OffsetPolynomialBatch(10, 2, largest=100), False, "cap of 100"),
        (FunctionBatch(lambda k: k + 1), None, "of your own"),
        (FunctionBatch(lambda k: (k + 1) ** 3, 70), False, "cap of 70"),
    ],
)
def test_theorem_two(schedule, holds, words):
    verdict = misso.summable(schedule)
    assert verdict.holds is holds
    assert re.search(words, verdict.explanation)
    if holds is False:  # the remedy it names is one
        assert "PolynomialBatch(10, 2.5)" in verdict.explanation
        assert misso.summable(PolynomialBatch(10, 2.5)).holds


def test_bad_arguments():
    with pytest.raises(ValueError, match="probability must lie"):
        misso.table_noise([1, 2], 1, 0.0)
    with pytest.raises(ValueError, match="initial_batch"):
        misso.table_noise([1, 2], 0, 0.5)
    with pytest.raises(ValueError, match="two visits"):
        misso.delta([1], 1, 1.0, 1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="batch_sizes"):
        misso.noise_sum([1, 0])
