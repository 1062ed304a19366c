"""The floating type follows the data, whatever the user's global JAX setting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.precision import double_precision
from provi.targets import (
    Gaussian,
    HierarchicalLogisticRegression,
    LinearRegression,
    LogDensity,
    LogisticRegression,
    PoissonRegression,
    Whitened,
)

RNG = np.random.default_rng(5)
X, Y, GROUPS = RNG.normal(size=(6, 2)), np.array([0, 1, 1, 0, 1, 0]), np.array([0, 0, 1, 1, 2, 2])

TARGETS = {
    "linear": lambda dtype: LinearRegression(X.astype(dtype), Y, 0.5, prior_covariance=np.diag([1.0, 2.0])),
    "logistic": lambda dtype: LogisticRegression(X.astype(dtype), Y),
    "poisson": lambda dtype: PoissonRegression(X.astype(dtype), Y),
    "hierarchical": lambda dtype: HierarchicalLogisticRegression(X.astype(dtype), Y, GROUPS),
    "gaussian": lambda dtype: Gaussian(np.zeros(2, dtype), np.eye(2)),
    "log density": lambda dtype: LogDensity(lambda z: -0.5 * jnp.sum(z**2), 2, dtype=dtype),
    "whitened": lambda dtype: Whitened(LogisticRegression(X.astype(dtype), Y), np.zeros(2), np.eye(2)),
}


@double_precision
def entry_point(target):
    z = jnp.full(target.dim, 0.1, target.dtype)
    value, gradient = jax.value_and_grad(target.potential)(z)
    return value, gradient


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TARGETS)
def test_double_precision_is_off_globally(name, dtype):
    reference = float(entry_point(TARGETS[name](np.float64))[0])
    with jax.enable_x64(False):
        assert jnp.zeros(1).dtype == jnp.float32
        target = TARGETS[name](dtype)
        value, gradient = entry_point(target)
        constants = target.constants
        assert jnp.zeros(1).dtype == jnp.float32
    assert target.dtype == value.dtype == gradient.dtype == dtype
    np.testing.assert_allclose(float(value), reference, rtol=1e-5 if dtype == np.float32 else 1e-14)
    assert constants.log_concave.value is None or constants.log_concave.value is True


def test_estimates_are_made_in_double_precision():
    with jax.enable_x64(False):
        target = LogDensity(lambda z: -0.5 * jnp.sum(z**2) / 3, 4).estimate_smoothness(0, 2)
    np.testing.assert_allclose(target.constants.smoothness.value, 1 / 3, rtol=1e-14)


def test_integers_and_lists_take_the_default():
    with jax.enable_x64(False):
        assert LogisticRegression([[1, 2], [3, 4]], [0, 1]).dtype == jnp.float64
        assert LogisticRegression(np.array([[1, 2], [3, 4]]), [False, True]).dtype == jnp.float64
        assert LogisticRegression(np.ones((2, 1), np.float16), [0, 1]).dtype == jnp.float32
