"""Theorems 7 and 10 of paper 003: closed forms above the recursion at every step, and above real runs."""

import itertools

import numpy as np
import pytest

from provi.theory import proj_sgd as proj
from provi.theory import prox_sgd as prox
from provi.theory.inputs import check_sequence
from provi.theory.noise import NoiseBound

STEPS = 3000
GRID = list(itertools.product([0.3, 1.0, 2.0], [0.05, 0.4, 3.0, 60.0], [0.0, 0.7, 40.0], [0.01, 5.0]))


def _recursion(factor, addition, start):
    """An oracle written apart from the library: a plain loop."""
    values = [start]
    for c, d in zip(factor, addition, strict=True):
        values.append(max(c, 0.0) * values[-1] + d)
    return np.array(values)


@pytest.mark.parametrize(("mu", "slope", "floor", "start"), GRID)
def test_prox_closed_forms_bound_the_recursion(mu, slope, floor, start):
    noise = NoiseBound(slope, floor, "test")
    constants = dict(strong_convexity=mu, smoothness=2.0, noise=noise, reference_distance_squared=0.5)
    sigma2, times = floor + 4.0 * 0.5, np.arange(1, STEPS + 1)
    gamma = prox.decaying_step_size(np.arange(STEPS), mu, slope)
    decaying = _recursion(1 - 2 * gamma * mu + 2 * gamma**2 * slope, 2 * gamma**2 * sigma2, start)
    np.testing.assert_allclose(prox.recursion_bound(gamma, start, **constants), decaying)
    assert np.all(decaying[1:] <= prox.decaying_step_bound(times, start, **constants) * (1 + 1e-9) + 1e-300)
    largest = prox.largest_constant_step_size(mu, slope)
    for step in (largest, largest / 7):
        factor = np.full(STEPS, 1 - 2 * step * mu + 2 * step**2 * slope)
        constant = _recursion(factor, np.full(STEPS, 2 * step**2 * sigma2), start)
        assert np.all(constant[1:] <= prox.constant_step_bound(times, step, start, **constants) * (1 + 1e-9) + 1e-300)


@pytest.mark.parametrize(("mu", "slope", "floor", "start"), GRID)
def test_proj_closed_forms_bound_the_recursion(mu, slope, floor, start):
    noise, times = NoiseBound(slope, floor, "test"), np.arange(1, STEPS + 1)
    gamma = proj.decaying_step_size(np.arange(STEPS), mu, slope)
    paper = _recursion(1 - gamma * mu + gamma**2 * slope, gamma**2 * floor, start)
    ours = _recursion(1 - 2 * gamma * mu + gamma**2 * slope, gamma**2 * floor, start)
    np.testing.assert_allclose(proj.recursion_bound(gamma, start, mu, noise), ours)
    assert np.all(ours <= paper * (1 + 1e-12))
    assert np.all(paper[1:] <= proj.decaying_step_bound(times, start, mu, noise) * (1 + 1e-9) + 1e-300)
    step = proj.largest_constant_step_size(mu, slope)
    factor = np.full(STEPS, 1 - step * mu + step**2 * slope)
    constant = _recursion(factor, np.full(STEPS, step**2 * floor), start)
    assert np.all(constant[1:] <= proj.constant_step_bound(times, step, start, mu, noise) * (1 + 1e-9) + 1e-300)


def test_rounding_down_the_condition_number_is_wrong():
    """With a/mu^2 below 1 the paper's floor drops the start altogether, and the recursion is above that."""
    noise = NoiseBound(0.9, 0.0, "test")
    constants = dict(strong_convexity=1.0, smoothness=1.0, noise=noise, reference_distance_squared=0.0)
    gamma = prox.decaying_step_size(np.arange(5), 1.0, 0.9)
    printed = 16 * np.floor(0.9) ** 2 / np.arange(1, 6) ** 2
    assert np.all(prox.recursion_bound(gamma, 1.0, **constants)[1:] > printed)


def test_prox_bounds_a_run_whose_moments_are_exact():
    r"""l = mu w^2/2, h = |.| shifted: h(w) = c w has prox w - step c; g = mu w + sqrt(q) (|w - w*| + s) e,
    e = +-1.

    Then w_{t+1} - w* = (1 - step mu)(w_t - w*) - step sqrt(q) (|w_t - w*| + s) e, and E|w - w*|^2 is found
    exactly over
    all sign paths.
    """
    mu, q, s, c, steps = 1.0, 0.8, 0.5, 0.7, 12
    optimum = -c / mu
    # E g^2 = mu^2 w^2 + q (|w - w*| + s)^2 <= (2 mu^2 + 2 q)|w - w*|^2 + 2 mu^2 w*^2 + 2 q s^2.
    noise = NoiseBound(2 * mu**2 + 2 * q, 2 * mu**2 * optimum**2 + 2 * q * s**2, "test")
    constants = dict(strong_convexity=mu, smoothness=mu, noise=noise, reference_distance_squared=optimum**2)
    gamma = prox.decaying_step_size(np.arange(steps), mu, noise.slope)
    position = np.full(2**steps, 3.0)
    for t in range(steps):
        sign = np.where((np.arange(2**steps) >> t) & 1, 1.0, -1.0)
        gradient = mu * position + np.sqrt(q) * (np.abs(position - optimum) + s) * sign
        position = position - gamma[t] * gradient - gamma[t] * c
        distance = ((position - optimum) ** 2).mean()
        assert distance <= prox.recursion_bound(gamma[: t + 1], (3.0 - optimum) ** 2, **constants)[-1]
    assert distance <= prox.decaying_step_bound(steps, (3.0 - optimum) ** 2, **constants)


