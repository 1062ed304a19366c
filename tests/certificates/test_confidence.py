"""The upper confidence bounds: coverage by simulation, widths, limits that have a closed form, refusals.

A coverage cell fails when its number of misses is improbable (1e-4, one-sided binomial) at the nominal rate. There are
441 cells (10 x 6 for the mean, 19 x 20 + 1 for the norm), so that over all seeds the file raises a false alarm with
probability at most 0.045 (far less in fact: most bounds are well inside their level). The seeds are fixed.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from provi.certificates import bounds as confidence

SCALARS = {
    "chi-square 1": (lambda rng, size: rng.chisquare(1, size), 1.0),
    "chi-square 2": (lambda rng, size: rng.chisquare(2, size), 2.0),
    "chi-square 3": (lambda rng, size: rng.chisquare(3, size), 3.0),
    "chi-square 10": (lambda rng, size: rng.chisquare(10, size), 10.0),
    "chi-square 100": (lambda rng, size: rng.chisquare(100, size), 100.0),
    "noncentral 1, 1": (lambda rng, size: rng.noncentral_chisquare(1, 1, size), 2.0),
    "noncentral 10, 10": (lambda rng, size: rng.noncentral_chisquare(10, 10, size), 20.0),
    "log-normal 0.5": (lambda rng, size: rng.lognormal(0, 0.5, size), math.exp(0.125)),
    "Gaussian 10, 1": (lambda rng, size: rng.normal(10, 1, size), 10.0),
    "Gaussian 0.5, 1": (lambda rng, size: rng.normal(0.5, 1, size), 0.5),
}


def assert_coverage(bounds, truth, delta):
    misses = int(np.sum(bounds < truth))
    assert misses <= stats.binom.isf(1e-4, bounds.size, delta), f"{misses} misses of {bounds.size} at delta = {delta}"


def scalar_bounds(name, num, delta, trials=20_000):
    sample, truth = SCALARS[name]
    x = sample(np.random.default_rng(num), (trials, num))
    mean, variance = x.mean(1), x.var(1, ddof=1)
    bounds = confidence.mean_bound_from_moments(mean, variance, x.min(1), num, delta)
    return bounds, truth, mean, stats.t.isf(delta, num - 1) * np.sqrt(variance / num)


@pytest.mark.parametrize("name", SCALARS)
def test_mean_bound_covers(name):
    for num, delta in itertools.product((16, 32), (0.01, 0.005, 0.001)):
        bounds, truth, _, _ = scalar_bounds(name, num, delta)
        assert_coverage(bounds, truth, delta)


def test_the_t_interval_alone_would_not_cover():
    """The coverage test can fail: it rejects the t-interval for one squared Gaussian."""
    _, truth, mean, width = scalar_bounds("chi-square 1", 16, 0.01)
    with pytest.raises(AssertionError, match="misses"):
        assert_coverage(mean + width, truth, 0.01)


@pytest.mark.parametrize("name", ["chi-square 100", "Gaussian 10, 1"])
def test_mean_bound_is_near_the_t_bound_where_that_is_right(name):
    for num, delta in itertools.product((16, 32), (0.01, 0.001)):
        bounds, _, mean, width = scalar_bounds(name, num, delta)
        assert (bounds >= mean + width).all()
        assert np.mean(bounds - mean) < 1.2 * np.mean(width)


def test_mean_bound_of_samples_and_of_moments_agree_and_scale():
    x = np.random.default_rng(0).chisquare(1, (20, 16))
    batched = confidence.mean_bound_from_moments(x.mean(1), x.var(1, ddof=1), x.min(1), 16, 0.01)
    np.testing.assert_allclose([confidence.mean_upper_bound(row, 0.01) for row in x], batched, rtol=1e-12)
    np.testing.assert_allclose([confidence.mean_upper_bound(1e-9 * row, 0.01) for row in x], 1e-9 * batched, rtol=1e-9)


def test_mean_bound_of_one_gamma_shape_is_the_exact_one():
    """At the floor k = 1/2 the bound is that of a scaled chi-square with R degrees of freedom, from SciPy."""
    x = stats.chi2.ppf((np.arange(16) + 0.5) / 16, 1)
    level = stats.norm.sf(stats.t.isf(0.01, 15))
    assert confidence.mean_upper_bound(x, 0.01) == pytest.approx(x.mean() * 16 / stats.chi2.ppf(level, 16), rel=1e-9)


def test_mean_bound_of_signed_samples_is_the_t_bound():
    x = np.random.default_rng(0).normal(0.0, 1.0, 16)
    expected = stats.ttest_1samp(x, 0.0, alternative="less").confidence_interval(0.99).high
    assert confidence.mean_upper_bound(x, 0.01) == pytest.approx(expected, rel=1e-12)


def spectrum(kind, dim):
    return np.ones(dim) if kind == "equal" else 1.0 / np.arange(1, dim + 1) ** 2


def norm_moments(x):
    """Unbiased |mu|^2, tr S, tr S^2, lambda_max(S) of each trial from the vectors themselves, not the Gram matrix."""
    num, dim = x.shape[1:]
    centre = x.mean(1)
    x = x - centre[:, None]
    matrix = x.transpose(0, 2, 1) @ x if dim < num else x @ x.transpose(0, 2, 1)
    values = np.linalg.eigvalsh(matrix) / (num - 1)
    unbiased = np.sum(centre**2, 1) - values.sum(1) / num
    return np.stack([unbiased, values.sum(1), np.sum(values**2, 1), values[:, -1]]), centre


CELLS = [
    (kind, dim, num)
    for kind, dim, num in itertools.product(("equal", "1/i^2"), (1, 2, 3, 10, 100), (16, 32))
    if dim > 1 or kind == "equal"
] + [("equal", 3, 64)]


@pytest.mark.parametrize("kind, dim, num", CELLS)
def test_norm_bound_covers(kind, dim, num):
    values = spectrum(kind, dim)
    noise = np.random.default_rng(dim).standard_normal((4000 if dim < 100 else 2000, num, dim)) * np.sqrt(values)
    moments, centre = norm_moments(noise)
    for ratio, axis, delta in itertools.product((0.01, 0.1, 1.0, 10.0, 100.0), (0, dim - 1), (0.01, 0.005)):
        norm = math.sqrt(ratio * values.sum() / num)
        shifted = moments.copy()
        shifted[0] += 2 * norm * centre[:, axis] + norm**2
        assert_coverage(confidence.squared_norm_bound_from_moments(shifted, num, delta), norm**2, delta)


def test_norm_bound_without_its_largest_eigenvalue_would_not_cover():
    """The coverage test can fail: forgetting the noise along mu is found."""
    moments, centre = norm_moments(np.random.default_rng(1).standard_normal((4000, 16, 10)))
    moments[0] += 2 * 10 * centre[:, 0] + 100
    moments[3] = 0.0
    with pytest.raises(AssertionError, match="misses"):
        assert_coverage(confidence.squared_norm_bound_from_moments(moments, 16, 0.01), 100.0, 0.01)


def test_norm_bound_of_a_gram_matrix_is_that_of_the_vectors_and_covers():
    x = 0.3 + np.random.default_rng(3).standard_normal((2000, 16, 5))
    bounds = np.array([confidence.squared_norm_upper_bound(v @ v.T, 0.01) for v in x])
    np.testing.assert_allclose(bounds, confidence.squared_norm_bound_from_moments(norm_moments(x)[0], 16, 0.01))
    assert_coverage(bounds, 5 * 0.3**2, 0.01)


def test_norm_bound_in_one_dimension_is_the_t_bound_squared():
    x = np.random.default_rng(4).normal(0.2, 1.0, 16)
    expected = (abs(x.mean()) + stats.t.isf(0.009, 15) * x.std(ddof=1) / 4) ** 2
    assert confidence.squared_norm_upper_bound(np.outer(x, x), 0.01) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("num, factor", [(16, 0.4), (64, 0.25)])
def test_norm_bound_is_far_below_the_plug_in_in_many_dimensions(num, factor):
    x = np.random.default_rng(5).standard_normal((40, num, 1000))
    bounds = [confidence.squared_norm_upper_bound(v @ v.T, 0.01) for v in x]
    assert np.median(bounds) < factor * np.median(np.sum(x.mean(1) ** 2, -1))


def test_norm_bound_is_never_negative_and_zero_for_zero():
    """Vectors that sum to zero have the most negative unbiased estimate there is."""
    x = np.random.default_rng(6).standard_normal((16, 300))
    x -= x.mean(0)
    assert confidence.squared_norm_upper_bound(x @ x.T, 0.01) > 0
    assert confidence.squared_norm_upper_bound(np.zeros((16, 16)), 0.01) == 0


def test_a_smaller_delta_gives_a_larger_bound():
    x = np.random.default_rng(7).chisquare(1, (16, 4))
    deltas = [0.1, 0.01, 1e-4, 1e-8]
    for bounds in (
        [confidence.mean_upper_bound(x[:, 0], delta) for delta in deltas],
        [confidence.squared_norm_upper_bound(x @ x.T, delta) for delta in deltas],
    ):
        assert np.isfinite(bounds).all()
        assert (np.diff(bounds) > 0).all()
    # No quantile is left in double precision: infinite, and no warning.
    assert confidence.mean_upper_bound(x[:, 0], 1e-40) == math.inf


def test_what_is_not_finite_gives_no_finite_bound():
    x = np.ones(16)
    x[3] = math.nan
    assert confidence.mean_upper_bound(x, 0.01) == math.inf
    assert confidence.squared_norm_upper_bound(np.outer(x, x), 0.01) == math.inf


def test_equal_samples_have_their_value_as_bound():
    assert confidence.mean_upper_bound(np.full(16, 2.0), 0.01) == pytest.approx(2.0, rel=1e-5)
    assert confidence.mean_upper_bound(np.zeros(16), 0.01) == 0


def test_shares_of_delta_sum_to_delta():
    shares = [confidence.spend(0.02, check) for check in range(40)]
    assert shares[:3] == [0.01, 0.005, 0.0025]
    assert sum(shares) == pytest.approx(0.02, rel=1e-11)
    assert sum(shares) <= 0.02
    with pytest.raises(ValueError, match="check"):
        confidence.spend(0.02, -1)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="at least 16"):
        confidence.mean_upper_bound(np.ones(15), 0.01)
    with pytest.raises(ValueError, match="delta"):
        confidence.squared_norm_upper_bound(np.eye(16), 0.5)
    with pytest.raises(ValueError, match="square"):
        confidence.squared_norm_upper_bound(np.ones((16, 3)), 0.01)
