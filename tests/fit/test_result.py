"""The user's view of q: moments, intervals, draws, summary."""

import numpy as np
import pytest
from scipy import stats

from provi.families import Laplace, LocationScale, Normal, StudentT, Uniform
from provi.families.bases import marginal_quantile
from provi.result import Posterior
from support.statistics import assert_mean

BASES = [Normal(), Laplace(), Uniform(), StudentT(6.0)]


def posterior(base, scale="triangular"):
    family = LocationScale(3, base, scale)
    matrix = np.array([[1.0, 0, 0], [0.5, 2.0, 0], [-1.0, 0.3, 0.7]])
    point = family.point_from_covariance([1.0, -2.0, 0.5], matrix @ matrix.T)
    return Posterior(family, point, ("a", "b", "c")), matrix @ matrix.T


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_moments_and_draws_agree(base):
    q, covariance = posterior(base)
    np.testing.assert_allclose(q.covariance, covariance, rtol=1e-12)
    np.testing.assert_allclose(q.standard_deviation, np.sqrt(np.diag(covariance)), rtol=1e-12)
    assert_mean(q.sample(20_000, seed=3), q.mean, alarm=1e-6)


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_interval_has_its_probability(base):
    q, _ = posterior(base)
    draws = q.sample(40_000, seed=5)
    low, high = q.interval(0.9).T
    inside = ((draws >= low) & (draws <= high)).astype(float)
    assert_mean(inside, np.full(3, 0.9), alarm=1e-6)


def test_quantiles_against_scipy_and_each_other():
    assert marginal_quantile(Normal(), 5, 0.975) == pytest.approx(stats.norm.ppf(0.975), abs=1e-12)
    # In one dimension the Laplace base is the double exponential with rate sqrt(2), the uniform one U(-sqrt 3, sqrt 3).
    laplace = stats.laplace(scale=1 / np.sqrt(2))
    # 4000 midpoints of the mixing law leave an error of about 1e-5 in one dimension, where it is widest.
    assert marginal_quantile(Laplace(), 1, 0.9) == pytest.approx(laplace.ppf(0.9), abs=2e-4)
    assert marginal_quantile(Uniform(), 1, 0.9) == pytest.approx(0.8 * np.sqrt(3), abs=1e-12)
    assert marginal_quantile(StudentT(5.0), 9, 0.9) == pytest.approx(stats.t(5).ppf(0.9) * np.sqrt(3 / 5), abs=1e-12)


def test_log_prob_of_one_point_and_of_rows():
    q, covariance = posterior(Normal())
    rows = np.random.default_rng(0).normal(size=(4, 3))
    expected = stats.multivariate_normal(q.mean, covariance).logpdf(rows)
    np.testing.assert_allclose(q.log_prob(rows), expected, rtol=1e-10)
    assert q.log_prob(rows[0]).shape == ()
    with pytest.raises(ValueError, match="last axis"):
        q.log_prob(np.zeros(4))


def test_summary_holds_names_and_prints():
    q, _ = posterior(Normal())
    summary = q.summary(0.9)
    assert summary.to_dict()["b"]["mean"] == -2.0
    assert summary.to_dict()["a"]["low"] == pytest.approx(1 - stats.norm.ppf(0.95))
    text = str(summary)
    assert "5%" in text and "95%" in text and "c" in text
    with pytest.raises(ValueError, match="probability"):
        q.summary(1.5)
