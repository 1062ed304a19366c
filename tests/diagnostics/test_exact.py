"""The exact negative ELBO against Monte Carlo, closed forms and scipy's adaptive quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from provi.diagnostics import exact_negative_elbo
from provi.families import Gaussian, Laplace, LocationScale, Normal, StudentT, Uniform
from provi.targets import Gaussian as GaussianTarget
from provi.targets import HierarchicalLogisticRegression, LinearRegression, LogisticRegression, PoissonRegression
from support.statistics import assert_mean

RNG = np.random.default_rng(7)
DESIGN = RNG.normal(size=(6, 3))
LABELS = np.array([0, 1, 1, 0, 1, 1])
COUNTS = np.array([0, 3, 1, 0, 2, 5])
ROOT = np.array([[0.7, 0.0, 0.0], [0.2, 0.5, 0.0], [-0.3, 0.1, 0.6]])
COVARIANCE = ROOT @ ROOT.T
TARGETS = {
    "logistic": LogisticRegression(DESIGN, LABELS, prior_scale=[1.0, 2.0, 0.5], prior_mean=0.3),
    "linear": LinearRegression(DESIGN, DESIGN @ np.ones(3), noise_scale=0.6, prior_covariance=COVARIANCE + np.eye(3)),
    "poisson": PoissonRegression(DESIGN, COUNTS),
    "gaussian": GaussianTarget(np.array([0.1, -1.0, 2.0]), covariance=COVARIANCE),
}
BASES = {"normal": Normal(), "laplace": Laplace(), "uniform": Uniform(), "student_t": StudentT(9.0)}
LOC = np.array([0.4, -0.2, 0.1])


def _point(family):
    if family.scale == "low_rank":
        return family.point(LOC, np.array([0.5, 0.4, 0.7]))
    return family.point_from_covariance(LOC, 0.5 * COVARIANCE)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        *[("logistic", base) for base in BASES],
        ("linear", "normal"),
        ("linear", "student_t"),
        ("poisson", "normal"),
        ("poisson", "uniform"),
        ("gaussian", "laplace"),
        ("gaussian", "student_t"),
    ],
)
def test_monte_carlo(name, base):
    """z-test of E_q[log q - log p] over 40,000 draws; false-alarm rate 1e-6."""
    target, family = TARGETS[name], LocationScale(3, BASES[base], "symmetric")
    point = _point(family)
    z = family.sample(jax.random.key(3), point, 40_000)
    samples = jax.vmap(lambda x: target.potential(x) + family.log_prob(point, x))(z)
    assert_mean(np.asarray(samples), float(exact_negative_elbo(target, family, point)))


@pytest.mark.parametrize("scale", ["triangular", "diagonal", "low_rank"])
def test_monte_carlo_for_other_scales(scale):
    target, family = TARGETS["logistic"], LocationScale(3, Normal(), scale, rank=2)
    point = _point(family)
    z = family.sample(jax.random.key(4), point, 40_000)
    samples = jax.vmap(lambda x: target.potential(x) + family.log_prob(point, x))(z)
    assert_mean(np.asarray(samples), float(exact_negative_elbo(target, family, point)))


def test_one_dimension_against_adaptive_quadrature():
    target = LogisticRegression([[2.0], [-0.5], [0.0]], [1, 0, 1], prior_scale=1.5)
    family = Gaussian(1)
    point = family.point(np.array([0.3]), 0.8)
    prior = stats.norm(0, 1.5)

    def integrand(z):
        likelihood = np.logaddexp(0, -2 * z) + np.logaddexp(0, -0.5 * z) + np.log(2)
        return stats.norm.pdf(z, 0.3, 0.8) * (likelihood - prior.logpdf(z))

    energy = integrate.quad(integrand, 0.3 - 12, 0.3 + 12, epsabs=1e-13, epsrel=1e-13, limit=200)[0]
    expected = energy - stats.norm(0.3, 0.8).entropy()
    assert float(exact_negative_elbo(target, family, point)) == pytest.approx(expected, rel=1e-12)


def test_gaussian_target_is_the_kullback_leibler_divergence():
    target, family = TARGETS["gaussian"], Gaussian(3)
    point = _point(family)
    mean, covariance = target.exact_posterior()
    precision, away = np.linalg.inv(covariance), LOC - mean
    divergence = 0.5 * (np.trace(precision @ (0.5 * COVARIANCE)) + away @ precision @ away - 3 + np.log(1 / 0.5**3))
    assert float(exact_negative_elbo(target, family, point)) == pytest.approx(divergence, rel=1e-13)
    at_posterior = family.point_from_covariance(mean, covariance)
    assert float(exact_negative_elbo(target, family, at_posterior)) == pytest.approx(0.0, abs=1e-13)


def test_poisson_with_a_gaussian_base_has_a_closed_form():
    target, family = TARGETS["poisson"], Gaussian(3, "symmetric")
    point = _point(family)
    mean, variance = DESIGN @ LOC, np.einsum("ni,ij,nj->n", DESIGN, 0.5 * COVARIANCE, DESIGN)
    likelihood = np.exp(mean + variance / 2) - COUNTS * mean + np.log([1, 6, 1, 1, 2, 120])
    prior = 0.5 * (LOC @ LOC + 0.5 * np.trace(COVARIANCE)) + 1.5 * np.log(2 * np.pi)
    entropy = stats.multivariate_normal(LOC, 0.5 * COVARIANCE).entropy()
    expected = likelihood.sum() + prior - entropy
    assert float(exact_negative_elbo(target, family, point)) == pytest.approx(expected, rel=1e-12)


def test_laplace_base_with_poisson_is_finite_below_its_threshold_and_infinite_above():
    """E exp(s u_1) = (1 - s^2/(d+1))^(-(d+1)/2), infinite from s = sqrt(d+1) = 2 on."""
    target, family = PoissonRegression(np.eye(3)[:1], [0]), LocationScale(3, Laplace())
    point = family.point(np.zeros(3), 0.9)
    prior = 0.5 * 3 * 0.81 + 1.5 * np.log(2 * np.pi)
    expected = (1 - 0.81 / 4) ** -2.0 + prior - Laplace().entropy(3) - 3 * np.log(0.9)
    assert float(exact_negative_elbo(target, family, point)) == pytest.approx(expected, rel=1e-9)
    assert float(exact_negative_elbo(target, family, family.point(np.zeros(3), 2.1))) == np.inf


def test_gradient_by_finite_differences_and_under_transformations():
    """Also with a row of zeros, where the spread has no derivative."""
    target = LogisticRegression(np.vstack([DESIGN, np.zeros(3)]), [*LABELS, 1])
    family = LocationScale(3, StudentT(5.0))
    point = _point(family)
    value, gradient = jax.jit(jax.value_and_grad(lambda p: exact_negative_elbo(target, family, p)))(point)
    direction = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), point)
    direction = jax.tree.map(lambda x: jnp.tril(x) if x.ndim == 2 else x, direction)
    ends = [jax.tree.map(lambda x, v, h=h: x + h * v, point, direction) for h in (-1e-5, 1e-5)]
    stacked = jax.tree.map(lambda a, b: jnp.stack([a, b]), *ends)
    low, high = jax.vmap(lambda p: exact_negative_elbo(target, family, p))(stacked)
    expected = sum(jnp.sum(g * v) for g, v in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    assert float(high - low) / 2e-5 == pytest.approx(float(expected), rel=1e-8)
    assert float(value) == pytest.approx(float(exact_negative_elbo(target, family, point)), rel=1e-15)


def test_float32_targets_are_evaluated_in_float64():
    single = LogisticRegression(DESIGN.astype(np.float32), LABELS)
    double = LogisticRegression(DESIGN.astype(np.float32).astype(np.float64), LABELS)
    family = Gaussian(3)
    values = [exact_negative_elbo(t, family, _point(family)) for t in (single, double)]
    assert values[0].dtype == jnp.float64
    assert float(values[0]) == float(values[1])


def test_refuses():
    family = LocationScale(3, StudentT(9.0))
    with pytest.raises(ValueError, match="Student-t"):
        exact_negative_elbo(TARGETS["poisson"], family, _point(family))
    hierarchical = HierarchicalLogisticRegression(DESIGN, LABELS, [0, 0, 1, 1, 2, 2])
    with pytest.raises(ValueError, match="linear model"):
        exact_negative_elbo(hierarchical, family, _point(family))
