"""Imputations against the closed-form moments of the missing entries, and Rubin's rules against the direct fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.core.normal_cdf import sigmoid_mean_ratios
from provi.models.missing import imputation as module
from provi.models.missing.conditional import (
    Parameters,
    Rows,
    condition_patterns,
    condition_rows,
    flatten_parameters,
    fold_symmetric,
    make_rows,
    unflatten_parameters,
)
from provi.models.missing.estimation import standard_errors
from provi.models.missing.imputation import draw_parameters, impute, impute_properly
from provi.models.missing.information import empirical_information, louis_information
from provi.models.missing.likelihood import score
from support.statistics import assert_mean


def make_problem(num_rows: int, share: float, seed: int = 0) -> tuple[Parameters, Rows]:
    random = np.random.default_rng(seed)
    root = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.5, 0.3, 1.2]])
    mean, coefficients = np.array([0.5, -1.0, 0.0]), np.array([-0.3, 1.0, 0.8, -0.7])
    X = mean + random.normal(size=(num_rows, 3)) @ root.T
    chance = 1 / (1 + np.exp(-coefficients[0] - X @ coefficients[1:]))
    labels = np.where(random.uniform(size=num_rows) < chance, 1.0, -1.0)
    X[random.uniform(size=X.shape) < share] = np.nan
    X[0], X[1] = np.nan, 1.0  # a row without any entry, and a complete one
    parameters = Parameters(jnp.asarray(coefficients), jnp.asarray(mean), jnp.asarray(root @ root.T))
    return parameters, make_rows(X, labels)


@pytest.mark.parametrize("given_labels", [True, False])
def test_first_and_second_moments(given_labels):
    """Of 8 rows, from 20000 draws. False-alarm rate 2e-6: two z-tests with Bonferroni over all entries."""
    parameters, rows = make_problem(8, 0.5, seed=2)
    # Strong coefficients: the labels must move the entries visibly.
    parameters = Parameters(3 * parameters.coefficients, parameters.mean, parameters.covariance)
    draws = np.asarray(impute(jax.random.key(0), parameters, rows, given_labels, 20000))
    patterns = condition_patterns(parameters, rows.patterns)
    law = condition_rows(parameters, patterns, rows)
    m, b, C = (np.asarray(x) for x in (law.filled, law.direction, patterns.covariance[rows.pattern]))
    ratios = sigmoid_mean_ratios(law.centre, law.variance, rows.labels)
    r1, r2 = (np.asarray(r)[:, None] * given_labels for r in (ratios.first, ratios.second))
    mean = m + b * r1
    cross = m[:, :, None] * b[:, None] * r1[..., None]
    second = C + m[:, :, None] * m[:, None] + cross + cross.swapaxes(1, 2) + b[:, :, None] * b[:, None] * r2[..., None]
    assert_mean(draws, mean)
    assert_mean(draws[..., :, None] * draws[..., None, :], second)
    if given_labels:  # the test could tell a sampler that ignores the labels
        assert np.abs(mean - m).max() > 0.3


def test_observed_entries_stay_and_blocks_of_rows_are_independent(monkeypatch):
    """In blocks of 64 rows. (z - m)/sd of 100 missing entries or so is standard normal; false-alarm rate 1e-6."""
    parameters, rows = make_problem(150, 0.3, seed=3)
    monkeypatch.setattr(module, "_NUMBERS_AT_ONCE", 1)
    draws = np.asarray(impute(jax.random.key(1), parameters, rows, False, 2))
    assert draws.shape == (2, 150, 3)
    observed = np.asarray(rows.observed)
    np.testing.assert_array_equal(draws[0][observed], np.asarray(rows.values)[observed])
    patterns = condition_patterns(parameters, rows.patterns)
    centre = np.asarray(condition_rows(parameters, patterns, rows).filled)
    deviation = np.sqrt(np.diagonal(np.asarray(patterns.covariance), axis1=1, axis2=2))[np.asarray(rows.pattern)]
    scores = (draws - centre) / np.where(observed, 1, deviation)
    scores = scores[:, ~observed]
    assert stats.kstest(scores[0], "norm").pvalue > 1e-6
    # Neither draws nor blocks repeat each other.
    assert np.unique(scores).size == scores.size


def test_parameters_are_drawn_with_the_inverse_information():
    """Means and squares of 4000 draws, false-alarm rate 2e-6; a large sample, where exp(d) is 1 + d."""
    parameters, rows = make_problem(400, 0.2, seed=4)
    information = 400 * np.asarray(empirical_information(parameters, rows))
    draws = draw_parameters(jax.random.key(2), parameters, jnp.asarray(information), 4000)
    lower = np.tril_indices(3)
    moved = [draws.coefficients - parameters.coefficients[None], draws.mean - parameters.mean[None]]
    moved.append((draws.covariance - parameters.covariance[None])[:, lower[0], lower[1]])
    moved = np.concatenate([np.asarray(x) for x in moved], axis=1) / standard_errors(information)
    expected = np.linalg.inv(information) / np.outer(*[standard_errors(information)] * 2)
    # The second-order term of the exponential is about 1/100 of a standard error here.
    assert_mean(moved, np.clip(moved.mean(axis=0), -0.02, 0.02))
    assert_mean(moved[:, :, None] * moved[:, None, :], expected)
    # However little is known, covariances are positive definite.
    wild = draw_parameters(jax.random.key(3), parameters, jnp.asarray(information) / 1e6, 50)
    assert np.linalg.eigvalsh(np.asarray(wild.covariance)).min() > 0


def test_factor_parameters_are_drawn_in_the_model():
    parameters, rows = make_problem(500, 0.2, seed=5)
    loadings = jnp.asarray([[1.0], [0.5], [-0.8]])
    parameters = Parameters(parameters.coefficients, parameters.mean, loadings @ loadings.T + jnp.eye(3))
    information = empirical_information(parameters, rows, loadings)
    draws = draw_parameters(jax.random.key(4), parameters, information, 2000, loadings)
    covariance = np.asarray(draws.covariance)
    assert np.linalg.eigvalsh(covariance).min() > 0
    # One factor in three columns fits any covariance, but its loadings' signs are those of the estimate.
    assert (np.sign(covariance[:, 0, 2]) == -1).mean() > 0.999
    errors = standard_errors(information)
    assert_mean((np.asarray(draws.mean - parameters.mean[None]) / errors[4:7]) ** 2, np.ones(3))


def test_an_indefinite_information_is_refused():
    parameters, _ = make_problem(3, 0.0)
    with pytest.raises(ValueError, match="positive semidefinite"):
        draw_parameters(jax.random.key(0), parameters, -jnp.eye(13), 2)


@jax.jit
def fit_complete(X, labels):
    """Logistic regression by Newton's method: coefficients and their covariance."""
    design = jnp.concatenate([jnp.ones((X.shape[0], 1)), X], axis=1)

    def information(coefficients):
        chance = jax.nn.sigmoid(design @ coefficients)
        return design.T @ ((chance * (1 - chance))[:, None] * design), chance

    def step(_, coefficients):
        matrix, chance = information(coefficients)
        return coefficients + jnp.linalg.solve(matrix, design.T @ ((labels + 1) / 2 - chance))

    found = jax.lax.fori_loop(0, 8, step, jnp.zeros(design.shape[1]))
    return found, jnp.linalg.inv(information(found)[0])


