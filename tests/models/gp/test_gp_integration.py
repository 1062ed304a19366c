"""Integrated hyperparameters against dense grids of exact fits, and against the estimator with fixed ones."""

import pickle

import numpy as np
import pytest
from scipy import special, stats
from sklearn.base import clone

from provi.kernels import Constant, SquaredExponential, White
from provi.models import GPClassifier, GPRegressor
from provi.models.gp.integration import LARGEST_INTEGRATED
from provi.result.marginal import Marginal
from provi.targets import latent

RNG = np.random.default_rng(4)
LINE = np.sort(RNG.uniform(0, 5, 16))[:, None]
CURVE = np.sin(LINE[:, 0])
LABELS = np.where(CURVE + 0.5 * RNG.normal(size=16) > 0, "up", "down")
NOISY = CURVE + 0.2 * RNG.normal(size=16)
COUNTS = RNG.poisson(np.exp(1 + CURVE))
NEW = np.linspace(-0.5, 5.5, 23)[:, None]

LENGTH, AMPLITUDE, NOISE = latent.LogNormal(0.0, 0.5), latent.LogNormal(0.0, 0.5), latent.LogNormal(-1.5, 0.4)


def point(value):
    return latent.LogNormal(np.log(value), 1e-4)


@pytest.fixture(scope="module")
def classifier():
    return GPClassifier(hyperparameters="integrate").fit(LINE, LABELS)


def normal_grid(prior, num, width=4.5):
    """Values, and the logarithms of their prior shares, of a log-normal prior."""
    logs = np.linspace(float(prior.mean) - width * float(prior.sd), float(prior.mean) + width * float(prior.sd), num)
    return np.exp(logs), special.log_softmax(stats.norm.logpdf(logs, float(prior.mean), float(prior.sd)))


def test_regression_equals_the_exact_average_over_a_dense_grid():
    """Gaussian noise: evidence and predictions are known in closed form at every value of the three numbers."""
    priors = {"length_scale": LENGTH, "amplitude": AMPLITUDE, "noise_scale": NOISE}
    model = GPRegressor(hyperparameters="integrate", hyperparameter_priors=priors).fit(LINE, NOISY)
    (lengths, p), (heights, q), (noises, r) = (normal_grid(prior, 31) for prior in (LENGTH, AMPLITUDE, NOISE))
    logs, means, variances = [], [], []
    for length, first in zip(lengths, p, strict=True):
        gram = np.exp(-0.5 * ((LINE - LINE.T) / length) ** 2) + 1e-6 * np.eye(16)
        cross = np.exp(-0.5 * ((LINE - NEW.T) / length) ** 2)
        for height, second in zip(heights, q, strict=True):
            eigenvalues, vectors = np.linalg.eigh(height**2 * gram)
            turned, seen = vectors.T @ NOISY, height**2 * vectors.T @ cross
            for noise, third in zip(noises, r, strict=True):
                total = eigenvalues + noise**2
                evidence = -0.5 * np.sum(turned**2 / total + np.log(2 * np.pi * total))
                logs.append(first + second + third + evidence)
                means.append(seen.T @ (turned / total))
                variances.append(height**2 - np.sum(seen**2 / total[:, None], axis=0))
    weights, means, variances = special.softmax(logs), np.array(means), np.array(variances)
    mean = weights @ means
    sd = np.sqrt(weights @ (variances + (means - mean) ** 2))
    ours, deviation = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(ours, mean, atol=0.02 * sd.min())
    np.testing.assert_allclose(deviation, sd, rtol=0.02)
    np.testing.assert_allclose(model.elbo_, special.logsumexp(logs), atol=0.02)
    grid = np.array(np.meshgrid(lengths, heights, noises, indexing="ij")).reshape(3, -1)
    for name, values in zip(priors, grid, strict=True):
        marginal, exact = model.hyperparameters_[name], weights @ values
        assert isinstance(marginal, Marginal) and marginal.name == name
        spread = np.sqrt(weights @ (values - exact) ** 2)
        assert abs(marginal.mean - exact) < 0.05 * spread and abs(marginal.sd / spread - 1) < 0.05
    latent_mean, latent_variance = model.predict_latent(NEW)
    np.testing.assert_allclose(latent_mean, ours, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.sqrt(latent_variance), deviation, rtol=1e-9)


def test_classification_is_near_the_average_of_fixed_fits_on_a_grid():
    priors = {"length_scale": LENGTH, "amplitude": AMPLITUDE}
    model = GPClassifier(hyperparameters="integrate", hyperparameter_priors=priors).fit(LINE, LABELS)
    logs, probabilities = [], []
    for length, first in zip(*normal_grid(LENGTH, 9, 3.5), strict=True):
        for height, second in zip(*normal_grid(AMPLITUDE, 9, 3.5), strict=True):
            fixed = GPClassifier(length, height).fit(LINE, LABELS)
            logs.append(first + second + fixed.elbo_)
            probabilities.append(fixed.predict_proba(NEW)[:, 1])
    average = special.softmax(logs) @ np.array(probabilities)
    # Weighted by ELBOs here, and by estimates of the evidence there.
    np.testing.assert_allclose(model.predict_proba(NEW)[:, 1], average, atol=5e-3)
    np.testing.assert_allclose(model.elbo_, special.logsumexp(logs), atol=0.02)


