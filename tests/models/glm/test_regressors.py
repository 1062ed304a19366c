"""Linear, Poisson and generalised linear regression against closed forms, ELBOs written in NumPy, and scikit-learn."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln
from scipy import optimize, special, stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge, PoissonRegressor
from sklearn.model_selection import GridSearchCV

from provi.models import GLM, LinearRegression, LogisticRegression, PoissonRegression
from provi.targets.likelihoods import (
    BernoulliProbit,
    GaussianNoise,
    NegativeBinomial,
    Poisson,
    StudentT,
    UserLikelihood,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

RNG = np.random.default_rng(6)
X = RNG.normal(size=(60, 2))
Y = 1.0 + X @ [2.0, -1.0] + 0.5 * RNG.normal(size=60)
COUNTS = RNG.poisson(np.exp(1.0 + X @ [0.6, -0.4]))
NEW = RNG.normal(size=(20, 2))
DESIGN, NEW_DESIGN = np.column_stack([np.ones(60), X]), np.column_stack([np.ones(20), NEW])


def closed_form(design, y, noise, precision, prior_mean):
    """Mean, covariance and log evidence of Bayesian linear regression."""
    covariance = np.linalg.inv(precision + design.T @ design / noise**2)
    mean = covariance @ (precision @ prior_mean + design.T @ y / noise**2)
    marginal = noise**2 * np.eye(len(y)) + design @ np.linalg.inv(precision) @ design.T
    return mean, covariance, stats.multivariate_normal.logpdf(y, design @ prior_mean, marginal)


@pytest.fixture(scope="module")
def linear():
    return LinearRegression(0.5, [2.0, 1.0], prior_mean=[1.0, 0.0], intercept_scale=4.0).fit(X, Y)


@pytest.fixture(scope="module")
def poisson():
    return PoissonRegression(0.7, intercept_scale=10.0, tol=1e-6).fit(X, COUNTS)


def test_linear_regression_is_the_closed_form(linear):
    precision = np.diag([1 / 16, 1 / 4, 1.0])
    mean, covariance, evidence = closed_form(DESIGN, Y, 0.5, precision, np.asarray([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(np.append(linear.intercept_, linear.coef_), mean, rtol=1e-7)
    np.testing.assert_allclose(linear.fit_.posterior.covariance, covariance, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        np.append(linear.intercept_sd_, linear.coef_sd_), np.sqrt(np.diag(covariance)), rtol=1e-8
    )
    np.testing.assert_allclose(linear.elbo_, evidence, atol=1e-8)
    assert linear.certificate_.status == "proven" and linear.certificate_.gap < 1e-8
    expected, deviation = linear.predict(NEW, return_std=True)
    np.testing.assert_allclose(expected, NEW_DESIGN @ mean, atol=1e-6)
    variance = np.einsum("ni,ij,nj->n", NEW_DESIGN, covariance, NEW_DESIGN)
    np.testing.assert_allclose(deviation, np.sqrt(variance + 0.25), rtol=1e-7)
    density = linear.log_predictive_density(NEW, expected + 1)
    np.testing.assert_allclose(density, stats.norm.logpdf(1, 0, deviation), rtol=1e-9)
    assert linear.coef_.shape == (2,) and np.ndim(linear.intercept_) == 0 and linear.score(X, Y) > 0.9


def test_the_deviation_is_that_of_scikit_learn(linear):
    # Without an intercept and with their learned precisions, `BayesianRidge` is the same model.
    theirs = BayesianRidge(fit_intercept=False).fit(X, Y)
    ours = LinearRegression(theirs.alpha_**-0.5, theirs.lambda_**-0.5, fit_intercept=False).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(ours.predict(NEW, return_std=True), theirs.predict(NEW, return_std=True), rtol=1e-6)
    assert ours.intercept_ == 0 and linear.intercept_ != 0


def test_more_columns_than_rows_and_a_prior_matrix():
    wide, new = RNG.normal(size=(15, 40)), RNG.normal(size=(6, 40))
    root = RNG.normal(size=(40, 40)) / 10 + np.eye(40)
    y = wide[:, 0] + 2
    model = LinearRegression(0.3, prior_covariance=root @ root.T, intercept_scale=5.0, tol=1e-6).fit(wide, y)
    precision = np.zeros((41, 41))
    precision[0, 0], precision[1:, 1:] = 1 / 25, np.linalg.inv(root @ root.T)
    mean, covariance, evidence = closed_form(np.column_stack([np.ones(15), wide]), y, 0.3, precision, np.zeros(41))
    expected, deviation = model.predict(new, return_std=True)
    design = np.column_stack([np.ones(6), new])
    np.testing.assert_allclose(expected, design @ mean, atol=1e-4)
    np.testing.assert_allclose(deviation**2, np.einsum("ni,ij,nj->n", design, covariance, design) + 0.09, rtol=1e-4)
    np.testing.assert_allclose(model.elbo_, evidence, atol=1e-6)


def test_a_tolerance_below_rounding_is_a_warning(linear):
    with pytest.warns(ConvergenceWarning, match="did not reach tol=1e-300"):
        clone(linear).set_params(tol=1e-300).fit(X, Y)


def test_poisson_regression_maximises_its_elbo_and_predicts_a_log_normal_rate(poisson):
    def negative_elbo(packed):
        mean, factor = packed[:3], np.zeros((3, 3))
        factor[np.tril_indices(3)] = packed[3:]
        variance = np.sum((DESIGN @ factor) ** 2, axis=1)
        terms = np.exp(DESIGN @ mean + variance / 2) - COUNTS * (DESIGN @ mean) + special.gammaln(COUNTS + 1)
        sd = np.asarray([10.0, 0.7, 0.7])
        prior = 0.5 * ((mean**2 + np.sum(factor**2, axis=1)) / sd**2).sum() + np.log(sd).sum()
        return terms.sum() + prior - np.log(np.abs(np.diag(factor))).sum() - 1.5

    start = np.concatenate([np.zeros(3), 0.1 * np.eye(3)[np.tril_indices(3)]])
    best = optimize.minimize(negative_elbo, start, method="BFGS", options={"gtol": 1e-5})
    np.testing.assert_allclose(poisson.elbo_, -best.fun, atol=2e-6)
    np.testing.assert_allclose(np.append(poisson.intercept_, poisson.coef_), best.x[:3], atol=1e-3)
    assert poisson.certificate_.status == "proven" and poisson.certificate_.gap <= 1e-6
    mean, variance = poisson.predict_latent(NEW)
    expected, deviation = poisson.predict(NEW, return_std=True)
    rate = stats.lognorm(np.sqrt(variance), scale=np.exp(mean))
    np.testing.assert_allclose(expected, np.exp(mean + variance / 2), rtol=1e-12)
    np.testing.assert_allclose(deviation**2, rate.mean() + rate.var(), rtol=1e-9)
    np.testing.assert_array_equal(poisson.predict(NEW), expected)


def test_poisson_score_is_that_of_scikit_learn(poisson):
    theirs = PoissonRegressor(alpha=1 / (0.49 * 60), tol=1e-8).fit(X, COUNTS)  # the same prior, but for the intercept's
    np.testing.assert_allclose(poisson.coef_, theirs.coef_, atol=0.5 * poisson.coef_sd_.min())
    np.testing.assert_allclose(poisson.score(X, COUNTS), theirs.score(X, COUNTS), atol=0.01)
    with pytest.warns(UserWarning, match="all counts are 0"):
        assert np.isnan(poisson.score(X, 0 * COUNTS))
    with pytest.raises(ValueError, match="y must hold counts"):
        PoissonRegression().fit(X, Y)


def test_glm_with_the_likelihood_of_another_estimator_is_that_estimator(poisson):
    same = GLM("poisson", 0.7, intercept_scale=10.0, tol=1e-6).fit(X, COUNTS)
    assert isinstance(same.likelihood_, Poisson)
    np.testing.assert_allclose(same.coef_, poisson.coef_, rtol=1e-9)
    np.testing.assert_allclose(same.elbo_, poisson.elbo_, rtol=1e-12)
    labels = GLM(BernoulliProbit()).fit(X, Y > 1)
    expected, deviation = labels.predict(NEW, return_std=True)
    mean, variance = labels.predict_latent(NEW)
    np.testing.assert_allclose(expected, stats.norm.cdf(mean / np.sqrt(1 + variance)), rtol=1e-9)
    np.testing.assert_allclose(deviation**2, expected * (1 - expected), rtol=1e-9)
    logistic = LogisticRegression(tol=1e-6).fit(X, Y > 1)
    again = GLM("logit", tol=1e-6).fit(X, Y > 1)
    np.testing.assert_allclose(again.predict(NEW), logistic.predict_proba(NEW)[:, 1], atol=1e-7)


def test_negative_binomial_counts_have_their_moments():
    model = GLM(NegativeBinomial(2.0)).fit(X, COUNTS)
    assert model.certificate_.status == "proven" and model.certificate_.gap <= 0.01
    mean, variance = model.predict_latent(NEW)
    expected, deviation = model.predict(NEW, return_std=True)
    rate = stats.lognorm(np.sqrt(variance), scale=np.exp(mean))
    np.testing.assert_allclose(expected, rate.mean(), rtol=1e-9)
    # E Var(y | rate) + Var rate, with Var(y | rate) = rate + rate^2/2.
    np.testing.assert_allclose(deviation**2, rate.mean() + rate.moment(2) / 2 + rate.var(), rtol=1e-9)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(NEW), expected)
    assert again.certificate_.gap == model.certificate_.gap


def log_poisson(y, eta):
    return y * eta - jnp.exp(eta) - gammaln(y + 1)


def test_a_likelihood_of_the_users_own(poisson):
    written = UserLikelihood(log_poisson, True, centre=lambda y: jnp.log(y + 0.5))
    model = GLM(written, 0.7).fit(X, COUNTS)
    np.testing.assert_allclose(model.coef_, poisson.coef_, atol=0.02)
    assert model.certificate_.gap <= 0.01 and "declared" in str(model.certificate_)
    density = model.log_predictive_density(X, COUNTS)
    np.testing.assert_allclose(density, poisson.log_predictive_density(X, COUNTS), atol=0.05)
    with pytest.raises(ValueError, match="no mean_response"):
        model.predict(NEW)
    for wrong, message in [
        ("cauchy", "likelihood must be one of gaussian, logit"),
        (StudentT(), "is not log-concave"),
        (GaussianNoise, "likelihood must be one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            GLM(wrong).fit(X, Y)


def test_parameters_are_found_by_a_grid(linear):
    search = GridSearchCV(clone(linear), {"prior_scale": [0.01, 1.0]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"prior_scale": 1.0}
    assert clone(GLM(NegativeBinomial(0.1))).likelihood.dispersion == np.float64(0.1)
    with pytest.raises(ValueError, match="noise_scale must be a positive number"):
        LinearRegression(noise_scale=0.0).fit(X, Y)
    with pytest.raises(ValueError, match="NaN"):
        linear.predict(np.full((2, 2), np.nan))
