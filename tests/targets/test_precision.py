"""What has no floating type of its own takes the default; estimates are made in double precision."""

import jax
import jax.numpy as jnp
import numpy as np

from provi.targets import (
    LogDensity,
    LogisticRegression,
)


def test_estimates_are_made_in_double_precision():
    with jax.enable_x64(False):
        target = LogDensity(lambda z: -0.5 * jnp.sum(z**2) / 3, 4).estimate_smoothness(0, 2)
    np.testing.assert_allclose(target.constants.smoothness.value, 1 / 3, rtol=1e-14)


def test_integers_and_lists_take_the_default():
    with jax.enable_x64(False):
        assert LogisticRegression([[1, 2], [3, 4]], [0, 1]).dtype == jnp.float64
        assert LogisticRegression(np.array([[1, 2], [3, 4]]), [False, True]).dtype == jnp.float64
        assert LogisticRegression(np.ones((2, 1), np.float16), [0, 1]).dtype == jnp.float32
