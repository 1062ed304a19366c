"""Theorems 4 and 6 of paper 004, the lemma behind the step size 1/(2M), and plans for a budget."""

import math

import numpy as np
import pytest

from provi.theory import mpsgd, noise
from provi.theory.noise import NoiseBound


def _symmetric(rng, d, smallest, kind):
    """A random symmetric matrix with eigenvalues from `smallest` on; many of them exactly there."""
    vectors = np.linalg.qr(rng.normal(size=(d, d)))[0] if kind == "symmetric" else np.eye(d)
    values = smallest * (1 + rng.choice([0.0, 1e-9, 1.0, 30.0], size=d) * rng.exponential(size=d))
    return vectors @ np.diag(values) @ vectors.T


@pytest.mark.parametrize("kind", ["symmetric", "diagonal"])
def test_negative_entropy_is_cocoercive_on_the_set(kind):
    """D_h(C*, C) >= |C^-1 - C*^-1|^2/(2M) for all pairs in {C >= I/sqrt M}; reached in the limit at the
    boundary.
    """
    rng, smoothness, smallest_ratio = np.random.default_rng(0), 2.5, math.inf
    for trial in range(3000):
        d = 1 + trial % 4
        first = _symmetric(rng, d, smoothness**-0.5, kind)
        second = _symmetric(rng, d, smoothness**-0.5, kind)
        product = np.linalg.solve(first, second)
        divergence = -np.linalg.slogdet(product)[1] + np.trace(product) - d
        square = ((np.linalg.inv(first) - np.linalg.inv(second)) ** 2).sum()
        assert divergence >= square / (2 * smoothness) - 1e-9 * (1 + divergence)
        if square > 1e-4:
            smallest_ratio = min(smallest_ratio, divergence / (square / (2 * smoothness)))
    assert 1 - 1e-6 <= smallest_ratio < 1.2


@pytest.mark.parametrize("seed", range(5))
def test_objective_inequality_at_the_optimum(seed):
    """f* >= f(w) + <grad f(w), w* - w> + |grad f(w)|^2/(4M) on W_M, Gaussian target with precision H: l is
    closed form.
    """
    rng, d = np.random.default_rng(seed), 3
    root = rng.normal(size=(d, d))
    precision = root @ root.T + 0.01 * np.eye(d)
    values, vectors = np.linalg.eigh(precision)
    smoothness, optimum = values[-1], vectors @ np.diag(values**-0.5) @ vectors.T

    def objective(m, c):
        energy = m @ precision @ m / 2 + np.trace(c @ precision @ c) / 2
        return energy - np.linalg.slogdet(c)[1]

    best = objective(np.zeros(d), optimum)
    for _ in range(500):
        m, c = rng.normal(size=d) * rng.exponential(), _symmetric(rng, d, smoothness**-0.5, "symmetric")
        grad_m = precision @ m
        grad_c = (precision @ c + c @ precision) / 2 - np.linalg.inv(c)
        square = grad_m @ grad_m + (grad_c**2).sum()
        right = objective(m, c) - grad_m @ m + (grad_c * (optimum - c)).sum() + square / (4 * smoothness)
        assert best >= right - 1e-9 * (1 + abs(right))


def test_one_over_2m_with_batches_on_an_exact_run():
    """d = 1, target N(0, 1/M), u = +-1 (standardised): f(m, c) = M(m^2 + c^2)/2 - log c, all sign paths,
    batch of 2.

    g = (M(m + c u), M(m + c u) u - 1/c). With u^2 = 1: E|g|^2 = 2 M^2(m^2 + c^2) - 2 M + 1/c^2, within a r
    + b.
    """
    smoothness, steps, draws = 1.7, 6, 2
    least = smoothness**-0.5
    bound_of_one = NoiseBound(4 * 2 * smoothness**2, 4 * 2 * smoothness**2 * least**2 + 2 * smoothness, "test")
    gamma, index = mpsgd.largest_step_size(smoothness), np.arange(4**steps)
    m, c = np.full(4**steps, 1.5), np.full(4**steps, 2.0)
    start = 1.5**2 + (2.0 - least) ** 2
    tau = mpsgd.averaging_factor(gamma, draws, bound_of_one.slope)
    locations, scales = [], []
    for k in range(steps):
        locations.append(m)
        scales.append(c)
        mean = sum(np.where((index >> (2 * k + i)) & 1, 1.0, -1.0) for i in range(2)) / 2
        grad_m, grad_c = smoothness * (m + c * mean), smoothness * (m * mean + c) - 1 / c
        m, c = m - gamma * grad_m, np.maximum(c - gamma * grad_c, least)
        weights = tau ** np.arange(1, k + 2)
        average = [np.tensordot(weights / weights.sum(), np.array(x), axes=1) for x in (locations, scales)]
        value = smoothness * (average[0] ** 2 + average[1] ** 2) / 2 - np.log(average[1])
        gap = value.mean() - (0.5 - np.log(least))
        sharp = mpsgd.sharp_bound(k + 1, draws, gamma, start, bound_of_one, smoothness)
        assert gap <= sharp <= mpsgd.bound(k + 1, draws, gamma, start, bound_of_one, smoothness)


