"""Base distributions against radial quadrature, automatic differentiation and their radius laws."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from provi.families.bases import Laplace, Normal, StudentT, Uniform
from support.statistics import assert_mean

# Ten degrees of freedom: the z-test of the fourth moment needs a finite eighth one.
DF = 10.0
BASES = {"normal": Normal(), "laplace": Laplace(), "uniform": Uniform(), "student_t": StudentT(DF)}
by_base = pytest.mark.parametrize("name", BASES)
by_dim = pytest.mark.parametrize("dim", [1, 2, 3, 10, 200, 1000])
# Compiling the gamma sampler takes most of the time, so few dimensions are sampled.
by_small_dim = pytest.mark.parametrize("dim", [1, 3])

sample = eqx.filter_jit(lambda base, key, num, dim, dtype: base.sample(key, num, dim, dtype))
scores = eqx.filter_jit(lambda base, points: jax.vmap(jax.grad(base.log_density))(points))
log_densities = eqx.filter_jit(lambda base, points: jax.vmap(base.log_density)(points))


@functools.cache
def draws(name: str, dim: int, num: int = 40_000) -> np.ndarray:
    return np.asarray(sample(BASES[name], jax.random.key(dim), num, dim, jnp.float64))


@functools.cache
def radial_rule(name: str, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Radii, weights (area r^(d-1) s(r e_1) dr) and log densities, by Gauss-Legendre panels in log r.

    Below the lower end r^d is 1e-17 of what it is at the mode.
    """
    low = 0.5 * math.log(dim) - 3 - 40 / dim
    high = {"uniform": 0.5 * math.log(dim + 2), "student_t": 12.0}.get(name, 0.5 * math.log(dim) + 4)
    x, w = special.roots_legendre(20)
    edges = np.linspace(low, high, 201)
    half = np.diff(edges)[:, None] / 2
    radius = np.exp((edges[:-1, None] + half * (1 + x[None, :])).ravel())
    points = np.zeros((radius.size, dim))
    points[:, 0] = radius
    log_density = np.asarray(log_densities(BASES[name], jnp.asarray(points)))
    log_area = math.log(2) + dim / 2 * math.log(math.pi) - special.gammaln(dim / 2)
    weights = (half * w[None, :]).ravel() * np.exp(log_area + dim * np.log(radius) + log_density)
    return radius, weights, log_density


@by_base
@by_dim
def test_density_is_normalised_and_standardised(name, dim):
    radius, weights, _ = radial_rule(name, dim)
    assert np.sum(weights) == pytest.approx(1.0, rel=1e-9)
    assert np.sum(weights * radius**2) == pytest.approx(dim, rel=1e-9)


@by_base
@by_dim
def test_kurtosis_is_the_radial_formula(name, dim):
    radius, weights, _ = radial_rule(name, dim)
    expected = 3 / (dim * (dim + 2)) * np.sum(weights * radius**4)
    assert BASES[name].kurtosis(dim) == pytest.approx(expected, rel=1e-9)


@by_base
@by_dim
def test_entropy_is_minus_the_mean_log_density(name, dim):
    _, weights, log_density = radial_rule(name, dim)
    assert BASES[name].entropy(dim) == pytest.approx(-np.sum(weights * log_density), rel=1e-9, abs=1e-9)


def test_densities_against_scipy():
    u = np.array([0.3, -1.2, 0.7])
    assert float(Normal().log_density(jnp.asarray(u))) == pytest.approx(
        stats.multivariate_normal(np.zeros(3)).logpdf(u), rel=1e-13
    )
    student = stats.multivariate_t(np.zeros(3), (DF - 2) / DF * np.eye(3), DF)
    assert float(StudentT(DF).log_density(jnp.asarray(u))) == pytest.approx(student.logpdf(u), rel=1e-12)
    assert StudentT(DF).entropy(3) == pytest.approx(student.entropy(), rel=1e-12)
    laplace = stats.laplace(scale=1 / math.sqrt(2))
    assert float(Laplace().log_density(jnp.asarray(u[:1]))) == pytest.approx(laplace.logpdf(0.3), rel=1e-13)
    assert Laplace().entropy(1) == pytest.approx(laplace.entropy(), rel=1e-13)
    assert Uniform().entropy(1) == pytest.approx(math.log(2 * math.sqrt(3)), rel=1e-13)


