"""Location-scale families against scipy, quadrature and their own draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from provi.families import Gaussian, Laplace, LocationScale, LowRank, Normal, Point, StudentT
from support.members import BASES, DIM, FACTOR, FAMILIES, LOC, SCALES, dense, family_of, point_of, quick_jit
from support.statistics import assert_mean

by_family = pytest.mark.parametrize(("base", "scale"), FAMILIES)
NUM = 20_000


@functools.cache
def case(base, scale):
    family = family_of(base, scale)
    point = point_of(family)
    matrix = np.asarray(dense(point.scale))
    return family, point, matrix @ matrix.T


@functools.cache
def base_draws(base, base_dim):
    """Compiled once for all scales: the gamma sampler is slow to compile."""
    sample = quick_jit(lambda key: BASES[base].sample(key, NUM, base_dim, jnp.float64))
    return sample(jax.random.key(1))


@functools.cache
def draws(base, scale):
    family, point, _ = case(base, scale)
    z = family.transform(point, base_draws(base, point.scale.base_dim))
    return np.asarray(z), np.asarray(log_probs(family, point, z))


log_probs = quick_jit(lambda family, point, z: jax.vmap(lambda row: family.log_prob(point, row))(z))


@by_family
def test_draws_have_the_mean_and_covariance_of_the_point(base, scale):
    """False-alarm rate 2e-6 a family, 3e-5 over all 14."""
    _, _, covariance = case(base, scale)
    z = draws(base, scale)[0]
    assert_mean(z, LOC)
    centred = z - LOC
    assert_mean(centred[:, :, None] * centred[:, None, :], covariance)


@by_family
def test_entropy_is_minus_the_mean_log_density(base, scale):
    """False-alarm rate 1e-6 a family."""
    family, point, _ = case(base, scale)
    assert_mean(-draws(base, scale)[1], float(family.entropy(point)))
    constant = family.base.entropy(DIM)
    np.testing.assert_allclose(family.entropy(point), constant - family.negative_entropy(point), rtol=1e-13)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("base", ["normal", "student_t"])
def test_log_prob_is_scipys(base, scale):
    family, point, covariance = case(base, scale)
    if base == "normal":
        reference = stats.multivariate_normal(LOC, covariance)
    else:
        df = float(BASES[base].df)
        reference = stats.multivariate_t(LOC, covariance * (df - 2) / df, df)
    z = LOC + 3 * np.random.default_rng(2).normal(size=(20, DIM))
    np.testing.assert_allclose(log_probs(family, point, jnp.asarray(z)), reference.logpdf(z), rtol=1e-11)


@pytest.mark.parametrize("base", BASES)
def test_density_integrates_to_one_in_one_dimension(base):
    family = LocationScale(1, BASES[base])
    point = family.point([0.4], [[0.8]])
    density = quick_jit(lambda z: jnp.exp(family.log_prob(point, z[None])))
    edge = 0.8 * np.sqrt(3)  # of the uniform base, where the density jumps
    pieces = [-60, 0.4 - edge, 0.4, 0.4 + edge, 60]
    integral = sum(
        integrate.quad(lambda z: float(density(jnp.asarray(z))), a, b, epsabs=1e-9)[0]
        for a, b in zip(pieces[:-1], pieces[1:], strict=True)
    )
    assert integral == pytest.approx(1.0, abs=1e-7)


@by_family
def test_density_integrates_to_one_in_two_dimensions(base, scale):
    family = LocationScale(2, BASES[base], scale, rank=1)
    if scale in ("triangular", "symmetric"):
        point = family.point_from_covariance([0.2, -0.1], [[0.5, 0.3], [0.3, 0.9]])
    else:
        point = family.point([0.2, -0.1], [0.6, 0.9])
    spacing = 0.04
    grid = np.arange(-20, 20, spacing) + spacing / 2
    z = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    integral = np.exp(np.asarray(log_probs(family, point, jnp.asarray(z)))).sum() * spacing**2
    # The uniform density jumps: the midpoint rule is off by about spacing * perimeter / area / sqrt(cells).
    assert integral == pytest.approx(1.0, abs=3e-3 if base == "uniform" else 2e-4)


@by_family
def test_score_is_the_gradient_of_log_prob(base, scale):
    family, point, _ = case(base, scale)

    @quick_jit
    def both(u):
        z = family.transform(point, u)
        automatic = jax.vmap(jax.grad(lambda row: family.log_prob(point, row)))(z)
        return family.score(point, u, point.scale.factorise()), automatic

    u = 0.5 * jax.random.normal(jax.random.key(3), (5, point.scale.base_dim))
    score, automatic = both(u)
    np.testing.assert_allclose(score, automatic, rtol=1e-9, atol=1e-11)
    if base != "uniform":
        assert np.abs(score).max() > 0.1


@by_family
def test_marginal_standard_deviation(base, scale):
    family, point, covariance = case(base, scale)
    np.testing.assert_allclose(family.marginal_standard_deviation(point), np.sqrt(np.diagonal(covariance)), rtol=1e-12)


def test_low_rank_has_the_law_of_the_dense_gaussian():
    family, point, covariance = case("normal", "low_rank")
    full = Gaussian(DIM, "triangular")
    dense_point = full.point_from_covariance(LOC, covariance)
    z = jnp.asarray(LOC + np.random.default_rng(4).normal(size=(9, DIM)))
    np.testing.assert_allclose(log_probs(family, point, z), log_probs(full, dense_point, z), rtol=1e-11)
    np.testing.assert_allclose(family.entropy(point), full.entropy(dense_point), rtol=1e-12)


@pytest.mark.parametrize("scale", ["triangular", "symmetric"])
def test_points_round_trip_through_the_covariance(scale):
    family = Gaussian(DIM, scale)
    covariance = FACTOR @ FACTOR.T
    point = family.point_from_covariance(LOC, covariance)
    np.testing.assert_allclose(point.scale.covariance(), covariance, rtol=1e-12)
    matrix = np.asarray(point.scale.matrix)
    assert (np.linalg.eigvals(matrix).real > 0).all()
    again = family.point(LOC, matrix)
    np.testing.assert_array_equal(again.scale.matrix, matrix)
    np.testing.assert_array_equal(np.triu(matrix, 1) == 0, scale == "triangular" or np.tril(np.ones((3, 3))) > 0)


def test_a_diagonal_point_takes_the_variances():
    point = Gaussian(DIM, "diagonal").point_from_covariance(LOC, FACTOR @ FACTOR.T)
    np.testing.assert_allclose(point.scale.diagonal**2, np.diagonal(FACTOR @ FACTOR.T), rtol=1e-14)


@pytest.mark.parametrize("scale", SCALES)
def test_numbers_and_vectors_make_diagonal_scales(scale):
    family = Gaussian(DIM, scale, rank=2)
    vector = family.point(LOC, [0.5, 1.0, 2.0]).scale
    number = family.point([0, 0, 0], 2.0)
    if scale == "low_rank":
        np.testing.assert_array_equal(vector.diagonal, [0.5, 1.0, 2.0])
        assert np.linalg.matrix_rank(np.asarray(vector.factor)) == 2
        np.testing.assert_array_equal(number.scale.diagonal, [2, 2, 2])
    else:
        np.testing.assert_allclose(vector.covariance(), np.diag([0.25, 1.0, 4.0]))
        np.testing.assert_allclose(number.scale.covariance(), 4 * np.eye(3))
    assert number.loc.dtype == jnp.float64


@pytest.mark.parametrize(
    ("scale", "loc", "matrix", "message"),
    [
        ("triangular", [0.0, 0.0], 1.0, "loc has length 2"),
        ("triangular", [[0.0, 0.0, 0.0]], 1.0, "loc must have 1 axes"),
        ("triangular", [0.0, np.nan, 0.0], 1.0, "loc has 1 entries"),
        ("triangular", LOC, np.ones(2), r"scale has shape \(2,\)"),
        ("triangular", LOC, np.eye(3)[:, :2], r"scale has shape \(3, 2\)"),
        ("triangular", LOC, np.ones((3, 3)), "lower triangular"),
        ("triangular", LOC, -1.0, "positive diagonal"),
        ("symmetric", LOC, np.tril(np.ones((3, 3))), "not symmetric"),
        ("symmetric", LOC, np.ones((3, 3)), "not positive definite"),
        ("diagonal", LOC, np.eye(3), "number or a vector"),
        ("diagonal", LOC, [1.0, 0.0, 1.0], "positive diagonal"),
        ("low_rank", LOC, np.eye(3), "number or a vector"),
        ("triangular", LOC, np.diag([1.0, np.inf, 1.0]), "scale has"),
    ],
)
def test_bad_points_are_refused(scale, loc, matrix, message):
    with pytest.raises(ValueError, match=message):
        Gaussian(DIM, scale).point(loc, matrix)


def test_bad_covariances_are_refused():
    with pytest.raises(ValueError, match="covariance is not positive definite"):
        Gaussian(2).point_from_covariance([0, 0], [[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ValueError, match="low-rank scale is not determined"):
        Gaussian(2, "low_rank").point_from_covariance([0, 0], np.eye(2))
    with pytest.raises(ValueError, match="dimension 3"):
        Gaussian(3).point_from_covariance([0, 0, 0], np.eye(2))


def test_bad_families_are_refused():
    with pytest.raises(ValueError, match="scale must be one of"):
        Gaussian(2, "cholesky")
    with pytest.raises(ValueError, match="dim must be at least 1"):
        Gaussian(0)
    with pytest.raises(ValueError, match="closed under marginals"):
        LocationScale(2, Laplace(), "low_rank")
    with pytest.raises(ValueError, match="df must be finite and above 2"):
        LocationScale(2, StudentT(2.0))


def test_names_of_the_gaussian():
    assert isinstance(Gaussian(), Normal)
    assert isinstance(Gaussian(2).base, Normal)
    assert Gaussian(2, "low_rank", rank=7).rank == 2


@pytest.mark.parametrize("scale", SCALES)
def test_sample_is_the_transformed_base(scale):
    family, point, _ = case("normal", scale)
    key, matrix = jax.random.key(5), np.asarray(dense(point.scale))
    u = np.asarray(jax.random.normal(key, (4, matrix.shape[1])))
    np.testing.assert_allclose(family.sample(key, point, 4), LOC + u @ matrix.T, rtol=1e-13)


def test_low_rank_draws_use_all_of_u():
    scale = LowRank(jnp.zeros(2) + 1e-9, jnp.asarray([[1.0], [2.0]]))
    z = Gaussian(2, "low_rank", rank=1).sample(jax.random.key(0), Point(jnp.zeros(2), scale), 5)
    np.testing.assert_allclose(z[:, 1], 2 * z[:, 0], atol=1e-7)


@pytest.mark.parametrize("scale", ["triangular", "symmetric", "diagonal", "low_rank"])
def test_sample_and_log_prob_are_those_of_the_two_methods(scale):
    family = LocationScale(3, StudentT(5), scale, rank=2)
    point = family.point(np.array([1.0, -2.0, 0.5]), np.array([0.5, 1.0, 2.0]))
    z, log_q = family.sample_and_log_prob(jax.random.key(0), point, 7)
    np.testing.assert_array_equal(z, family.sample(jax.random.key(0), point, 7))
    expected = jax.vmap(lambda row: family.log_prob(point, row))(z)
    np.testing.assert_allclose(log_q, expected, rtol=1e-12)


def test_log_densities_of_draws_survive_a_nearly_singular_scale():
    """Rows of ones below a diagonal of 1e-3: solving for u loses all digits, u itself none. E log q = -entropy."""
    family = Gaussian(50)
    point = family.point(np.zeros(50), np.tril(np.ones((50, 50)), -1) + 1e-3 * np.eye(50))
    _, log_q = family.sample_and_log_prob(jax.random.key(0), point, 4000)
    # log q has standard deviation sqrt(d/2) = 5: five standard errors of the mean.
    assert abs(float(jnp.mean(log_q)) + float(family.entropy(point))) < 5 * 5 / 4000**0.5
