"""Does the model fit: the rate of false alarms, models that are wrong, p-values and k-hat against other ways."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import provi
from provi.diagnostics.check import RATE, check_model, reliability
from provi.diagnostics.check_statistics import (
    Statistic,
    calibrate,
    quantile_bins,
    response_kind,
    statistics,
)
from provi.diagnostics.pareto import pareto_k, pareto_tails
from provi.targets import likelihoods
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise, NegativeBinomial, StudentT

T = provi.targets


class Exact:
    """N(mean, covariance), as a posterior that can be drawn from."""

    def __init__(self, mean, covariance):
        self.mean, self.root = mean, np.linalg.cholesky(covariance)

    def sample(self, n, seed):
        return self.mean + np.random.default_rng([seed, 5]).normal(size=(n, len(self.mean))) @ self.root.T


def p_values(count, make):
    found = []
    for seed in range(count):
        rng = np.random.default_rng([seed, 3])
        target, posterior = make(rng)
        found.append(check_model(target, posterior, 200, seed).p_value)
    return np.array(found)


def linear(rng, noise):
    """20 coefficients for 60 rows: posterior predictive p-values would be far from uniform here."""
    X = rng.normal(size=(60, 20))
    target = T.LinearRegression(X, X @ rng.normal(size=20) + noise(rng), 1.0, 1.0)
    return target, Exact(*target.exact_posterior())


def test_the_false_alarm_rate_is_the_stated_one():
    """p is uniform on multiples of 1/201, or larger: counts of 150 are binomial. Alarm below 1e-4."""
    p = p_values(150, lambda rng: linear(rng, lambda rng: rng.normal(size=60)))
    for level in (RATE, 0.1, 0.3):
        assert (p <= level).sum() <= stats.binom.isf(1e-4, 150, level), level
    # Nor is it idle: a third of the p-values at least lies below a half.
    assert (p <= 0.5).sum() >= stats.binom.ppf(1e-4, 150, 0.35)


def test_heavy_tails_are_found():
    p = p_values(20, lambda rng: linear(rng, lambda rng: rng.standard_t(2, size=60)))
    assert (p <= RATE).mean() >= 0.8


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return rng, rng.normal(size=(300, 2))


@pytest.fixture(scope="module")
def counts(table):
    """Poisson fits of Poisson counts and of counts with three times their variance."""
    rng, X = table
    rate = np.exp(1.5 + X @ [0.5, -0.3])
    data = {"good": rng.poisson(rate), "bad": rng.poisson(rate * rng.gamma(2.0, size=300) / 2)}
    return {key: provi.fit(T.PoissonRegression(X, y, 2.0, intercept=True, names=("a", "b"))) for key, y in data.items()}


def test_counts(counts):
    good, bad = counts["good"].check(), counts["bad"].check()
    assert good.ok and good.kind == "counts" and "The model fits" in good.verdict and not good.failed
    assert not bad.ok and bad.failed[0].name == "over-dispersion"
    assert bad.failed[0].observed > 2 > bad.failed[0].high
    assert bad.advice[0].startswith("The counts vary more than the model allows: try a response with more variance")
    assert len(bad.advice) == 1  # what over-dispersion explains is not said again
    assert bad.influence.p_loo > 1.5 * 3 + 3 and "far more than there are" in bad.influence.words
    assert good.influence.p_loo < 5
    for found in (good, bad):
        printed = str(found)
        assert "over-dispersion" in printed and found.verdict[:40] in printed and "p_loo" in printed
        data = json.loads(json.dumps(found.to_dict()))
        assert data["ok"] is found.ok and data["rows"][0]["name"] == "standard deviation"
    assert counts["bad"].check() is bad  # kept
    assert counts["bad"].check(200, 1) is not bad and not counts["bad"].check(200, 1).ok


def test_a_negative_binomial_fits_what_a_poisson_does_not(table, counts):
    _, X = table
    y = counts["bad"].target.observed_data["y"]
    target = T.GeneralisedLinearModel(X, y, NegativeBinomial(2.0), 2.0, intercept=True, names=("a", "b"))
    assert provi.fit(target).check().ok


def test_a_missing_square_is_found_and_named(table):
    rng, X = table
    y = rng.random(300) < special.expit(1.2 * X[:, 0] ** 2 - 1 + 0.5 * X[:, 1])
    fit = provi.fit(T.LogisticRegression(X, y, 2.0, intercept=True, names=("a", "b")))
    found = fit.check()
    assert found.kind == "binary" and [row.name for row in found.failed] == ["residuals against a"]
    assert "curved term" in found.advice[0] and not found.ok
    # The same with the square in the model.
    both = T.LogisticRegression(np.c_[X, X[:, 0] ** 2], y, 2.0, intercept=True, names=("a", "b", "a^2"))
    assert provi.fit(both).check().ok


def test_what_cannot_be_checked_says_why(table):
    rng, X = table
    with pytest.raises(ValueError, match="does not know its data"):
        check_model(T.LogDensity(lambda z: -0.5 * (z @ z), 2), Exact(np.zeros(2), np.eye(2)))
    times = np.where(rng.random(300) < 0.3, -1, 1) * rng.exponential(size=300)
    censored = T.GeneralisedLinearModel(X, times, likelihoods.Weibull(1.0))
    with pytest.raises(ValueError, match="some times are censored"):
        check_model(censored, Exact(np.zeros(2), np.eye(2)))
    separated, known = T.LogisticRegression(X, X[:, 0] > 0), Exact(np.array([30.0, 0.0]), 1e-6 * np.eye(2))
    with pytest.raises(ValueError, match="num_draws must be at least 200"):
        check_model(separated, known, 20)
    assert "separated" in check_model(separated, known, 200).notes[0]
    assert not check_model(T.LogisticRegression(X, X[:, 1] > 0), known, 200).notes


def test_other_targets_draw_by_their_own_programs(table):
    """An ordinal response has no draws in NumPy here, a Gaussian process sees its inputs."""
    rng, X = table
    grades = np.clip(np.round(X[:, 0] + rng.logistic(size=300)) + 1, 0, 2)
    ordinal = T.GeneralisedLinearModel(X, grades, likelihoods.OrdinalLogit(np.array([-0.5, 0.5])))
    found = check_model(ordinal, Exact(np.array([1.0, 0.0]), 0.01 * np.eye(2)), 200)
    assert found.kind == "grades" and {"mean grade", "shares of the grades"} <= {row.name for row in found.rows}
    process = T.GaussianProcess(X[:60], X[:60, 0] + 0.1 * rng.normal(size=60), likelihood=GaussianNoise(0.1))
    names = {row.name for row in check_model(process, Exact(X[:60, 0], 1e-4 * np.eye(60)), 200, 0, ("u", "v")).rows}
    assert {"residuals against u", "residuals against v", "tails of residuals (kurtosis)"} <= names


def test_shares_of_successes_are_binomial_and_other_weights_are_refused():
    rng = np.random.default_rng(6)
    x, trials = rng.normal(size=80), rng.integers(5, 30, 80)
    chance = special.expit(0.5 + x)
    noisy = special.expit(0.5 + x + 1.2 * rng.normal(size=80))
    fixed = np.stack([np.ones(80), x], axis=1)
    for truth, ok in ((chance, True), (noisy, False)):
        y = rng.binomial(trials, truth)
        target = T.LatentGaussian(y, "binomial", trials=trials, fixed=fixed, fixed_names=("one", "x"), fixed_scale=1.0)
        found = check_model(target, Exact(np.array([0.5, 1.0]), 1e-4 * np.eye(2)), 200)
        assert found.kind == "counts" and found.ok == ok
    np.testing.assert_array_equal(found.table[0], y)
    assert any(row.name == "over-dispersion" and row.observed > 2 for row in found.failed)
    weighted = T.LatentGaussian(y, "poisson", fixed=fixed, weights=np.full(80, 2.0))
    with pytest.raises(ValueError, match="rows are weighted"):
        check_model(weighted, Exact(np.zeros(2), np.eye(2)))


def test_offsets_and_classes(table):
    """Counts per exposure fit with the exposure and not without; a curve of one class against the others is named."""
    rng, X = table
    hours = rng.uniform(0.2, 8.0, size=300)
    y = rng.poisson(hours * np.exp(0.5 + 0.3 * X[:, 0]))
    known = Exact(np.array([0.5, 0.3, 0.0]), 1e-6 * np.eye(3))
    assert check_model(T.PoissonRegression(X, y, intercept=True, exposure=hours), known, 200).ok
    assert not check_model(T.PoissonRegression(X, y, intercept=True), known, 200).ok
    bent = np.stack([np.zeros(300), X[:, 0], 2.5 * X[:, 1] ** 2 - 2], axis=1)
    classes = np.argmax(bent + rng.gumbel(size=(300, 3)), axis=1)
    target = T.MultinomialLogistic(X, classes, intercept=True, names=("a", "b"))
    found = check_model(target, Exact(provi.fit(target).posterior.mean, 1e-6 * np.eye(6)), 200)
    assert found.kind == "classes" and "residuals against b, class 2" in {row.name for row in found.failed}


def test_draws_and_log_likelihoods_in_numpy_are_those_of_the_likelihoods(table):
    """Means and variances of many draws at one predictor, and log p against the likelihood's own potential."""
    from provi.diagnostics.check import _draw, _log_likelihoods

    rng, eta = np.random.default_rng(1), np.array([-1.0, 0.3, 1.1])
    cases = (
        (BernoulliLogit(), special.expit(eta), None),
        (likelihoods.BernoulliProbit(), special.ndtr(eta), None),
        (likelihoods.Poisson(), np.exp(eta), np.exp(eta)),
        (NegativeBinomial(2.0), np.exp(eta), np.exp(eta) + np.exp(2 * eta) / 2),
        (GaussianNoise(0.5), eta, np.full(3, 0.25)),
        (StudentT(6.0, 0.5), eta, np.full(3, 0.25 * 6 / 4)),
    )
    for law, mean, variance in cases:
        y = _draw(law, eta, 40_000, rng)
        variance = mean * (1 - mean) if variance is None else variance
        # Five standard errors of the mean; the variance within 15%, of heavy tails as well.
        assert (np.abs(y.mean(axis=0) - mean) < 5 * np.sqrt(variance / 40_000)).all(), law
        np.testing.assert_allclose(y.var(axis=0), variance, rtol=0.15)
        values = _log_likelihoods(law, np.stack([eta, eta]), y[0])
        if not isinstance(law, StudentT):
            np.testing.assert_allclose(
                values[1], -np.asarray(law.potential(jnp.asarray(eta), jnp.asarray(y[0]))), rtol=1e-9, atol=1e-12
            )
    assert _draw(likelihoods.OrdinalLogit(np.array([0.0])), eta, 2, rng) is None


