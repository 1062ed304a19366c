"""Second derivatives of kernels where points coincide, a kink, and both modes; tests/laws has the gradients of all."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.kernels import (
    Matern12,
    Matern32,
    Matern52,
    SquaredExponential,
    log_parameters,
    with_log_parameters,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(9, 3))
X[6:] = X[:3]
WEIGHTS = RNG.normal(size=(9, 9))
ARD = np.array([0.6, 1.3, 2.2])
KERNELS = {"squared exponential, ARD": SquaredExponential(ARD, 1.4), "matern 5/2, ARD": Matern52(ARD, 1.4)}


@eqx.filter_jit
def weighted_sum(kernel, vector, X, weights):
    """A fixed linear function of the covariances."""
    return jnp.sum(weights * with_log_parameters(kernel, vector).matrix(X))


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


@pytest.mark.parametrize("name", KERNELS)
def test_forward_mode_agrees_with_reverse_mode(name):
    arguments = (KERNELS[name], jnp.asarray(log_parameters(KERNELS[name])), jnp.asarray(X), WEIGHTS)
    forward, reverse = (mode(weighted_sum, argnums=1)(*arguments) for mode in (jax.jacfwd, jax.grad))
    np.testing.assert_allclose(forward, reverse, rtol=1e-12, atol=1e-13)
