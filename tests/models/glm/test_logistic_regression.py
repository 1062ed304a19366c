"""The logistic-regression estimator against an ELBO written in NumPy, scikit-learn's maximum, and integration."""

import pickle

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import integrate, optimize, special, stats
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression as MaximumLikelihood
from sklearn.model_selection import cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import provi
from provi.models import LogisticRegression

pytestmark = pytest.mark.usefixtures("quick_compilation")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 2))
LABELS = np.where(RNG.random(60) < special.expit(0.7 + 1.5 * X[:, 0] - X[:, 1]), "yes", "no")
NEW = np.concatenate([RNG.normal(size=(40, 2)), [[30.0, -20.0], [-60.0, 40.0]]])


@pytest.fixture(scope="module")
def fitted():
    return LogisticRegression([2.0, 0.5], intercept_scale=3.0, prior_mean=[0.0, 0.3], tol=1e-6).fit(X, LABELS)


def negative_elbo(packed, design, y, prior_mean, prior_sd):
    """Of N(m, CC'), by Gauss-Hermite quadrature with 40 nodes; `packed` is m and the lower triangle of C."""
    dim = design.shape[1]
    mean, factor = packed[:dim], np.zeros((dim, dim))
    factor[np.tril_indices(dim)] = packed[dim:]
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    spread = np.linalg.norm(design @ factor, axis=1)
    eta = (design @ mean)[:, None] + spread[:, None] * nodes[None, :]
    data = (np.logaddexp(0, (1 - 2 * y)[:, None] * eta) @ weights).sum() / np.sqrt(2 * np.pi)
    covariance = factor @ factor.T
    prior = ((mean - prior_mean) ** 2 + np.diag(covariance)) / prior_sd**2
    entropy = np.log(np.abs(np.diag(factor))).sum() + dim / 2
    return data + 0.5 * prior.sum() + np.log(prior_sd).sum() - entropy


def test_the_posterior_maximises_an_elbo_written_in_numpy(fitted):
    design, y = np.column_stack([np.ones(60), X]), (LABELS == "yes").astype(float)
    start = np.concatenate([np.zeros(3), np.eye(3)[np.tril_indices(3)]])
    arguments = design, y, np.asarray([0.0, 0.0, 0.3]), np.asarray([3.0, 2.0, 0.5])
    best = optimize.minimize(negative_elbo, start, arguments, method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(fitted.elbo_, -best.fun, atol=2e-6)
    factor = np.zeros((3, 3))
    factor[np.tril_indices(3)] = best.x[3:]
    np.testing.assert_allclose(np.concatenate([fitted.intercept_, fitted.coef_[0]]), best.x[:3], atol=1e-3)
    np.testing.assert_allclose(fitted.fit_.posterior.covariance, factor @ factor.T, atol=1e-3)
    deviations = np.concatenate([fitted.intercept_sd_, fitted.coef_sd_[0]])
    np.testing.assert_allclose(deviations, np.linalg.norm(factor, axis=1), atol=1e-3)
    assert fitted.coef_.shape == fitted.coef_sd_.shape == (1, 2) and fitted.intercept_.shape == (1,)
    assert fitted.certificate_.status == "proven" and 0 <= fitted.certificate_.gap <= 1e-6
    assert fitted.certificate_ is fitted.fit_.certificate and fitted.n_iter_ > 0


def test_many_rows_and_a_wide_prior_give_the_maximum_of_the_likelihood():
    rows = RNG.normal(size=(20_000, 2))
    labels = RNG.random(20_000) < special.expit(0.5 + rows @ [1.0, -2.0])
    ours = LogisticRegression(100.0, intercept_scale=100.0, tol=1e-5).fit(rows, labels)
    theirs = MaximumLikelihood(C=np.inf, tol=1e-8).fit(rows, labels)
    weight = theirs.predict_proba(rows).prod(axis=1)
    design = np.column_stack([np.ones(len(rows)), rows])
    deviation = np.sqrt(np.diag(np.linalg.inv(design.T @ (weight[:, None] * design))))
    # Mean and maximum differ by O(1/N), a standard deviation is O(1/sqrt N).
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=0.1 * deviation.min())
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=0.1 * deviation.min())
    np.testing.assert_allclose(np.concatenate([ours.intercept_sd_, ours.coef_sd_[0]]), deviation, rtol=0.01)
    assert list(ours.classes_) == [False, True] and ours.score(rows, labels) == theirs.score(rows, labels)


