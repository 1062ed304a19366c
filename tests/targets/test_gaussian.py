"""The Gaussian target against scipy, given by covariance or by precision."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.targets import Gaussian

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[1.3, 0.4, -0.3], [0.4, 0.9, 0.1], [-0.3, 0.1, 0.6]])
VARIANCES = np.array([0.5, 2.0, 1.0])
CASES = {
    "covariance": ({"covariance": COVARIANCE}, COVARIANCE),
    "precision": ({"precision": np.linalg.inv(COVARIANCE)}, COVARIANCE),
    "variances": ({"covariance": VARIANCES}, np.diag(VARIANCES)),
    "precisions": ({"precision": VARIANCES}, np.diag(1 / VARIANCES)),
    "default": ({}, np.eye(3)),
}


@pytest.mark.parametrize("case", CASES)
def test_density_moments_and_constants(case):
    arguments, covariance = CASES[case]
    target = Gaussian(MEAN, **arguments)
    z = np.array([0.3, 0.1, -0.7])
    expected = -stats.multivariate_normal(MEAN, covariance).logpdf(z)
    np.testing.assert_allclose(target.potential(jnp.asarray(z)), expected, rtol=1e-12)
    mean, found = target.exact_posterior()
    np.testing.assert_array_equal(mean, MEAN)
    np.testing.assert_allclose(found, covariance, atol=1e-13)
    eigenvalues = np.linalg.eigvalsh(np.linalg.inv(covariance))
    constants = target.constants
    assert constants.log_concave.value is True
    assert constants.strong_convexity.status == constants.smoothness.status == "proven"
    assert constants.strong_convexity.value <= eigenvalues[0] * (1 + 1e-15)
    assert constants.smoothness.value >= eigenvalues[-1] * (1 - 1e-15)
    values = constants.strong_convexity.value, constants.smoothness.value
    np.testing.assert_allclose(values, eigenvalues[[0, -1]], rtol=1e-11)
    low, high = target.curvature_bounds()
    np.testing.assert_allclose(low, np.linalg.inv(covariance), atol=1e-12)
    assert np.linalg.eigvalsh(high - low)[0] >= 0
    assert target.log_evidence() == 0.0


def test_constants_enclose_an_ill_conditioned_covariance():
    variances = np.geomspace(1e-8, 1e4, 6)
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    for arguments in ({"covariance": basis @ np.diag(variances) @ basis.T}, {"covariance": variances}):
        constants = Gaussian(np.zeros(6), **arguments).constants
        # Forming the covariance already perturbs its smallest eigenvalue by about 1e-12: a relative 1e-4.
        assert 0.999e-4 < constants.strong_convexity.value <= 1.0001e-4
        assert 0.999e8 < constants.smoothness.value < 1.01e8


def test_names():
    assert Gaussian(MEAN).parameter_names == ("z[0]", "z[1]", "z[2]")
    assert Gaussian(MEAN, names=["a", "b", "c"]).parameter_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"mean": [[1.0]]}, "mean"),
        ({"mean": [1.0, np.nan, 1.0]}, "mean"),
        ({"covariance": np.eye(2)}, "covariance"),
        ({"covariance": [1.0]}, "covariance"),
        ({"covariance": -np.eye(3)}, "covariance is not positive definite"),
        ({"covariance": [1.0, -1.0, 1.0]}, "covariance"),
        ({"precision": np.diag([1.0, 0.0, 1.0])}, "precision is not positive definite"),
        ({"covariance": np.eye(3), "precision": np.eye(3)}, "covariance and precision"),
        ({"names": ["a"]}, "names"),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        Gaussian(**({"mean": MEAN} | arguments))
