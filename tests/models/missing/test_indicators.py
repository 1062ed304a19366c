"""Indicators of missing entries against a likelihood by quadrature, its curvature by differences, and scikit-learn."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats
from sklearn.linear_model import LogisticRegression

from provi.models import MissingLogisticRegression
from provi.models.missing.imputation import draw_parameters
from provi.models.missing.indicators import add_indicators, free_parameters, indicator_step
from provi.models.missing.reading import read_columns

ROWS, P = 200, 3
RNG = np.random.default_rng(5)
COMPLETE = RNG.normal(size=(ROWS, P)) @ [[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]] * [1.0, 5.0, 0.2]
# The first column is always observed; that the third is missing says something about the label.
MASK = RNG.random((ROWS, P)) < [0.0, 0.3, 0.4]
LABELS = RNG.random(ROWS) < special.expit(COMPLETE @ [1.0, -0.2, 3.0] - 0.5 + 1.5 * MASK[:, 2])
X = np.where(MASK, np.nan, COMPLETE)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
LOWER = np.tril_indices(P)


def oracle(coefficients, mean, covariance, table=X, positive=LABELS):
    """log p(x_obs) and log p(y | x_obs) of each row; rows with one pattern have the same indicators, those of 1, 2."""
    answer, slope = np.zeros((len(table), 2)), coefficients[1 : P + 1]
    for seen in np.unique(~np.isnan(table), axis=0):
        rows = (~np.isnan(table) == seen).all(axis=1)
        residual, block = (table[rows] - mean)[:, seen], covariance[np.ix_(seen, seen)]
        gain = covariance[:, seen] @ np.linalg.inv(block)
        variance = max(slope @ (covariance - gain @ covariance[seen]) @ slope, 0)
        centre = coefficients[0] + (mean + residual @ gain.T) @ slope + coefficients[P + 1 :] @ ~seen[1:]
        eta = np.where(positive[rows], 1, -1)[:, None] * (centre[:, None] + np.sqrt(variance) * NODES)
        if seen.any():
            answer[rows, 0] = stats.multivariate_normal.logpdf(residual, cov=block)
        answer[rows, 1] = np.log(special.expit(eta) @ WEIGHTS)
    return answer


def coefficients_of(model):
    return np.concatenate([model.intercept_, model.coef_[0], model.indicator_coef_])


@pytest.fixture(scope="module")
def fitted():
    return MissingLogisticRegression(missing_indicators=True, tol=1e-10).fit(X, LABELS)


def test_likelihood_given_the_indicators_and_what_counts_as_a_parameter(fitted):
    np.testing.assert_array_equal(fitted.indicator_features_, [1, 2])
    assert fitted.coef_.shape == (1, P) and fitted.indicator_coef_.shape == (2,)
    assert fitted.mean_.shape == (P,) and fitted.covariance_.shape == (P, P)
    parts = oracle(coefficients_of(fitted), fitted.mean_, fitted.covariance_)
    np.testing.assert_allclose(fitted.log_likelihood_, parts.sum(), rtol=1e-8)
    np.testing.assert_allclose(fitted.conditional_log_likelihood_, parts[:, 1].sum(), rtol=1e-8)
    assert fitted.num_parameters_ == 6 + 3 + 6
    np.testing.assert_allclose(fitted.aic_, 2 * 15 - 2 * fitted.log_likelihood_)
    np.testing.assert_allclose(fitted.bic_, 15 * np.log(ROWS) - 2 * fitted.log_likelihood_)
    # Wald's test of an effect that is there: 1.5 with an error of about 0.35.
    assert fitted.summary().p_value[-1] < 1e-3


def test_a_maximum_with_standard_errors_from_the_curvature_in_the_free_parameters(fitted):
    units = np.sqrt(np.diag(fitted.covariance_))
    point = np.concatenate([coefficients_of(fitted), fitted.mean_, np.linalg.cholesky(fitted.covariance_)[LOWER]])
    steps = 1e-3 * np.concatenate([[1.0], 1 / units, [1.0, 1.0], units, units[LOWER[0]]])

    def likelihood(vector):
        factor = np.zeros((P, P))
        factor[LOWER] = vector[9:]
        return oracle(vector[:6], vector[6:9], factor @ factor.T).sum()

    shifts, size = np.diag(steps), len(point)
    gradient = np.asarray([likelihood(point + s) - likelihood(point - s) for s in shifts]) / 2 / steps
    information = np.empty((size, size))
    for i in range(size):
        for j in range(i + 1):
            corners = [a * b * likelihood(point + a * shifts[i] + b * shifts[j]) for a in (1, -1) for b in (1, -1)]
            information[i, j] = information[j, i] = -sum(corners) / (4 * steps[i] * steps[j])
    covariance = np.linalg.inv(information)
    # Half g'I^-1 g estimates the gap.
    assert 0.5 * gradient @ covariance @ gradient < 1e-8
    error = np.abs(fitted.coef_covariance_ - covariance[:6, :6])
    assert (error < 2e-4 * np.outer(fitted.standard_errors_, fitted.standard_errors_)).all()
    intervals = fitted.confidence_intervals()
    np.testing.assert_allclose(intervals.mean(axis=1), coefficients_of(fitted), rtol=1e-9)
    assert fitted.monte_carlo_error_.shape == (6,)


def test_probabilities_and_summary(fitted):
    new = X[:30].copy()
    new[0] = [0.3, np.nan, np.nan]
    new[1] = np.nan  # the first column has no indicator: it was never missing
    new[2] = COMPLETE[2]
    parts = oracle(coefficients_of(fitted), fitted.mean_, fitted.covariance_, new, np.ones(30, bool))
    for model in (fitted, pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_allclose(model.predict_proba(new)[:, 1], np.exp(parts[:, 1]), rtol=1e-8)
    summary = fitted.summary()
    words = ["(intercept)", "x0", "x1", "x2", "x1 missing", "x2 missing"]
    assert list(summary.to_dict()) == words and "given the indicators" in str(summary)
    assert summary.to_dict()["x2 missing"]["coefficient"] == fitted.indicator_coef_[1]


def test_imputations_know_the_indicators_where_the_label_is_known(fitted):
    n = 2000
    rows, label = np.tile([0.3, np.nan, np.nan], (n, 1)), np.full(n, True)
    drawn = fitted.impute(rows, label, n=1, proper=False, random_state=0)[0]
    assert drawn.shape == (n, P) and (drawn[:, 0] == 0.3).all()
    gain = fitted.covariance_[1:, 0] / fitted.covariance_[0, 0]
    mean = fitted.mean_[1:] + gain * (0.3 - fitted.mean_[0])
    covariance = fitted.covariance_[1:, 1:] - np.outer(gain, fitted.covariance_[0, 1:])
    slope = fitted.coef_[0]
    deviation = np.sqrt(slope[1:] @ covariance @ slope[1:])
    error = np.sqrt(np.diag(covariance) / n)
    for known in (fitted.indicator_coef_.sum(), 0.0):
        eta = fitted.intercept_[0] + 0.3 * slope[0] + slope[1:] @ mean + known + deviation * NODES
        weight = WEIGHTS * special.expit(eta)
        expected = mean + covariance @ slope[1:] / deviation * (weight @ NODES / weight.sum())
        # Two means of 2000 draws: beyond 5 standard errors with probability 1e-6.
        assert (np.abs(drawn[:, 1:].mean(axis=0) - expected) < 5 * error).all() == (known != 0)
    proper = fitted.impute(rows, label, n=3, random_state=0)
    assert np.isfinite(proper).all() and (proper[..., 0] == 0.3).all()
    # Parameters of their own move the mean of all rows far more than the draws do.
    assert proper[..., 1].mean(axis=1).std() > 3 * error[0]


def test_parameters_that_are_not_free_are_not_drawn(fitted):
    parameters, uncertainty = fitted._parameters(), fitted._uncertainty
    draws = draw_parameters(
        jax.random.key(0), parameters, jnp.asarray(uncertainty.information), 4000, None, uncertainty.free
    )
    covariance = np.asarray(draws.covariance)
    np.testing.assert_allclose(covariance[:, P:], np.broadcast_to(np.eye(P + 2)[P:], (4000, 2, P + 2)), atol=1e-12)
    np.testing.assert_allclose(draws.mean[:, P:], 0, atol=1e-12)
    # 4000 draws of a variance: 5 of its relative errors, sqrt(2/4000), are passed with probability 1e-6 each.
    spread = np.cov(np.asarray(draws.coefficients) @ fitted._columns.transformation().T, rowvar=False)
    np.testing.assert_allclose(np.diag(spread), fitted.standard_errors_**2, rtol=5 * np.sqrt(2 / 4000))


@pytest.mark.slow
def test_columns_of_which_a_part_is_constant_are_regressors_as_in_scikit_learn():
    """With only constant values beside a complete column nothing is integrated out: ordinary logistic regression."""
    table = np.column_stack([COMPLETE[:, 0], np.where(MASK[:, 2], np.nan, 7.0)])
    design = np.column_stack([COMPLETE[:, 0], MASK[:, 2]])
    for C in (np.inf, 0.5):
        with pytest.warns(UserWarning, match="column 1 are all equal"):
            model = MissingLogisticRegression(C=C, missing_indicators=True, tol=1e-11).fit(table, LABELS)
        theirs = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=100).fit(design, LABELS)
        np.testing.assert_allclose([model.coef_[0, 0], model.indicator_coef_[0]], theirs.coef_[0], atol=1e-5)
        np.testing.assert_allclose(model.predict_proba(table), theirs.predict_proba(design), atol=1e-5)
        assert model.coef_[0, 1] == 0 and np.isnan(model.standard_errors_[2])
        weight = np.prod(theirs.predict_proba(design), axis=1)
        full = np.column_stack([np.ones(ROWS), design])
        curvature = full.T * weight @ full + np.diag([0, 1 / C, 1 / C])
        found = model.coef_covariance_[np.ix_([0, 1, 3], [0, 1, 3])]
        np.testing.assert_allclose(found, np.linalg.inv(curvature), rtol=1e-4)


def test_which_columns_have_indicators():
    table = np.tile(COMPLETE, (1, 3))[:, :8] + 0.1 * RNG.normal(size=(ROWS, 8))
    half = np.arange(ROWS) % 2 == 0
    table[half, 1] = table[half, 2] = np.nan  # equal
    table[~half, 3] = np.nan  # the complement
    table[:1, 4] = np.nan  # 0.5%
    table[2:, 5] = np.nan  # 99%
    table[MASK[:, 1], 6], table[:, 7] = np.nan, MASK[:, 1]  # the user's own indicator
    columns = read_columns(table, [str(place) for place in range(8)])
    found = add_indicators(columns, table)
    np.testing.assert_array_equal(found.indicated, [1, 5])
    Z = found.standardise(table)
    np.testing.assert_allclose([Z[:, 8:].mean(axis=0), Z[:, 8:].std(axis=0)], [[0, 0], [1, 1]], atol=1e-12)
    assert not np.isnan(Z[:, 8:]).any() and found.kept_names() == columns.kept_names()
    np.testing.assert_allclose(found.log_jacobian(table), columns.log_jacobian(table))
    # Of 3 columns, the last an indicator: 4 coefficients, 2 means, 3 covariances out of 4 + 3 + 6.
    np.testing.assert_array_equal(free_parameters(3, 1), [0, 1, 2, 3, 4, 5, 7, 8, 9])
    S = jnp.asarray(np.asarray([[2.0, 0.3], [0.3, 0.9]]))
    np.testing.assert_array_equal(indicator_step(2, 1)(S), [[2.0, 0], [0, 1]])


def test_without_missing_entries_there_are_none():
    columns = read_columns(COMPLETE, ["a", "b", "c"])
    found = add_indicators(columns, COMPLETE)
    assert len(found.indicated) == 0 and len(found.kept) == P
    np.testing.assert_array_equal(found.standardise(COMPLETE), columns.standardise(COMPLETE))


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="missing_indicators=True needs rank=None, not 1"):
        MissingLogisticRegression(missing_indicators=True, rank=1).fit(X, LABELS)
    with pytest.raises(ValueError, match="missing_indicators must be True or False, not 'auto'"):
        MissingLogisticRegression(missing_indicators="auto").fit(X, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["misso", "mcem", "saem"])
def test_solvers_with_draws_find_the_same_maximum(fitted, solver):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MissingLogisticRegression(solver, batch=0.25, missing_indicators=True, random_state=0).fit(X, LABELS)
    assert model.converged_ and 0 <= fitted.log_likelihood_ - model.log_likelihood_ < 0.02
    distance = (coefficients_of(model) - coefficients_of(fitted)) / fitted.standard_errors_
    assert (np.abs(distance) < 0.2).all() and (model.monte_carlo_error_ > 0).all()
