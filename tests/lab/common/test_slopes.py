"""Slopes with intervals: exact on power laws, and covering the truth as often as they say."""

import numpy as np
import pytest

from provi_lab.common.replicates import log_slope, mean_interval


def test_a_power_law_has_its_exponent_and_no_interval():
    steps = np.array([10.0, 20.0, 40.0, 80.0])
    errors = np.repeat(3 * steps[None, :] ** -0.5, 5, axis=0)
    slope = log_slope(np.log(steps), errors, seed=0)
    np.testing.assert_allclose([slope.value, slope.low, slope.high], -0.5, atol=1e-12)


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_covers_the_true_slope(paired):
    """200 intervals at 95 %, 90 to 100 % of which must cover: the bootstrap of 40 replicates is near nominal."""
    generator, across = np.random.default_rng(1), np.log([1.0, 2.0, 4.0, 8.0, 16.0])
    covered = 0
    for repeat in range(200):
        shape = (40, 1) if paired else (40, 5)
        wobble = np.exp(0.3 * generator.normal(size=shape) * (across[None, :] if paired else 1.0))
        # The mean of the log-normal factor grows with `across`; only without it is the slope -1.
        mean = np.exp(0.5 * (0.3 * (across[None, :] if paired else 1.0)) ** 2)
        slope = log_slope(across, np.exp(-across)[None, :] * wobble / mean, seed=repeat, paired=paired)
        covered += slope.contains(-1.0)
    assert covered >= 180


def test_unpaired_records_are_resampled_apart():
    """A common factor of each replicate shifts the line but not its slope; only paired resampling knows that."""
    generator, across = np.random.default_rng(2), np.arange(6.0)
    errors = np.exp(-across)[None, :] * np.exp(generator.normal(size=(30, 1)))
    paired, unpaired = (log_slope(across, errors, seed=0, paired=flag) for flag in (True, False))
    assert paired.high - paired.low < 1e-10
    assert unpaired.high - unpaired.low > 0.01


def test_mean_interval_brackets_the_mean():
    errors = np.random.default_rng(3).exponential(size=(100, 4))
    low, high = mean_interval(errors, seed=0)
    assert (low < errors.mean(axis=0)).all() and (errors.mean(axis=0) < high).all()
    # The width of a 95 % interval of a mean is about 2 * 1.96 standard errors.
    np.testing.assert_allclose(high - low, 3.92 * errors.std(axis=0) / 10, rtol=0.25)


def test_one_record_has_no_slope():
    with pytest.raises(ValueError, match="two records or more"):
        log_slope([1.0], np.ones((5, 1)), seed=0)
