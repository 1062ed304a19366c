"""Constants of the theorems at numbers where each part of a formula shows: by hand, and by what they must satisfy."""

import math

import numpy as np
import pytest

from provi.theory import inputs, mpsgd, noise, proj_sgd, prox_sgd
from provi.theory.noise import NoiseBound, TermConstants


def test_the_variance_on_a_bounded_set_is_the_formula():
    """(G + M R)^2 + lambda (G sqrt d + M sqrt rho R)^2, with rho of the normal base, d + 2."""
    found = noise.bounded_variance(dim=3, smoothness=2.0, radius=0.5, centre_gradient_norm=0.7, scale_factor=0.25)
    rho = noise.radial_factor(3, 3.0)
    assert rho == pytest.approx(5.0)
    expected = (0.7 + 1.0) ** 2 + 0.25 * (0.7 * math.sqrt(3) + 2 * math.sqrt(rho) * 0.5) ** 2
    assert found == pytest.approx(expected, rel=1e-14)


def test_the_block_constants_are_the_formulas():
    slopes, floors = noise.entropy_block_noise(dim=3, smoothness=2.0, reference_distance_squared=0.5)
    np.testing.assert_allclose(slopes, [[8.0, 8.0], [48.0, 80.0]], rtol=1e-14)
    np.testing.assert_allclose(floors, [2 * 4 * 0.5, 4 * 5 * 4 * 0.5 + 2 * 3 * 2.0], rtol=1e-14)


def test_the_noise_of_batches_of_terms_is_the_formula():
    terms = TermConstants(num_terms=12, slope=0.3, floor=0.7, reference_distance_squared=0.2)
    found = noise.subsampled_noise(NoiseBound(5.0, 2.0, "x"), terms, dim=3, batch=4, num_draws=1)
    q, rho = 12 / 4, 5.0
    slope, floor = 4 * q * 0.3, 2 * q * 0.7
    single = NoiseBound(5.0 + (1 + rho) * slope, 2.0 + (1 + 3) * floor + (1 + rho) * slope * 0.2, "x")
    expected = noise.minibatch_noise(single, 1, slope, floor + slope * 0.2)
    assert (found.slope, found.floor) == pytest.approx((expected.slope, expected.floor), rel=1e-14)


def test_the_step_of_logarithm_over_t():
    assert proj_sgd.log_over_t_step_size(50, 0.2) == pytest.approx(2 * math.log(50) / 10, rel=1e-14)


def test_an_accuracy_below_the_floor_of_a_constant_step_is_refused():
    floor = NoiseBound(0.0, 3.0, "x")
    with pytest.raises(ValueError, match=r"must exceed noise.floor/smoothness = 6"):
        prox_sgd.convex_steps_for_accuracy(5.9, 1.0, floor, 0.5)
    assert prox_sgd.convex_steps_for_accuracy(6.5, 1.0, floor, 0.5) >= 1


@pytest.mark.parametrize(
    ("budget", "per_draw", "per_step"), [(60, 3.0, 0.5), (97, 0.2, 7.0), (1000, 1.0, 1.0), (7, 5.0, 5.0)]
)
def test_the_best_pair_is_the_best_of_all_pairs(budget, per_draw, per_step):
    draws, steps = mpsgd._best_pair(budget, per_draw, per_step)
    least = min(per_draw / n + per_step / k for n in range(1, budget + 1) for k in range(1, budget // n + 1))
    assert draws * steps <= budget and per_draw / draws + per_step / steps == pytest.approx(least, rel=1e-14)


@pytest.mark.parametrize(("per_draw", "per_step"), [(3e-9, 2e3), (2e3, 3e-9), (4.0, 9.0)])
def test_the_best_pair_of_many_gradients_is_the_best_nearby(per_draw, per_step):
    """Against all small numbers of draws and of steps, and those about the best real one, sqrt(p E / s)."""
    budget = 10**13
    draws, steps = mpsgd._best_pair(budget, per_draw, per_step)
    ideal = round(math.sqrt(per_draw / per_step * budget))
    tried = {*range(1, 3000), *(budget // k for k in range(1, 3000)), *range(max(1, ideal - 1000), ideal + 1000)}
    least = min(per_draw / n + per_step / (budget // n) for n in tried if n <= budget)
    assert draws * steps <= budget and per_draw / draws + per_step / steps <= least * (1 + 1e-12)


def test_a_plan_without_convexity_is_the_formula():
    plan = mpsgd.nonconvex_plan(1000, 2.0, 4.0, 0.3)
    assert plan.step_size == pytest.approx(1 / 12, rel=1e-14)
    least = min(0.3 / n + 24.0 / k for n in range(1, 1001) for k in range(1, 1000 // n + 1))
    assert 0.3 / plan.num_draws + 24.0 / plan.num_steps == pytest.approx(least, rel=1e-14)


def test_numbers_of_which_some_are_wrong_are_refused():
    for value in ([1, 2.5], [2, math.inf], [3, 0]):
        with pytest.raises(ValueError, match="steps must"):
            inputs.check_counts("steps", np.asarray(value))
    np.testing.assert_array_equal(inputs.check_counts("steps", np.asarray([1, 2])), [1.0, 2.0])
    for value in ([1.0, math.inf], [1.0, -2.0], [1.0, math.nan]):
        with pytest.raises(ValueError, match="weights must hold positive numbers"):
            inputs.check_sequence("weights", value)


@pytest.mark.parametrize("wanted", [1, 2, 3, 5, 8, 9, 1000])
def test_the_smallest_count_is_found_with_few_questions(wanted):
    asked = []

    def enough(count):
        asked.append(count)
        return count >= wanted

    assert inputs.smallest_count(enough) == wanted and len(asked) <= 2 + 2 * math.ceil(math.log2(wanted + 1))
    assert inputs.smallest_count(lambda count: count >= 3, minimum=7) == 7
