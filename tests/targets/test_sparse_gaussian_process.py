"""The sparse process against dense formulas: the full process, Titsias' closed form, stored against streamed rows."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from scipy.linalg import cholesky, solve_triangular
from scipy.stats import multivariate_normal

import provi
from provi.certificates.linear.bounds import linear_model_bounds
from provi.core.arguments import available_bytes
from provi.diagnostics import exact_negative_elbo
from provi.families import Gaussian, Laplace, LocationScale
from provi.families.location_scale import Point
from provi.kernels import Matern32, SquaredExponential
from provi.targets import row_sums
from provi.targets import sparse_gaussian_process as module
from provi.targets.likelihoods import GaussianNoise, StudentT
from provi.targets.sparse_gaussian_process import SparseGaussianProcess

RNG = np.random.default_rng(3)
X = RNG.uniform(-3, 3, size=(60, 2))
LATENT = np.sin(2 * X[:, 0]) + X[:, 1] / 2
REAL = LATENT + 0.3 * RNG.normal(size=60)
LABELS = (RNG.random(60) < special.expit(2 * LATENT)).astype(int)
KERNEL, ROUGH = SquaredExponential([0.9, 1.4], 1.3), Matern32([0.9, 1.4], 1.3)
NODES = np.linspace(-10, 10, 401)  # 0.05 apart, at deviations of at most 1.3: errors below 1e-12
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


def fitted(target, tol=1e-7):
    found = provi.fit(target, tol=tol, progress=False)
    point = found.posterior.point
    return found, np.asarray(point.loc), np.asarray(point.scale.matrix)


def squared_exponential(a, b):
    """The kernel written apart from the library."""
    scaled = (a[:, None, :] - b[None, :, :]) / np.array([0.9, 1.4])
    return 1.3**2 * np.exp(-0.5 * np.sum(scaled**2, axis=2))


def dense_logistic_process(gram, labels):
    """Mean, covariance and ELBO of the best Gaussian of the full process: the damped fixed point, in NumPy."""
    mean, precision, sign = np.zeros(len(gram)), np.linalg.inv(gram), 1 - 2 * labels
    prior = precision
    for _ in range(100):
        covariance = np.linalg.inv(precision)
        eta = mean[:, None] + np.sqrt(np.diagonal(covariance))[:, None] * NODES
        slope = sign * (special.expit(sign[:, None] * eta) @ WEIGHTS)
        weight = (special.expit(eta) * special.expit(-eta)) @ WEIGHTS
        precision = 0.5 * precision + 0.5 * (prior + np.diag(weight))
        mean = mean - 0.5 * np.linalg.solve(precision, prior @ mean + slope)
    covariance = np.linalg.inv(precision)
    eta = mean[:, None] + np.sqrt(np.diagonal(covariance))[:, None] * NODES
    likelihood = -np.sum(np.logaddexp(0, sign[:, None] * eta) @ WEIGHTS)
    shape = np.trace(prior @ covariance) - len(gram) - np.linalg.slogdet(prior @ covariance)[1]
    return mean, covariance, likelihood - 0.5 * (shape + mean @ prior @ mean)


def test_gaussian_noise_is_titsias_closed_form():
    target = SparseGaussianProcess(X, REAL, 12, KERNEL, GaussianNoise(0.3), relative_jitter=1e-8)
    found, mean, root = fitted(target)
    inducing = np.asarray(target.inducing)
    assert inducing.shape == (12, 2)
    inner = squared_exponential(inducing, inducing) + 1e-8 * 1.69 * np.eye(12)
    cross, full = squared_exponential(X, inducing), squared_exponential(X, X)
    seen = cross @ np.linalg.solve(inner, cross.T)
    bound = multivariate_normal(np.zeros(60), seen + 0.09 * np.eye(60)).logpdf(REAL)
    bound -= np.trace(full - seen) / (2 * 0.09)
    assert found.elbo.value == pytest.approx(bound, abs=1e-6)
    assert found.certificate.status == "proven" and found.certificate.gap < 1e-7
    assert bound < multivariate_normal(np.zeros(60), full + 0.09 * np.eye(60)).logpdf(REAL)
    # q(u) = N(K_zz A^-1 K_zx y/s^2, K_zz A^-1 K_zz), A = K_zz + K_zx K_xz/s^2: its mean and variance at new inputs.
    new = RNG.uniform(-3, 3, size=(7, 2))
    inverse = np.linalg.inv(inner + cross.T @ cross / 0.09)
    ahead = squared_exponential(new, inducing)
    expected = ahead @ inverse @ cross.T @ REAL / 0.09
    left = 1.69 - np.einsum("ij,jk,ik->i", ahead, np.linalg.inv(inner) - inverse, ahead)
    found_mean, found_variance = target.predict_latent(mean, root, new)
    np.testing.assert_allclose(found_mean, expected, atol=1e-6)
    np.testing.assert_allclose(found_variance, left, atol=1e-6)


def test_inducing_points_at_all_inputs_are_the_full_process():
    gram = np.asarray(ROUGH.matrix(X))
    mean, covariance, elbo = dense_logistic_process(gram, LABELS)
    target = SparseGaussianProcess(X, LABELS, X, ROUGH, relative_jitter=1e-10)
    found, loc, root = fitted(target, 1e-14)  # as far as rounding lets it come
    assert found.elbo.value == pytest.approx(elbo, abs=2e-6)
    found_mean, found_variance = target.predict_latent(loc, root, X)
    np.testing.assert_allclose(found_mean, mean, atol=1e-6)
    np.testing.assert_allclose(found_variance, np.diagonal(covariance), atol=1e-6)
    new = RNG.uniform(-3, 3, size=(5, 2))
    ahead = np.asarray(ROUGH.matrix(new, X))
    found_mean, found_variance = target.predict_latent(loc, root, new)
    weights = np.linalg.solve(gram, ahead.T).T
    np.testing.assert_allclose(found_mean, weights @ mean, atol=1e-6)
    left = 1.69 - np.einsum("ij,ij->i", weights, ahead) + np.einsum("ij,jk,ik->i", weights, covariance, weights)
    np.testing.assert_allclose(found_variance, left, atol=1e-6)
    # Fewer points lose something.
    assert fitted(SparseGaussianProcess(X, LABELS, 12, ROUGH))[0].elbo.value < elbo - 0.01


def test_features_are_the_conditional_law():
    target = SparseGaussianProcess(X, LABELS, 9, KERNEL, relative_jitter=1e-8)
    inducing = np.asarray(target.inducing)
    factor = cholesky(squared_exponential(inducing, inducing) + 1e-8 * 1.69 * np.eye(9), lower=True)
    features = solve_triangular(factor, squared_exponential(inducing, X), lower=True).T
    np.testing.assert_allclose(target.design, features, atol=1e-8)
    left = 1.69 - np.sum(features**2, axis=1)
    np.testing.assert_allclose(target.variance_offset, np.maximum(left, 0), atol=1e-8)
    # The potential's terms: the mean over the noise of each row.
    z = RNG.normal(size=9)
    eta = (features @ z)[:, None] + np.sqrt(np.maximum(left, 0))[:, None] * NODES
    terms = np.logaddexp(0, (1 - 2 * LABELS)[:, None] * eta) @ WEIGHTS
    np.testing.assert_allclose(target.term_potentials(jnp.asarray(z), slice(None)), terms, atol=1e-7)
    total = terms.sum() + 0.5 * z @ z + 4.5 * np.log(2 * np.pi)
    assert float(target.potential(jnp.asarray(z))) == pytest.approx(total, abs=1e-6)
    low, high = target.curvature_bounds()
    assert high is not None
    hessian = np.eye(9) + features.T @ (((special.expit(eta) * special.expit(-eta)) @ WEIGHTS)[:, None] * features)
    assert np.linalg.eigvalsh(hessian - low)[0] > -1e-9 and np.linalg.eigvalsh(high - hessian)[0] > 0


def test_streamed_blocks_give_what_the_table_gives(monkeypatch):
    monkeypatch.setattr(row_sums, "_NUMBERS_IN_CACHE", 0)
    monkeypatch.setattr(row_sums, "_FEWEST_ROWS", 17)  # 60 rows: four blocks, the last one overlapping
    stored, streamed = (SparseGaussianProcess(X, LABELS, 8, KERNEL, stream=flag) for flag in (False, True))
    assert stored.design is not None and streamed.design is None
    z = jnp.asarray(RNG.normal(size=8))
    assert float(stored.potential(z)) == pytest.approx(float(streamed.potential(z)), rel=1e-12)
    found, again = fitted(stored, 1e-4)[0], fitted(streamed, 1e-4)[0]
    assert found.certificate.gap < 1e-4 and again.certificate.gap < 1e-4
    point = again.posterior.point
    np.testing.assert_allclose(found.posterior.point.loc, point.loc, atol=1e-9)
    reached = float(exact_negative_elbo(streamed, Gaussian(8), point))
    assert -found.elbo.value == pytest.approx(reached, abs=1e-5)
    assert -again.elbo.value == pytest.approx(reached, abs=1e-5)
    moved = Point(point.loc + 0.01, point.scale)
    bounds = [
        [bound.value for bound in linear_model_bounds(target, Gaussian(8), moved)] for target in (stored, streamed)
    ]
    np.testing.assert_allclose(*bounds, rtol=1e-6)


def test_choice_of_inducing_points():
    """Greedy: the largest variance that is left is less than with random points, and the choice is repeatable."""
    first, again = (SparseGaussianProcess(X, LABELS, 10, KERNEL, seed=1) for _ in range(2))
    np.testing.assert_array_equal(first.inducing, again.inducing)
    random = [SparseGaussianProcess(X, LABELS, X[RNG.choice(60, 10, replace=False)], KERNEL) for _ in range(10)]
    assert np.max(first.offset) < min(np.max(other.offset) for other in random)
    # Four distinct inputs determine everything: no fifth point is taken.
    repeated = SparseGaussianProcess(np.repeat(X[:4], 5, axis=0), np.tile([0, 1], 10), 9, KERNEL)
    assert repeated.dim == 4 and np.isfinite(repeated.design).all()


def test_float32_inputs():
    target = SparseGaussianProcess(X.astype(np.float32), LABELS, 12, ROUGH)
    assert target.dtype == jnp.float32 and target.design.dtype == jnp.float32
    double = fitted(SparseGaussianProcess(X, LABELS, np.asarray(target.inducing), ROUGH, relative_jitter=1e-4), 0.01)[0]
    # The potential is the integrand of a bound, not a posterior: no distance to one is claimed.
    assert double.certificate.kl is None and double.certificate.gap <= 0.01
    found, mean, root = fitted(target, 0.01)
    assert found.elbo.value == pytest.approx(double.elbo.value, abs=0.02)
    assert np.isfinite(target.predict_latent(mean, root, X)[1]).all()


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match="log_concave=True"):
        SparseGaussianProcess(X, REAL, 5, KERNEL, StudentT(4.0, 1.0))
    with pytest.raises(ValueError, match="inducing has 1 columns"):
        SparseGaussianProcess(X, LABELS, X[:5, :1], KERNEL)
    with pytest.raises(ValueError, match="inducing must be at least 1"):
        SparseGaussianProcess(X, LABELS, 0, KERNEL)
    with pytest.raises(ValueError, match="larger relative_jitter"):
        SparseGaussianProcess(X, LABELS, np.zeros((5, 2)), KERNEL, relative_jitter=0.0)
    with pytest.raises(ValueError, match="NaN"):
        SparseGaussianProcess(np.where(X > 2, np.nan, X), LABELS, 5, KERNEL)
    target = SparseGaussianProcess(X, LABELS, 5, KERNEL)
    with pytest.raises(ValueError, match="Gaussian family"):
        provi.fit(target, LocationScale(5, Laplace()), progress=False)
    with pytest.raises(ValueError, match="X_new has 1 columns"):
        target.predict_latent(np.zeros(5), np.eye(5), X[:, :1])
    assert available_bytes() > 2**20
    monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="stream=False needs"):
        SparseGaussianProcess(X, LABELS, 5, KERNEL, stream=False)
    assert SparseGaussianProcess(X, LABELS, 5, KERNEL).design is None
