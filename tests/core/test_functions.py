"""softplus: value and derivatives against closed forms, over the whole range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from provi.targets.likelihoods.bernoulli import softplus

POINTS = jnp.asarray([-800.0, -40.0, -3.0, -1e-9, 0.0, 0.7, 30.0, 800.0])


def test_value_and_derivatives():
    np.testing.assert_allclose(softplus(POINTS), np.logaddexp(0, np.asarray(POINTS)), rtol=1e-14)
    logistic = special.expit(np.asarray(POINTS))
    np.testing.assert_allclose(jax.vmap(jax.grad(softplus))(POINTS), logistic, rtol=1e-14)
    second = jax.vmap(jax.grad(jax.grad(softplus)))(POINTS)
    # s(1 - s) loses the digits that 1 - s has lost: absolute accuracy is what a Hessian needs.
    np.testing.assert_allclose(second, logistic * special.expit(-np.asarray(POINTS)), rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_kept(dtype):
    assert jax.grad(softplus)(jnp.asarray(0.5, dtype)).dtype == dtype
