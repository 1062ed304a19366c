"""Gaussians in the form in which other packages return them: fakes with the same names and attributes.

The real packages are not installed here. With NumPyro 0.22.0, PyMC 5.28.5, BlackJAX 1.7.1 and SciPy 1.17.1 the
moments were compared once with those of 40,000 draws by the packages' own samplers.
"""

import types
from collections import namedtuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.certificates.approximations import as_gaussian
from provi.families import Gaussian, Laplace, LocationScale
from provi.result import Posterior

MEAN = np.array([0.5, -0.3, 0.2])
ROOT = np.array([[1.0, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.2, 0.1, 0.9]])
COVARIANCE = ROOT @ ROOT.T
VARIANCES = np.array([0.5, 2.0, 3.0])

MFVIState = namedtuple("MFVIState", "mu rho opt_state")
FRVIState = namedtuple("FRVIState", "mu chol_params opt_state")
PathfinderState = namedtuple("PathfinderState", "elbo position grad_position alpha beta gamma")


def fake(name, **attributes):
    """An object of a class called `name`."""
    return type(name, (types.SimpleNamespace,), {})(**attributes)


class Symbolic:
    """A PyTensor variable, whose value is found by `eval`."""

    def __init__(self, value):
        self.value = value

    def eval(self):
        return self.value


def check_moments(q, covariance, mean=MEAN, rtol=1e-12):
    found = as_gaussian(q, 3)
    assert all(array.dtype == np.float64 for array in found)
    np.testing.assert_allclose(found[0], mean, rtol=rtol)
    assert found[1].shape == covariance.shape
    np.testing.assert_allclose(found[1], covariance, rtol=rtol, atol=1e-12)


def test_pairs_and_plain_objects():
    check_moments((MEAN, COVARIANCE), COVARIANCE)
    check_moments([MEAN.tolist(), VARIANCES.tolist()], VARIANCES)
    check_moments((jnp.asarray(MEAN), jnp.asarray(VARIANCES)), VARIANCES)
    check_moments(types.SimpleNamespace(mean=MEAN, covariance=COVARIANCE), COVARIANCE)
    check_moments(stats.multivariate_normal(MEAN, COVARIANCE), COVARIANCE, rtol=1e-9)
    check_moments(stats.multivariate_normal(MEAN, np.diag(VARIANCES)), np.diag(VARIANCES), rtol=1e-9)


def test_single_precision_covariances_need_not_be_symmetric_to_the_last_digit():
    rounded = COVARIANCE.astype(np.float32)
    rounded[0, 1] *= 1 + np.float32(1e-6)
    mean, covariance = as_gaussian((MEAN.astype(np.float32), rounded), 3)
    np.testing.assert_array_equal(covariance, covariance.T)
    np.testing.assert_allclose(covariance, COVARIANCE, rtol=2e-6)
    with pytest.raises(ValueError, match="covariance of q is not symmetric"):
        as_gaussian((MEAN, rounded.astype(np.float64)), 3)


def test_provi():
    full, diagonal = Gaussian(3), Gaussian(3, "diagonal")
    names = ("a", "b", "c")
    posterior = Posterior(full, full.point(MEAN, ROOT), names)
    check_moments(posterior, COVARIANCE)
    check_moments(fake("Fit", posterior=posterior), COVARIANCE)
    check_moments(Posterior(diagonal, diagonal.point(MEAN, np.sqrt(VARIANCES)), names), VARIANCES)
    heavy = LocationScale(3, Laplace())
    with pytest.raises(ValueError, match="laplace"):
        as_gaussian(Posterior(heavy, heavy.point(MEAN, ROOT), names), 3)


def test_numpyro_distributions():
    normal = fake("Normal", loc=jnp.asarray(MEAN), scale=jnp.sqrt(VARIANCES), mean=jnp.asarray(MEAN))
    check_moments(normal, VARIANCES)
    check_moments(fake("Independent", base_dist=normal, mean=jnp.asarray(MEAN)), VARIANCES)
    check_moments(fake("Normal", loc=MEAN, scale=2.0), np.full(3, 4.0))
    check_moments(fake("MultivariateNormal", loc=jnp.asarray(MEAN), scale_tril=jnp.asarray(ROOT)), COVARIANCE)
    factor = np.array([[0.3], [0.1], [-0.2]])
    low_rank = fake("LowRankMultivariateNormal", loc=MEAN, cov_factor=factor, cov_diag=VARIANCES)
    check_moments(low_rank, np.diag(VARIANCES) + factor @ factor.T)