def test_p_values_are_ranks_of_the_largest_score():
    """Three statistics by hand: the adjusted p-value of one is the share of rows whose largest score reaches it."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(3, 400))
    values[1, 0] = 6.0
    found = calibrate([Statistic(str(k), row, row) for k, row in enumerate(values)])
    assert found.p_value == 1 / 400 and found.adjusted.argmin() == 1
    assert found.adjusted[0] > 0.05 and found.adjusted[2] > 0.05
    # One-sided: what is too small is no alarm; a constant never is.
    low = np.where(np.arange(400) == 0, -9.0, values[0])
    assert calibrate([Statistic("low", low, low, two_sided=False)]).p_value > 0.3
    assert calibrate([Statistic("flat", np.ones(400), np.ones(400))]).p_value == 1.0


def test_statistics_by_hand():
    rng = np.random.default_rng(3)
    table = rng.poisson(3.0, size=(201, 40)).astype(float)
    found = {
        row.name: row for row in statistics(table, "counts", {"x": rng.normal(size=40), "flag": np.arange(40) % 2})
    }
    residual = (table - table.mean(axis=0)) / table.std(axis=0)
    np.testing.assert_allclose(found["over-dispersion"].shown, (residual**2).mean(axis=1))
    np.testing.assert_array_equal(found["largest count"].shown, table.max(axis=1))
    assert "residuals against x" in found and "residuals against flag" not in found  # two levels are no curve
    uniform = found["quantile residuals (uniformity)"].shown
    # Ranks of 40 nearly independent columns: the distances of Kolmogorov's statistic.
    assert abs(np.median(uniform) - stats.kstwo.median(40)) < 0.02
    bins = quantile_bins(np.repeat([1.0, 2.0, 3.0], 50))
    assert len(np.unique(bins)) <= 3 and all(len(np.unique(bins[k : k + 50])) == 1 for k in (0, 50, 100))
    assert response_kind(np.array([[0.0, 1.0]])) == "binary" and response_kind(np.array([[0.0, 2.0]])) == "counts"
    assert response_kind(np.array([[0.0, 2.0]]), "grades") == "grades"
    assert response_kind(np.array([[-1.0, 2.0]])) == "real"


def test_k_hats_of_many_columns_are_those_of_one():
    rng = np.random.default_rng(4)
    weights = np.stack([scale * rng.standard_t(4, size=1000) for scale in np.linspace(0.1, 1, 300)], axis=1)
    found = pareto_tails(weights)
    np.testing.assert_allclose(found[::50], [pareto_k(w) for w in weights.T[::50]], rtol=1e-12)
    assert pareto_tails(np.zeros((100, 1)))[0] == -np.inf


def test_leave_one_out_of_a_conjugate_model():
    """p_loo against log p(y_n | y) - log p(y_n | y_-n) in closed form."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(50, 3))
    target = T.LinearRegression(X, X @ [1.0, -1.0, 0.5] + rng.normal(size=50), 1.0, 3.0)
    mean, covariance = target.exact_posterior()
    found = check_model(target, Exact(mean, covariance), 200).influence
    y, exact = np.asarray(target.response), 0.0
    for n in range(50):
        kept = np.arange(50) != n
        one, spread = T.LinearRegression(X[kept], y[kept], 1.0, 3.0).exact_posterior()
        for sign, m, V in ((1, mean, covariance), (-1, one, spread)):
            exact += sign * stats.norm.logpdf(y[n], X[n] @ m, np.sqrt(1 + X[n] @ V @ X[n]))
    assert abs(found.p_loo - exact) < 0.15 * exact  # 1000 draws
    assert not found.rows and found.num_parameters == 3


def test_the_calibration_curve_of_known_probabilities(table):
    rng, X = table
    y = rng.random(300) < special.expit(2 * X[:, 0])
    found = check_model(T.LogisticRegression(X, y), Exact(np.array([2.0, 0.0]), 1e-8 * np.eye(2)), 400)
    predicted, observed, low, high = reliability(found)
    truth = special.expit(2 * X[:, 0])
    bins = quantile_bins(found.table.mean(axis=0))
    by_hand = [truth[bins == b].mean() for b in range(len(predicted))]
    np.testing.assert_allclose(predicted, by_hand, atol=0.01)
    np.testing.assert_allclose(observed, [y[bins == b].mean() for b in range(len(predicted))])
    assert ((low <= predicted) & (predicted <= high)).all()