def test_certain_hyperparameters_are_those_of_the_fixed_classifier():
    priors = {"length_scale": point(0.8), "amplitude": point(1.3)}
    model = GPClassifier(hyperparameters="integrate", hyperparameter_priors=priors).fit(LINE, LABELS)
    fixed = GPClassifier(0.8, 1.3, tol=1e-8).fit(LINE, LABELS)
    np.testing.assert_allclose(model.predict_proba(NEW), fixed.predict_proba(NEW), atol=5e-3)
    (mean, variance), (other, narrow) = model.predict_latent(NEW), fixed.predict_latent(NEW)
    np.testing.assert_allclose(mean, other, atol=1e-3)
    # Linear response widens the best Gaussian, which is too narrow.
    assert (variance > narrow * 0.999).all() and (variance < 1.1 * narrow).all()
    np.testing.assert_allclose(model.elbo_, fixed.elbo_, atol=1e-2)
    np.testing.assert_allclose(float(model.kernel_.length_scale), 0.8, rtol=1e-3)


@pytest.mark.parametrize(
    ("likelihood", "numbers", "priors", "y"),
    [
        ("gaussian", {"noise_scale": 0.3}, {"noise_scale": point(0.3)}, NOISY),
        ("poisson", {}, {}, COUNTS),
        ("negative-binomial", {"dispersion": 3.0}, {"dispersion": point(3.0)}, COUNTS),
    ],
)
def test_certain_hyperparameters_are_those_of_the_fixed_regressor(likelihood, numbers, priors, y):
    priors = {"length_scale": point(1.1), "amplitude": point(1.4)} | priors
    # Each datum twice: equal rows share their function value, as they do up to the jitter where K is formed.
    X, response = np.concatenate([LINE, LINE]), np.concatenate([y, y])
    model = GPRegressor(likelihood=likelihood, hyperparameters="integrate", hyperparameter_priors=priors)
    model.fit(X, response)
    fixed = GPRegressor(1.1, 1.4, likelihood=likelihood, tol=1e-8, **numbers).fit(X, response)
    # Linear response widens the best Gaussian, where it is not exact, and with it the mean of a count.
    wider = 1e-3 if likelihood == "gaussian" else 1e-2
    for ours, theirs in zip(model.predict(NEW, return_std=True), fixed.predict(NEW, return_std=True), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=wider * max(1, np.abs(theirs).max()))
    np.testing.assert_allclose(model.predict(NEW), model.predict(NEW, return_std=True)[0], rtol=1e-12)
    densities = [found.log_predictive_density(LINE, y) for found in (model, fixed)]
    np.testing.assert_allclose(*densities, atol=2 * wider)


def test_scores_agree_with_each_other(classifier):
    odds, probability = classifier.decision_function(NEW), classifier.predict_proba(NEW)
    np.testing.assert_allclose(special.logit(probability[:, 1]), odds, rtol=1e-9)
    np.testing.assert_array_equal(classifier.predict(NEW), np.where(odds > 0, "up", "down"))
    assert set(classifier.hyperparameters_) == {"length_scale", "amplitude"}
    assert classifier.score(LINE, LABELS) > 0.7 and np.isfinite(classifier.elbo_)
    assert "Integrated over 2 hyperparameters" in classifier.certificate_.headline


def test_scikit_learn_conventions(classifier):
    copy = clone(classifier)
    assert copy.get_params() == classifier.get_params() and not hasattr(copy, "hyperparameters_")
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(NEW), classifier.predict_proba(NEW))
    # A fit of another mode forgets what only this one has.
    copy.fit(LINE, LABELS)
    copy.set_params(hyperparameters="fixed").fit(LINE, LABELS)
    assert not hasattr(copy, "hyperparameters_")


def test_optimise_has_two_names():
    new, old = GPClassifier(hyperparameters="optimise"), GPClassifier(optimise_hyperparameters=True)
    assert new.fit(LINE, LABELS).elbo_ == old.fit(LINE, LABELS).elbo_ > GPClassifier().fit(LINE, LABELS).elbo_


INTEGRATE = {"hyperparameters": "integrate"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (GPClassifier(hyperparameters="guess"), "must be one of fixed, optimise, integrate"),
        (GPClassifier(**INTEGRATE, num_inducing=5), "num_inducing do not go together"),
        (GPClassifier(**INTEGRATE, optimise_hyperparameters=True), "optimise_hyperparameters do not go"),
        (GPClassifier(hyperparameter_priors={"amplitude": AMPLITUDE}), "are for hyperparameters='integrate'"),
        (GPClassifier(**INTEGRATE, hyperparameter_priors={"scale": NOISE}), "are length_scale, amplitude"),
        (GPClassifier(**INTEGRATE, hyperparameter_priors={"amplitude": 1.0}), "prior of positive numbers"),
        (GPClassifier(**INTEGRATE, hyperparameter_priors={"amplitude": latent.Normal()}), "positive"),
    ],
)
def test_contradictions_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(LINE, LABELS)


def test_what_cannot_be_integrated_says_so():
    with pytest.raises(ValueError, match=r"Student-t.*is not.*'optimise'"):
        GPRegressor(likelihood="student-t", hyperparameters="integrate").fit(LINE, NOISY)
    many = np.arange(LARGEST_INTEGRATED + 1.0)
    with pytest.raises(ValueError, match=r"1001 \(0.1 GiB\). Take hyperparameters='optimise', with num_inducing"):
        GPRegressor(hyperparameters="integrate").fit(many[:, None], many)
    twice, kernel = np.concatenate([LINE, LINE]), SquaredExponential() + White(0.1) + Constant(1.0)
    with pytest.raises(ValueError, match="equal rows"):
        GPRegressor(kernel=kernel, hyperparameters="integrate").fit(twice, np.concatenate([NOISY, NOISY]))
