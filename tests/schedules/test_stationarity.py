"""The stationarity rule: quiet on a trend, satisfied by a precise average, and its two parts against closed forms."""

import numpy as np
import pytest

from provi.schedules.stationarity import (
    LARGEST_SPLIT_RHAT,
    SMALLEST_RECORD,
    StationarityRule,
    average_error,
    split_rhat,
)

DEVIATION = np.array([0.5, 2.0])


def autoregression(steps, correlation, size, seed, columns=2):
    """A stationary AR(1) chain with standard deviation `size` in each column."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(steps, columns)) * size * np.sqrt(1 - correlation**2)
    chain = np.empty((steps, columns))
    chain[0] = size * rng.normal(size=columns)
    for index in range(1, steps):
        chain[index] = correlation * chain[index - 1] + noise[index]
    return chain


def rule_after(locs, deviations=None):
    rule = StationarityRule()
    for index, loc in enumerate(locs):
        rule.record(loc, DEVIATION if deviations is None else deviations[index])
    return rule


def test_split_rhat_is_its_formula():
    chain = np.random.default_rng(0).normal(size=(11, 3))
    first, second = chain[:5], chain[-5:]
    within = (first.var(axis=0, ddof=1) + second.var(axis=0, ddof=1)) / 2
    means = np.stack([first.mean(axis=0), second.mean(axis=0)])
    between = 5 * ((means - means.mean(axis=0)) ** 2).sum(axis=0)
    assert split_rhat(chain) == pytest.approx(np.sqrt(((4 / 5 * within + between / 5) / within).max()))


def test_split_rhat_of_constant_columns_is_one_and_of_a_jump_infinite():
    assert split_rhat(np.ones((50, 2))) == 1.0
    assert split_rhat(np.repeat([[0.0], [1.0]], 25, axis=0)) == np.inf


def test_average_error_estimates_the_error_of_the_average():
    """Independent iterates: E of the estimate is sum(var / n) / (2 sd^2), plus var / n for the logarithms.

    The mean over 400 chains is within 6 of its standard errors: false-alarm rate 2e-9.
    """
    steps, size = 200, 0.3
    found = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        found.append(average_error(np.c_[rng.normal(size=(steps, 2)), rng.normal(size=(steps, 2))] * size, DEVIATION))
    expected = size**2 / steps * (0.5 * np.sum(DEVIATION**-2.0) + 2)
    assert abs(np.mean(found) - expected) < 6 * np.std(found) / np.sqrt(len(found))


def test_a_stationary_chain_is_accepted_when_precise_and_not_before():
    """Correlation 0.2, 800 iterates: the squared difference of the halves' means must not exceed 29 of its variances.

    That is a chance of 1e-7 for each of the 40 columns.
    """
    for seed in range(20):
        chain = autoregression(800, 0.2, 0.05, seed)
        rule = rule_after(chain)
        assert rule.stationary(0.01)
        assert not rule.stationary(1e-7)


def test_a_trend_is_refused():
    """A trend of 4 of the chain's deviations over the last half: no seed of 20 is accepted, whatever the tolerance."""
    for seed in range(20):
        trend = np.linspace(0, 8 * 0.05, 400)[:, None]
        chain = autoregression(400, 0.5, 0.05, seed) + trend
        assert split_rhat(chain[200:]) > LARGEST_SPLIT_RHAT
        assert not rule_after(chain).stationary(1e6)


def test_a_trend_of_the_scale_is_seen_too():
    deviations = np.exp(np.linspace(0, 1, 100))[:, None] * DEVIATION
    assert not rule_after(np.zeros((100, 2)), deviations).stationary(1e6)


def test_a_stuck_method_looks_stationary():
    """What the docstring warns of: nothing moves, so nothing can be seen."""
    assert rule_after(np.full((SMALLEST_RECORD, 2), 3.0)).stationary(1e-12)


def test_never_before_enough_iterates():
    assert not rule_after(np.zeros((SMALLEST_RECORD - 1, 2))).stationary(1.0)


def test_only_the_last_half_counts():
    chain = autoregression(400, 0.0, 0.05, 0)
    chain[:200] += 100.0
    assert rule_after(chain).stationary(0.01)
    chain[200:210] += 100.0
    assert not rule_after(chain).stationary(0.01)
