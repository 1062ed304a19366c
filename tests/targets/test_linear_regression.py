"""The exact posterior and evidence of linear regression, by independent routes."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.targets import LinearRegression

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(9, 3)), RNG.normal(size=9)
MEAN = np.array([1.0, -0.5, 0.2])
COVARIANCE = np.array([[1.3, 0.4, -0.3], [0.4, 0.9, 0.1], [-0.3, 0.1, 0.6]])
TARGET = LinearRegression(X, Y, 0.6, prior_covariance=COVARIANCE, prior_mean=MEAN)


def test_posterior_by_conditioning_the_joint_gaussian():
    # z and y are jointly Gaussian: condition on y in the data space, no precision matrix involved.
    marginal = 0.36 * np.eye(9) + X @ COVARIANCE @ X.T
    gain = np.linalg.solve(marginal, X @ COVARIANCE).T
    mean, covariance = TARGET.exact_posterior()
    np.testing.assert_allclose(mean, MEAN + gain @ (Y - X @ MEAN), rtol=1e-12)
    np.testing.assert_allclose(covariance, COVARIANCE - gain @ X @ COVARIANCE, atol=1e-14)


@pytest.mark.parametrize("shape", ["matrix", "diagonal", "scalar"])
def test_evidence_is_the_marginal_density_of_the_data(shape):
    arguments = {
        "matrix": {"prior_covariance": COVARIANCE},
        "diagonal": {"prior_scale": np.array([0.5, 1.0, 2.0])},
        "scalar": {"prior_scale": 1.7},
    }[shape]
    covariance = {"matrix": COVARIANCE, "diagonal": np.diag([0.25, 1.0, 4.0]), "scalar": 2.89 * np.eye(3)}[shape]
    target = LinearRegression(X, Y, 0.6, prior_mean=MEAN, **arguments)
    marginal = stats.multivariate_normal(X @ MEAN, 0.36 * np.eye(9) + X @ covariance @ X.T)
    assert target.log_evidence() == pytest.approx(marginal.logpdf(Y), rel=1e-12)


def test_potential_is_posterior_times_evidence():
    mean, covariance = TARGET.exact_posterior()
    posterior = stats.multivariate_normal(mean, covariance)
    for z in RNG.normal(size=(4, 3)):
        expected = -posterior.logpdf(z) - TARGET.log_evidence()
        np.testing.assert_allclose(TARGET.potential(jnp.asarray(z)), expected, rtol=1e-12)