def test_probabilities_are_averages_over_the_posterior(fitted):
    posterior = fitted.fit_.posterior
    design = np.column_stack([np.ones(len(NEW)), NEW])
    mean, variance = fitted.predict_latent(NEW)
    np.testing.assert_allclose(mean, design @ posterior.mean, rtol=1e-12)
    np.testing.assert_allclose(variance, np.einsum("ni,ij,nj->n", design, posterior.covariance, design), rtol=1e-10)
    probability, plug_in = fitted.predict_proba(NEW), special.expit(mean)
    for row in range(0, len(NEW), 7):
        law = stats.norm(mean[row], np.sqrt(variance[row]))
        ends = law.mean() - 10 * law.std(), law.mean() + 10 * law.std()
        integral = integrate.quad(lambda t, law=law: special.expit(t) * law.pdf(t), *ends, epsabs=1e-12)[0]
        np.testing.assert_allclose(probability[row, 1], integral, atol=1e-9)
    assert np.abs(probability[:, 1] - plug_in).max() > 0.01  # the average is something else
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-14)
    odds = fitted.decision_function(NEW)
    np.testing.assert_allclose(special.expit(odds), probability[:, 1], rtol=1e-12)
    np.testing.assert_allclose(fitted.predict_log_proba(NEW), np.log(probability), rtol=1e-9, atol=1e-15)
    np.testing.assert_array_equal(fitted.predict(NEW), np.where(odds > 0, "yes", "no"))


def test_pipelines_frames_and_cross_validation():
    frame = pd.DataFrame(X * [3.0, 0.1] + 5, columns=["dose", "age"])
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    scores = cross_val_score(pipeline, frame, LABELS, cv=3)
    assert scores.shape == (3,) and scores.min() > 0.6
    model = LogisticRegression().fit(frame, LABELS)
    assert list(model.feature_names_in_) == ["dose", "age"]
    assert model.fit_.posterior.names == ("intercept", "dose", "age")
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"age": "height"}))


def test_more_columns_than_rows_without_a_matrix_of_their_size():
    wide = RNG.normal(size=(12, 30))
    matrix = 0.5 * np.eye(30) + 0.1
    model = LogisticRegression(prior_covariance=matrix).fit(wide, np.arange(12) % 2)
    assert model.certificate_.gap <= 0.01 and model.fit_.posterior.family.scale == "dual"
    new = RNG.normal(size=(5, 30))
    design, posterior = np.column_stack([np.ones(5), new]), model.fit_.posterior
    mean, variance = model.predict_latent(new)
    np.testing.assert_allclose(mean, design @ posterior.mean, rtol=1e-10)
    np.testing.assert_allclose(variance, np.einsum("ni,ij,nj->n", design, posterior.covariance, design), rtol=1e-9)


def test_no_intercept_and_float32():
    without = LogisticRegression(1.0, fit_intercept=False).fit(X.astype(np.float32), LABELS)
    assert without.coef_.dtype == without.predict_proba(NEW).dtype == np.float32
    assert without.intercept_ == 0 and without.intercept_sd_ == 0 and without.coef_.shape == (1, 2)
    assert without.certificate_.status == "proven" and without.certificate_.gap <= 0.01
    found = provi.fit(provi.targets.LogisticRegression(X.astype(np.float32), LABELS == "yes"), progress=False)
    np.testing.assert_array_equal(found.posterior.mean, without.coef_[0])


def test_one_class_many_classes_and_wrong_arguments(fitted):
    one = clone(fitted).fit(X, np.full(60, "same"))
    assert (one.predict(NEW) == "same").all() and (one.predict_proba(NEW) == 1).all()
    assert (one.predict_log_proba(NEW) == 0).all() and one.predict_proba(NEW).shape == (42, 1)
    with pytest.raises(ValueError, match=r"OneVsRestClassifier\(LogisticRegression\(\)\)"):
        LogisticRegression().fit(X, np.arange(60) % 3)
    wrapped = OneVsRestClassifier(clone(fitted)).fit(X, np.arange(60) % 3)
    assert wrapped.predict_proba(NEW).shape == (42, 3)
    broken = X.copy()
    broken[2, 1] = np.nan
    for wrong, message in [
        ({"prior_scale": [1.0, 1.0, 1.0]}, r"prior_scale must be a number or have shape \(2,\).*intercept_scale"),
        ({"prior_scale": -1.0}, "prior_scale must be positive"),
        ({"prior_scale": 2.0, "prior_covariance": np.eye(2)}, "both given"),
        ({"prior_covariance": np.eye(3)}, r"prior_covariance must have shape \(2,\) or \(2, 2\)"),
        ({"prior_mean": [1.0]}, "prior_mean must be"),
        ({"intercept_scale": 0.0}, "intercept_scale must be a positive number"),
        ({"tol": 0.0}, "tol must be a positive number"),
    ]:
        with pytest.raises(ValueError, match=message):
            LogisticRegression(**wrong).fit(X, LABELS)
    with pytest.raises(ValueError, match="NaN"):
        LogisticRegression().fit(broken, LABELS)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        LogisticRegression().fit(X, LABELS[1:])


def test_clone_parameters_and_pickle_also_without_64_bits(fitted):
    copy = clone(fitted)
    assert copy.get_params()["prior_scale"] == [2.0, 0.5] and not hasattr(copy, "coef_")
    assert copy.set_params(tol=0.2).tol == 0.2
    stored = pickle.dumps(fitted)
    with jax.enable_x64(False):
        again = pickle.loads(stored)
        probability = again.predict_proba(NEW)
    np.testing.assert_array_equal(probability, fitted.predict_proba(NEW))
    assert again.certificate_.gap == fitted.certificate_.gap and again.elbo_ == fitted.elbo_
    assert again.fit_.target is None and fitted.fit_.target is not None
