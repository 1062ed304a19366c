"""The exact solver against ordinary logistic regression, a general-purpose optimiser and the score."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy.optimize import minimize
from scipy.special import expit

from provi.models.missing import exact_ascent
from provi.models.missing.conditional import Parameters, make_rows
from provi.models.missing.exact_solver import initial_parameters, solve_exact
from provi.models.missing.likelihood import expected_statistics, log_likelihood, score


def make_table(seed, n=400, p=3, missing=0.3):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(p, p)) / np.sqrt(p) + np.eye(p)
    X = generator.normal(size=p) + generator.normal(size=(n, p)) @ root.T
    eta = X @ generator.normal(size=p) - 0.5
    labels = np.where(generator.uniform(size=n) < expit(eta), 1.0, -1.0)
    X[generator.uniform(size=(n, p)) < missing] = np.nan
    return X, labels


def newton_logistic(X, labels, penalty=0.0):
    """Ordinary logistic regression by Newton's method in NumPy."""
    design = np.column_stack([np.ones(len(X)), X])
    ridge = np.diag([0.0, *[penalty] * X.shape[1]])
    coefficients = np.zeros(design.shape[1])
    for _ in range(30):
        probability = expit(design @ coefficients)
        gradient = design.T @ ((labels > 0) - probability) - ridge @ coefficients
        weights = (probability * (1 - probability))[:, None]
        coefficients += np.linalg.solve(design.T @ (weights * design) + ridge, gradient)
    return coefficients


