"""The optimum against a general-purpose optimiser, closed forms and the theorems on where it lies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from provi.diagnostics import exact_negative_elbo, linear_model_optimum
from provi.families import Gaussian, Laplace, LocationScale, Normal, StudentT, Uniform
from provi.targets import Gaussian as GaussianTarget
from provi.targets import LinearRegression, LogisticRegression, PoissonRegression
from provi.theory import solution_region

RNG = np.random.default_rng(11)
DESIGN = RNG.normal(size=(8, 3))
LABELS = np.array([0, 1, 1, 0, 1, 1, 0, 1])
LOGISTIC = LogisticRegression(DESIGN, LABELS, prior_scale=[1.0, 3.0, 0.7], prior_mean=0.2)
POISSON = PoissonRegression(DESIGN, np.array([0, 3, 1, 0, 2, 5, 1, 1]))
BASES = {"normal": Normal(), "laplace": Laplace(), "uniform": Uniform(), "student_t": StudentT(3.5)}


def _minimise(target, family):
    """L-BFGS on the free entries, the gradient by autodiff of the exact objective."""
    template = family.point(np.zeros(3), 0.5)

    def unpack(x):
        if family.scale == "diagonal":
            return jax.tree.unflatten(jax.tree.structure(template), [x[:3], x[3:]])
        lower = jnp.zeros((3, 3)).at[np.tril_indices(3)].set(x[3:])
        full = lower if family.scale == "triangular" else lower + lower.T - jnp.diag(jnp.diagonal(lower))
        return jax.tree.unflatten(jax.tree.structure(template), [x[:3], full])

    function = jax.jit(jax.value_and_grad(lambda x: exact_negative_elbo(target, family, unpack(x))))
    diagonal = np.full(3, 0.5) if family.scale == "diagonal" else (0.5 * np.eye(3))[np.tril_indices(3)]
    start = np.concatenate([np.zeros(3), diagonal])

    def guarded(x):
        value, gradient = (np.asarray(part) for part in function(x))
        return (float(value), gradient) if np.isfinite(value) else (1e10, np.zeros_like(x))

    found = optimize.minimize(guarded, start, jac=True, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-10})
    return found.fun, unpack(found.x)


@pytest.mark.parametrize(
    ("target", "base", "scale"),
    [
        (LOGISTIC, "normal", "triangular"),
        (LOGISTIC, "student_t", "symmetric"),
        (LOGISTIC, "laplace", "diagonal"),
        (POISSON, "uniform", "triangular"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_against_a_general_optimiser(target, base, scale):
    family = LocationScale(3, BASES[base], scale)
    optimum = linear_model_optimum(target, family)
    value, point = _minimise(target, family)
    assert optimum.negative_elbo == pytest.approx(value, abs=1e-11)
    np.testing.assert_allclose(optimum.point.loc, point.loc, atol=2e-6)
    np.testing.assert_allclose(optimum.point.scale.covariance(), point.scale.covariance(), atol=2e-6)


@pytest.mark.parametrize(
    ("base", "scale"),
    [("normal", "symmetric"), ("laplace", "diagonal"), ("uniform", "symmetric"), ("student_t", "diagonal")],
)
def test_gradient_vanishes_and_the_region_holds_it(base, scale):
    """W_M: sigma_min(C*) >= 1/sqrt(M); |w* - wbar|^2 <= d/mu; and no random neighbour is better."""
    family = LocationScale(3, BASES[base], scale)
    optimum = linear_model_optimum(LOGISTIC, family)
    gradient = jax.grad(lambda p: exact_negative_elbo(LOGISTIC, family, p))(optimum.point)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-10
    assert optimum.gradient_norm < 1e-10
    constants = LOGISTIC.constants
    covariance = np.asarray(optimum.point.scale.covariance())
    smallest = solution_region.smallest_scale(constants.smoothness.value)
    assert np.sqrt(np.linalg.eigvalsh(covariance)[0]) >= smallest
    distance = ((optimum.point.loc - optimum.mode) ** 2).sum() + np.trace(covariance)
    assert distance <= solution_region.reference_distance_squared_bound(3, constants.strong_convexity.value)
    assert np.abs(jax.grad(LOGISTIC.potential)(jnp.asarray(optimum.mode))).max() < 1e-10


def test_the_region_is_reached_by_the_isotropic_gaussian():
    """So that the two inequalities above are seen to be able to fail."""
    target = GaussianTarget(np.array([1.0, 2.0]), precision=np.array([4.0, 4.0]))
    optimum = linear_model_optimum(target, Gaussian(2))
    assert np.trace(optimum.point.scale.covariance()) == pytest.approx(2 / 4, rel=1e-12)


@pytest.mark.parametrize("target", [LOGISTIC, POISSON], ids=["logistic", "poisson"])
def test_triangular_and_symmetric_optimum_are_twins(target):
    twins = [linear_model_optimum(target, LocationScale(3, Laplace(), s)) for s in ("triangular", "symmetric")]
    covariances = [np.asarray(twin.point.scale.covariance()) for twin in twins]
    np.testing.assert_allclose(covariances[0], covariances[1], rtol=1e-12)
    assert twins[0].negative_elbo == pytest.approx(twins[1].negative_elbo, rel=1e-13)
    matrix = np.asarray(twins[0].point.scale.matrix)
    assert (np.triu(matrix, 1) == 0).all()
    np.testing.assert_array_equal(twins[1].point.scale.matrix, twins[1].point.scale.matrix.T)


def test_linear_regression_is_its_posterior():
    target = LinearRegression(DESIGN, DESIGN[:, 0] + 0.3, noise_scale=0.5, prior_scale=2.0)
    optimum = linear_model_optimum(target, Gaussian(3))
    mean, covariance = target.exact_posterior()
    np.testing.assert_allclose(optimum.point.loc, mean, rtol=1e-12)
    np.testing.assert_allclose(optimum.mode, mean, rtol=1e-12)
    np.testing.assert_allclose(optimum.point.scale.covariance(), covariance, rtol=1e-12)
    marginal = stats.multivariate_normal(np.zeros(8), 4 * DESIGN @ DESIGN.T + 0.25 * np.eye(8))
    assert optimum.negative_elbo == pytest.approx(-marginal.logpdf(DESIGN[:, 0] + 0.3), rel=1e-12)


@pytest.mark.parametrize("base", BASES)
def test_quadratic_potentials_have_the_same_optimum_for_every_base(base):
    """Only second moments enter: C* is the posterior's root; mean field has 1/precision_ii (with the same mean)."""
    precision = np.array([[2.0, 0.8], [0.8, 1.0]])
    target = GaussianTarget(np.array([1.0, -1.0]), precision=precision)
    full = linear_model_optimum(target, LocationScale(2, BASES[base], "symmetric"))
    np.testing.assert_allclose(full.point.scale.covariance(), np.linalg.inv(precision), rtol=1e-12)
    normal_value = 0.0
    if base == "normal":
        assert full.negative_elbo == pytest.approx(normal_value, abs=1e-12)
    else:
        assert full.negative_elbo > normal_value + 1e-3
    diagonal = linear_model_optimum(target, LocationScale(2, BASES[base], "diagonal"))
    np.testing.assert_allclose(diagonal.point.scale.diagonal, np.diag(precision) ** -0.5, rtol=1e-12)
    np.testing.assert_allclose(diagonal.point.loc, [1.0, -1.0], rtol=1e-12)
    assert diagonal.negative_elbo > full.negative_elbo + 1e-3