def test_pymc_approximations():
    deviations = Symbolic(np.sqrt(VARIANCES))
    check_moments(fake("MeanField", mean=Symbolic(MEAN), std=deviations, cov=Symbolic(np.diag(VARIANCES))), VARIANCES)
    check_moments(fake("FullRank", mean=Symbolic(MEAN), std=deviations, cov=Symbolic(COVARIANCE)), COVARIANCE)


def test_blackjax_states():
    """Positions are pytrees, flattened with the keys in order."""
    position = {"b": jnp.asarray(MEAN[2:]), "a": jnp.asarray(MEAN[:2])}
    rho = {"b": jnp.log(VARIANCES[2:]) / 2, "a": jnp.log(VARIANCES[:2]) / 2}
    check_moments(MFVIState(position, rho, None), VARIANCES)
    entries = np.concatenate([np.log(np.diagonal(ROOT)), [ROOT[1, 0], ROOT[2, 0], ROOT[2, 1]]])
    check_moments(FRVIState(position, jnp.asarray(entries), None), COVARIANCE)
    beta, gamma = np.array([[0.4, 0.1], [0.2, -0.3], [0.0, 0.5]]), np.array([[0.5, 0.1], [0.1, 0.4]])
    covariance = np.diag(VARIANCES) + beta @ gamma @ beta.T
    gradient = np.array([0.2, -0.1, 0.4])
    state = PathfinderState(0.0, position, {"b": gradient[2:], "a": gradient[:2]}, VARIANCES, beta, gamma)
    check_moments(state, covariance, mean=MEAN + covariance @ gradient)
    with pytest.raises(ValueError, match="one step"):
        as_gaussian(state._replace(alpha=np.ones((5, 3))), 3)
    with pytest.raises(ValueError, match="chol_params has 5"):
        as_gaussian(FRVIState(position, entries[:5], None), 3)


@pytest.mark.parametrize(
    "q",
    [
        fake("Laplace", loc=MEAN, scale=1.0),
        fake("MultivariateStudentT", loc=MEAN, scale_tril=ROOT, df=5.0),
        fake("TransformedDistribution", base_dist=fake("Normal", loc=MEAN, scale=1.0)),
        fake("Empirical", mean=Symbolic(MEAN), cov=Symbolic(COVARIANCE)),
        namedtuple("MultipathfinderState", "path_states samples")(None, None),
        stats.multivariate_t(MEAN, COVARIANCE, 5),
        stats.norm(0, 1),
        MEAN,
        "gaussian",
        None,
    ],
    ids=lambda q: type(q).__name__,
)
def test_refuses_what_is_not_known_to_be_gaussian(q):
    with pytest.raises(TypeError, match="multivariate_normal.*NumPyro.*PyMC.*BlackJAX"):
        as_gaussian(q, 3)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        ((MEAN, COVARIANCE, 1.0), "3 entries; pass the pair"),
        ((MEAN[:2], COVARIANCE), r"mean of q has shape \(2,\).*dimension 3.*parameter_names"),
        ((MEAN, np.ones(2)), r"covariance of q has shape \(2,\)"),
        ((MEAN, 1.0), r"covariance of q has shape \(\)"),
        (([0.0, np.nan, 0.0], COVARIANCE), "mean of q has 1 entries that are NaN"),
        ((MEAN, np.full((3, 3), np.inf)), "covariance of q has 9 entries"),
        ((MEAN, np.diag([1.0, 1.0, -1.0])), "covariance of q is not positive definite"),
        ((MEAN, [1.0, 0.0, 1.0]), "variances of q must be positive"),
        ((MEAN, "x"), "covariance of q must hold numbers"),
        (fake("MultivariateNormal", loc=MEAN, scale_tril=np.zeros((3, 3))), "not positive definite"),
    ],
)
def test_bad_numbers_name_q_and_the_remedy(q, message):
    with pytest.raises(ValueError, match=message):
        as_gaussian(q, 3)