def test_proj_bounds_a_run_on_the_boundary():
    """f = mu (w + 1)^2/2 on W = [0, inf), so w* = 0 with a positive gradient there; multiplicative noise."""
    mu, q, steps = 1.0, 3.0, 12
    noise = NoiseBound(2 * mu**2 + 2 * q, 2 * mu**2 + 2 * q * 0.25, "test")
    gamma = proj.decaying_step_size(np.arange(steps), mu, noise.slope)
    position = np.full(2**steps, 2.0)
    bounds = proj.recursion_bound(gamma, 4.0, mu, noise)
    for t in range(steps):
        sign = np.where((np.arange(2**steps) >> t) & 1, 1.0, -1.0)
        gradient = mu * (position + 1) + np.sqrt(q) * (position + 0.5) * sign
        position = np.maximum(position - gamma[t] * gradient, 0.0)
        assert (position**2).mean() <= bounds[t + 1]


@pytest.mark.parametrize("accuracy", [1.0, 0.05, 1e-3])
@pytest.mark.parametrize("schedule", ["constant", "decaying"])
def test_steps_for_accuracy_is_the_smallest(accuracy, schedule):
    noise = NoiseBound(6.0, 0.8, "test")
    forms = {
        prox: dict(strong_convexity=0.5, smoothness=2.0, noise=noise, reference_distance_squared=0.3),
        proj: dict(strong_convexity=0.5, noise=noise),
    }
    for theorem, constants in forms.items():
        steps = theorem.steps_for_accuracy(accuracy, 4.0, **constants, schedule=schedule)
        for count, expected in [(steps, True), (steps - 1, False)]:
            if schedule == "decaying":
                value = theorem.decaying_step_bound(count, 4.0, **constants)
            else:
                # A grid search is the oracle of the best constant step.
                largest = theorem.largest_constant_step_size(0.5, 6.0)
                grid = largest * np.geomspace(1e-6, 1, 2000)
                value = min(theorem.constant_step_bound(count, g, 4.0, **constants) for g in grid)
                if expected:
                    best = theorem.best_constant_step_size(count, 4.0, **constants)
                    best_value = theorem.constant_step_bound(count, best, 4.0, **constants)
                    assert best_value <= value + 1e-12
                    value = best_value
            assert (value <= accuracy) == expected
        assert theorem.steps_for_accuracy(4.0, 4.0, **constants, schedule=schedule) == 0


def test_log_over_t_meets_its_corollary():
    noise, mu = NoiseBound(2.0, 1.0, "test"), 1.5
    constants = dict(strong_convexity=mu, smoothness=2.0, noise=noise, reference_distance_squared=0.4)
    sigma2 = 1.0 + 4 * 0.4
    for steps in (50, 1000, 10**6):
        step = prox.log_over_t_step_size(steps, mu)
        limit = 3.0 / steps + 2 * np.log(steps) * sigma2 / (mu**2 * steps)
        assert prox.constant_step_bound(steps, step, 3.0, **constants) <= limit
        step = proj.log_over_t_step_size(steps, mu)
        if step <= proj.largest_constant_step_size(mu, 2.0):
            limit = 3.0 / steps + 4 * np.log(steps) * 1.0 / (mu**2 * steps)
            assert proj.constant_step_bound(steps, step, 3.0, mu, noise) <= limit


def test_gaussian_target_bound_is_geometric():
    """Corollary 14, with the sharper slope 8 (d + 3) M^2 of K = 0."""
    step = 1.0 / (2 * 8 * 5 * 4.0)
    values = proj.gaussian_target_bound(np.arange(4), step, 2.0, 1.0, 2.0, 2)
    np.testing.assert_allclose(values, 2.0 * (1 - step / 2) ** np.arange(4))
    with pytest.raises(ValueError, match="step_size"):
        proj.gaussian_target_bound(3, 1.01 * step, 2.0, 1.0, 2.0, 2)


def test_refuses():
    noise = NoiseBound(2.0, 1.0, "test")
    with pytest.raises(ValueError, match=r"step_size = 0.26.*min\(strong_convexity.*0.25"):
        prox.constant_step_bound(10, 0.26, 1.0, 1.0, 1.0, noise, 0.1)
    with pytest.raises(ValueError, match="step_size"):
        proj.constant_step_bound(10, 0.0, 1.0, 1.0, noise)
    with pytest.raises(ValueError, match="strong_convexity"):
        prox.decaying_step_size(3, 0.0, 1.0)
    with pytest.raises(ValueError, match="num_steps"):
        prox.decaying_step_bound(0, 1.0, 1.0, 1.0, noise, 0.1)
    with pytest.raises(ValueError, match="too small for any constant step"):
        prox.best_constant_step_size(1, 1e-3, 1.0, 1.0, noise, 0.1)
    with pytest.raises(ValueError, match="schedule"):
        proj.steps_for_accuracy(0.1, 1.0, 1.0, noise, schedule="best")
    with pytest.raises(ValueError, match="step_sizes"):
        prox.recursion_bound([0.1, -0.1], 1.0, 1.0, 1.0, noise, 0.1)
    with pytest.raises(ValueError, match="num_steps"):
        prox.log_over_t_step_size(1, 1.0)


def test_small_formulas():
    assert proj.convex_averaging_factor(0.5, 3.0) == pytest.approx(1 / 1.75)
    assert prox._sigma2(3.0, NoiseBound(1.0, 5.0, ""), 7.0) == 5 + 9 * 7
    for bad in ([], np.ones((2, 2))):
        with pytest.raises(ValueError, match="step_sizes must be a non-empty sequence"):
            check_sequence("step_sizes", bad)
