"""The bounds of PG-SVI as formulae: against brute force, their own special cases, and equality where it is claimed."""

import math

import numpy as np
import pytest
from scipy import optimize

from provi.theory import pgsvi, relative_smoothness, strong_growth

ALPHA, SMOOTHNESS, GAP, VARIANCE = 1.7, 3.0, 5.0, 0.8


def test_proposition_2_with_the_best_constant_step_is_proposition_1():
    steps = np.arange(1, 30)
    curve = pgsvi.exact_bound(np.full(29, ALPHA / SMOOTHNESS), GAP, ALPHA, SMOOTHNESS)
    np.testing.assert_allclose(curve, pgsvi.constant_step_bound(steps, GAP, ALPHA, SMOOTHNESS), rtol=1e-13)
    best = optimize.minimize_scalar(
        lambda beta: float(pgsvi.exact_bound([beta], GAP, ALPHA, SMOOTHNESS)[0]),
        bounds=(1e-3, 2 * ALPHA / SMOOTHNESS - 1e-3),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert best.x == pytest.approx(ALPHA / SMOOTHNESS, rel=1e-5)


def test_exact_bound_is_reached_after_one_step():
    """f = L|w|^2/2, Euclidean, step 1/L: |G_0|^2 = L^2|w|^2 is the bound itself."""
    w = np.array([1.0, -2.0])
    bound = pgsvi.exact_bound([1 / SMOOTHNESS], SMOOTHNESS / 2 * w @ w, 1.0, SMOOTHNESS)
    assert bound[0] == pytest.approx(SMOOTHNESS**2 * w @ w, rel=1e-14)


def test_theorem_1_with_constant_step_is_proposition_3():
    young, batch, steps = 0.9, 4, np.arange(1, 20)
    beta = pgsvi.reduced_alpha(ALPHA, young) / SMOOTHNESS
    curve = pgsvi.stochastic_bound(np.full(19, beta), np.full(19, batch), GAP, ALPHA, SMOOTHNESS, VARIANCE, young)
    constant = pgsvi.constant_stochastic_bound(steps, batch, GAP, ALPHA, SMOOTHNESS, VARIANCE, young)
    np.testing.assert_allclose(curve, constant, rtol=1e-12)
    np.testing.assert_allclose(
        pgsvi.index_probabilities(np.full(19, beta), ALPHA, SMOOTHNESS, young), np.full(19, 1 / 19), rtol=1e-13
    )


def test_smallest_floor_is_at_the_reciprocal_of_alpha():
    """c = 1/alpha, floor 2 s2/(M alpha^2)."""
    floors = [
        pgsvi.constant_stochastic_bound(10**12, 3, GAP, ALPHA, SMOOTHNESS, VARIANCE, c / ALPHA)
        for c in (0.8, 0.95, 1.0, 1.05, 1.3)
    ]
    assert np.argmin(floors) == 2
    assert floors[2] == pytest.approx(2 * VARIANCE / (3 * ALPHA**2), rel=1e-9)


@pytest.mark.parametrize("variance", [1e-4, 0.8, 300.0])
@pytest.mark.parametrize("largest", [0.05, 0.6, 0.99])
def test_best_young_constant_against_search(variance, largest):
    """Brute force over c; for steps close to the limit the condition on c is what binds."""
    rng = np.random.default_rng(3)
    beta = rng.uniform(0.2, 1.0, 15) * largest * 2 * ALPHA / SMOOTHNESS
    batch = rng.integers(1, 9, 15)
    best = pgsvi.best_young_constant(beta, batch, GAP, ALPHA, SMOOTHNESS, variance)
    least = 1 / (2 * ALPHA - SMOOTHNESS * beta.max())
    assert best >= least * (1 - 1e-12)

    def bound(c):
        return float(pgsvi.stochastic_bound(beta, batch, GAP, ALPHA, SMOOTHNESS, variance, c)[-1])

    grid = least * (1 + np.geomspace(1e-9, 1e5, 4001))
    assert bound(best * (1 + 1e-12)) <= min(map(bound, grid)) * (1 + 1e-9)
    if best > least * 1.001:
        assert bound(best * 1.01) > bound(best) < bound(best * 0.9995)


def test_without_noise_theorem_1_tends_to_proposition_2():
    beta = np.linspace(0.1, 1.0, 12)
    assert pgsvi.best_young_constant(beta, np.ones(12), GAP, ALPHA, SMOOTHNESS, 0.0) == math.inf
    curve = pgsvi.stochastic_bound(beta, np.ones(12), GAP, ALPHA, SMOOTHNESS, 0.0, 1e12)
    np.testing.assert_allclose(curve, pgsvi.exact_bound(beta, GAP, ALPHA, SMOOTHNESS), rtol=1e-9)
    np.testing.assert_allclose(
        pgsvi.unbiased_bound(beta, np.ones(12), GAP, ALPHA, SMOOTHNESS, 0.0),
        pgsvi.exact_bound(beta, GAP, ALPHA, SMOOTHNESS),
        rtol=1e-14,
    )


def test_unbiased_bound_is_never_worse_at_its_own_step():
    """Same floor as Proposition 3 with the best c, a quarter of its first term."""
    for steps in (1, 10, 1000):
        own = pgsvi.unbiased_bound(
            np.full(steps, ALPHA / SMOOTHNESS), np.full(steps, 2), GAP, ALPHA, SMOOTHNESS, VARIANCE
        )[-1]
        papers = pgsvi.constant_stochastic_bound(steps, 2, GAP, ALPHA, SMOOTHNESS, VARIANCE, 1 / ALPHA)
        floor = 2 * VARIANCE / (2 * ALPHA**2)
        assert own - floor == pytest.approx((papers - floor) / 4, rel=1e-9)


def test_steps_at_the_limit_claim_nothing():
    limit = pgsvi.largest_step_size(ALPHA, SMOOTHNESS)
    curve = pgsvi.exact_bound([limit, limit, limit / 2], GAP, ALPHA, SMOOTHNESS)
    assert np.isinf(curve[:2]).all() and np.isfinite(curve[2])
    with pytest.raises(ValueError, match="step_sizes are all"):
        pgsvi.index_probabilities([2 * pgsvi.reduced_alpha(ALPHA, 1.0) / SMOOTHNESS], ALPHA, SMOOTHNESS, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pgsvi.exact_bound([2.0], GAP, ALPHA, SMOOTHNESS), "step_sizes must be in"),
        (lambda: pgsvi.exact_bound([0.0], GAP, ALPHA, SMOOTHNESS), "step_sizes must hold positive"),
        (lambda: pgsvi.exact_bound([0.1], -1.0, ALPHA, SMOOTHNESS), "initial_gap"),
        (lambda: pgsvi.reduced_alpha(ALPHA, 1 / (2 * ALPHA)), "young"),
        (lambda: pgsvi.stochastic_bound([0.1, 0.1], [1], GAP, ALPHA, SMOOTHNESS, 1.0, 1.0), "batch_sizes has 1"),
        (lambda: pgsvi.best_young_constant([2 * ALPHA / SMOOTHNESS], [1], GAP, ALPHA, SMOOTHNESS, 1.0), "stay below"),
        (lambda: pgsvi.mapping_bound(1.0, [1.0, 1.0], [1], ALPHA, 1.0), "weights has shape"),
        (lambda: pgsvi.two_phase_plan(1.5, 1.0, ALPHA, 1.0), "failure_probability"),
        (lambda: pgsvi.two_phase_plan(0.1, 1.0, ALPHA, 1.0, ratio=1.0), "ratio"),
        (lambda: relative_smoothness.descent([0.1, 0.1], [1.0]), "divergences"),
        (lambda: strong_growth.contraction(3.0, 2.0, 0.5), "strong_convexity"),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_mapping_bound_averages_the_noise_over_the_index():
    found = pgsvi.mapping_bound(0.7, [1.0, 3.0], [2, 4], 2.0, 8.0)
    assert found == pytest.approx(2 * 0.7 + 2 * 8.0 / 4 * (0.25 / 2 + 0.75 / 4))


@pytest.mark.parametrize("delta", [0.3, 0.01, 1e-6])
def test_two_phase_plan_keeps_its_promise(delta):
    """Both failure events within delta; the level within 5 kappa B; one draw fewer would not do."""
    plan = pgsvi.two_phase_plan(delta, 0.4, ALPHA, VARIANCE, ratio=2.0)
    assert 2.0**-plan.num_runs <= delta / 2 < 2.0 ** (1 - plan.num_runs)
    assert plan.level <= 5 * 2 * 0.4 * (1 + 1e-12)
    assert plan.level == pgsvi.two_phase_level(plan.num_runs, plan.num_draws, 0.4, ALPHA, VARIANCE, delta / 2)
    assert plan.num_draws == 1 or (
        pgsvi.two_phase_level(plan.num_runs, plan.num_draws - 1, 0.4, ALPHA, VARIANCE, delta / 2) > 5 * 2 * 0.4
    )


def test_relative_smoothness_formulae():
    beta = np.array([0.5, 2.0, 1.0])
    np.testing.assert_allclose(relative_smoothness.descent(beta, [1.0, 2.0, 3.0]), [3.0, 3.0, 6.0])
    np.testing.assert_allclose(relative_smoothness.convex_distance_bound(beta, 9.0), [6.0, 2.0, 1.0])
    np.testing.assert_allclose(relative_smoothness.convex_gap_bound(beta, 9.0), [18.0, 3.0, 2.0])
    np.testing.assert_allclose(relative_smoothness.smallest_divergence_bound(beta, 9.0), [3.0, 2.0, 9 / 6.5])
    assert relative_smoothness.smallest_step_size(8.0, 2.0) == 0.25
    assert relative_smoothness.smallest_step_size(0.1, 2.0) == 0.1
    assert relative_smoothness.smallest_step_size(8.0, 0.0) == 8.0


def test_strong_growth_is_reached():
    """f = L w^2/2 in one dimension, noise of sd theta |grad|: the expected gap falls by the factor exactly."""
    smoothness, theta = 3.0, 0.7
    gamma = strong_growth.step_size(smoothness, theta)
    gaps = [smoothness / 2 * (1 - gamma * smoothness * (1 + sign * theta)) ** 2 for sign in (-1, 1)]
    assert np.mean(gaps) / (smoothness / 2) == pytest.approx(strong_growth.contraction(3.0, smoothness, theta))
    np.testing.assert_allclose(
        strong_growth.bound(np.array([0, 1, 2]), 2.0, 1.0, 3.0, 1.0), 2 * (5 / 6) ** np.arange(3)
    )


def test_report_shows_disagreement():
    text = pgsvi.guarantee_report([0.3, 0.3], [0.2, 0.1], GAP, ALPHA, SMOOTHNESS, [2.0, np.nan], [2.5, 3.5])
    lines = text.splitlines()
    assert lines[0].startswith("2 steps")
    assert lines[2].split()[-3:] == ["1.7", "2", "yes"]
    assert lines[3].split()[-3:] == ["3", "3.5", "NO"]
    assert lines[4].split()[-2:] == ["0.01", "yes"]