def test_rubins_rules_give_the_direct_fit_and_its_standard_errors():
    """100 proper imputations of 1000 rows, 30% missing.

    With B the variance of a coefficient between imputations, its mean has Monte-Carlo error sqrt(B/100), and B itself
    a relative error sqrt(2/99). Allowed: 4.9 of either (false-alarm rate 1e-6 each), plus 5% of a standard error for
    the normal approximation of the posterior.
    """
    best, rows = make_problem(1000, 0.3, seed=6)
    for _ in range(6):  # Newton's method from the truth
        information = louis_information(best, rows)
        slope = score(best, rows)
        slope = np.concatenate([slope.coefficients, slope.mean, fold_symmetric(slope.covariance)])
        step = np.linalg.solve(np.asarray(information), slope)
        best = unflatten_parameters(flatten_parameters(best) + jnp.asarray(step), 3)
    assert np.abs(step).max() < 1e-8
    information = louis_information(best, rows)
    draws = draw_parameters(jax.random.key(5), best, information, 100)
    completed = impute_properly(jax.random.key(6), draws, rows, True)
    found, within = jax.lax.map(lambda X: fit_complete(X, rows.labels), completed)
    between = np.asarray(found).var(axis=0, ddof=1)
    total = np.diagonal(np.asarray(within), axis1=1, axis2=2).mean(axis=0) + (1 + 1 / 100) * between
    errors = standard_errors(information)[:4]
    off = np.abs(np.asarray(found).mean(axis=0) - np.asarray(best.coefficients))
    assert (off < 4.9 * np.sqrt(between / 100) + 0.05 * errors).all()
    assert (np.abs(total - errors**2) < 4.9 * np.sqrt(2 / 99) * between + 0.1 * errors**2).all()
    # Imputations that do not know the labels are wrong by many standard errors.
    blind = impute_properly(jax.random.key(7), draws, rows, False)[:20]
    attenuated = np.asarray(jax.lax.map(lambda X: fit_complete(X, rows.labels), blind)[0]).mean(axis=0)
    assert (np.abs(attenuated - np.asarray(best.coefficients)) / errors)[1:].min() > 1