def test_sharp_bound_is_never_larger():
    one = NoiseBound(5.0, 0.3, "test")
    counts = np.arange(1, 200)
    for draws, gamma in [(1, 0.2), (7, 0.05), (100, 2.0)]:
        printed = mpsgd.bound(counts, draws, gamma, 2.0, one)
        assert np.all(mpsgd.sharp_bound(counts, draws, gamma, 2.0, one) <= printed * (1 + 1e-12))
    expected = 0.2 / 2 * (5.0 * 2.0 + 0.3) + 2.0 / (2 * 0.2 * 10)
    assert mpsgd.bound(10, 1, 0.2, 2.0, one) == pytest.approx(expected)


@pytest.mark.parametrize("kurtosis", [3.0, 3 * 7 / 5])
def test_theorem4_is_theorem6_at_its_settings(kurtosis):
    """Unrounded N and K put into Theorem 6 by hand; plain has one relaxation d <= 1 + rho, preconditioned
    none.
    """
    d, smoothness, location, scale, reference, budget = 4, 1.9, 0.7, 1.3, 2.1, 10_000
    rho, gamma = (d + 2) * kurtosis / 3, 1 / (2 * smoothness)
    constants = dict(dim=d, smoothness=smoothness, reference_distance_squared=reference, kurtosis=kurtosis)
    arguments = (budget, d, kurtosis, smoothness, location, scale, reference)

    one, draws = noise.entropy_noise(**constants), math.sqrt((1 + rho) * budget)
    size = location + scale
    by_hand = gamma / (2 * draws) * (one.slope * size + one.floor) + size / (2 * gamma * budget / draws)
    closed = mpsgd.theorem4_bound(*arguments, preconditioned=False)
    relaxed = 1 / (2 * smoothness) * (1 - d / (1 + rho))
    assert closed - by_hand == pytest.approx(smoothness * math.sqrt((1 + rho) / budget) * relaxed)

    one = noise.preconditioned_entropy_noise(**constants)
    size = location + scale / noise.scale_preconditioner(d, kurtosis)
    by_hand = gamma / (2 * 100) * (one.slope * size + one.floor) + size / (2 * gamma * 100)
    closed = mpsgd.theorem4_bound(*arguments, preconditioned=True)
    assert closed == pytest.approx(by_hand)
    printed = smoothness / 100 * (2 * location + 2 * rho * scale + reference + 1 / (4 * smoothness))
    assert closed - printed == pytest.approx(smoothness / 100 * 2 * rho * scale)
    assert mpsgd.plan(budget, d, kurtosis, smoothness, True) == mpsgd.Plan(gamma, 100, 100)


def test_plan_rounds_within_the_budget():
    for budget in range(8, 400):
        plan = mpsgd.plan(budget, 5, 3.0, 2.0, preconditioned=False)
        assert plan.num_draws * plan.num_steps <= budget < plan.num_draws * (plan.num_steps + 1)
        assert plan.num_draws - 1 < math.sqrt(8 * budget) <= plan.num_draws
        assert plan.step_size == 0.25
    with pytest.raises(ValueError, match="budget = 7"):
        mpsgd.plan(7, 5, 3.0, 2.0, preconditioned=False)
    assert mpsgd.plan(7, 5, 3.0, 2.0, preconditioned=True).num_draws == 3


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("accuracy", [30.0, 8.0, 3.1])
def test_budget_for_accuracy_is_the_smallest(preconditioned, accuracy):
    d, kurtosis, smoothness = 2, 3.0, 1.3
    one = NoiseBound(4 * (1.0 if preconditioned else 5.0) * smoothness**2, 6.0, "test")

    def value(budget):
        plan = mpsgd.plan(budget, d, kurtosis, smoothness, preconditioned)
        return mpsgd.bound(plan.num_steps, plan.num_draws, plan.step_size, 4.0, one)

    found = mpsgd.budget_for_accuracy(accuracy, 4.0, one, d, kurtosis, smoothness, preconditioned)
    first = 1 if preconditioned else 5
    assert found == next(budget for budget in range(first, 10**6) if value(budget) <= accuracy)


def test_psgd_steps_are_those_of_appendix_c():
    assert mpsgd.psgd_step_size(100, 5, 3.0, 2.0, True) == pytest.approx(1 / (4 * 10))
    assert mpsgd.psgd_step_size(100, 5, 3.0, 2.0, False) == pytest.approx(1 / (4 * math.sqrt(700)))


def test_refuses():
    one = NoiseBound(5.0, 0.3, "test")
    with pytest.raises(ValueError, match=r"step_size = 0.6.*1/\(2 smoothness\)"):
        mpsgd.bound(10, 2, 0.6, 1.0, one, smoothness=1.0)
    assert mpsgd.bound(10, 1, 0.6, 1.0, one, smoothness=1.0) > 0
    with pytest.raises(ValueError, match="num_draws"):
        mpsgd.bound(10, 0, 0.1, 1.0, one)
    with pytest.raises(ValueError, match="initial_distance_squared"):
        mpsgd.bound(10, 1, 0.1, -1.0, one)
    with pytest.raises(ValueError, match="accuracy"):
        mpsgd.budget_for_accuracy(-1.0, 1.0, one, 2, 3.0, 1.0, True)
