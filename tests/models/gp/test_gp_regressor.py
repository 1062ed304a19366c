"""The Gaussian-process regressor against scikit-learn's, dense algebra, simulation, and scikit-learn's own checks."""

import pickle
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.utils.estimator_checks import check_estimator

from provi.kernels import Matern32, SquaredExponential
from provi.models import GPRegressor
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise, UserLikelihood

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=40)
COUNTS = RNG.poisson(np.exp(1 + np.sin(2 * X[:, 0])))
NEW = RNG.normal(size=(30, 2))


def test_gaussian_noise_equals_scikit_learn():
    theirs = GaussianProcessRegressor(ConstantKernel(1.69) * RBF(0.8), alpha=0.09, optimizer=None).fit(X, Y)
    ours = GPRegressor(0.8, 1.3, noise_scale=0.3, jitter=0.0).fit(X, Y)
    mean, deviation = ours.predict(NEW, return_std=True)
    expected = theirs.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, expected[0], atol=1e-9)
    np.testing.assert_allclose(deviation, expected[1], atol=1e-9)
    np.testing.assert_allclose(ours.elbo_, theirs.log_marginal_likelihood_value_, atol=1e-8)
    assert ours.certificate_.status == "proven" and ours.certificate_.gap < 1e-6
    responses = RNG.normal(size=30)
    density = ours.log_predictive_density(NEW, responses)
    np.testing.assert_allclose(density, stats.norm.logpdf(responses, mean, np.hypot(deviation, 0.3)), rtol=1e-9)
    np.testing.assert_array_equal(ours.predict(NEW), mean)


def test_learnt_hyperparameters_equal_those_of_scikit_learn():
    both = Y + np.cos(1.5 * X[:, 1])
    kernel = ConstantKernel(1.0, (1e-5, 1e5)) * RBF([1.0, 1.0]) + WhiteKernel(0.25)
    theirs = GaussianProcessRegressor(kernel, alpha=0.0).fit(X, both)
    ours = GPRegressor([1.0, 1.0], noise_scale=0.5, jitter=0.0, optimise_hyperparameters=True).fit(X, both)
    np.testing.assert_allclose(ours.elbo_, theirs.log_marginal_likelihood_value_, atol=1e-6)
    found = [ours.kernel_.amplitude**2, *ours.kernel_.length_scale, ours.likelihood_.scale**2]
    np.testing.assert_allclose(np.log(found), theirs.kernel_.theta, atol=0.001)
    assert ours.noise_scale == 0.5


def test_student_noise_forgets_outliers_and_predicts_by_dense_algebra():
    spoilt = Y.copy()
    spoilt[:3] += 15
    robust = GPRegressor(0.8, likelihood="student-t", noise_scale=0.3, degrees_of_freedom=3.0).fit(X, spoilt)
    plain = GPRegressor(0.8, noise_scale=0.3).fit(X, spoilt)
    truth = np.sin(2 * NEW[:, 0])
    assert np.mean((robust.predict(NEW) - truth) ** 2) < 0.3 * np.mean((plain.predict(NEW) - truth) ** 2)
    assert robust.certificate_.gap is None and np.isfinite(robust.elbo_)
    point = robust.fit_.posterior.point
    s = np.asarray(point.site_precision)
    assert (s < 0).any()
    gram = np.asarray(robust.kernel_.matrix(X)) + 1e-6 * np.eye(40)
    cross = np.asarray(robust.kernel_.matrix(X, NEW))
    mean, deviation = robust.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, cross.T @ np.asarray(point.dual_mean), rtol=1e-10)
    variance = 1 - np.sum(cross * (np.diag(s) @ np.linalg.solve(np.eye(40) + gram @ np.diag(s), cross)), axis=0)
    np.testing.assert_allclose(deviation, np.sqrt(variance), rtol=1e-8)


