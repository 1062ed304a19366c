"""Lanczos against NumPy's dense eigenvalues."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.krylov import extreme_eigenvalues


@functools.partial(jax.jit, static_argnums=2)
def run(matrix, key, num_iterations):
    return extreme_eigenvalues(lambda v: matrix @ v, key, matrix.shape[0], num_iterations, matrix.dtype)


def symmetric(eigenvalues, seed):
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(eigenvalues), len(eigenvalues))))[0]
    return basis @ np.diag(eigenvalues) @ basis.T


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exact_with_as_many_iterations_as_dimensions(seed):
    matrix = np.random.default_rng(seed).normal(size=(12, 12))
    matrix = matrix + matrix.T
    expected = np.linalg.eigvalsh(matrix)
    smallest, largest = run(jnp.asarray(matrix), jax.random.key(seed), 12)
    np.testing.assert_allclose([smallest, largest], expected[[0, -1]], rtol=1e-12)


@pytest.mark.parametrize(
    "eigenvalues",
    [
        [3.0] * 12,
        [2.0] * 6 + [5.0] * 6,
        [0.0] * 12,
        [-1e-3] + [7.0] * 11,
        [0.0] * 11 + [1e6],
    ],
    ids=["identity", "two values", "zero", "one negative", "rank one"],
)
def test_repeated_eigenvalues_hide_nothing(eigenvalues):
    matrix = symmetric(eigenvalues, 3)
    smallest, largest = run(jnp.asarray(matrix), jax.random.key(4), 12)
    atol = 1e-11 * (1 + max(np.abs(eigenvalues)))
    np.testing.assert_allclose(smallest, min(eigenvalues), atol=atol)
    np.testing.assert_allclose(largest, max(eigenvalues), atol=atol)


def test_few_iterations_find_the_ends_from_inside():
    eigenvalues = np.concatenate([[-4.0], np.linspace(0.0, 1.0, 78), [9.0]])
    smallest, largest = run(jnp.asarray(symmetric(eigenvalues, 5)), jax.random.key(6), 20)
    assert -4.0 - 1e-12 <= smallest <= -4.0 + 1e-6
    assert 9.0 - 1e-6 <= largest <= 9.0 + 1e-12


def test_orthogonality_survives_many_iterations():
    # Without reorthogonalisation an ill-conditioned spectrum produces ghosts and loses the small end.
    eigenvalues = np.geomspace(1e-4, 1e4, 60)
    smallest, largest = run(jnp.asarray(symmetric(eigenvalues, 7)), jax.random.key(8), 60)
    np.testing.assert_allclose(largest, 1e4, rtol=1e-12)
    np.testing.assert_allclose(smallest, 1e-4, atol=1e-10)


def test_one_dimension_and_float32():
    smallest, largest = run(jnp.asarray([[2.5]], jnp.float32), jax.random.key(9), 5)
    assert smallest.dtype == largest.dtype == jnp.float32
    assert float(smallest) == pytest.approx(2.5, rel=1e-6) and float(largest) == pytest.approx(2.5, rel=1e-6)


def test_not_finite_operators_give_not_a_number():
    matrix = jnp.eye(4).at[1, 1].set(jnp.nan)
    assert all(np.isnan(value) for value in run(matrix, jax.random.key(0), 4))
