"""The Gaussian-process classifier against scikit-learn's, brute-force integration, and scikit-learn's own checks."""

import pickle
import warnings

import jax
import numpy as np
import pytest
from scipy import integrate, special, stats
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.estimator_checks import check_estimator

from provi.kernels import Matern52, SquaredExponential
from provi.models import GPClassifier
from provi.runtime.record import Outcome
from provi.targets.likelihoods import BernoulliProbit

RNG = np.random.default_rng(2)
X = RNG.normal(size=(30, 2))
LABELS = np.where(X[:, 0] + 0.4 * RNG.normal(size=30) > 0, "yes", "no")
NEW = RNG.normal(size=(50, 2))


def check_certified(model):
    assert model.fit_.outcome is Outcome.TOLERANCE
    assert 0 <= model.certificate_.gap <= model.tol
    assert model.certificate_.status == "proven"


@pytest.fixture(scope="module")
def fitted():
    return GPClassifier(0.8, 1.3).fit(X, LABELS)


def test_close_to_the_laplace_approximation_of_scikit_learn(fitted):
    theirs = GaussianProcessClassifier(ConstantKernel(1.69) * RBF(0.8), optimizer=None).fit(X, LABELS)
    check_certified(fitted)
    # Laplace's method is an approximation of its own: close, not equal; its evidence is no bound.
    np.testing.assert_allclose(fitted.predict_proba(NEW), theirs.predict_proba(NEW), atol=0.03)
    np.testing.assert_allclose(fitted.elbo_, theirs.log_marginal_likelihood_value_, atol=0.3)
    assert (fitted.predict(NEW) == theirs.predict(NEW)).mean() > 0.95
    assert list(fitted.classes_) == ["no", "yes"] and fitted.n_features_in_ == 2
    assert fitted.score(X, LABELS) > 0.8


def test_scores_agree_with_each_other(fitted):
    odds, probability = fitted.decision_function(NEW), fitted.predict_proba(NEW)
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(special.logit(probability[:, 1]), odds, rtol=1e-10)
    mean, variance = fitted.predict_latent(NEW)
    assert (np.sign(mean) == np.sign(odds)).all() and (variance > 0).all() and (variance <= 1.69).all()
    np.testing.assert_array_equal(fitted.predict(NEW), np.where(mean > 0, "yes", "no"))


def test_elbo_and_probability_against_brute_force_on_two_points():
    points, labels, kernel = np.asarray([[0.0], [0.7]]), np.asarray([1, 0]), SquaredExponential(1.0, 1.5)
    model = GPClassifier(kernel=kernel, jitter=0.0, tol=1e-8).fit(points, labels)
    gram = np.asarray(kernel.matrix(points))
    prior = stats.multivariate_normal(np.zeros(2), gram)

    def joint(second, first):
        return prior.pdf([first, second]) * special.expit(first) * special.expit(-second)

    evidence = integrate.dblquad(joint, -9, 9, -9, 9, epsabs=1e-9)[0]
    # The ELBO is log evidence minus KL(q || posterior), which is small here and never negative.
    assert np.log(evidence) - 0.01 < model.elbo_ < np.log(evidence)
    mean = integrate.dblquad(lambda s, f: f * joint(s, f), -9, 9, -9, 9, epsabs=1e-9)[0] / evidence
    np.testing.assert_allclose(model.fit_.posterior.mean[0], mean, atol=0.02)


def test_kernels_likelihoods_and_their_clashes():
    probit = GPClassifier(kernel=Matern52(0.8, 1.3), likelihood="probit").fit(X, LABELS)
    same = GPClassifier(kernel=Matern52(0.8, 1.3), likelihood=BernoulliProbit()).fit(X, LABELS)
    check_certified(probit)
    assert probit.elbo_ == same.elbo_ and isinstance(probit.kernel_, Matern52)
    mean, variance = probit.predict_latent(NEW)
    np.testing.assert_allclose(probit.predict_proba(NEW)[:, 1], stats.norm.cdf(mean / np.sqrt(1 + variance)), rtol=1e-9)
    with pytest.raises(ValueError, match="kernel and length_scale are both given"):
        GPClassifier(length_scale=2.0, kernel=Matern52()).fit(X, LABELS)
    with pytest.raises(ValueError, match="kernel must be a kernel"):
        GPClassifier(kernel="rbf").fit(X, LABELS)
    with pytest.raises(ValueError, match="likelihood must be 'logit', 'probit'"):
        GPClassifier(likelihood="cauchit").fit(X, LABELS)
    with pytest.raises(ValueError, match="length_scale has 3 entries"):
        GPClassifier([1.0, 1.0, 1.0]).fit(X, LABELS)


