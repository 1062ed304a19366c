"""The pivoted Cholesky factor against dense matrices of known rank and a direct NumPy version."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.pivoted_cholesky import pivoted_cholesky


@functools.partial(jax.jit, static_argnums=1)
def run(matrix, rank):
    return pivoted_cholesky(lambda i: matrix[:, i], jnp.diagonal(matrix), rank)


def squared_exponential(num, length_scale, seed=0):
    x = np.random.default_rng(seed).uniform(size=(num, 2))
    return np.exp(-0.5 * np.sum((x[:, None] - x[None]) ** 2, axis=2) / length_scale**2)


def eliminate(matrix, rank):
    """The same factor from Schur complements of the whole matrix."""
    rest, factor, pivots = matrix.copy(), np.zeros((len(matrix), rank)), []
    for k in range(rank):
        pivot = int(np.argmax(np.diag(rest)))
        factor[:, k] = rest[:, pivot] / np.sqrt(rest[pivot, pivot])
        rest = rest - np.outer(factor[:, k], factor[:, k])
        pivots.append(pivot)
    return factor, pivots


def test_equals_elimination_of_the_whole_matrix():
    matrix = squared_exponential(60, 0.3) * np.outer(np.linspace(1, 2, 60), np.linspace(1, 2, 60))
    result = run(jnp.asarray(matrix), 12)
    factor, pivots = eliminate(matrix, 12)
    np.testing.assert_array_equal(result.pivots, pivots)
    np.testing.assert_allclose(result.factor, factor, atol=1e-9)
    assert int(result.num_pivots) == 12


def test_the_residual_is_the_error_and_bounds_it():
    matrix = squared_exponential(60, 0.3)
    result = run(jnp.asarray(matrix), 20)
    error = matrix - np.asarray(result.factor @ result.factor.T)
    np.testing.assert_allclose(result.residual, np.diag(error), atol=1e-13)
    eigenvalues = np.linalg.eigvalsh(error)
    assert eigenvalues[0] >= -1e-13
    assert eigenvalues[-1] <= float(jnp.sum(result.residual)) + 1e-13


def test_full_rank_reproduces_the_matrix():
    basis = np.random.default_rng(1).normal(size=(15, 15))
    matrix = basis @ basis.T
    result = run(jnp.asarray(matrix), 40)
    assert result.factor.shape == (15, 15)
    np.testing.assert_allclose(result.factor @ result.factor.T, matrix, rtol=1e-12, atol=1e-12)
    assert sorted(np.asarray(result.pivots)) == list(range(15))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_stops_at_the_rank_of_the_matrix(dtype):
    tall = np.random.default_rng(2).normal(size=(50, 4))
    matrix = jnp.asarray((tall @ tall.T).astype(dtype))
    result = run(matrix, 10)
    assert result.factor.dtype == dtype
    assert int(result.num_pivots) == 4
    assert (np.asarray(result.factor)[:, 4:] == 0).all()
    np.testing.assert_allclose(result.factor @ result.factor.T, matrix, atol=200 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("matrix", "rank"), [(np.ones((20, 20)), 1), (np.zeros((20, 20)), 0), (np.kron(np.eye(5), np.ones((4, 4))), 5)]
)
def test_equal_points(matrix, rank):
    result = run(jnp.asarray(matrix), 8)
    assert int(result.num_pivots) == rank
    np.testing.assert_array_equal(result.factor @ result.factor.T, matrix)
    np.testing.assert_array_equal(result.residual, np.zeros(20))
