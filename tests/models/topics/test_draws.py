"""The standardised draws: their moments, their sharing, and what a draw from q is."""

import jax.numpy as jnp
import numpy as np
from scipy.stats import kstest

from provi.models.topics.corpus import CHUNK
from provi.models.topics.draws import base_draws, draws_from, no_draws, normal_pairs


def check_moments(points, chances, size):
    """Mean zero, covariance one, and the fourth moment of the radius, K(K + 2)."""
    np.testing.assert_allclose(chances.sum(), 1, rtol=1e-14)
    np.testing.assert_allclose(chances @ points, 0, atol=1e-13)
    np.testing.assert_allclose(points.T @ (points * chances[:, None]), np.eye(size), atol=1e-13)
    np.testing.assert_allclose(chances @ np.sum(points**2, axis=1) ** 2, size * (size + 2), rtol=1e-13)


def test_draws_have_the_moments_of_a_normal():
    points, chances = (np.asarray(x) for x in base_draws(np.random.default_rng(0), 16, 4))
    for one in points:
        check_moments(one, chances, 4)
    assert np.abs(points[0] - points[1]).max() > 0.1 and np.abs(points[0, 1:9] - points[0, 9:]).max() > 0.1


def test_shared_draws_are_the_same_for_all_documents():
    points, chances = (np.asarray(x) for x in base_draws(np.random.default_rng(0), 16, 4, shared=True))
    np.testing.assert_array_equal(points, np.broadcast_to(points[0], (CHUNK, 17, 4)))
    check_moments(points[0], chances, 4)


def test_other_numbers_of_draws_keep_the_chances_and_the_radius():
    """Five draws of four topics: not a full block, and still zero and points of one radius."""
    points, chances = (np.asarray(x) for x in base_draws(np.random.default_rng(0), 5, 4, np.float32))
    assert points.shape == (CHUNK, 6, 4) and points.dtype == chances.dtype == np.float32
    np.testing.assert_allclose(chances.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(np.sum(points**2, axis=2), np.tile([0, 6, 6, 6, 6, 6], (CHUNK, 1)), rtol=1e-5)


def test_no_draws_is_the_mean():
    points, chances = no_draws(3, np.float32)
    mean, root = np.asarray([1.0, 2.0, 3.0], np.float32), np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(chances, 1)
    np.testing.assert_array_equal(draws_from(jnp.asarray(mean), jnp.asarray(root), points[0]), mean[None])


def test_pairs_are_antithetic_normals():
    """Kolmogorov's distance of 3000 independent numbers from the normal, false-alarm rate 1e-6."""
    pairs = np.asarray(normal_pairs(np.random.default_rng(0), (5, 400, 3), np.float64))
    np.testing.assert_array_equal(pairs[:, 200:], -pairs[:, :200])
    assert kstest(pairs[:, :200].ravel(), "norm").pvalue > 1e-6


def test_draws_have_the_covariance_of_q():
    rng = np.random.default_rng(1)
    mean, root = rng.normal(size=4), np.tril(rng.normal(size=(4, 4)))
    points, chances = (np.asarray(x) for x in base_draws(rng, 8, 4))
    for factor in (root, np.abs(np.diag(root))):
        z = np.asarray(draws_from(jnp.asarray(mean), jnp.asarray(factor), jnp.asarray(points[0])))
        matrix = np.diag(factor) if factor.ndim == 1 else factor
        np.testing.assert_allclose(chances @ z, mean, rtol=1e-12)
        spread = (z - mean).T @ (chances[:, None] * (z - mean))
        np.testing.assert_allclose(spread, matrix @ matrix.T, rtol=1e-10, atol=1e-13)
