"""Conditional laws of the rows against block formulae written out row by row in NumPy and against scipy's densities."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from provi.models.missing.conditional import Parameters, condition_patterns, condition_rows, make_rows


def make_problem(seed, n=30, p=5):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(p, p)) + np.eye(p)
    covariance, mean, coefficients = root @ root.T, generator.normal(size=p), generator.normal(size=p + 1)
    X = generator.normal(size=(n, p))
    X[generator.uniform(size=(n, p)) < 0.4] = np.nan
    X[0], X[1] = np.nan, generator.normal(size=p)
    labels = np.where(generator.uniform(size=n) < 0.5, -1.0, 1.0)
    parameters = Parameters(jnp.asarray(coefficients), jnp.asarray(mean), jnp.asarray(covariance))
    return parameters, X, labels


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_equal_the_block_formulae(seed):
    parameters, X, labels = make_problem(seed)
    rows = make_rows(X, labels)
    conditioned = condition_patterns(parameters, rows.patterns)
    conditional = condition_rows(parameters, conditioned, rows)
    beta, omega, delta = (np.asarray(x) for x in (parameters.mean, parameters.covariance, parameters.coefficients))
    for i, x in enumerate(X):
        seen, hidden = np.flatnonzero(~np.isnan(x)), np.flatnonzero(np.isnan(x))
        gain = omega[np.ix_(hidden, seen)] @ np.linalg.inv(omega[np.ix_(seen, seen)])
        filled = x.copy()
        filled[hidden] = beta[hidden] + gain @ (x - beta)[seen]
        left = omega[np.ix_(hidden, hidden)] - gain @ omega[np.ix_(seen, hidden)]
        whole = np.zeros_like(omega)
        whole[np.ix_(hidden, hidden)] = left
        np.testing.assert_allclose(conditional.filled[i], filled, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(conditioned.covariance[rows.pattern[i]], whole, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(conditional.direction[i], whole @ delta[1:], rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(conditional.centre[i], delta[0] + delta[1:] @ filled, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(conditional.variance[i], delta[1:] @ whole @ delta[1:], rtol=1e-8, atol=1e-9)
        density = 0.0
        if len(seen):
            density = multivariate_normal(beta[seen], omega[np.ix_(seen, seen)]).logpdf(x[seen])
        np.testing.assert_allclose(conditional.log_density[i], density, rtol=1e-9)


def test_a_complete_row_has_no_variance_left_and_its_values_unchanged():
    parameters, X, labels = make_problem(2)
    rows = make_rows(X, labels)
    conditional = condition_rows(parameters, condition_patterns(parameters, rows.patterns), rows)
    assert float(conditional.variance[1]) == 0.0
    np.testing.assert_array_equal(conditional.filled[1], X[1])


def test_taken_rows_have_the_same_laws():
    parameters, X, labels = make_problem(3)
    rows = make_rows(X, labels)
    places = np.array([7, 0, 7, 1])
    some = rows.take(places)
    whole = condition_rows(parameters, condition_patterns(parameters, rows.patterns), rows)
    part = condition_rows(parameters, condition_patterns(parameters, some.patterns), some)
    for name in ("filled", "direction", "centre", "variance", "log_density"):
        np.testing.assert_allclose(getattr(part, name), getattr(whole, name)[places], rtol=1e-12, atol=1e-12)


def test_the_number_of_patterns_is_rounded_up_to_few_sizes():
    sizes = set()
    for n in range(20, 60, 5):
        _, X, labels = make_problem(4, n=n)
        rows = make_rows(X, labels)
        distinct = len(np.unique(np.isnan(X), axis=0))
        assert distinct <= rows.patterns.shape[0] <= 1.25 * distinct
        np.testing.assert_array_equal(np.asarray(rows.patterns)[np.asarray(rows.pattern)], ~np.isnan(X))
        sizes.add(rows.patterns.shape[0])
    assert len(sizes) <= 4 * np.log2(max(sizes) / min(sizes)) + 2
