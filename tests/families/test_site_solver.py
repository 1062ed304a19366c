"""Variances, solutions and log determinants without factors of N x N matrices, against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.krylov import stochastic_log_det
from provi.families.site_solver import factors_fit, low_rank_suffices, site_solver
from provi.kernels import Matern12, SquaredExponential

# More than one block of 256 columns; one rank for all, so that everything is compiled once.
SIZE, JITTER, RANK = 300, 1e-3, 60
CASES = {
    "rough": (Matern12(1.0, 3.0), 4),
    "flat": (Matern12(3.0, 2.0), 2),
    "low rank": (SquaredExponential(3.0, 3.0), 2),
}


@jax.jit
def everything(solver, sites, tolerance, vector, identity):
    return (
        solver.variances(sites, tolerance),
        solver.apply_inverse(sites, vector, 1e-12),
        solver.log_det(sites),
        solver.whitened(sites)(identity),
    )


@jax.jit
def log_det(matrix, key):
    return stochastic_log_det(lambda v: matrix @ v, key, 60, 8, 60, jnp.float64)


def problem(case):
    kernel, columns = CASES[case]
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((SIZE, columns))
    gram = np.asarray(kernel.matrix(jnp.asarray(inputs))) + JITTER * np.eye(SIZE)
    sites = rng.uniform(0, 0.25, SIZE)
    sites[::7] = 0.0
    return gram, sites, site_solver(jnp.asarray(gram), JITTER, RANK)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6])
@pytest.mark.parametrize("case", CASES)
def test_against_dense_algebra(case, tolerance):
    gram, sites, solver = problem(case)
    vector, root = np.random.default_rng(1).standard_normal(SIZE), np.sqrt(sites)
    inner = np.eye(SIZE) + root[:, None] * gram * root[None, :]
    truth = np.diagonal(gram - gram @ (root[:, None] * np.linalg.solve(inner, root[:, None] * gram)))
    arguments = (jnp.asarray(x) for x in (sites, tolerance, vector, np.eye(SIZE)))
    found, inverse, (value, most), whitened = everything(solver, *arguments)
    rounding, errors = 1e-10 * np.diagonal(gram), np.abs(np.asarray(found.value) - truth)
    assert (errors <= np.asarray(found.error) + rounding).all()
    assert (np.asarray(found.error) <= tolerance * truth * (1 + 1e-6)).all()
    assert (np.asarray(found.low_rank) <= truth + rounding).all()
    assert (float(found.products) == 0) == (case == "low rank")
    if case == "rough":  # a bound far above the error would buy needless products
        assert np.max(errors / np.asarray(found.error)) > 0.1
    np.testing.assert_allclose(inverse, np.linalg.solve(np.eye(SIZE) + sites[:, None] * gram, vector), atol=1e-8)
    exact = np.linalg.slogdet(inner)[1]
    assert float(value) - 1e-8 <= exact <= float(value) + float(most) + 1e-8
    eigenvalues = np.linalg.eigvalsh(np.asarray(whitened + whitened.T) / 2)
    assert np.sum(np.log(eigenvalues)) == pytest.approx(exact - float(value), abs=1e-8)
    assert eigenvalues[0] > 1 - 1e-9  # M <= B'


def test_stochastic_log_determinant_is_within_five_standard_errors():
    """256 probes, alarm rate 6e-7; with as many steps as dimensions the quadrature itself is exact."""
    root = np.random.default_rng(2).standard_normal((60, 60))
    matrix = np.eye(60) + root @ root.T / 10
    value, error = (float(x) for x in log_det(jnp.asarray(matrix), jax.random.key(0)))
    assert abs(value - np.linalg.slogdet(matrix)[1]) < 5 * error
    assert error < 2.0
    # A Krylov space of one dimension: no noise, no division by zero.
    exact, none = (float(x) for x in log_det(jnp.asarray(3.0 * np.eye(60)), jax.random.key(0)))
    assert exact == pytest.approx(60 * np.log(3.0), rel=1e-12) and none < 1e-10


def test_low_rank_is_recognised():
    assert bool(low_rank_suffices(problem("low rank")[2], np.asarray(0.25)))
    assert not bool(low_rank_suffices(problem("rough")[2], np.asarray(0.25)))


def test_factors_fit_counts_four_matrices_twice():
    assert factors_fit(1000, 8, 64 * 10**6) and not factors_fit(1000, 8, 64 * 10**6 - 1)