def test_a_start_with_an_infinite_objective_is_narrowed():
    """At the Laplace approximation |C'a| = 1.83, above sqrt(d + 1) = 1.73, where E exp is infinite."""
    target = PoissonRegression([[3.0, 0.0]], [0])
    family = LocationScale(2, Laplace())
    optimum = linear_model_optimum(target, family)
    hessian = np.asarray(jax.hessian(target.potential)(jnp.asarray(optimum.mode)))
    start = family.point_from_covariance(optimum.mode, np.linalg.inv(hessian))
    assert float(exact_negative_elbo(target, family, start)) == np.inf
    assert np.isfinite(optimum.negative_elbo)
    assert optimum.gradient_norm < 1e-8
    for loc, scale in [(0.1, 1.0), (-0.1, 1.0), (0.0, 1.05), (0.0, 0.95)]:
        moved = family.point(np.asarray(optimum.point.loc) + loc, np.asarray(optimum.point.scale.matrix) * scale)
        assert float(exact_negative_elbo(target, family, moved)) > optimum.negative_elbo


def test_refuses():
    with pytest.raises(ValueError, match="scale"):
        linear_model_optimum(LOGISTIC, Gaussian(3, "low_rank"))
    with pytest.raises(ValueError, match="dimension"):
        linear_model_optimum(LOGISTIC, Gaussian(4))
    with pytest.raises(ValueError, match="Student-t"):
        linear_model_optimum(POISSON, LocationScale(3, StudentT(30.0)))
    wide = LogisticRegression(np.eye(2) * 1e3, [0, 1], prior_scale=1.0)
    with pytest.raises(ValueError, match="Standardise"):
        linear_model_optimum(wide, Gaussian(2))


def test_mean_field_optimum_of_nearly_collinear_columns():
    # A location step in the diagonal metric needs thousands of iterations here.
    rng = np.random.default_rng(5)
    common = rng.normal(size=(120, 1))
    design = common + 0.05 * rng.normal(size=(120, 8))
    target = LogisticRegression(
        design, (rng.random(120) < 1 / (1 + np.exp(-common[:, 0]))).astype(int), prior_scale=3.0
    )
    assert linear_model_optimum(target, Gaussian(8, "diagonal")).gradient_norm < 1e-9