@pytest.mark.parametrize("likelihood", ["poisson", "negative-binomial"])
def test_counts_have_the_moments_of_the_log_normal_rate(likelihood):
    model = GPRegressor(0.8, 1.5, likelihood=likelihood, dispersion=5.0).fit(X, COUNTS)
    mean, deviation = model.predict(NEW, return_std=True)
    latent, variance = model.predict_latent(NEW)
    rate = stats.lognorm(np.sqrt(variance), scale=np.exp(latent))
    np.testing.assert_allclose(mean, rate.mean(), rtol=1e-10)
    np.testing.assert_allclose(deviation, rate.std(), rtol=1e-9)
    assert model.score(X, COUNTS) > 0.3 and model.certificate_.gap <= 0.01
    with pytest.raises(ValueError, match="y must hold counts"):
        model.fit(X, -COUNTS)


def test_a_likelihood_of_the_users_own():
    def log_prob(y, eta):
        return -0.5 * ((y - eta) / 0.3) ** 2 - np.log(0.3) - 0.5 * np.log(2 * np.pi)

    written = GPRegressor(0.8, likelihood=UserLikelihood(log_prob, True, centre=lambda y: y, width=0.3)).fit(X, Y)
    known = GPRegressor(0.8, likelihood=GaussianNoise(0.3)).fit(X, Y)
    np.testing.assert_allclose(written.elbo_, known.elbo_, atol=0.02)
    np.testing.assert_allclose(written.predict_latent(NEW), known.predict_latent(NEW), atol=0.02)
    with pytest.raises(ValueError, match="no mean_response"):
        written.predict(NEW)
    labels = GPRegressor(0.8, likelihood=BernoulliLogit()).fit(X, Y > 0)
    with pytest.raises(ValueError, match="see predict_latent"):
        labels.predict(NEW, return_std=True)


def test_inducing_points_at_all_inputs_lose_nothing():
    exact = GPRegressor(kernel=Matern32(0.8), noise_scale=0.3).fit(X, Y)
    sparse = GPRegressor(kernel=Matern32(0.8), noise_scale=0.3, num_inducing=40, tol=1e-6).fit(X, Y)
    np.testing.assert_allclose(sparse.elbo_, exact.elbo_, atol=1e-3)
    np.testing.assert_allclose(sparse.predict(NEW), exact.predict(NEW), atol=1e-3)


def test_a_single_row_and_repeated_rows_have_closed_forms():
    single = GPRegressor(noise_scale=0.5, jitter=0.0).fit([[0.2]], [2.0])
    np.testing.assert_allclose(single.predict([[0.2]]), 2.0 / 1.25, rtol=1e-10)
    np.testing.assert_allclose(single.elbo_, stats.norm.logpdf(2.0, 0, np.sqrt(1.25)), rtol=1e-10)
    # Two rows alike are one observation of their mean with half the variance.
    twice = GPRegressor(noise_scale=0.5, jitter=0.0).fit([[0.2], [0.2]], [1.5, 2.5])
    np.testing.assert_allclose(twice.predict([[0.2]]), 2.0 / 1.125, rtol=1e-10)
    # A prior so wide that E exp(f) overflows is no obstacle.
    wide = GPRegressor(1.0, 40.0, likelihood="poisson").fit(X[:12], COUNTS[:12])
    assert np.isfinite(wide.elbo_) and wide.certificate_.gap <= 0.01


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="likelihood must be one of gaussian, student-t"):
        GPRegressor(likelihood="cauchy").fit(X, Y)
    with pytest.raises(ValueError, match="scale must be a positive number"):
        GPRegressor(noise_scale=0.0).fit(X, Y)
    with pytest.raises(ValueError, match="jitter must be"):
        GPRegressor(jitter=-1.0).fit(X, Y)
    with pytest.raises(ValueError, match="kernel and amplitude are both given"):
        GPRegressor(amplitude=2.0, kernel=SquaredExponential()).fit(X, Y)


def test_pickle_keeps_predictions():
    model = GPRegressor(0.8, noise_scale=0.3).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
    assert isinstance(again.kernel_.length_scale, jnp.ndarray)


@pytest.mark.slow
def test_scikit_learn_checks_pass():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(GPRegressor(), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert sum(result["status"] == "passed" for result in results) > 45
