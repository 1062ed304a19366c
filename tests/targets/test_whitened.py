"""Targets in other coordinates: densities match, constants transform."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.targets import (
    Gaussian,
    LinearRegression,
    LogDensity,
    LogisticRegression,
    PoissonRegression,
    Whitened,
    WhitenedFiniteSum,
)
from support.hidden import hidden

RNG = np.random.default_rng(3)
X = RNG.normal(size=(8, 3)) * np.array([1.0, 10.0, 0.1])
Y = np.array([0, 1, 1, 0, 1, 0, 1, 1])
SHIFT = np.array([0.4, -1.0, 2.0])
FACTOR = np.array([[2.0, 0.0, 0.0], [0.3, 0.5, 0.0], [-0.7, 0.2, 1.5]])


def test_density_is_that_of_the_transformed_variable():
    mean, covariance = np.array([1.0, 2.0, 3.0]), np.diag([1.0, 4.0, 0.25])
    target = Whitened(Gaussian(mean, covariance), SHIFT, FACTOR)
    inverse = np.linalg.inv(FACTOR)
    law = stats.multivariate_normal(inverse @ (mean - SHIFT), inverse @ covariance @ inverse.T)
    for x in RNG.normal(size=(4, 3)):
        np.testing.assert_allclose(target.potential(jnp.asarray(x)), -law.logpdf(x), rtol=1e-12)
        np.testing.assert_allclose(target.original(jnp.asarray(x)), SHIFT + FACTOR @ x, rtol=1e-14)
    assert target.parameter_names == ("x[0]", "x[1]", "x[2]") and target.dim == 3


def test_whitening_by_the_posterior_gives_condition_number_one():
    regression = LinearRegression(X, RNG.normal(size=8), 0.5)
    mean, covariance = regression.exact_posterior()
    constants = Whitened(regression, mean, np.linalg.cholesky(covariance)).constants
    assert constants.strong_convexity.status == constants.smoothness.status == "proven"
    assert 1 - 1e-9 < constants.strong_convexity.value <= 1 <= constants.smoothness.value < 1 + 1e-9


@pytest.mark.parametrize("model", [LogisticRegression, PoissonRegression])
@pytest.mark.parametrize("kind", [Whitened, WhitenedFiniteSum])
def test_constants_are_tight(model, kind):
    target = kind(model(X, Y), SHIFT, FACTOR)
    constants, expected = target.constants, np.linalg.eigvalsh(FACTOR.T @ FACTOR)[0]
    np.testing.assert_allclose(constants.strong_convexity.value, expected, rtol=1e-10)
    if model is PoissonRegression:
        assert not constants.smoothness.known and target.curvature_bounds()[1] is None
    else:
        exact = np.linalg.eigvalsh(FACTOR.T @ (np.eye(3) + X.T @ X / 4) @ FACTOR)[-1]
        np.testing.assert_allclose(constants.smoothness.value, exact, rtol=1e-10)


def test_numbers_alone_are_scaled_by_the_factor_and_keep_their_status():
    black_box = LogDensity(lambda z: -0.5 * jnp.sum(hidden(z) ** 2 * jnp.array([1.0, 2.0, 3.0])), 3, 1.0, 3.0)
    target = Whitened(black_box, SHIFT, FACTOR)
    singular = np.linalg.svd(FACTOR, compute_uv=False)
    constants = target.constants
    assert target.curvature_bounds() is None
    assert {constants.strong_convexity.status, constants.smoothness.status} == {"declared"}
    np.testing.assert_allclose(constants.strong_convexity.value, singular[-1] ** 2, rtol=1e-12)
    np.testing.assert_allclose(constants.smoothness.value, 3 * singular[0] ** 2, rtol=1e-12)
    assert constants.strong_convexity.value < singular[-1] ** 2 * (1 - 1e-16)
    assert constants.log_concave == black_box.constants.log_concave
    bare = Whitened(LogDensity(lambda z: -jnp.sum(hidden(z) ** 2), 3), SHIFT, FACTOR).constants
    assert bare.smoothness.status == bare.strong_convexity.status == "unknown"


def test_minibatches_carry_over():
    regression = LogisticRegression(X, Y)
    target, x = WhitenedFiniteSum(regression, SHIFT, FACTOR), jnp.asarray([0.1, -0.3, 0.2])
    whole = Whitened(regression, SHIFT, FACTOR)
    np.testing.assert_allclose(target.potential(x), whole.potential(x), rtol=1e-13)
    minibatch = eqx.filter_jit(target.minibatch_potential)
    values = [float(minibatch(x, jnp.asarray([n]))) for n in range(8)]
    np.testing.assert_allclose(np.mean(values), whole.potential(x), rtol=1e-13)
    assert target.num_terms == 8


@pytest.mark.parametrize(
    ("shift", "factor", "name"),
    [
        (SHIFT[:2], FACTOR, "shift"),
        (SHIFT, FACTOR[:2], "factor"),
        (SHIFT, FACTOR.T, "factor must be lower triangular"),
        (SHIFT, -FACTOR, "factor"),
        (SHIFT, FACTOR * np.nan, "factor"),
    ],
)
def test_wrong_arguments_are_named(shift, factor, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        Whitened(LogisticRegression(X, Y), shift, factor)


def test_a_vector_factor_is_its_diagonal_matrix():
    target, diagonal = LogisticRegression(X, Y), np.diagonal(FACTOR).copy()
    vector, matrix = Whitened(target, SHIFT, diagonal), Whitened(target, SHIFT, np.diag(diagonal))
    x = jnp.asarray(SHIFT) + 0.3
    np.testing.assert_allclose(vector.potential(x), matrix.potential(x), rtol=1e-13)
    assert vector.constants.smoothness.value == pytest.approx(matrix.constants.smoothness.value, rel=1e-12)
    assert vector.constants.strong_convexity.value == pytest.approx(matrix.constants.strong_convexity.value, rel=1e-12)
