"""Paper 004 for any F and Theta: Proposition 3, Remark 5, Theorems 6 to 8, minimisers on the boundary; all exact."""

import itertools
import math

import numpy as np
import pytest

from provi.theory import mpsgd, noise
from provi.theory.noise import NoiseBound


def test_proposition_3_is_the_least_that_follows_from_the_blocks():
    """The largest ratio over all distances is a; it is at a vertex, as the ratio is a mean of those there."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 4):
        slopes, floors, factors = (
            rng.exponential(size=(count, count)),
            rng.exponential(size=count),
            rng.uniform(0.1, 1, count),
        )
        found = noise.block_noise(slopes, floors, factors)
        squares = np.vstack([np.eye(count), rng.exponential(size=(200, count))])
        left = (squares @ slopes.T + floors) @ factors
        right = found.slope * (squares / factors).sum(axis=1) + found.floor
        assert np.all(left <= right * (1 + 1e-12))
        assert np.isclose(np.max((left - found.floor) / (squares / factors).sum(axis=1)), found.slope)


@pytest.mark.parametrize("kurtosis", [3.0, 3 * 7 / 5])
def test_the_blocks_of_the_elbo_give_theorem_4s_noise_and_less(kurtosis):
    constants = dict(dim=4, smoothness=1.7, reference_distance_squared=2.0, kurtosis=kurtosis)
    slopes, floors = noise.entropy_block_noise(**constants)
    rho, factor = noise.radial_factor(4, kurtosis), noise.scale_preconditioner(4, kurtosis)
    plain, scaled = noise.block_noise(slopes, floors, [1, 1]), noise.block_noise(slopes, floors, [1, factor])
    assert plain.slope == pytest.approx(2 * (1 + 2 * rho) * 1.7**2)
    assert scaled.slope == pytest.approx(2 * (1 + 4 / rho) * 1.7**2)
    for ours, paper in ((plain, noise.entropy_noise), (scaled, noise.preconditioned_entropy_noise)):
        known = paper(**constants)
        assert ours.slope < known.slope
        assert ours.floor <= known.floor * (1 + 1e-12)


def test_remark_5_finds_the_best_whole_numbers():
    rng = np.random.default_rng(1)
    for budget in [*range(1, 30), 97, 400]:
        for _ in range(4):
            start, one = rng.exponential(), NoiseBound(*rng.exponential(size=2) * 10, "test")
            gamma = rng.exponential()
            plan = mpsgd.optimal_plan(budget, start, one, gamma)
            value = mpsgd.bound(plan.num_steps, plan.num_draws, gamma, start, one)
            brute = min(mpsgd.bound(budget // n, n, gamma, start, one) for n in range(1, budget + 1))
            assert plan.num_draws * plan.num_steps <= budget
            assert value == pytest.approx(brute, rel=1e-12)
            assert value >= mpsgd.optimal_bound(budget, start, one) * (1 - 1e-12)


def test_remark_5_at_the_edges_and_for_huge_budgets():
    """Its own N = gamma sqrt((a + b/D) E), checked where rounding does not matter; without noise, without distance."""
    one = NoiseBound(4.0, 2.0, "test")
    plan = mpsgd.optimal_plan(10**15, 1.0, one, 0.3)
    assert plan.num_draws == pytest.approx(0.3 * math.sqrt(6.0) * 10**7.5, rel=1e-4)
    value = mpsgd.bound(plan.num_steps, plan.num_draws, 0.3, 1.0, one)
    assert value == pytest.approx(mpsgd.optimal_bound(10**15, 1.0, one), rel=1e-6)
    assert mpsgd.optimal_plan(50, 1.0, NoiseBound(0.0, 0.0, "none"), 0.3) == mpsgd.Plan(0.3, 1, 50)
    assert mpsgd.optimal_plan(50, 0.0, one, 0.3) == mpsgd.Plan(0.3, 50, 1)


def test_optimal_budget_is_the_smallest():
    one = NoiseBound(3.0, 1.0, "test")

    def value(budget):
        plan = mpsgd.optimal_plan(budget, 2.0, one, 0.25)
        return mpsgd.bound(plan.num_steps, plan.num_draws, 0.25, 2.0, one)

    for accuracy in (5.0, 1.0, 0.31):
        expected = next(budget for budget in range(1, 10**5) if value(budget) <= accuracy)
        assert mpsgd.optimal_budget(accuracy, 2.0, one, 0.25) == expected


def test_the_printed_theorem_6_is_false_where_the_minimiser_is_on_the_boundary():
    """F(theta) = theta on [0, 1] from 1, no noise: one step ends at the minimiser, but the average is of the start."""
    gamma, draws = 10.0, 1000
    printed = mpsgd.bound(1, draws, gamma, 1.0, NoiseBound(0.0, 1.0, "E g^2 = 1"))
    assert printed == pytest.approx(0.055)
    gap_of_the_average_before, gap_of_the_average_after = 1.0, max(1.0 - gamma, 0.0)
    assert gap_of_the_average_before > 10 * printed
    corrected = mpsgd.bound(1, draws, gamma, 1.0, mpsgd.constrained(NoiseBound(0.0, 0.0, "no variance")))
    assert gap_of_the_average_after <= corrected


@pytest.mark.parametrize("slope", [1.0, 0.05])
def test_corrected_theorems_6_and_7_on_exact_runs(slope):
    """F = slope theta + theta^2/2 on [0, 2]: minimiser 0, L = 1, g = F' + (theta + 1) e, e = +-1, all paths.

    The variance is (theta + 1)^2 <= 2 theta^2 + 2.
    """
    one = mpsgd.constrained(NoiseBound(2.0, 2.0, "variance"))
    for gamma, draws in (
        (np.full(5, 1.0), np.full(5, 2)),
        (np.array([1.0, 0.8, 0.6, 0.9, 0.4]), np.array([1, 1, 2, 3, 4])),
    ):
        index, used, history = np.arange(2 ** int(draws.sum())), 0, []
        position = np.full(index.size, 2.0)
        weights = mpsgd.dynamic_averaging_weights(gamma, draws, one.slope)
        bounds = mpsgd.dynamic_bound(gamma, draws, 4.0, one)
        for k in range(5):
            sign = np.mean([np.where((index >> (used + i)) & 1, 1.0, -1.0) for i in range(draws[k])], axis=0)
            used += int(draws[k])
            position = np.clip(position - gamma[k] * (slope + position + (position + 1) * sign), 0.0, 2.0)
            history.append(position)
            average = np.tensordot(weights[: k + 1] / weights[: k + 1].sum(), np.array(history), axes=1)
            assert (slope * average + average**2 / 2).mean() <= bounds[k]


def test_theorem_8_bounds_the_random_iterate():
    """F = cos on [-2, 2]: the mean of |G|^2 with weights gamma(1 - gamma L), over all sign paths."""
    gamma, draws = np.array([0.5, 0.4, 0.6, 0.5, 0.3]), np.array([1, 2, 2, 3, 4])
    index, used = np.arange(2 ** int(draws.sum())), 0
    position, total = np.full(index.size, 0.3), 0.0
    # One draw has the variance 1/4; the second moment is not needed.
    bounds = mpsgd.nonconvex_bound(gamma, draws, np.cos(0.3) - np.cos(2.0), 1.0, 0.25)
    weights = gamma * (1 - gamma)
    for k in range(5):
        mapping = (position - np.clip(position + gamma[k] * np.sin(position), -2, 2)) / gamma[k]
        total += weights[k] * (mapping**2).mean()
        assert total / weights[: k + 1].sum() <= bounds[k]
        sign = np.mean([np.where((index >> (used + i)) & 1, 1.0, -1.0) for i in range(draws[k])], axis=0)
        used += int(draws[k])
        position = np.clip(position - gamma[k] * (-np.sin(position) + 0.5 * sign), -2, 2)


def test_nonconvex_plan_is_the_best():
    """Against all whole N and K and a grid of steps; the closed form for real numbers is below it."""

    def value(gamma, draws, steps, gap, smoothness, moment):
        return mpsgd.nonconvex_bound(np.full(steps, gamma), np.full(steps, draws), gap, smoothness, moment)[-1]

    for gap, smoothness, moment in itertools.product([0.3, 2.0], [0.5, 4.0], [0.1, 5.0]):
        plan = mpsgd.nonconvex_plan(300, gap, smoothness, moment)
        found = value(plan.step_size, plan.num_draws, plan.num_steps, gap, smoothness, moment)
        brute = min(value(plan.step_size, n, 300 // n, gap, smoothness, moment) for n in range(1, 301))
        assert found == pytest.approx(brute)
        assert found >= 12 * math.sqrt(3 * smoothness * moment * gap / 300) * (1 - 1e-12)
    real = [8 / math.sqrt(x) / (1 - x) for x in np.linspace(0.01, 0.99, 981)]
    assert 12 * math.sqrt(3) == pytest.approx(min(real), rel=1e-4)
    assert real.index(min(real)) == pytest.approx(981 * (1 / 3 - 0.01) / 0.98, abs=2)


def test_refuses():
    with pytest.raises(ValueError, match="factors must be one number in"):
        noise.block_noise([[1.0]], [1.0], [1.5])
    with pytest.raises(ValueError, match="slopes must hold finite numbers"):
        noise.block_noise([[1.0, 2.0]], [1.0], [0.5])
    with pytest.raises(ValueError, match="budget"):
        mpsgd.optimal_plan(0, 1.0, NoiseBound(1.0, 1.0, ""), 0.1)
    with pytest.raises(ValueError, match="initial_gap"):
        mpsgd.nonconvex_plan(10, -1.0, 1.0, 1.0)
