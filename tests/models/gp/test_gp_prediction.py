"""Latent predictions against dense formulae, and predictive laws against quadrature."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.families import Gaussian
from provi.families.dual_gaussian import DualPoint
from provi.kernels import Linear, Matern32, SquaredExponential
from provi.result import predictors as gp_prediction
from provi.result.predictors import (
    exact_predictor,
    label_log_odds,
    log_predictive_densities,
    predict_latent,
    response_means,
    sparse_predictor,
)
from provi.targets import GaussianProcess, SparseGaussianProcess
from provi.targets.likelihoods import BernoulliLogit, Poisson, StudentT

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
NEW = RNG.normal(size=(70, 2))
KERNEL = SquaredExponential(0.7, 1.5) + Linear(0.3)
LABELS = (X[:, 0] > 0).astype(float)


def dense(target, a, s, new):
    """mu + k'a and k** - k'(K + S^-1)^-1 k with (K + S^-1)^-1 = S (I + K S)^-1, by a general solve."""
    gram, cross = np.asarray(target.gram), np.asarray(target.kernel.matrix(np.asarray(target.inputs), new))
    inner = np.diag(s) @ np.linalg.solve(np.eye(len(s)) + gram @ np.diag(s), cross)
    variance = np.asarray(target.kernel.diagonal(new)) - np.sum(cross * inner, axis=0)
    return float(target.mean) + cross.T @ a, variance


@pytest.mark.parametrize("smallest", [0.0, -0.05])
def test_latent_moments_equal_the_dense_formulae_also_with_negative_sites(smallest):
    likelihood = BernoulliLogit() if smallest == 0 else StudentT()
    target = GaussianProcess(X, LABELS, KERNEL, likelihood, jitter=1e-3, mean=0.4)
    a, s = RNG.normal(size=12), RNG.uniform(smallest, 2.0, 12)
    s[:3] = smallest
    predictor = exact_predictor(target, DualPoint(jnp.asarray(a), jnp.asarray(s)))
    assert (predictor.negative is None) == (smallest == 0)
    mean, variance = predict_latent(predictor, NEW)
    expected = dense(target, a, s, NEW)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(variance, expected[1], rtol=1e-10)


def test_a_posterior_that_is_not_positive_definite_is_an_error():
    target = GaussianProcess(X, LABELS, KERNEL, StudentT())
    point = DualPoint(jnp.zeros(12), jnp.full(12, -10.0))
    with pytest.raises(ValueError, match="increase jitter"):
        exact_predictor(target, point)


def test_blocks_change_nothing_and_stay_small(monkeypatch):
    target = GaussianProcess(X, LABELS, KERNEL)
    predictor = exact_predictor(target, DualPoint(jnp.asarray(RNG.normal(size=12)), jnp.full(12, 0.5)))
    many = RNG.normal(size=(200, 2))
    whole = predict_latent(predictor, many)
    sizes = []
    compiled = gp_prediction._latent
    monkeypatch.setattr(gp_prediction, "_NUMBERS_AT_ONCE", 12 * 64)
    monkeypatch.setattr(gp_prediction, "_latent", lambda p, block: sizes.append(len(block)) or compiled(p, block))
    parts = predict_latent(predictor, many)
    assert sizes == [64, 64, 64, 64]
    np.testing.assert_allclose(parts, whole, rtol=1e-13, atol=1e-13)


def test_the_prior_is_predicted_without_sites_and_the_data_with_exact_ones():
    target = GaussianProcess(X, LABELS, Matern32(0.8, 2.0), jitter=0.0)
    zero = jnp.zeros(12)
    mean, variance = predict_latent(exact_predictor(target, DualPoint(zero, zero)), NEW)
    np.testing.assert_allclose(mean, 0)
    np.testing.assert_allclose(variance, 4.0)
    values = RNG.normal(size=12)
    dual = jnp.asarray(np.linalg.solve(np.asarray(target.gram), values))
    mean, variance = predict_latent(exact_predictor(target, DualPoint(dual, zero + 1e12)), X)
    np.testing.assert_allclose(mean, values, rtol=1e-9)
    np.testing.assert_allclose(variance, 0, atol=1e-10)


def test_sparse_predictions_equal_those_of_the_target():
    target = SparseGaussianProcess(X, LABELS, 5, KERNEL)
    root = np.tril(RNG.normal(size=(5, 5))) / 4 + np.eye(5)
    point = Gaussian(5).point(RNG.normal(size=5), root)
    found = predict_latent(sparse_predictor(target, point), NEW)
    np.testing.assert_allclose(found, target.predict_latent(point.loc, root, NEW), rtol=1e-9, atol=1e-12)


def test_float32_stays_float32():
    target = GaussianProcess(X.astype(np.float32), LABELS, KERNEL, jitter=1e-3)
    a, s = RNG.normal(size=12).astype(np.float32), RNG.uniform(0, 2, 12).astype(np.float32)
    mean, variance = predict_latent(exact_predictor(target, DualPoint(jnp.asarray(a), jnp.asarray(s))), NEW)
    assert mean.dtype == variance.dtype == np.float32
    expected = dense(target, a.astype(float), s.astype(float), NEW.astype(np.float32))
    np.testing.assert_allclose(mean, expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(variance, expected[1], rtol=1e-3, atol=1e-4)


def test_predictive_laws_by_quadrature():
    mean, variance = np.asarray([-2.0, 0.3, 1.0]), np.asarray([0.5, 4.0, 1e-3])
    u = np.linspace(-12, 12, 20001)
    weight, f = stats.norm.pdf(u) * (u[1] - u[0]), mean[:, None] + np.sqrt(variance)[:, None] * u[None, :]
    probability = (weight / (1 + np.exp(-f))).sum(axis=1)
    odds = label_log_odds(BernoulliLogit(), mean, variance)
    np.testing.assert_allclose(odds, np.log(probability / (1 - probability)), rtol=1e-9)
    np.testing.assert_allclose(response_means(BernoulliLogit(), mean, variance), probability, atol=1e-8)
    counts = np.asarray([0.0, 3.0, 2.0])
    found = log_predictive_densities(Poisson(), mean, variance, counts)
    expected = np.log((weight * stats.poisson.pmf(counts[:, None], np.exp(f))).sum(axis=1))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_wrong_inputs_are_named():
    predictor = exact_predictor(GaussianProcess(X, LABELS), DualPoint(jnp.zeros(12), jnp.zeros(12)))
    with pytest.raises(ValueError, match="X has 3 columns"):
        predict_latent(predictor, np.zeros((2, 3)))
    with pytest.raises(ValueError, match="X has 1 entries that are NaN"):
        predict_latent(predictor, np.asarray([[0.0, np.nan]]))
