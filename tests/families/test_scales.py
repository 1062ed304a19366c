"""Scales against dense linear algebra, automatic differentiation and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.families import Diagonal, LowRank, Symmetric, Triangular
from support.members import DIM, SCALES, dense, family_of, flat, in_space, point_of

by_scale = pytest.mark.parametrize("kind", SCALES)
RNG = np.random.default_rng(0)


def scale_of(kind):
    return point_of(family_of("normal", kind)).scale


@by_scale
def test_apply_and_covariance_are_those_of_the_dense_matrix(kind):
    scale = scale_of(kind)
    matrix = np.asarray(dense(scale))
    u = RNG.normal(size=(7, scale.base_dim))
    assert scale.base_dim == matrix.shape[1]
    np.testing.assert_allclose(scale.apply(jnp.asarray(u)), u @ matrix.T, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(scale.covariance(), matrix @ matrix.T, rtol=1e-13, atol=1e-14)


@by_scale
def test_pull_back_is_the_adjoint_of_apply(kind):
    """Against the vector-Jacobian product, and <pull_back(v, u), D> = mean <v, D u> for D in the space."""
    scale = scale_of(kind)
    u, v = jnp.asarray(RNG.normal(size=(7, scale.base_dim))), jnp.asarray(RNG.normal(size=(7, DIM)))
    pulled = scale.pull_back(v, u)
    assert type(pulled) is type(scale)
    _, vjp = jax.vjp(lambda s: s.apply(u), scale)
    np.testing.assert_allclose(flat(pulled), flat(in_space(vjp(v / 7)[0])), rtol=1e-12, atol=1e-13)
    direction = in_space(jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), scale))
    expected = np.mean(np.sum(np.asarray(v) * (np.asarray(u) @ np.asarray(dense(direction)).T), axis=1))
    np.testing.assert_allclose(flat(pulled) @ flat(direction), expected, rtol=1e-11, atol=1e-12)


@by_scale
def test_log_det_and_its_gradient(kind):
    scale = scale_of(kind)
    matrix = np.asarray(dense(scale))
    np.testing.assert_allclose(scale.log_det(), np.linalg.slogdet(matrix @ matrix.T)[1] / 2, rtol=1e-12)
    gradient = scale.log_det_gradient()
    assert type(gradient) is type(scale)
    automatic = in_space(jax.grad(lambda s: s.log_det())(scale))
    np.testing.assert_allclose(flat(gradient), flat(automatic), rtol=1e-11, atol=1e-12)

    def by_determinant(s):
        return jnp.linalg.slogdet(dense(s) @ dense(s).T)[1] / 2

    np.testing.assert_allclose(flat(gradient), flat(in_space(jax.grad(by_determinant)(scale))), rtol=1e-10, atol=1e-12)


@by_scale
def test_log_det_gradient_against_finite_differences(kind):
    scale = scale_of(kind)
    direction = in_space(jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), scale))

    def value(step):
        moved = np.asarray(dense(jax.tree.map(lambda a, b: a + step * b, scale, direction)))
        return np.linalg.slogdet(moved @ moved.T)[1] / 2

    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    np.testing.assert_allclose(flat(scale.log_det_gradient()) @ flat(direction), slope, rtol=1e-7)


@by_scale
def test_precision_times_and_standardise(kind):
    scale = scale_of(kind)
    matrix = np.asarray(dense(scale))
    covariance = matrix @ matrix.T
    u = RNG.normal(size=(6, scale.base_dim))
    x = u @ matrix.T
    precision, squared = scale.precision_times(jnp.asarray(u), scale.factorise())
    solved = np.linalg.solve(covariance, x.T).T
    np.testing.assert_allclose(precision, solved, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(squared, np.sum(x * solved, axis=1), rtol=1e-10)
    standard = np.asarray(scale.standardise(jnp.asarray(x[0])))
    assert standard.shape == (DIM,)
    np.testing.assert_allclose(standard @ standard, x[0] @ solved[0], rtol=1e-10)
    if kind != "low_rank":
        np.testing.assert_allclose(standard, u[0], rtol=1e-10, atol=1e-12)


def test_a_low_rank_scale_of_full_rank_is_any_covariance():
    """With a tiny diagonal part and rank = dim the operations agree with the triangular scale's."""
    factor = jnp.asarray(point_of(family_of("normal", "triangular")).scale.matrix)
    low_rank = LowRank(jnp.full(DIM, 1e-4), factor)
    triangular = Triangular(factor)
    np.testing.assert_allclose(low_rank.log_det(), triangular.log_det(), rtol=1e-6)
    np.testing.assert_allclose(low_rank.covariance(), triangular.covariance(), atol=2e-8)
    x = jnp.asarray(RNG.normal(size=DIM))
    np.testing.assert_allclose(
        jnp.sum(low_rank.standardise(x) ** 2), jnp.sum(triangular.standardise(x) ** 2), rtol=1e-6
    )


def test_equal_matrices_mean_equal_scales():
    diagonal = jnp.asarray([0.5, 1.5, 2.0])
    members = [Triangular(jnp.diag(diagonal)), Symmetric(jnp.diag(diagonal)), Diagonal(diagonal)]
    members.append(LowRank(diagonal, jnp.zeros((3, 1))))
    for member in members:
        np.testing.assert_allclose(member.log_det(), np.log(1.5), rtol=1e-14)
        np.testing.assert_allclose(member.covariance(), np.diag(diagonal**2), rtol=1e-14)
