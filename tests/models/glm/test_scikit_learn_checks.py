"""scikit-learn's own checks: all of them with stand-in fits, those of odd data with real ones.

A real fit compiles for two seconds in each of seventeen shapes. What the checks ask for is the interface, for which a
posterior by Newton's method in NumPy is as good; real fits are compared with oracles in the files beside this one.
"""

import dataclasses
import functools
import warnings

import numpy as np
import pytest
from scipy.special import expit
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

import provi
from provi.families import Gaussian
from provi.models import GLM, LinearRegression, LogisticRegression, PoissonRegression, StudentTRegression
from provi.result import Posterior
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise, Poisson

pytestmark = pytest.mark.usefixtures("quick_compilation")

REAL = [
    estimator_checks.check_fit2d_1sample,
    estimator_checks.check_fit2d_1feature,
    estimator_checks.check_classifiers_one_label,
    estimator_checks.check_estimators_dtypes,
    estimator_checks.check_fit_idempotent,
]


class PoissonOfRoundedResponses(PoissonRegression):
    """The checks have real responses, which no count can be."""

    def fit(self, X, y, sample_weight=None):
        try:
            return super().fit(X, np.rint(y), sample_weight)
        except TypeError:  # y is no array of numbers: theirs to refuse
            return super().fit(X, y, sample_weight)


def rate_and_weight(likelihood, eta):
    """E[y] and its derivative; the noise has unit scale."""
    if isinstance(likelihood, Poisson):
        return np.exp(eta), np.exp(eta)
    if isinstance(likelihood, BernoulliLogit):
        return expit(eta), expit(eta) * expit(-eta)
    return eta, np.ones_like(eta)


def newton_fit(target, *, tol, seed, progress):
    """Laplace's approximation of a linear model, as a `Fit`; of a Student-t regression where its runs begin."""
    if isinstance(target, provi.targets.StudentTRegression):
        family = Gaussian(target.dim)
        point = family.point(target.default_location, 0.1, target.dtype)
        return dataclasses.replace(a_fit(), posterior=Posterior(family, point, target.parameter_names), target=target)
    design, y = np.asarray(target.design, float), np.asarray(target.observed_data["y"], float)
    each = np.ones(len(y)) if target.weights is None else np.asarray(target.weights, float)
    precision, prior_mean = target.prior.precision_matrix(), np.asarray(target.prior.mean, float)
    mean, hessian = np.zeros(target.dim), precision
    for _ in range(100):
        rate, weight = rate_and_weight(target.likelihood.plain, design @ mean)
        hessian = precision + design.T @ ((each * weight)[:, None] * design)
        move = np.linalg.solve(hessian, precision @ (prior_mean - mean) + design.T @ (each * (y - rate)))
        mean = mean + move / max(1, np.abs(design @ move).max())
    family = Gaussian(target.dim)
    point = family.point(mean, np.linalg.cholesky(np.linalg.inv(hessian)), target.dtype)
    return dataclasses.replace(a_fit(), posterior=Posterior(family, point, target.parameter_names), target=target)


@functools.cache
def a_fit():
    """A real one, for everything of a `Fit` that is not the posterior."""
    return provi.fit(provi.targets.LinearRegression(np.ones((2, 1)), np.ones(2)), progress=False)


def run_checks(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check_estimator(model, on_skip=None, on_fail=None)


def failures(results):
    return [(result["check_name"], result["exception"]) for result in results if result["status"] == "failed"]


MODELS = [LogisticRegression(), LinearRegression(), GLM(GaussianNoise()), PoissonOfRoundedResponses()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_all_checks_pass_with_stand_in_fits(model, monkeypatch):
    monkeypatch.setattr("provi.models.glm.estimator.fit", newton_fit)
    results = run_checks(model)
    assert not failures(results)
    assert sum(result["status"] == "passed" for result in results) > 48


@pytest.mark.parametrize("check", REAL, ids=lambda check: check.__name__)
def test_checks_with_odd_data_pass_with_real_fits(check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check("LogisticRegression", LogisticRegression())


def test_where_counts_fail_it_is_because_their_responses_are_none(monkeypatch):
    monkeypatch.setattr("provi.models.glm.estimator.fit", newton_fit)
    failed = failures(run_checks(PoissonRegression()))
    assert failed
    for name, error in failed:
        assert "y must hold counts" in str(error), name


def test_where_robust_regression_fails_it_is_because_their_data_have_no_noise(monkeypatch):
    """Points on a plane, or fewer of them than columns and each several times: sigma has no posterior."""
    monkeypatch.setattr("provi.models.glm.estimator.fit", newton_fit)
    results = run_checks(StudentTRegression())
    failed = failures(results)
    assert failed and sum(result["status"] == "passed" for result in results) > 44
    for name, error in failed:
        told = f"{error} {error.__context__}"  # scikit-learn wraps some errors into its own words
        assert "X explains y without any residual" in told or "there is no posterior" in told, name
