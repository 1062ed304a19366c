"""Tables made to deceive the exact solver: saddle points, indefinite covariances, coefficients without a maximum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from provi.models.missing.conditional import Parameters, make_rows
from provi.models.missing.exact_solver import solve_exact
from provi.models.missing.information import complete_information, louis_information
from provi.models.missing.likelihood import expected_statistics
from provi.models.missing.solving import FactorStep


def make_table(seed, n, p, missing, length=1.0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, p)) @ (generator.normal(size=(p, p)) / np.sqrt(p) + np.eye(p)).T
    X /= X.std(axis=0)
    slope = generator.normal(size=p)
    slope *= length / np.linalg.norm(slope)
    labels = np.where(generator.uniform(size=n) < expit(X @ slope), 1.0, -1.0)
    X[generator.uniform(size=(n, p)) < missing] = np.nan
    return X, labels


def make_factor_table(seed, n, p, factors, missing):
    generator = np.random.default_rng(seed)
    loadings = generator.normal(size=(p, factors))
    X = generator.normal(size=(n, factors)) @ loadings.T + generator.normal(size=(n, p)) * 0.7
    X /= X.std(axis=0)
    slope = generator.normal(size=p) / np.sqrt(p) * 1.5
    labels = np.where(generator.uniform(size=n) < expit(X @ slope), 1.0, -1.0)
    X[generator.uniform(size=(n, p)) < missing] = np.nan
    return X, labels


def test_a_saddle_point_is_not_taken_for_a_maximum():
    # A line goes through the two rows that show both columns: with all rows on it the density is infinite. EM starts
    # near a saddle point, where its gains are small and shrink; some tables have a maximum besides.
    stopped = []
    for seed in range(6):
        X, labels = make_table(seed, 200, 2, 0.0)
        X[2:, 1] = np.nan
        rows = make_rows(X, labels)
        solution, further = (solve_exact(rows, tol=tol, penalty=1.0) for tol in (1e-2, 1e-8))
        assert further.trace[-1] - solution.trace[-1] <= solution.gap_estimate
        if not solution.converged:
            stopped.append(solution.message)
    assert stopped
    assert all("seldom observed together" in message for message in stopped)


def test_the_covariance_is_positive_definite_though_no_row_is_complete():
    generator = np.random.default_rng(0)
    for seed in range(5):
        X, labels = make_table(seed, 60, 3, 0.5)
        X[np.arange(60), generator.integers(3, size=60)] = np.nan
        solution = solve_exact(make_rows(X, labels), penalty=0.1, max_iter=200)
        assert np.linalg.eigvalsh(np.asarray(solution.parameters.covariance))[0] > 0
        assert np.all(np.isfinite(solution.parameters.coefficients))
        assert np.all(np.diff(solution.trace) > -1e-9)


def test_the_gap_is_not_understated():
    for seed in range(8):
        rows = make_rows(*make_table(seed, 200, 2, 0.2, length=1.0 + seed % 2))
        best = solve_exact(rows, tol=1e-10)
        assert best.converged
        for tol in (1.0, 1e-2, 1e-4):
            solution = solve_exact(rows, tol=tol)
            assert solution.converged
            assert best.trace[-1] - solution.trace[-1] <= solution.gap_estimate + 1e-8
            assert solution.gap_estimate <= tol


@pytest.mark.parametrize("tol", [1e-2, 1e-5])
def test_coefficients_without_a_maximum_are_reported_though_not_all_rows_are_told_apart(tol):
    # The sign of the first column is the label. Where it is missing its law given the second says how probable that
    # is: P = Phi(mu/s) as the coefficients grow.
    X, _ = make_table(3, 200, 2, 0.0)
    labels = np.where(X[:, 0] > 0, 1.0, -1.0)
    X[100:, 0] = np.nan
    rows = make_rows(X, labels)
    solution = solve_exact(rows, tol=tol)
    assert solution.converged and solution.separated
    assert "no finite maximum" in solution.message
    further = solve_exact(rows, tol=tol / 100)
    assert 0 <= further.trace[-1] - solution.trace[-1] <= solution.gap_estimate
    assert not solve_exact(rows, penalty=0.1, tol=tol).separated


def test_em_with_factors_is_neither_stopped_by_their_rounding_nor_understates_its_gap():
    step = FactorStep(3)
    rows = make_rows(*make_factor_table(0, 300, 8, 3, 0.5))
    best = solve_exact(rows, tol=1e-8, covariance_step=step)
    assert best.converged
    for tol in (1e-1, 1e-3, 1e-5):
        solution = solve_exact(rows, tol=tol, covariance_step=step)
        assert solution.converged
        assert best.trace[-1] - solution.trace[-1] <= tol


def test_columns_of_very_different_scale():
    X, labels = make_table(5, 200, 2, 0.2)
    scale = np.array([1e-6, 1e6])
    plain, scaled = solve_exact(make_rows(X, labels), tol=1e-9), solve_exact(make_rows(X * scale, labels), tol=1e-9)
    assert scaled.converged
    np.testing.assert_allclose(
        np.asarray(scaled.parameters.coefficients)[1:] * scale, plain.parameters.coefficients[1:], rtol=1e-5
    )


def test_complete_rows_have_the_complete_information():
    X, labels = make_table(6, 50, 2, 0.0)
    rows = make_rows(X, labels)
    parameters = Parameters(
        jnp.asarray([0.2, -0.5, 1.0]), jnp.asarray(X.mean(axis=0)), jnp.asarray(np.cov(X.T, bias=True))
    )
    curvature = expected_statistics(parameters, rows).curvature
    complete = jax.jit(complete_information, static_argnums=2)(parameters, curvature, 50)
    np.testing.assert_allclose(complete, louis_information(parameters, rows), atol=1e-9)
