"""The mode and the factor against independent computations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms.natural.laplace import laplace_approximation
from provi.targets import LinearRegression, LogDensity, LogisticRegression


def test_gaussian_posterior_is_exact():
    rng = np.random.default_rng(0)
    design = rng.normal(size=(40, 4))
    target = LinearRegression(design, rng.normal(size=40), noise_scale=0.7)
    mean, covariance = target.exact_posterior()
    found = laplace_approximation(target, np.zeros(4))
    np.testing.assert_allclose(found.mode, mean, atol=1e-5)
    np.testing.assert_allclose(found.factor @ found.factor.T, covariance, rtol=1e-8)
    assert found.converged


def test_logistic_mode_has_no_gradient():
    rng = np.random.default_rng(1)
    design = rng.normal(size=(80, 3))
    target = LogisticRegression(design, rng.integers(0, 2, 80))
    found = laplace_approximation(target, np.zeros(3))
    gradient = jax.grad(target.potential)(jnp.asarray(found.mode))
    assert float(jnp.linalg.norm(gradient)) < 1e-3
    hessian = jax.hessian(target.potential)(jnp.asarray(found.mode))
    np.testing.assert_allclose(found.factor.T @ np.asarray(hessian) @ found.factor, np.eye(3), atol=1e-8)


def test_diagonal_uses_the_diagonal_of_the_hessian():
    precision = np.array([[2.0, 0.9], [0.9, 5.0]])
    target = LogDensity(lambda z: -0.5 * z @ jnp.asarray(precision) @ z, 2)
    found = laplace_approximation(target, np.ones(2), diagonal=True)
    np.testing.assert_allclose(found.factor**-2, np.diag(precision), rtol=1e-10)


@pytest.mark.parametrize("diagonal", [False, True])
def test_negative_curvature_still_gives_a_factor(diagonal):
    # A double well, started on its ridge: the Hessian there is indefinite.
    target = LogDensity(lambda z: -((z[0] ** 2 - 1) ** 2) - z[1] ** 2 / 2, 2)
    found = laplace_approximation(target, np.zeros(2), diagonal=diagonal)
    diagonal = found.factor if diagonal else np.diag(found.factor)
    assert np.isfinite(found.factor).all() and (diagonal > 0).all()


def test_many_dimensions_use_the_diagonal_only():
    precision = np.linspace(1.0, 9.0, 1500)
    target = LogDensity(lambda z: -0.5 * jnp.sum(jnp.asarray(precision) * z**2), 1500)
    found = laplace_approximation(target, np.ones(1500))
    assert found.factor.shape == (1500,)
    # The Hessian is diagonal, so v * H v with random signs v is exact.
    np.testing.assert_allclose(found.factor**-2, precision, rtol=1e-10)
