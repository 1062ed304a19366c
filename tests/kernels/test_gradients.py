"""Derivatives of kernels against finite differences and closed forms, also where points coincide."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.kernels import (
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    SquaredExponential,
    White,
    log_parameters,
    with_log_parameters,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(9, 3))
X[6:] = X[:3]
Z = RNG.normal(size=(4, 3))
WEIGHTS = RNG.normal(size=(9, 9))
ARD = np.array([0.6, 1.3, 2.2])
KERNELS = {
    "squared exponential": SquaredExponential(0.7, 1.4),
    "squared exponential, ARD": SquaredExponential(ARD, 1.4),
    "matern 1/2, ARD": Matern12(ARD, 1.4),
    "matern 3/2": Matern32(0.7, 1.4),
    "matern 5/2, ARD": Matern52(ARD, 1.4),
    "periodic, ARD": Periodic(ARD, ARD + 0.5, 1.4),
    "mixture": SquaredExponential(0.7, columns=(0, 2)) * Linear(ARD, 0.6) + Matern12(0.9) + White(0.4) + 0.3,
}


@eqx.filter_jit
def weighted_sum(kernel, vector, X, Z, weights):
    """A fixed linear function of the covariances."""
    return jnp.sum(weights * with_log_parameters(kernel, vector).matrix(X, Z))


gradients_within = eqx.filter_jit(jax.grad(weighted_sum, argnums=(1, 2)))
gradients_between = eqx.filter_jit(jax.grad(weighted_sum, argnums=(2, 3)))


def central_differences(function, point, step=1e-5):
    """(f(x + h e) - f(x - h e)) / 2h for each entry: error h^2 f'''/6 + eps f/h, both about 1e-10 here."""
    flat = np.asarray(point, np.float64).ravel()
    moves = np.eye(flat.size) * step
    values = [function((flat + m).reshape(point.shape)) - function((flat - m).reshape(point.shape)) for m in moves]
    return np.array(values).reshape(point.shape) / (2 * step)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_where_points_coincide(name):
    # X with itself: the diagonal, and the three points that occur twice, are at distance zero.
    kernel, vector = KERNELS[name], log_parameters(KERNELS[name])
    in_parameters, in_points = gradients_within(kernel, jnp.asarray(vector), jnp.asarray(X), None, WEIGHTS)
    expected = central_differences(
        lambda v: weighted_sum(kernel, jnp.asarray(v), jnp.asarray(X), None, WEIGHTS), vector
    )
    np.testing.assert_allclose(in_parameters, expected, rtol=1e-7, atol=1e-7)
    assert np.isfinite(in_points).all()
    if name not in ("matern 1/2, ARD", "mixture"):
        # These are differentiable there, too; Matern 1/2 has a kink.
        expected = central_differences(
            lambda x: weighted_sum(kernel, jnp.asarray(vector), jnp.asarray(x), None, WEIGHTS), X
        )
        np.testing.assert_allclose(in_points, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", KERNELS)
def test_input_gradients_between_different_points(name):
    kernel, weights, vector = KERNELS[name], WEIGHTS[:5, :4], jnp.asarray(log_parameters(KERNELS[name]))
    left, right = jnp.asarray(X[:5]), jnp.asarray(Z)
    gradients = gradients_between(kernel, vector, left, right, weights)
    expected_left = central_differences(lambda x: weighted_sum(kernel, vector, jnp.asarray(x), right, weights), X[:5])
    expected_right = central_differences(lambda z: weighted_sum(kernel, vector, left, jnp.asarray(z), weights), Z)
    np.testing.assert_allclose(gradients[0], expected_left, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(gradients[1], expected_right, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "curvature"), [(SquaredExponential, 1.0), (Matern32, 3.0), (Matern52, 5 / 3)], ids=["se", "3/2", "5/2"]
)
def test_second_derivative_at_zero_distance(kind, curvature):
    """-k''(0) = a^2 c / l^2: the variance of the derivative of the process."""
    origin = jnp.asarray([0.3])
    hessian = eqx.filter_jit(jax.hessian(lambda x, kernel, z: kernel.matrix(x[None, :], z)[0, 0]))
    value = hessian(origin, kind(0.5, 2.0), origin[None, :])
    np.testing.assert_allclose(value, [[-4 * curvature / 0.25]], rtol=1e-12)


def test_matern_12_gradient_at_a_kink_is_zero():
    gradient = jax.grad(lambda x: Matern12(0.5).matrix(x, jnp.asarray([[0.3]]))[0, 0])(jnp.asarray([[0.3]]))
    assert gradient == 0


@pytest.mark.parametrize("name", ["squared exponential, ARD", "matern 5/2, ARD"])
def test_forward_mode_agrees_with_reverse_mode(name):
    arguments = (KERNELS[name], jnp.asarray(log_parameters(KERNELS[name])), jnp.asarray(X), None, WEIGHTS)
    forward = jax.jacfwd(weighted_sum, argnums=1)(*arguments)
    np.testing.assert_allclose(forward, gradients_within(*arguments)[0], rtol=1e-12, atol=1e-13)


def test_float32_gradients_are_float32_and_finite():
    points = jnp.asarray(X, jnp.float32)
    gradient = eqx.filter_jit(jax.grad(lambda x: jnp.sum(Matern12(0.7).matrix(x))))(points)
    assert gradient.dtype == jnp.float32 and np.isfinite(gradient).all()
