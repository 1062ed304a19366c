"""Conjugate gradients against dense solutions, and the low-rank preconditioner against dense algebra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.krylov import IdentityPlusLowRank, solve
from provi.core.pivoted_cholesky import pivoted_cholesky


@eqx.filter_jit
def run(matrix, rhs, tolerance, max_iterations, preconditioner=None):
    precondition = (lambda v: v) if preconditioner is None else preconditioner.solve
    return solve(lambda v: matrix @ v, rhs, precondition, tolerance, max_iterations)


def gaussian_process_system(num=500, seed=0):
    """B = I + S^(1/2) K S^(1/2) of a squared-exponential kernel with some weights zero, and K's factor of rank 50."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, 4))
    kernel = 100.0 * np.exp(-0.5 * np.sum((x[:, None] - x[None]) ** 2, axis=2) / 2.0**2)
    weights = rng.uniform(0, 0.25, size=num)
    weights[:20] = 0
    matrix = np.eye(num) + np.sqrt(weights)[:, None] * kernel * np.sqrt(weights)[None, :]
    columns = jnp.asarray(kernel)
    low_rank = jax.jit(lambda k: pivoted_cholesky(lambda i: k[:, i], jnp.diagonal(k), 50).factor)(columns)
    return matrix, weights, low_rank, rng.normal(size=(num, 7))


@pytest.mark.parametrize("tolerance", [1e-4, 1e-10])
def test_solves_to_the_tolerance_and_the_preconditioner_saves_iterations(tolerance):
    matrix, weights, low_rank, rhs = gaussian_process_system()
    preconditioner = IdentityPlusLowRank(low_rank, jnp.asarray(weights))
    plain = run(jnp.asarray(matrix), jnp.asarray(rhs), tolerance, 1000)
    helped = run(jnp.asarray(matrix), jnp.asarray(rhs), tolerance, 1000, preconditioner)
    expected = np.linalg.solve(matrix, rhs)
    for result in (plain, helped):
        assert (np.asarray(result.relative_residuals) <= tolerance).all()
        residuals = np.linalg.norm(rhs - matrix @ np.asarray(result.solution), axis=0) / np.linalg.norm(rhs, axis=0)
        np.testing.assert_allclose(result.relative_residuals, residuals, rtol=1e-3)
        # The smallest eigenvalue of B is at least one, so the residual bounds the error.
        errors = np.linalg.norm(np.asarray(result.solution) - expected, axis=0) / np.linalg.norm(rhs, axis=0)
        assert (errors <= tolerance).all()
    assert int(helped.iterations) < int(plain.iterations) / 2


def test_exact_after_as_many_iterations_as_dimensions():
    basis = np.random.default_rng(1).normal(size=(12, 12))
    matrix = basis @ basis.T + np.eye(12)
    rhs = np.random.default_rng(2).normal(size=(12, 3))
    result = run(jnp.asarray(matrix), jnp.asarray(rhs), 0.0, 12)
    assert int(result.iterations) == 12
    np.testing.assert_allclose(result.solution, np.linalg.solve(matrix, rhs), rtol=1e-9)


def test_columns_do_not_disturb_one_another():
    matrix, _, _, rhs = gaussian_process_system(num=80)
    rhs[:, 0] = 0.0
    rhs[:, 1] = np.linalg.eigh(matrix)[1][:, -1]
    rhs[:, 2] *= 1e-30
    rhs[:, 3] *= 1e30
    together = run(jnp.asarray(matrix), jnp.asarray(rhs), 1e-9, 1000)
    assert (np.asarray(together.solution)[:, 0] == 0).all()
    for column in range(1, 7):
        alone = run(jnp.asarray(matrix), jnp.asarray(rhs[:, [column]]), 1e-9, 1000)
        size = np.abs(np.asarray(alone.solution)).max()
        np.testing.assert_allclose(together.solution[:, [column]], alone.solution, atol=1e-12 * size)
        assert int(alone.iterations) <= int(together.iterations)
    assert (np.asarray(together.relative_residuals) <= 1e-9).all()


def test_what_was_not_solved_shows():
    matrix, _, _, rhs = gaussian_process_system(num=80)
    stopped = run(jnp.asarray(matrix), jnp.asarray(rhs), 1e-10, 3)
    assert int(stopped.iterations) == 3 and (np.asarray(stopped.relative_residuals) > 1e-10).all()
    indefinite = run(jnp.diag(jnp.asarray([1.0, -1.0, 2.0])), jnp.ones((3, 1)), 1e-10, 50)
    assert np.isfinite(indefinite.solution).all()
    broken = run(jnp.diag(jnp.asarray([1.0, jnp.nan, 2.0])), jnp.ones((3, 1)), 1e-10, 50)
    assert not np.asarray(broken.relative_residuals <= 1e-10).any() and int(broken.iterations) < 50


def test_float32():
    matrix, weights, low_rank, rhs = gaussian_process_system(num=120)
    single = [jnp.asarray(a, jnp.float32) for a in (matrix, rhs, weights, low_rank)]
    preconditioner = IdentityPlusLowRank(single[3], single[2])
    result = run(single[0], single[1], jnp.asarray(1e-4, jnp.float32), 200, preconditioner)
    assert result.solution.dtype == jnp.float32
    assert (np.asarray(result.relative_residuals) <= 2e-4).all()


def test_the_preconditioner_is_identity_plus_low_rank():
    rng = np.random.default_rng(3)
    factor, weights, columns = rng.normal(size=(30, 5)), rng.uniform(size=30), rng.normal(size=(30, 4))
    weights[:3] = 0
    dense = np.eye(30) + np.sqrt(weights)[:, None] * (factor @ factor.T) * np.sqrt(weights)[None, :]
    low_rank = IdentityPlusLowRank(jnp.asarray(factor), jnp.asarray(weights))
    np.testing.assert_allclose(low_rank.solve(jnp.asarray(columns)), np.linalg.solve(dense, columns), rtol=1e-11)
    np.testing.assert_allclose(low_rank.multiply(jnp.asarray(columns)), dense @ columns, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(low_rank.log_determinant(), np.linalg.slogdet(dense)[1], rtol=1e-13)