def test_hyperparameters_are_learnt_with_one_length_scale_a_column():
    model = GPClassifier([1.0, 1.0], optimise_hyperparameters=True, random_state=0).fit(X, LABELS)
    fixed = GPClassifier([1.0, 1.0]).fit(X, LABELS)
    check_certified(model)
    assert model.elbo_ > fixed.elbo_ + 1
    # Only the first column matters: the length scale of the second one grows.
    assert model.kernel_.length_scale[1] > 3 * model.kernel_.length_scale[0]
    assert model.length_scale == [1.0, 1.0]


def test_few_inducing_points_lose_little(fitted):
    few = GPClassifier(0.8, 1.3, num_inducing=15).fit(X, LABELS)
    check_certified(few)
    # The sparse ELBO is below that of the exact process, whose own is within `tol` of its best.
    assert fitted.elbo_ - 3 < few.elbo_ < fitted.elbo_ + fitted.certificate_.gap
    np.testing.assert_allclose(few.predict_proba(NEW), fitted.predict_proba(NEW), atol=0.1)
    with pytest.raises(ValueError, match="num_inducing must be at most 2000"):
        GPClassifier(num_inducing=2001).fit(X, LABELS)


@pytest.mark.parametrize("length_scale", [1e-6, 1e6])
def test_extreme_length_scales_and_repeated_rows(length_scale):
    rows = np.repeat(X[:6], 2, axis=0)
    labels = np.asarray([0, 1, 1, 1, 0, 0] * 2)
    model = GPClassifier(length_scale, jitter=0.0).fit(rows, labels)
    check_certified(model)
    probability = model.predict_proba(NEW)[:, 1]
    assert np.isfinite(probability).all()
    # Nothing is learnt for new rows at the one end; one number for all rows at the other.
    np.testing.assert_allclose(probability, 0.5 if length_scale < 1 else probability[0], atol=1e-6)


def test_one_class_one_row_many_classes_and_nan():
    one = GPClassifier().fit(X[:12], np.full(12, "same"))
    check_certified(one)
    assert (one.predict(NEW) == "same").all() and (one.predict_proba(NEW) == 1).all()
    assert one.predict_proba(NEW).shape == (50, 1)
    single = GPClassifier(0.5, jitter=0.0, tol=1e-8).fit([[0.3]], [1])
    # E log sigmoid(f) under f ~ N(0, 1) bounds it from below, the log of P(y = 1) = 1/2 from above.
    assert -0.806 < single.elbo_ < np.log(0.5)
    with pytest.raises(ValueError, match="OneVsRestClassifier"):
        GPClassifier().fit(X[:6], [0, 1, 2, 0, 1, 2])
    wrapped = OneVsRestClassifier(GPClassifier()).fit(X[:12], np.arange(12) % 3)
    assert wrapped.predict_proba(NEW).shape == (50, 3)
    broken = X[:6].copy()
    broken[2, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        GPClassifier().fit(broken, LABELS[:6])


def test_too_many_rows_for_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("provi.models.gp.estimators.available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="num_inducing=500"):
        GPClassifier().fit(X, LABELS)


def test_clone_parameters_and_pickle_also_without_64_bits(fitted):
    copy = clone(GPClassifier(kernel=Matern52(0.1), tol=0.1))
    assert copy.get_params()["tol"] == 0.1 and copy.kernel.length_scale.dtype == np.float64
    assert copy.set_params(tol=0.2).tol == 0.2
    stored = pickle.dumps(fitted)
    with jax.enable_x64(False):
        again = pickle.loads(stored)
    np.testing.assert_array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))
    assert again.certificate_.gap == fitted.certificate_.gap and again.elbo_ == fitted.elbo_


def test_float32_data_stay_float32(fitted):
    model = GPClassifier(0.8, 1.3).fit(X.astype(np.float32), LABELS)
    assert model.fit_.posterior.point.dual_mean.dtype == np.float32
    np.testing.assert_allclose(model.predict_proba(NEW), fitted.predict_proba(NEW), atol=1e-3)


@pytest.mark.slow
def test_scikit_learn_checks_pass():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(GPClassifier(), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert sum(result["status"] == "passed" for result in results) > 50
