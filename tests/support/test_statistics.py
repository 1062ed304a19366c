"""The statistical assertion itself: its power and its false-alarm rate."""

import numpy as np
import pytest
from scipy import stats

from support.statistics import assert_mean


def _fails(samples, expected, **options) -> bool:
    try:
        assert_mean(samples, expected, **options)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_fails_when_one_component_is_six_standard_errors_off(sign):
    samples = np.random.default_rng(0).normal(size=(400, 3))
    mean = samples.mean(axis=0)
    standard_error = samples.std(axis=0, ddof=1) / 20.0
    assert_mean(samples, mean)
    for component in range(3):
        shift = sign * 6.0 * standard_error * (np.arange(3) == component)
        with pytest.raises(AssertionError, match=rf"mean at \({component},\)"):
            assert_mean(samples, mean + shift)


def test_threshold_is_the_bonferroni_quantile():
    samples = np.random.default_rng(1).normal(size=(100, 2))
    mean, standard_error = samples.mean(axis=0), samples.std(axis=0, ddof=1) / 10.0
    quantile = stats.norm.ppf(1 - 0.01 / 4)
    assert not _fails(samples, mean + 0.999 * quantile * standard_error, alarm=0.01)
    assert _fails(samples, mean + [0.0, 1.001 * quantile * standard_error[1]], alarm=0.01)


@pytest.mark.parametrize("components", [1, 5])
def test_false_alarm_rate(components):
    """The count of failures is Binomial(2000, 0.05 +- 0.005 for the normal approximation); alarm 1e-6."""
    rng = np.random.default_rng(2)
    repeats = rng.normal(size=(2000, 500, components))
    count = sum(_fails(samples, 0.0, alarm=0.05) for samples in repeats)
    assert stats.binom.ppf(5e-7, 2000, 0.045) <= count <= stats.binom.isf(5e-7, 2000, 0.055)


def test_constant_components_must_agree_exactly():
    samples = np.full((10, 2), 0.1)
    assert_mean(samples, [0.1, 0.1])
    assert _fails(samples, [0.1, 0.1 + 1e-9])
    assert not _fails(samples, [0.1, 0.1 + 1e-9], exact=1e-8)
    assert _fails(np.zeros(10), 1e-300)


def test_scalars_and_bad_arguments():
    assert_mean(np.array([-1.0, 1.0]), 0.0)
    assert _fails(np.array([np.nan, 1.0]), 0.0)
    with pytest.raises(ValueError, match="first axis"):
        assert_mean(np.zeros((1, 3)), 0.0)
    with pytest.raises(ValueError, match="alarm"):
        assert_mean(np.zeros((2, 3)), 0.0, alarm=0.0)