@by_base
@by_small_dim
def test_score_is_minus_radial_weight_times_u(name, dim):
    base = BASES[name]
    points = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, size=(20, dim)))
    actual = scores(base, points)
    weights = base.radial_weight(jnp.sum(points**2, axis=1), dim)
    assert weights.shape == (20,)
    np.testing.assert_allclose(actual, -weights[:, None] * points, rtol=1e-11, atol=1e-14)
    if name != "uniform":
        assert np.abs(actual).max() > 0.1


@by_base
def test_score_at_the_origin_is_zero(name):
    base = BASES[name]
    np.testing.assert_array_equal(scores(base, jnp.zeros((1, 3))), 0.0)
    assert np.isfinite(base.radial_weight(jnp.zeros(()), 3))


def test_uniform_density_ends_at_its_radius():
    edge = math.sqrt(5.0)
    assert float(Uniform().log_density(jnp.array([0.0, 0.999 * edge, 0.0]))) == pytest.approx(
        -math.log(4 / 3 * math.pi * edge**3)
    )
    assert float(Uniform().log_density(jnp.array([0.0, 1.001 * edge, 0.0]))) == -math.inf


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_uniform_draws_lie_in_their_own_support(dtype):
    """In dimension 1000 most draws are within 1e-3 of the edge, where rounding could push them out."""
    u = sample(Uniform(), jax.random.key(0), 4000, 1000, dtype)
    assert np.isfinite(log_densities(Uniform(), u)).all()


@by_base
@by_small_dim
def test_draws_are_standardised(name, dim):
    """Alarm 2e-6 a case."""
    u = draws(name, dim)
    assert_mean(u, 0.0, alarm=1e-6)
    assert_mean(u[:, :, None] * u[:, None, :], np.eye(dim), alarm=1e-6)


@by_base
@by_small_dim
def test_draws_have_the_kurtosis(name, dim):
    """Alarm 1e-6 a case."""
    assert_mean(draws(name, dim) ** 4, BASES[name].kurtosis(dim), alarm=1e-6)


@by_base
@pytest.mark.parametrize("dim", [1, 3, 200])
def test_radius_law(name, dim):
    """Kolmogorov-Smirnov at alarm 1e-6 a case, against the table of bases."""
    radius = np.linalg.norm(draws(name, dim, 40_000 if dim < 10 else 4000), axis=1)
    law = {
        "normal": stats.chi(dim).cdf,
        "laplace": stats.gamma(dim, scale=1 / math.sqrt(dim + 1)).cdf,
        "uniform": stats.powerlaw(dim, scale=math.sqrt(dim + 2)).cdf,
        # r^2 = (df - 2) chi2_d / chi2_df, so r^2 df / (d (df - 2)) is F(d, df).
        "student_t": lambda r: stats.f(dim, DF).cdf(r**2 * DF / (dim * (DF - 2))),
    }[name]
    assert stats.kstest(radius, law).pvalue > 1e-6


@by_base
def test_direction_is_uniform_and_independent_of_the_radius(name):
    """The angle in a plane is uniform, near and far. Kolmogorov-Smirnov, alarm 2e-6 a case."""
    u = draws(name, 3)
    angle, far = np.arctan2(u[:, 1], u[:, 0]), np.sum(u**2, axis=1) > 3
    for half in (far, ~far):
        assert stats.kstest(angle[half], stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-6


@by_base
def test_float32_stays_float32(name):
    base = BASES[name]
    u = sample(base, jax.random.key(1), 2000, 3, jnp.float32)
    assert u.dtype == jnp.float32 and u.shape == (2000, 3)
    assert np.isfinite(u).all()
    assert base.log_density(u[0]).dtype == jnp.float32
    assert base.radial_weight(jnp.sum(u**2, axis=1), 3).dtype == jnp.float32
    # Alarm 1e-6.
    assert_mean(np.asarray(u, np.float64) ** 2, 1.0, alarm=1e-6)


@by_base
def test_sampling_depends_on_the_key_only(name):
    first, again, other = (sample(BASES[name], jax.random.key(k), 2000, 3, jnp.float32) for k in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert np.mean(np.asarray(first) == np.asarray(other)) < 0.01


@pytest.mark.parametrize("df", [2.0, -1.0, math.nan, math.inf])
def test_degrees_of_freedom_must_give_a_variance(df):
    with pytest.raises(ValueError, match="df must be finite and above 2"):
        StudentT(df)


@pytest.mark.parametrize("df", [3.0, 4.0])
def test_infinite_kurtosis_is_an_error(df):
    with pytest.raises(ValueError, match="use df above 4"):
        StudentT(df).kurtosis(3)


def test_flags():
    assert [base.log_concave for base in BASES.values()] == [True, True, True, False]
    assert [base.has_score for base in BASES.values()] == [True, True, False, True]
