"""The kernels of a GPU, carried out step by step on the host, beside NumPy; on a GPU the same tests run compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.core import row_kernels
from provi.targets.likelihoods import BernoulliLogit, Poisson

SIZES = [(300, 16), (129, 37)]
"""Rows and columns: whole blocks of columns, and neither rows nor columns that fill a block."""


def problem(rows, columns):
    rng = np.random.default_rng(rows)
    table = rng.normal(size=(rows, columns)).astype(np.float32)
    return rng, table


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_projections_are_the_products_to_bfloat16(rows, columns):
    rng, table = problem(rows, columns)
    loc, root = rng.normal(size=columns), rng.normal(size=(columns, columns))
    means, variances = row_kernels.projections(jnp.asarray(table), jnp.asarray(loc), jnp.asarray(root))
    exact = ((table.astype(float) @ root) ** 2).sum(axis=1)
    assert means.shape == variances.shape == (rows,)
    assert np.allclose(means, table @ loc, rtol=1e-5, atol=1e-5)
    # Each factor is off by 2^-9 of itself at most, so each product of a row and C by 2^-8 of the sum of magnitudes.
    largest = ((np.abs(table) @ np.abs(root)) ** 2).sum(axis=1) ** 0.5
    assert (np.abs(np.sqrt(variances) - np.sqrt(exact)) <= 2**-8 * largest).all()
    assert not np.allclose(variances, exact, rtol=1e-6)  # they are rounded, and so for steps only


@pytest.mark.parametrize(("rows", "columns"), [*SIZES, (70, 130)])
def test_weighted_sums_are_those_of_all_rows(rows, columns):
    rng, table = problem(rows, columns)
    slopes, weights = rng.normal(size=rows), rng.uniform(size=rows)
    weights[3] = -1.0  # counts as zero
    gradient, gram = row_kernels.weighted_sums(jnp.asarray(table), jnp.asarray(slopes), jnp.asarray(weights))
    kept = np.maximum(weights, 0)[:, None]
    size = np.abs(table).T @ (kept * np.abs(table))
    assert np.allclose(gradient, table.T.astype(float) @ slopes, rtol=1e-5, atol=1e-4)
    assert (np.abs(gram - table.T @ (kept * table)) <= 2**-7 * size).all()
    assert np.array_equal(gram, np.asarray(gram).T)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize(
    "term", [BernoulliLogit().potential, lambda eta, y: jnp.exp(eta) - y * eta], ids=["logit", "exp"]
)
def test_gradients_in_one_reading_are_those_of_autodiff(monkeypatch, term, rows, columns):
    monkeypatch.setattr(row_kernels, "_GRADIENT_RUN", 64)
    rng, table = problem(rows, columns)
    y, z = rng.integers(2, size=rows).astype(np.float32), rng.normal(size=columns) / 4
    value, gradient = row_kernels.gradient_sums(jnp.asarray(table), jnp.asarray(y), jnp.asarray(z), term)
    with jax.enable_x64(True):
        wide = jnp.asarray(table, float)
        exact = jax.value_and_grad(lambda x: jnp.sum(term(wide @ x, jnp.asarray(y, float))))(jnp.asarray(z))
    assert np.isclose(value, exact[0], rtol=1e-5)
    assert np.allclose(gradient, exact[1], rtol=1e-4, atol=1e-3)


def test_terms_that_kernels_cannot_compute_are_not_given_to_them():
    scale = jnp.arange(16.0)
    assert row_kernels.compiles(BernoulliLogit().potential, jnp.float32)
    assert not row_kernels.compiles(lambda eta, y: jax.scipy.special.erfc(eta) * y, jnp.float32)
    assert not row_kernels.compiles(lambda eta, y: eta * scale, jnp.float32)
    assert not row_kernels.compiles(Poisson().potential, jnp.float32)  # log y!


def test_only_long_tables_of_float32_on_a_gpu_are_for_kernels():
    assert not row_kernels.supported(np.zeros((2**16, 32), np.float64))
    assert row_kernels.supported(np.zeros((2**16, 32), np.float32)) == (jax.default_backend() == "gpu")
    assert not row_kernels.supported(np.zeros((10, 32), np.float32))
    target = provi.targets.LogisticRegression(np.eye(2, dtype=np.float32), np.array([0, 1]))
    value, gradient = target.value_and_gradient(jnp.ones(2, jnp.float32))
    exact = jax.value_and_grad(target.potential)(jnp.ones(2, jnp.float32))
    assert np.allclose(value, exact[0]) and np.allclose(gradient, exact[1])
