"""Theorems 7 and 8 of paper 004: growing batches, and no convexity."""

import numpy as np
import pytest

from provi.theory import mpsgd
from provi.theory.noise import NoiseBound


def test_constant_schedules_give_theorem_6():
    one, counts = NoiseBound(5.0, 0.3, "test"), np.arange(1, 30)
    found = mpsgd.dynamic_bound(np.full(29, 0.1), np.full(29, 4), 2.0, one)
    np.testing.assert_allclose(found, mpsgd.sharp_bound(counts, 4, 0.1, 2.0, one))


@pytest.mark.parametrize(("p", "s"), [(0.6, 0.0), (0.5, 1.0), (0.0, 2.0), (0.0, 0.0)])
def test_printed_bound_is_never_smaller(p, s):
    k = np.arange(1, 500)
    one, gamma, draws = NoiseBound(5.0, 0.3, "test"), 0.3 * k**-p, np.ceil(k**s)
    found = mpsgd.dynamic_bound(gamma, draws, 2.0, one)
    assert np.all(found <= mpsgd.dynamic_printed_bound(gamma, draws, 2.0, one) * (1 + 1e-12))
    converges = mpsgd.summable(p, s).holds
    assert (found[-1] < 0.5 * found[20]) == converges


def test_bound_on_an_exact_run():
    """f = w^2/2 on [0, inf) (smooth: the step limit is 1), g = w + (w + 1) e, mean of N_k signs, all
    paths.
    """
    steps, draws, gamma = 5, np.array([1, 1, 2, 3, 4]), np.array([0.9, 0.7, 0.7, 0.8, 0.6])
    one = NoiseBound(1 + 2.0, 2.0, "E g^2 = w^2 + (w + 1)^2 <= 3 w^2 + 2")
    index, used = np.arange(2 ** int(draws.sum())), 0
    position, history = np.full(index.size, 2.0), []
    weights = mpsgd.dynamic_averaging_weights(gamma, draws, one.slope)
    bounds = mpsgd.dynamic_bound(gamma, draws, 4.0, one)
    for k in range(steps):
        history.append(position)
        part = weights[: k + 1] / weights[: k + 1].sum()
        average = np.tensordot(part, np.array(history), axes=1)
        assert (average**2 / 2).mean() <= bounds[k]
        sign = np.mean([np.where((index >> (used + i)) & 1, 1.0, -1.0) for i in range(draws[k])], axis=0)
        used += int(draws[k])
        position = np.maximum(position - gamma[k] * (position + (position + 1) * sign), 0.0)


@pytest.mark.parametrize(
    ("p", "s", "holds", "rate"),
    [
        (0.6, 0.0, True, 0.4),
        (0.5, 0.5, True, 1 / 3),
        (0.0, 1.5, True, 0.4),
        (0.5, 0.0, False, 0.0),
        (0.0, 1.0, False, 0.0),
        (1.0, 0.0, True, 0.0),
        (1.2, 0.0, True, 0.0),
    ],
)
def test_summable(p, s, holds, rate):
    """The three strategies of Appendix F, the edges, and steps that sum to a finite length."""
    verdict = mpsgd.summable(p, s)
    assert verdict.holds is holds
    assert verdict.rate_exponent == pytest.approx(rate)
    # Partial sums over a decade: they grow by a vanishing share exactly when the series converges.
    k = np.arange(1.0, 1e6)
    partial = np.cumsum(k ** -(2 * p + s))
    growth = (partial[-1] - partial[10**5]) / (partial[10**5] - partial[10**4])
    assert (growth < 0.98) == holds


def test_nonconvex_bound_on_an_exact_run():
    """F = cos(w) on [-2, 2] (L = 1, not convex), g = -sin(w) + 0.5 e: G = (w - clip(w + gamma sin
    w))/gamma.
    """
    steps, draws, gamma = 5, np.array([1, 2, 2, 3, 4]), np.array([0.5, 0.4, 0.6, 0.5, 0.3])
    index, used = np.arange(2 ** int(draws.sum())), 0
    position, smallest = np.full(index.size, 0.3), np.inf
    bounds = mpsgd.nonconvex_bound(gamma, draws, np.cos(0.3) - np.cos(2.0), 1.0, 1.25)
    for k in range(steps):
        mapping = (position - np.clip(position + gamma[k] * np.sin(position), -2, 2)) / gamma[k]
        smallest = min(smallest, (mapping**2).mean())
        assert smallest <= bounds[k]
        sign = np.mean([np.where((index >> (used + i)) & 1, 1.0, -1.0) for i in range(draws[k])], axis=0)
        used += int(draws[k])
        position = np.clip(position - gamma[k] * (-np.sin(position) + 0.5 * sign), -2, 2)


def test_nonconvex_bound_by_hand():
    gamma, draws = np.array([0.2, 0.1]), np.array([1, 4])
    found = mpsgd.nonconvex_bound(gamma, draws, 3.0, 2.0, 5.0)
    total = 0.2 * 0.6 + 0.1 * 0.8
    np.testing.assert_allclose(found[-1], 4 * 3.0 / total + 4 * (0.2 + 0.1 / 4) * 5.0 / total)
    assert mpsgd.second_moment(2.0, 1.0, 9.0) == 19.0


def test_refuses():
    one = NoiseBound(5.0, 0.3, "test")
    with pytest.raises(ValueError, match="num_draws has 2"):
        mpsgd.dynamic_bound([0.1], [1, 2], 1.0, one)
    with pytest.raises(ValueError, match="whole numbers"):
        mpsgd.dynamic_bound(np.array([0.1]), np.array([1.5]), 1.0, one)
    with pytest.raises(ValueError, match="step_exponent"):
        mpsgd.summable(-0.1, 0.0)
    with pytest.raises(ValueError, match=r"step_sizes must be in \(0, 1/objective_smoothness\)"):
        mpsgd.nonconvex_bound([0.5], [1], 1.0, 2.0, 1.0)


def test_the_printed_bound_step_by_step():
    """Theorem 7 as it stands, a loop in place of cumulative sums."""
    gammas, draws, noise = [0.3, 0.2, 0.7], [1, 4, 2], NoiseBound(0.6, 1.7, "test")
    decay, total, expected = 0.0, 0.0, []
    for gamma, count in zip(gammas, draws, strict=True):
        decay += gamma * gamma / count
        total += gamma * np.exp(-noise.slope * decay)
        expected.append((2.5 + noise.floor / noise.slope) / (2 * total))
    assert np.allclose(mpsgd.dynamic_printed_bound(gammas, draws, 2.5, noise), expected, rtol=1e-13)
