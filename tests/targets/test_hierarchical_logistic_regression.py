"""Hierarchical logistic regression: density, constants, order of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from provi.targets import Gaussian, HierarchicalLogisticRegression

RNG = np.random.default_rng(2)
X = RNG.normal(size=(8, 2))
Y = np.array([0, 1, 1, 0, 1, 0, 1, 1])
GROUPS = np.array(["b", "a", "c", "a", "b", "c", "c", "a"])
INDEX = np.array([1, 0, 2, 0, 1, 2, 2, 0])
S, T = 1.5, 0.6
TARGET = HierarchicalLogisticRegression(X, Y, GROUPS, prior_scale=S, group_scale=T)


def log_joint(z):
    common, local = z[:2], z[2:].reshape(3, 2)
    prior = stats.norm(0, S).logpdf(common).sum() + stats.norm(common, T).logpdf(local).sum()
    eta = [X[n] @ local[INDEX[n]] for n in range(8)]
    return prior, stats.bernoulli(special.expit(eta)).logpmf(Y)


def test_potential_against_scipy():
    for z in RNG.normal(size=(5, 8)):
        prior, terms = log_joint(z)
        np.testing.assert_allclose(TARGET.prior_potential(jnp.asarray(z)), -prior, rtol=1e-12)
        np.testing.assert_allclose(TARGET.potential(jnp.asarray(z)), -prior - terms.sum(), rtol=1e-12)
        some = TARGET.term_potentials(jnp.asarray(z), jnp.asarray([7, 2]))
        np.testing.assert_allclose(some, -terms[[7, 2]], rtol=1e-12)


def test_strong_convexity_is_that_of_the_joint_prior():
    prior = np.asarray(jax.hessian(TARGET.prior_potential)(jnp.zeros(8)))
    eigenvalues = np.linalg.eigvalsh(prior)
    constants = TARGET.constants
    assert constants.strong_convexity.status == constants.smoothness.status == "proven"
    np.testing.assert_allclose(constants.strong_convexity.value, eigenvalues[0], rtol=1e-12)
    grams = [X[INDEX == g].T @ X[INDEX == g] for g in range(3)]
    data = max(np.linalg.eigvalsh(gram)[-1] for gram in grams)
    np.testing.assert_allclose(constants.smoothness.value, eigenvalues[-1] + data / 4, rtol=1e-12)
    np.testing.assert_allclose(TARGET.curvature_bounds()[0], prior, atol=1e-13)


S_MATRIX = np.array([[2.0, 0.9], [0.9, 0.5]])
T_MATRIX = np.array([[0.3, -0.2], [-0.2, 0.9]])


@pytest.mark.parametrize("how", ["matrices", "scales of columns", "a number and a matrix", "far apart"])
def test_covariances_of_columns_against_scipy_and_brute_force(how):
    """Corollary 28 where S and T are no multiples of I: density, constants, curvature bounds and the linear form."""
    far = 1e-8 * T_MATRIX
    given, S_of, T_of = {
        "matrices": ({"prior_covariance": S_MATRIX, "group_covariance": T_MATRIX}, S_MATRIX, T_MATRIX),
        "scales of columns": (
            {"prior_scale": [2.0, 0.5], "group_scale": [0.1, 1.0]}, np.diag([4.0, 0.25]), np.diag([0.01, 1.0])
        ),
        "a number and a matrix": ({"prior_scale": S, "group_covariance": T_MATRIX}, S**2 * np.eye(2), T_MATRIX),
        "far apart": ({"prior_covariance": S_MATRIX, "group_covariance": far}, S_MATRIX, far),
    }[how]  # fmt: skip
    target = HierarchicalLogisticRegression(X, Y, GROUPS, **given)
    linear, rng = target.linear_model(), np.random.default_rng(5)
    for z in rng.normal(size=(3, 8)):
        common, local = z[:2], z[2:].reshape(3, 2)
        prior = stats.multivariate_normal(np.zeros(2), S_of).logpdf(common)
        prior += sum(stats.multivariate_normal(common, T_of).logpdf(own) for own in local)
        np.testing.assert_allclose(target.prior_potential(jnp.asarray(z)), -prior, rtol=1e-9)
        np.testing.assert_allclose(linear.potential(jnp.asarray(z)), target.potential(jnp.asarray(z)), rtol=1e-9)
    hessian = np.asarray(jax.hessian(target.prior_potential)(jnp.zeros(8)))
    # The joint covariance by its definition: Cov(z_g, z_h) = S, and T more where g = h.
    covariance = np.kron(np.ones((4, 4)), S_of) + np.kron(np.diag([0.0, 1.0, 1.0, 1.0]), T_of)
    eigenvalues = np.linalg.eigvalsh(hessian)  # of a density that is SciPy's, above
    constants, data = target.constants, max(np.linalg.eigvalsh(X[INDEX == g].T @ X[INDEX == g])[-1] for g in range(3))
    mu, most = constants.strong_convexity, constants.smoothness
    assert mu.status == most.status == "proven"
    largest = 1 / np.linalg.eigvalsh(covariance)[-1]
    assert mu.value <= largest * (1 + 1e-14) and mu.value == pytest.approx(largest, rel=1e-11)
    assert most.value == pytest.approx(eigenvalues[-1] + data / 4, rel=1e-11)
    assert most.value >= (eigenvalues[-1] + data / 4) * (1 - 1e-14)
    low, high = target.curvature_bounds()
    size = np.abs(hessian).max()
    np.testing.assert_allclose(low, hessian, rtol=0, atol=1e-11 * size)
    assert np.linalg.eigvalsh(hessian - low)[0] >= -1e-15 * size
    whole = np.asarray(jax.hessian(target.potential)(jnp.asarray(rng.normal(size=8))))
    assert np.linalg.eigvalsh(whole - low)[0] >= -1e-14 * size and np.linalg.eigvalsh(high - whole)[0] >= -1e-14 * size


def test_matrices_that_are_multiples_of_the_identity_are_the_same_model():
    other = HierarchicalLogisticRegression(
        X, Y, GROUPS, prior_covariance=S**2 * np.eye(2), group_covariance=T**2 * np.eye(2)
    )
    z = jnp.asarray(np.random.default_rng(6).normal(size=8))
    np.testing.assert_allclose(other.potential(z), TARGET.potential(z), rtol=1e-13)
    for name in ("strong_convexity", "smoothness"):
        ours, theirs = getattr(other.constants, name).value, getattr(TARGET.constants, name).value
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_covariances_that_are_none_are_refused_by_name():
    bad = {"group_covariance": -np.eye(2)}, {"group_covariance": np.eye(3)}, {"group_scale": [1.0, 2.0, 3.0]}
    for given in bad:
        with pytest.raises(ValueError, match="group_(covariance|scale)"):
            HierarchicalLogisticRegression(X, Y, GROUPS, **given)
    with pytest.raises(ValueError, match="group_scale and group_covariance were both given"):
        HierarchicalLogisticRegression(X, Y, GROUPS, group_scale=2.0, group_covariance=np.eye(2))


def test_names_follow_the_parameter_vector():
    assert TARGET.dim == 8 and TARGET.num_terms == 8
    expected = ("theta[0]", "theta[1]", "z[a,0]", "z[a,1]", "z[b,0]", "z[b,1]", "z[c,0]", "z[c,1]")
    assert TARGET.parameter_names == expected


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"groups": GROUPS[:5]}, "groups"),
        ({"groups": np.where(INDEX == 0, np.nan, INDEX)}, "groups"),
        ({"groups": [None, *GROUPS[1:]]}, "groups"),
        ({"groups": INDEX[:, None]}, "groups"),
        ({"groups": np.array([1, "a", *INDEX[2:]], dtype=object)}, "groups"),
        ({"y": 2 * Y - 1}, "y"),
        ({"prior_scale": -1.0}, "prior_scale"),
        ({"group_scale": 0.0}, "group_scale"),
        ({"X": np.full((8, 2), np.nan)}, "X"),
    ],
)
def test_wrong_arguments_are_named(change, name):
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        HierarchicalLogisticRegression(**({"X": X, "y": Y, "groups": GROUPS} | change))


@pytest.mark.parametrize(("prior_scale", "group_scale"), [(1.5, 0.6), (0.2, 3.0), (100.0, 0.01)])
def test_linear_model_is_the_same_density(prior_scale, group_scale):
    target = HierarchicalLogisticRegression(X, Y, GROUPS, prior_scale, group_scale)
    model = target.linear_model()
    assert model.design.shape == (8, 8) and model.parameter_names == target.parameter_names
    for z in RNG.normal(size=(5, 8)):
        z = jnp.asarray(z)
        np.testing.assert_allclose(model.potential(z), target.potential(z), rtol=1e-13)
        np.testing.assert_allclose(model.prior_potential(z), target.prior_potential(z), rtol=1e-13)
        some = jnp.asarray([7, 2, 2])
        np.testing.assert_allclose(model.term_potentials(z, some), target.term_potentials(z, some), rtol=1e-13)


def test_prior_covariance_of_the_linear_model():
    factor = TARGET.linear_model().prior.covariance_factor()
    expected = np.full((4, 4), S**2) + np.diag([0.0, T**2, T**2, T**2])
    np.testing.assert_allclose(factor @ factor.T, np.kron(expected, np.eye(2)), rtol=1e-14)
    assert (np.diagonal(factor) > 0).all() and not np.triu(factor, 1).any()


def test_linear_model_keeps_the_floating_type():
    single = HierarchicalLogisticRegression(X.astype(np.float32), Y, GROUPS, S, T).linear_model()
    assert single.dtype == single.prior.factor.dtype == single.prior.mean.dtype == jnp.float32


def test_other_targets_say_whether_they_are_linear_models():
    model = TARGET.linear_model()
    assert model.linear_model() is model
    assert Gaussian(np.zeros(2), np.eye(2)).linear_model() is None
