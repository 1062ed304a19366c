"""What every linear model promises: densities, gradients, constants, mini-batches, no retracing."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from provi.targets import LinearRegression, LogisticRegression, PoissonRegression

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3))
REAL = RNG.normal(size=7)
BINARY = np.array([0, 1, 1, 0, 1, 0, 1])
COUNTS = np.array([0, 3, 1, 0, 12, 2, 5])
MEAN = np.array([0.3, -0.2, 0.1])
COVARIANCE = np.array([[1.3, 0.4, -0.3], [0.4, 0.9, 0.1], [-0.3, 0.1, 0.6]])
PRIOR = {"prior_covariance": COVARIANCE, "prior_mean": MEAN}

MODELS = {
    "linear": lambda **k: LinearRegression(X, REAL, 0.7, **k),
    "logistic": lambda **k: LogisticRegression(X, BINARY, **k),
    "poisson": lambda **k: PoissonRegression(X, COUNTS, **k),
}
LOG_LIKELIHOODS = {
    "linear": lambda eta: stats.norm(eta, 0.7).logpdf(REAL),
    "logistic": lambda eta: stats.bernoulli(special.expit(eta)).logpmf(BINARY),
    "poisson": lambda eta: stats.poisson(np.exp(eta)).logpmf(COUNTS),
}
POINTS = RNG.normal(size=(5, 3))
models = pytest.mark.parametrize("name", MODELS)


@models
def test_potential_against_scipy(name):
    target = MODELS[name](**PRIOR)
    for z in POINTS:
        expected = -stats.multivariate_normal(MEAN, COVARIANCE).logpdf(z) - LOG_LIKELIHOODS[name](X @ z).sum()
        np.testing.assert_allclose(target.potential(jnp.asarray(z)), expected, rtol=1e-12)


@models
def test_terms_are_those_asked_for(name):
    target, z = MODELS[name](), POINTS[0]
    expected = -LOG_LIKELIHOODS[name](X @ z)
    indices = np.array([6, 0, 0, 3])
    terms = target.term_potentials(jnp.asarray(z), jnp.asarray(indices))
    np.testing.assert_allclose(terms, expected[indices], rtol=1e-12)


@models
def test_what_is_proven_and_what_is_not(name):
    constants = MODELS[name](**PRIOR).constants
    assert constants.log_concave.value is True and constants.log_concave.status == "proven"
    assert constants.strong_convexity.status == "proven"
    if name == "poisson":
        assert constants.smoothness.value is None and not constants.smoothness.known
        assert constants.smoothness.reason == "not smooth: the second derivative exp(eta) is unbounded"
        assert MODELS[name](**PRIOR).curvature_bounds()[1] is None
    else:
        assert constants.smoothness.status == "proven"


def test_constants_are_tight():
    linear, logistic = MODELS["linear"](**PRIOR), MODELS["logistic"](**PRIOR)
    precision = np.linalg.inv(COVARIANCE)
    exact = np.linalg.eigvalsh(precision + X.T @ X / 0.49)[[0, -1]]
    found = linear.constants.strong_convexity.value, linear.constants.smoothness.value
    np.testing.assert_allclose(found, exact, rtol=1e-11)
    # The logistic bound is attained at z = 0, where every weight is 1/4, and in the far field.
    at_zero = np.linalg.eigvalsh(jax.hessian(logistic.potential)(jnp.zeros(3)))[-1]
    np.testing.assert_allclose(logistic.constants.smoothness.value, at_zero, rtol=1e-11)
    np.testing.assert_allclose(logistic.constants.strong_convexity.value, np.linalg.eigvalsh(precision)[0], rtol=1e-11)


def test_a_weak_prior_keeps_a_positive_strong_convexity():
    wide = RNG.normal(size=(3, 5)) * 1e4
    target = LinearRegression(wide, np.zeros(3), noise_scale=1e-3, prior_scale=1e3)
    # Two directions see only the prior: 1e-6 next to eigenvalues near 1e15, below rounding.
    assert 0.99e-6 < target.constants.strong_convexity.value <= 1e-6


def test_stable_far_from_the_origin():
    target = LogisticRegression([[1.0], [1.0]], [0, 1])
    terms = target.term_potentials(jnp.asarray([800.0]), jnp.arange(2))
    np.testing.assert_allclose(terms, [800.0, 0.0])
    # log1p(exp(-50)), which a difference of two large numbers would lose.
    tail = target.term_potentials(jnp.asarray([50.0]), jnp.arange(2))[1]
    np.testing.assert_allclose(tail, np.exp(-50.0), rtol=1e-12)
    gradient = jax.grad(lambda z: target.term_potentials(z, jnp.arange(2))[1])(jnp.asarray([-800.0]))
    np.testing.assert_allclose(gradient, [-1.0])


def test_names_and_intercept():
    assert LogisticRegression(X, BINARY).parameter_names == tuple(f"coefficient[{i}]" for i in range(3))
    assert LogisticRegression(X, BINARY, names=["a", "b", "c"]).parameter_names == ("a", "b", "c")
    frame = pd.DataFrame(X.astype(np.float32), columns=["age", "dose", 3])
    target = PoissonRegression(frame, COUNTS, intercept=True)
    assert target.parameter_names == ("intercept", "age", "dose", "3")
    assert target.dim == 4 and target.dtype == jnp.float32
    np.testing.assert_array_equal(target.design[:, 0], np.ones(7))
    np.testing.assert_array_equal(target.design[:, 1:], X.astype(np.float32))
    plain = LinearRegression(X, REAL, intercept=True)
    assert plain.parameter_names == ("intercept", *(f"coefficient[{i}]" for i in range(3)))


def test_labels_may_be_booleans():
    as_bool, as_number = LogisticRegression(X, BINARY.astype(bool)), LogisticRegression(X, BINARY)
    np.testing.assert_array_equal(as_bool.response, as_number.response)
