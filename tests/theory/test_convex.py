"""Theorems 8 and 11 of paper 003 and their telescope: against exactly computed runs and brute-force sums."""

import numpy as np
import pytest

from provi.theory import proj_sgd as proj
from provi.theory import prox_sgd as prox
from provi.theory import recursions
from provi.theory.noise import NoiseBound, minibatch_noise


@pytest.mark.parametrize("growth", [0.0, 1e-14, 1e-3, 2.0])
@pytest.mark.parametrize("steps", [1, 2, 50])
def test_weight_sum_is_the_geometric_sum(growth, steps):
    theta = recursions.averaging_factor(growth)
    assert recursions.weight_sum(steps, growth) == pytest.approx(sum(theta**t for t in range(1, steps + 1)))


def test_bound_is_the_worst_sequence_of_the_telescope():
    """Any r_t >= 0 and gaps allowed by the inequality have a weighted mean gap at most the bound; equality
    is met
    by gaps that use up the inequality with r_T = 0."""
    rng = np.random.default_rng(0)
    gamma, growth, addition, start, steps = 0.3, 0.2, 0.1, 1.4, 15
    theta = recursions.averaging_factor(growth)
    weights = theta ** np.arange(1, steps + 1)
    bound = recursions.weighted_average_bound(steps, gamma, growth, addition, start)
    for trial in range(200):
        r = np.concatenate([[start], rng.uniform(0, 2, steps)])
        if trial == 0:
            r[1:] = 0.0
        gaps = ((1 + growth) * r[:-1] - r[1:] + addition) / (2 * gamma)
        mean = (weights * gaps).sum() / weights.sum()
        assert mean <= bound * (1 + 1e-12)
        if trial == 0:
            assert mean == pytest.approx(bound)


def _prox_run(gamma, steps, q, s, draws, start):
    """All sign paths of prox-SGD on l = w^2/2, h = max(w, 0) (M = 1, w* = 0); returns r_t and the mean
    iterates' values.

    g = w + (sqrt(q)|w| + s) e with e the mean of `draws` signs.
    """
    bits = steps * draws
    position, index = np.full(2**bits, start), np.arange(2**bits)
    history = []
    for t in range(steps):
        signs = [np.where((index >> (t * draws + i)) & 1, 1.0, -1.0) for i in range(draws)]
        moved = position - gamma * (position + (np.sqrt(q) * np.abs(position) + s) * np.mean(signs, axis=0))
        # prox of gamma max(., 0): soft threshold from above.
        position = np.where(moved > gamma, moved - gamma, np.minimum(moved, 0.0))
        history.append(position)
    return np.array(history)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.1])
def test_prox_bound_on_exact_runs(gamma, draws):
    """The variance is (sqrt(q)|w| + s)^2/draws <= (2 q w^2 + 2 s^2)/draws: N draws divide a and b by N."""
    steps, q, s, start = 5, 0.6, 0.4, 2.0
    noise = minibatch_noise(NoiseBound(2 * q, 2 * s**2, "variance"), draws, 0.0, 0.0)
    history = _prox_run(gamma, steps, q, s, draws, start)
    theta = prox.convex_averaging_factor(gamma, noise.slope)
    for count in range(1, steps + 1):
        weights = theta ** np.arange(2, count + 2)
        average = np.tensordot(weights / weights.sum(), history[:count], axes=1)
        gap = (average**2 / 2 + np.maximum(average, 0)).mean()
        assert gap <= prox.convex_bound(count, gamma, start**2, noise, 1.0)


@pytest.mark.parametrize("gamma", [1.5, 0.4, 0.05])
def test_proj_bound_on_exact_runs(gamma):
    """f = |w + 1| (not smooth) on W = [0, inf): w* = 0, f* = 1; E g^2 = 1 + (sqrt(q) w + s)^2."""
    steps, q, s, start = 12, 0.6, 0.4, 2.0
    noise = NoiseBound(2 * q, 1 + 2 * s**2, "test")
    theta = proj.convex_averaging_factor(gamma, noise.slope)
    position, index, history = np.full(2**steps, start), np.arange(2**steps), []
    for t in range(steps):
        history.append(position)
        sign = np.where((index >> t) & 1, 1.0, -1.0)
        position = np.maximum(position - gamma * (1.0 + (np.sqrt(q) * position + s) * sign), 0.0)
        weights = theta ** np.arange(1, t + 2)
        average = np.tensordot(weights / weights.sum(), np.array(history), axes=1)
        assert average.mean() <= proj.convex_bound(t + 1, gamma, start**2, noise)


def test_printed_forms():
    """gamma (a r0/(1 - theta^T) + b), and half of it for the projection."""
    noise, gamma, steps, start = NoiseBound(3.0, 0.7, "test"), 0.2, 9, 1.1
    theta = 1 / (1 + 2 * 3.0 * 0.04)
    expected = gamma * (3.0 * start / (1 - theta**steps) + 0.7)
    assert prox.convex_bound(steps, gamma, start, noise, 5.0) == pytest.approx(expected)
    assert prox.convex_averaging_factor(gamma, 3.0) == pytest.approx(theta)
    theta = 1 / (1 + 3.0 * 0.04)
    expected = gamma / 2 * (3.0 * start / (1 - theta**steps) + 0.7)
    assert proj.convex_bound(steps, gamma, start, noise) == pytest.approx(expected)
    assert prox.convex_step_size(100, 4.0, 0.1) == pytest.approx(1 / 20)
    assert prox.convex_step_size(100, 4.0, 50.0) == pytest.approx(1 / 50)
    assert proj.convex_step_size(100, 4.0) == pytest.approx(np.sqrt(2 / 400))


@pytest.mark.parametrize("accuracy", [10.0, 0.5, 0.03])
def test_steps_for_accuracy_is_the_smallest(accuracy):
    noise, start, smoothness = NoiseBound(3.0, 0.7, "test"), 1.1, 9.0
    steps = prox.convex_steps_for_accuracy(accuracy, start, noise, smoothness)
    values = [
        prox.convex_bound(t, prox.convex_step_size(t, 3.0, smoothness), start, noise, smoothness)
        for t in range(1, steps + 1)
    ]
    assert values[-1] <= accuracy and all(value > accuracy for value in values[:-1])
    steps = proj.convex_steps_for_accuracy(accuracy, start, noise)
    values = [proj.convex_bound(t, proj.convex_step_size(t, 3.0), start, noise) for t in range(1, steps + 1)]
    assert values[-1] <= accuracy and all(value > accuracy for value in values[:-1])


def test_refuses():
    noise = NoiseBound(3.0, 0.7, "test")
    with pytest.raises(ValueError, match=r"step_size = 0.6.*1/smoothness"):
        prox.convex_bound(10, 0.6, 1.0, noise, 2.0)
    with pytest.raises(ValueError, match="noise_slope"):
        proj.convex_step_size(10, 0.0)
    with pytest.raises(ValueError, match="accuracy"):
        prox.convex_steps_for_accuracy(0.0, 1.0, noise, 1.0)
    with pytest.raises(ValueError, match="positive slope"):
        prox.convex_steps_for_accuracy(0.1, 1.0, NoiseBound(0.0, 1.0, "test"), 1.0)
    with pytest.raises(ValueError, match="num_steps"):
        proj.convex_bound(0, 0.1, 1.0, noise)