@pytest.mark.parametrize("penalty", [0.0, 5.0])
def test_complete_data_give_ordinary_logistic_regression_and_sample_moments(penalty):
    X, labels = make_table(0, missing=0.0)
    solution = solve_exact(make_rows(X, labels), penalty=penalty, tol=1e-10)
    assert solution.converged and not solution.separated
    np.testing.assert_allclose(solution.parameters.coefficients, newton_logistic(X, labels, penalty), atol=1e-8)
    np.testing.assert_allclose(solution.parameters.mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(solution.parameters.covariance, np.cov(X.T, bias=True), rtol=1e-11)


def check_maximum(rows, penalty, solution):
    """A quasi-Newton method in a Cholesky factor, from another start, finds nothing better."""
    p = rows.values.shape[1]
    lower = np.tril_indices(p)

    def parameters(x):
        root = jnp.zeros((p, p)).at[lower].set(x[2 * p + 1 :])
        return Parameters(x[: p + 1], x[p + 1 : 2 * p + 1], root @ root.T)

    def loss(x, rows):
        return 0.5 * jnp.sum(jnp.asarray(penalty) * x[: p + 1] ** 2) - log_likelihood(parameters(x), rows)

    value = jax.jit(jax.value_and_grad(loss))
    start = np.concatenate([np.zeros(2 * p + 1), np.eye(p)[lower]])
    best = minimize(lambda x: value(x, rows), start, jac=True, method="BFGS", options={"gtol": 1e-5})
    np.testing.assert_allclose(solution.trace[-1], -best.fun, rtol=0, atol=1e-6)
    np.testing.assert_allclose(solution.parameters.coefficients, best.x[: p + 1], atol=1e-4)


def test_missing_data_give_the_maximum_of_the_likelihood():
    rows = make_rows(*make_table(1))
    penalty = np.array([0.0, 1.0, 2.0, 3.0])
    solution = solve_exact(rows, penalty=penalty, tol=1e-8)
    assert solution.converged
    assert solution.gap_estimate <= 1e-8
    np.testing.assert_allclose(solution.log_likelihood, log_likelihood(solution.parameters, rows), rtol=1e-13)
    ridge = 0.5 * np.sum(penalty * np.asarray(solution.parameters.coefficients) ** 2)
    np.testing.assert_allclose(solution.trace[-1], solution.log_likelihood - ridge, rtol=1e-13)
    assert np.all(np.diff(solution.trace) > -1e-9)
    assert len(solution.trace) == solution.iterations + 1
    check_maximum(rows, penalty, solution)


class Masked(eqx.Module):
    """A covariance step that keeps some entries: all, or the diagonal, which is the maximum over such covariances."""

    mask: Array

    def __call__(self, scatter):
        return scatter * self.mask


def test_em_alone_finds_the_same_maximum_and_does_not_understate_its_gap():
    rows = make_rows(*make_table(2))
    best = solve_exact(rows, tol=1e-9)
    for tol in (0.1, 1e-3, 1e-6):
        solution = solve_exact(rows, tol=tol, covariance_step=Masked(jnp.ones((3, 3))))
        assert solution.converged
        assert best.log_likelihood - solution.log_likelihood <= tol


def test_a_constrained_covariance_is_stationary_in_its_set():
    rows = make_rows(*make_table(3))
    solution = solve_exact(rows, covariance_step=Masked(jnp.eye(3)), tol=1e-9)
    assert solution.converged
    slope = score(solution.parameters, rows)
    omega = np.asarray(solution.parameters.covariance)
    np.testing.assert_array_equal(omega, np.diag(np.diag(omega)))
    for part in (slope.coefficients, slope.mean, np.diag(slope.covariance)):
        np.testing.assert_allclose(part, 0, atol=2e-3)
    assert np.max(np.abs(slope.covariance)) > 1


def test_separated_labels_stop_near_the_supremum_with_finite_coefficients():
    X, _ = make_table(4, missing=0.0)
    labels = np.where(X[:, 0] - X[:, 1] > 0, 1.0, -1.0)
    rows = make_rows(X, labels)
    solution = solve_exact(rows, tol=1e-4)
    assert solution.separated and solution.converged
    assert "separated" in solution.message
    # The supremum: probabilities of one, and the Gaussian part at its maximum.
    gaussian = -0.5 * 400 * (np.linalg.slogdet(2 * np.pi * np.cov(X.T, bias=True))[1] + 3)
    assert 0 < gaussian - solution.log_likelihood <= 1e-4
    assert np.all(np.isfinite(solution.parameters.coefficients))
    assert not solve_exact(rows, penalty=1.0).separated


def test_one_label_only_is_separated():
    X, _ = make_table(5)
    solution = solve_exact(make_rows(X, np.ones(len(X))), tol=1e-3)
    assert solution.separated and solution.converged
    assert float(solution.parameters.coefficients[0]) > 5


def test_a_constant_column_is_named_as_the_cause():
    X, labels = make_table(6)
    X[~np.isnan(X[:, 1]), 1] = 2.0
    solution = solve_exact(make_rows(X, labels))
    assert not solution.converged
    assert "constant or repeated column" in solution.message


def test_too_few_iterations_are_reported():
    solution = solve_exact(make_rows(*make_table(7)), max_iter=2)
    assert not solution.converged
    assert solution.iterations == 2
    assert "raise max_iter" in solution.message


def test_rows_without_any_entry_are_used_for_their_labels():
    X, labels = make_table(8)
    X[:40] = np.nan
    rows = make_rows(X, labels)
    solution = solve_exact(rows, tol=1e-10)
    assert solution.converged
    slope, omega = score(solution.parameters, rows), np.asarray(solution.parameters.covariance)
    # In the units of the statistics: the covariance is nearly singular, its own units would magnify rounding.
    for part in (slope.coefficients, omega @ slope.mean, omega @ slope.covariance @ omega):
        np.testing.assert_allclose(part, 0, atol=1e-3)
    labels[:40] = 1
    assert solve_exact(make_rows(X, labels)).parameters.coefficients[0] > solution.parameters.coefficients[0]


def test_numbers_do_not_recompile(monkeypatch):
    traced = []
    counted = lambda *args: traced.append(args) or expected_statistics(*args)  # noqa: E731
    monkeypatch.setattr(exact_ascent, "expected_statistics", counted)
    jax.clear_caches()
    rows = make_rows(*make_table(9))
    solve_exact(rows, tol=1e-3, max_iter=40)
    assert traced
    traced.clear()
    solve_exact(rows, initial_parameters(rows), penalty=2.0, tol=1e-7, max_iter=50)
    assert not traced


def test_single_precision():
    X, labels = make_table(10)
    double = solve_exact(make_rows(X, labels))
    single = solve_exact(make_rows(X.astype("float32"), labels))
    assert single.converged
    assert single.parameters.coefficients.dtype == "float32"
    np.testing.assert_allclose(single.parameters.coefficients, double.parameters.coefficients, atol=5e-3)


def test_the_start_has_the_observed_moments():
    X, labels = make_table(11)
    start = initial_parameters(make_rows(X, labels))
    np.testing.assert_allclose(start.mean, np.nanmean(X, axis=0), rtol=1e-12)
    np.testing.assert_allclose(start.covariance, np.diag(np.nanvar(X, axis=0)), rtol=1e-12)
    odds = (np.sum(labels > 0) + 0.5) / (np.sum(labels < 0) + 0.5)
    np.testing.assert_allclose(start.coefficients, [np.log(odds), 0, 0, 0], rtol=1e-12)


@pytest.mark.parametrize(("argument", "value"), [("penalty", [1.0]), ("penalty", -1.0), ("tol", 0.0), ("max_iter", 0)])
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=argument):
        solve_exact(make_rows(*make_table(12)), **{argument: value})
