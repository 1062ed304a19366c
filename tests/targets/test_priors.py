"""Gaussian priors against scipy's densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.targets import gaussian_prior

MEAN = np.array([0.5, -1.0, 2.0])
MATRIX = np.array([[2.0, 0.6, -0.3], [0.6, 1.5, 0.2], [-0.3, 0.2, 0.7]])
POINT = np.array([0.1, 0.4, -0.8])

CASES = {
    "default": ({}, np.eye(3)),
    "scale": ({"scale": 0.3}, 0.09 * np.eye(3)),
    "scales": ({"scale": [0.3, 1.0, 2.0]}, np.diag([0.09, 1.0, 4.0])),
    "variances": ({"covariance": [0.5, 1.0, 2.0]}, np.diag([0.5, 1.0, 2.0])),
    "matrix": ({"covariance": MATRIX}, MATRIX),
}


@pytest.mark.parametrize("case", CASES)
def test_potential_is_the_normalised_density(case):
    arguments, covariance = CASES[case]
    prior = gaussian_prior(3, mean=MEAN, **arguments)
    expected = -stats.multivariate_normal(MEAN, covariance).logpdf(POINT)
    np.testing.assert_allclose(prior.potential(jnp.asarray(POINT)), expected, rtol=1e-13)
    np.testing.assert_allclose(prior.precision_matrix(), np.linalg.inv(covariance), atol=1e-13)
    assert prior.precision_matrix().dtype == np.float64
    factor = prior.covariance_factor()
    np.testing.assert_allclose(factor @ factor.T, covariance, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_strong_convexity_is_rounded_down(case):
    arguments, covariance = CASES[case]
    exact = 1 / np.linalg.eigvalsh(covariance)[-1]
    value = gaussian_prior(3, **arguments).strong_convexity()
    assert value < exact
    np.testing.assert_allclose(value, exact, rtol=1e-12)


def test_precision_rounding_covers_an_ill_conditioned_covariance():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    prior = gaussian_prior(8, covariance=basis @ np.diag(np.geomspace(1e-6, 1e4, 8)) @ basis.T)
    factor = prior.covariance_factor()
    # Extended precision as the oracle: forward substitution on the stored factor.
    inverse = np.zeros((8, 8), np.longdouble)
    for column in range(8):
        for row in range(8):
            known = factor[row, :row].astype(np.longdouble) @ inverse[:row, column]
            inverse[row, column] = ((row == column) - known) / np.longdouble(factor[row, row])
    error = np.abs(prior.precision_matrix() - inverse.T @ inverse).astype(np.float64)
    assert 0 < np.linalg.norm(error) <= prior.precision_rounding()
    assert prior.precision_rounding() < 1e-6 * np.linalg.norm(prior.precision_matrix(), 2)


def test_mean_defaults_to_zero_and_may_be_one_number():
    np.testing.assert_array_equal(gaussian_prior(2).mean, [0.0, 0.0])
    np.testing.assert_array_equal(gaussian_prior(2, mean=3).mean, [3.0, 3.0])


def test_the_value_of_the_scale_is_no_part_of_the_structure():
    first, second = gaussian_prior(3, scale=1.0), gaussian_prior(3, scale=7)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    shapes = [[leaf.shape for leaf in jax.tree.leaves(prior)] for prior in (first, second)]
    assert shapes[0] == shapes[1]


def test_dtype():
    prior = gaussian_prior(2, dtype=jnp.float32)
    assert prior.potential(jnp.zeros(2, jnp.float32)).dtype == jnp.float32
    assert gaussian_prior(2).potential(jnp.zeros(2)).dtype == jnp.float64


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"scale": -1.0}, "prior_scale"),
        ({"scale": 0.0}, "prior_scale"),
        ({"scale": [1.0, -2.0, 1.0]}, "prior_scale"),
        ({"scale": np.nan}, "prior_scale"),
        ({"scale": [1.0, 2.0]}, "prior_scale"),
        ({"scale": np.eye(3)}, "prior_scale"),
        ({"scale": 2.0, "covariance": np.eye(3)}, "prior_scale and prior_covariance"),
        ({"scale": [1.0, 1.0, 1.0], "covariance": np.eye(3)}, "prior_scale and prior_covariance"),
        ({"covariance": np.eye(2)}, "prior_covariance"),
        ({"covariance": 2.0}, "prior_covariance"),
        ({"covariance": [1.0, 0.0, 1.0]}, "prior_covariance"),
        ({"covariance": np.diag([1.0, -1.0, 1.0])}, "prior_covariance is not positive definite"),
        ({"covariance": np.array([[1.0, 2, 0], [0, 1, 0], [0, 0, 1]])}, "prior_covariance is not symmetric"),
        ({"mean": [0.0, 1.0]}, "prior_mean"),
        ({"mean": [0.0, np.inf, 1.0]}, "prior_mean"),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        gaussian_prior(3, **arguments)
