"""Likelihood, E-step and score against sums over a grid of the missing entries, automatic and finite differences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import multivariate_normal

from provi.models.missing import likelihood
from provi.models.missing.conditional import Parameters, make_rows


def make_problem(seed, n=12, p=3, missing=0.4):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(p, p)) / np.sqrt(p) + np.eye(p)
    parameters = Parameters(
        *(jnp.asarray(x) for x in (generator.normal(size=p + 1), generator.normal(size=p), root @ root.T))
    )
    X = generator.normal(size=(n, p))
    X[generator.uniform(size=(n, p)) < missing] = np.nan
    X[0], X[1] = np.nan, generator.normal(size=p)
    return parameters, X, np.where(generator.uniform(size=n) < 0.5, -1.0, 1.0)


def completions(parameters, x, spacing=0.3):
    """All completions of x on a grid along the axes of their conditional law, and p(z) times the cell's volume."""
    beta, omega = np.asarray(parameters.mean), np.asarray(parameters.covariance)
    hidden, seen = np.flatnonzero(np.isnan(x)), np.flatnonzero(~np.isnan(x))
    if len(hidden) == 0:
        return x[None], np.atleast_1d(multivariate_normal(beta, omega).pdf(x))
    gain = omega[np.ix_(hidden, seen)] @ np.linalg.inv(omega[np.ix_(seen, seen)])
    root = np.linalg.cholesky(omega[np.ix_(hidden, hidden)] - gain @ omega[np.ix_(seen, hidden)])
    grid = np.array(list(itertools.product(np.arange(-7.5, 7.6, spacing), repeat=len(hidden))))
    z = np.tile(x, (len(grid), 1))
    z[:, hidden] = beta[hidden] + gain @ (x - beta)[seen] + grid @ root.T
    return z, multivariate_normal(beta, omega).pdf(z) * spacing ** len(hidden) * np.prod(np.diag(root))


def brute_force(parameters, x, label):
    """log p(y, x_obs), p(y | x_obs) and E z, E zz', E (y01 - sigma) z~, E sigma' z~z~' given both, on the grid."""
    delta = np.asarray(parameters.coefficients)
    z, prior = completions(parameters, x)
    tilde = np.column_stack([np.ones(len(z)), z])
    joint = prior * expit(label * (tilde @ delta))
    weights = joint / joint.sum()
    sigma = expit(tilde @ delta)
    return (
        np.log(joint.sum()),
        joint.sum() / prior.sum(),
        weights @ z,
        z.T @ (weights[:, None] * z),
        ((label + 1) / 2 - sigma) * weights @ tilde,
        tilde.T @ ((weights * sigma * (1 - sigma))[:, None] * tilde),
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_everything_equals_sums_over_a_grid(seed):
    parameters, X, labels = make_problem(seed)
    rows = make_rows(X, labels)
    logs, conditional, first, second, gradient, curvature = zip(
        *(brute_force(parameters, x, y) for x, y in zip(X, labels, strict=True)), strict=True
    )
    np.testing.assert_allclose(likelihood.log_likelihood(parameters, rows), np.sum(logs), rtol=1e-8)
    ours = likelihood.conditional_log_likelihoods(parameters, rows)
    np.testing.assert_allclose(ours, np.log(conditional), rtol=0, atol=2e-8)
    positive = np.where(labels > 0, conditional, 1 - np.array(conditional))
    np.testing.assert_allclose(likelihood.probabilities(parameters, rows), positive, atol=2e-8)
    statistics = likelihood.expected_statistics(parameters, rows)
    mean, beta = np.mean(first, axis=0), np.asarray(parameters.mean)
    cross = np.outer(mean, beta)
    scatter = np.mean(second, axis=0) - cross - cross.T + np.outer(beta, beta)
    np.testing.assert_allclose(statistics.shift, mean - beta, atol=1e-7)
    np.testing.assert_allclose(statistics.scatter, scatter, atol=1e-7)
    np.testing.assert_allclose(statistics.score, np.mean(gradient, axis=0), atol=1e-7)
    np.testing.assert_allclose(statistics.curvature, np.mean(curvature, axis=0), atol=1e-6)
    np.testing.assert_allclose(statistics.log_likelihood, np.mean(logs), rtol=1e-8)


def test_the_score_equals_automatic_differentiation():
    parameters, X, labels = make_problem(2, n=40, p=5)
    rows = make_rows(X, labels)
    ours, automatic = likelihood.score(parameters, rows), jax.grad(likelihood.log_likelihood)(parameters, rows)
    np.testing.assert_allclose(ours.coefficients, automatic.coefficients, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(ours.mean, automatic.mean, rtol=1e-9, atol=1e-10)
    symmetric = (automatic.covariance + automatic.covariance.T) / 2
    np.testing.assert_allclose(ours.covariance, symmetric, rtol=1e-9, atol=1e-9)


def test_the_score_equals_finite_differences():
    parameters, X, labels = make_problem(3, n=40, p=3)
    rows = make_rows(X, labels)
    ours = likelihood.score(parameters, rows)
    generator = np.random.default_rng(0)
    for _ in range(5):
        bump = generator.normal(size=(3, 3))
        move = Parameters(
            *(jnp.asarray(x) for x in (generator.normal(size=4), generator.normal(size=3), bump + bump.T))
        )
        ahead, behind = (
            likelihood.log_likelihood(jax.tree.map(lambda a, b, t=t: a + t * b, parameters, move), rows)
            for t in (1e-5, -1e-5)
        )
        slope = sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(move), strict=True))
        np.testing.assert_allclose((ahead - behind) / 2e-5, slope, rtol=1e-6)


def test_blocks_of_rows_give_the_same(monkeypatch):
    parameters, X, labels = make_problem(4, n=300, p=4)
    rows = make_rows(X, labels)
    functions = (likelihood.expected_statistics, likelihood.conditional_log_likelihoods)
    whole = [function(parameters, rows) for function in functions]
    monkeypatch.setattr(likelihood, "_BLOCK_ENTRIES", 70 * 16)
    # Each pattern conditioned once, then each row on its own.
    for pattern_entries in (2**24, 1):
        monkeypatch.setattr(likelihood, "_PATTERN_ENTRIES", pattern_entries)
        jax.clear_caches()  # what was compiled with other constants
        parts = [function(parameters, rows) for function in functions]
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    jax.clear_caches()


def test_complete_rows_have_the_ordinary_likelihood():
    parameters, X, labels = make_problem(5, missing=0.0)
    X = X[1:]
    labels = labels[1:]
    rows = make_rows(X, labels)
    eta = np.asarray(parameters.coefficients)[0] + X @ np.asarray(parameters.coefficients)[1:]
    expected = -np.logaddexp(0, -labels * eta)
    np.testing.assert_allclose(likelihood.conditional_log_likelihoods(parameters, rows), expected, rtol=1e-12)
    density = multivariate_normal(np.asarray(parameters.mean), np.asarray(parameters.covariance)).logpdf(X)
    np.testing.assert_allclose(likelihood.log_likelihood(parameters, rows), np.sum(density + expected), rtol=1e-12)


def test_single_precision():
    parameters, X, labels = make_problem(6)
    single = jax.tree.map(lambda leaf: leaf.astype("float32"), parameters)
    value = likelihood.log_likelihood(single, make_rows(X.astype("float32"), labels))
    assert value.dtype == "float32"
    np.testing.assert_allclose(value, likelihood.log_likelihood(parameters, make_rows(X, labels)), rtol=1e-5)
