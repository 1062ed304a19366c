"""The estimator against an independent likelihood by quadrature, scikit-learn on complete data, and its edge cases."""

import pickle
import warnings

import jax
import numpy as np
import pytest
from scipy import special, stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from provi.models import MissingLogisticRegression

RNG = np.random.default_rng(7)
ROWS, SCALES = 120, np.asarray([0.1, 1.0, 20.0])
COMPLETE = (
    RNG.normal(size=(ROWS, 3)) @ [[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]] + [1.0, 0.0, -2.0]
) * SCALES
LABELS = np.where(RNG.random(ROWS) < special.expit(COMPLETE / SCALES @ [1.0, -1.0, 0.5] + 0.5), "yes", "no")
# The first column is always observed but in one row, of which nothing is known.
MASK = RNG.random((ROWS, 3)) < [0.0, 0.3, 0.3]
MASK[5] = True
X = np.where(MASK, np.nan, COMPLETE)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def oracle(table, positive, coefficients, mean, covariance):
    """log p(x_obs) and log p(y | x_obs) of each row, by Gaussian conditioning and Gauss-Hermite quadrature."""
    answer, slope = np.zeros((len(table), 2)), coefficients[1:]
    for seen in np.unique(~np.isnan(table), axis=0):
        rows = (~np.isnan(table) == seen).all(axis=1)
        residual, block = (table[rows] - mean)[:, seen], covariance[np.ix_(seen, seen)]
        gain = covariance[:, seen] @ np.linalg.inv(block)
        variance = max(slope @ (covariance - gain @ covariance[seen]) @ slope, 0)
        centre = coefficients[0] + (mean + residual @ gain.T) @ slope
        eta = np.where(positive[rows], 1, -1)[:, None] * (centre[:, None] + np.sqrt(variance) * NODES)
        if seen.any():
            answer[rows, 0] = stats.multivariate_normal.logpdf(residual, cov=block)
        answer[rows, 1] = np.log(special.expit(eta) @ WEIGHTS)
    return answer


def coefficients_of(model):
    return np.concatenate([model.intercept_, model.coef_[0]])


def negative_hessian(function, point, steps):
    """By central differences."""
    size = len(point)
    shifts, H = np.diag(steps), np.empty((size, size))
    for i in range(size):
        for j in range(i + 1):
            value = 0.0
            for a in (1, -1):
                for b in (1, -1):
                    value += a * b * function(point + a * shifts[i] + b * shifts[j])
            H[i, j] = H[j, i] = -value / (4 * steps[i] * steps[j])
    return H


@pytest.fixture(scope="module")
def fitted():
    return MissingLogisticRegression(tol=1e-10).fit(X, LABELS)


def test_likelihoods_in_the_units_of_the_user(fitted):
    parts = oracle(X, LABELS == "yes", coefficients_of(fitted), fitted.mean_, fitted.covariance_)
    np.testing.assert_allclose(fitted.conditional_log_likelihood_, parts[:, 1].sum(), rtol=1e-7)
    np.testing.assert_allclose(fitted.log_likelihood_, parts.sum(), rtol=1e-7)
    assert fitted.num_parameters_ == 4 + 3 + 6
    np.testing.assert_allclose(fitted.aic_, 2 * 13 - 2 * fitted.log_likelihood_)
    np.testing.assert_allclose(fitted.bic_, 13 * np.log(ROWS) - 2 * fitted.log_likelihood_)
    assert fitted.converged_ and not fitted.separated_ and 0 <= fitted.gap_ <= 1e-9
    assert (fitted.monte_carlo_error_ == 0).all() and np.isnan(fitted.acceptance_)


def test_a_maximum_with_standard_errors_from_its_curvature(fitted):
    root = np.linalg.cholesky(fitted.covariance_)
    lower = np.tril_indices(3)
    point = np.concatenate([coefficients_of(fitted), fitted.mean_, root[lower]])
    units = np.concatenate([[1.0], 1 / SCALES, SCALES, SCALES[lower[0]]])

    def likelihood(vector):
        factor = np.zeros((3, 3))
        factor[lower] = vector[7:]
        return oracle(X, LABELS == "yes", vector[:4], vector[4:7], factor @ factor.T).sum()

    steps = 1e-3 * units
    gradient = np.asarray(
        [(likelihood(point + s) - likelihood(point - s)) / 2 / d for s, d in zip(np.diag(steps), steps, strict=True)]
    )
    covariance = np.linalg.inv(negative_hessian(likelihood, point, steps))
    # Half g'I^-1 g estimates the gap; differences leave errors of order 1e-6 in the gradient, in these units.
    assert 0.5 * gradient @ covariance @ gradient < 1e-8
    np.testing.assert_allclose(fitted.coef_covariance_, covariance[:4, :4], rtol=2e-4)
    np.testing.assert_allclose(fitted.standard_errors_, np.sqrt(np.diag(fitted.coef_covariance_)))
    intervals = fitted.confidence_intervals(0.9)
    np.testing.assert_allclose(intervals.mean(axis=1), coefficients_of(fitted), rtol=1e-9)
    np.testing.assert_allclose(np.diff(intervals)[:, 0], 2 * 1.6448536269514722 * fitted.standard_errors_, rtol=1e-9)


def test_probabilities_of_rows_with_missing_entries(fitted):
    new = X[:20].copy()
    new[0] = np.nan
    new[1] = COMPLETE[1]
    parts = oracle(new, np.ones(20, bool), coefficients_of(fitted), fitted.mean_, fitted.covariance_)
    probability = fitted.predict_proba(new)
    np.testing.assert_allclose(probability[:, 1], np.exp(parts[:, 1]), rtol=1e-7)
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(fitted.decision_function(new), special.logit(probability[:, 1]), rtol=1e-9)
    np.testing.assert_array_equal(fitted.predict(new), np.where(probability[:, 1] > 0.5, "yes", "no"))
    assert fitted.score(X, LABELS) == (fitted.predict(X) == LABELS).mean()
    # A row of which nothing is known has about the share of the labels.
    np.testing.assert_allclose(probability[0, 1], (LABELS == "yes").mean(), atol=0.03)


def test_complete_data_are_ordinary_logistic_regression():
    centred = (COMPLETE - COMPLETE.mean(axis=0)) / COMPLETE.std(axis=0)
    for C in (np.inf, 1.0):
        model = MissingLogisticRegression(C=C, tol=1e-12).fit(centred, LABELS)
        theirs = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-13, max_iter=1000).fit(centred, LABELS)
        np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-6)
        np.testing.assert_allclose(model.intercept_, theirs.intercept_, atol=1e-6)
        np.testing.assert_allclose(model.predict_proba(centred), theirs.predict_proba(centred), atol=1e-6)
        odds = model.decision_function(centred)
        design = np.column_stack([np.ones(ROWS), centred])
        curvature = design.T * (special.expit(odds) * special.expit(-odds)) @ design
        curvature[[1, 2, 3], [1, 2, 3]] += 1 / C
        np.testing.assert_allclose(model.coef_covariance_, np.linalg.inv(curvature), rtol=1e-6)
    np.testing.assert_allclose(model.mean_, 0, atol=1e-9)
    np.testing.assert_allclose(model.covariance_, np.cov(centred.T, bias=True), rtol=1e-7)


def test_a_penalty_is_in_the_units_of_the_user(fitted):
    shrunk = MissingLogisticRegression(C=0.5, tol=1e-10).fit(X, LABELS)
    assert np.linalg.norm(shrunk.coef_) < np.linalg.norm(fitted.coef_)
    assert shrunk.log_likelihood_ < fitted.log_likelihood_
    scaled = MissingLogisticRegression(C=0.5 / 16, tol=1e-10).fit(4 * X - 3, LABELS)
    np.testing.assert_allclose(4 * scaled.coef_, shrunk.coef_, rtol=1e-6)
    np.testing.assert_allclose(scaled.conditional_log_likelihood_, shrunk.conditional_log_likelihood_, rtol=1e-8)


def test_a_constant_column_is_left_out(fitted):
    wide = np.insert(X, 1, 3.5, axis=1)
    wide[:7, 1] = np.nan
    with pytest.warns(UserWarning, match="column 1 are all equal"):
        model = MissingLogisticRegression(tol=1e-10).fit(wide, LABELS)
    np.testing.assert_allclose(np.delete(model.coef_, 1, axis=1), fitted.coef_, rtol=1e-7)
    assert (
        model.coef_[0, 1] == 0
        and np.isnan(model.standard_errors_[2])
        and np.isfinite(model.standard_errors_).sum() == 4
    )
    np.testing.assert_allclose(model.log_likelihood_, fitted.log_likelihood_, rtol=1e-10)
    assert model.num_parameters_ == fitted.num_parameters_
    np.testing.assert_allclose(model.mean_, np.insert(fitted.mean_, 1, 3.5), rtol=1e-7)
    assert (model.covariance_[1] == 0).all()
    np.testing.assert_allclose(model.predict_proba(wide), fitted.predict_proba(X), rtol=1e-6)
    drawn = model.impute(wide, LABELS, n=2, random_state=0)
    assert (drawn[:, :, 1] == 3.5).all() and np.isfinite(drawn).all()
    assert str(model.summary()).count("\n") > 6


@pytest.mark.parametrize("quasi", [False, True])
def test_separated_labels_are_reported(quasi):
    values, labels, mask = COMPLETE.copy(), LABELS, MASK.copy()
    if quasi:
        # A category that has one label only, never missing: rows without it would keep the maximum finite.
        values[:, 0] = (np.arange(ROWS) % 5 == 0) & (LABELS == "yes")
        mask[:, 0] = False
    else:
        labels = np.where((values[:, 0] > 0.05) | MASK[:, 0], "yes", "no")
    values = np.where(mask, np.nan, values)
    with pytest.warns(ConvergenceWarning, match="maximum of the likelihood does not exist.*Set C=1.0"):
        model = MissingLogisticRegression().fit(values, labels)
    assert model.separated_ and np.isfinite(model.coef_).all() and np.isfinite(model.log_likelihood_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shrunk = MissingLogisticRegression(C=1.0).fit(values, labels)
    assert not shrunk.separated_ and shrunk.converged_
    assert abs(shrunk.coef_[0, 0]) < abs(model.coef_[0, 0])


def test_arguments_are_checked_by_name():
    for name, value, message in (
        ("solver", "em", "solver must be one of 'exact', 'misso'"),
        ("surrogate", 3, "surrogate must be one of"),
        ("sampler", "gibbs", "sampler must be one of"),
        ("batch", 1.5, "batch must be a share"),
        ("batch", 0, "batch must be at least 1"),
        ("batch", True, "batch must be a share"),
        ("num_draws", "many", "num_draws must be 'auto'"),
        ("num_draws", 0, "num_draws must be at least 1"),
        ("C", 0.0, "C must be positive"),
        ("rank", 0, "rank must be at least 1"),
        ("rank", 3, "rank must be at most 2"),
        ("tol", 0.0, "tol must be a positive number"),
        ("max_iter", 0, "max_iter must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            MissingLogisticRegression(**{name: value}).fit(X, LABELS)
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        MissingLogisticRegression().fit(X, LABELS).confidence_intervals(95)


def test_data_are_checked_by_name(fitted):
    empty, infinite, twin = X.copy(), X.copy(), X.copy()
    empty[:, 1], infinite[3, 2], twin[:, 2] = np.nan, np.inf, 2 * twin[:, 1] - 1
    model = MissingLogisticRegression()
    with pytest.raises(ValueError, match="no observed entry in column 1: drop"):
        model.fit(empty, LABELS)
    with pytest.raises(ValueError, match="inf.* entries in column 2: put NaN"):
        model.fit(infinite, LABELS)
    with pytest.raises(ValueError, match="inf.* entries in column 2: put NaN"):
        fitted.predict(infinite)
    with pytest.raises(ValueError, match="columns 1 and 2 of X are linearly dependent.*rank="):
        model.fit(twin, LABELS)
    with pytest.raises(ValueError, match="Only binary classification.*3 classes"):
        model.fit(X, np.arange(ROWS) % 3)
    with pytest.raises(ValueError, match="one class only, 'yes'"):
        model.fit(X, np.full(ROWS, "yes"))
    with pytest.raises(ValueError, match="n_samples=3.*rank=.*C="):
        model.fit(X[10:13], ["yes", "no", "yes"])
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        model.fit(X[:0], LABELS[:0])
    with pytest.raises(ValueError, match="could not convert string to float"):
        model.fit([["a", "b"], ["c", "d"]], [0, 1])
    with pytest.raises(ValueError, match="label 'maybe', but the model knows"):
        fitted.impute(X, np.full(ROWS, "maybe"))
    with pytest.raises(ValueError, match="y has 3 labels, but X has 120 rows"):
        fitted.impute(X, LABELS[:3])


def test_names_of_columns_are_used(fitted, monkeypatch):
    # What scikit-learn reads off a data frame; there may be no package here that makes one.
    names = np.asarray(["age", "dose", "size"], object)
    monkeypatch.setattr("sklearn.utils.validation._get_feature_names", lambda table: names)
    model = MissingLogisticRegression(tol=1e-10).fit(X, LABELS)
    np.testing.assert_array_equal(model.coef_, fitted.coef_)
    assert list(model.feature_names_in_) == ["age", "dose", "size"]
    words = model.summary().to_dict()
    assert list(words) == ["(intercept)", "age", "dose", "size"]
    np.testing.assert_allclose(words["dose"]["missing"], MASK[:, 1].mean())
    z = model.coef_[0, 1] / model.standard_errors_[2]
    np.testing.assert_allclose(words["dose"]["p_value"], special.erfc(abs(z) / np.sqrt(2)), rtol=1e-9)
    text = str(model.summary())
    assert "'yes' against 'no': 120 rows" in text and "dose" in text and "97.5%" in text
    empty = X.copy()
    empty[:, 1] = np.nan
    with pytest.raises(ValueError, match="no observed entry in column 'dose'"):
        MissingLogisticRegression().fit(empty, LABELS)


def test_float32_clone_and_pickle_also_without_64_bits(fitted):
    single = MissingLogisticRegression(tol=1e-10).fit(X.astype(np.float32), LABELS)
    np.testing.assert_allclose(single.coef_, fitted.coef_, rtol=1e-4)
    copy = clone(MissingLogisticRegression("misso", batch=1, C=2.0))
    assert copy.get_params()["batch"] == 1 and copy.set_params(C=3.0).C == 3.0
    stored = pickle.dumps(fitted)
    with jax.enable_x64(False):
        again = pickle.loads(stored)
        probability = again.predict_proba(X)
    np.testing.assert_array_equal(probability, fitted.predict_proba(X))


def test_imputations_keep_what_is_observed_and_use_the_labels(fitted):
    n = 400
    drawn = fitted.impute(X, LABELS, n=n, proper=False, random_state=0)
    assert drawn.shape == (n, ROWS, 3)
    np.testing.assert_array_equal(drawn[:, ~MASK], np.broadcast_to(X[~MASK], (n, (~MASK).sum())))
    # The row of which nothing is known: its third entry given the label, by quadrature over the linear predictor.
    slope, mean, covariance = fitted.coef_[0], fitted.mean_, fitted.covariance_
    deviation = np.sqrt(slope @ covariance @ slope)
    eta = fitted.intercept_[0] + slope @ mean + deviation * NODES
    weight = WEIGHTS * special.expit(eta if LABELS[5] == "yes" else -eta)
    expected = mean + covariance @ slope / deviation * (weight @ NODES / weight.sum())
    error = np.sqrt(np.diag(covariance) / n)
    # Three means of 400 draws: beyond 5 standard errors with probability 2e-6.
    assert (np.abs(drawn[:, 5].mean(axis=0) - expected) < 5 * error).all()
    without = fitted.impute(X, n=n, proper=False, random_state=0)
    assert (np.abs(without[:, 5].mean(axis=0) - mean) < 5 * error).all()
    assert (np.abs(expected - mean) > error).any()
    proper = fitted.impute(X, LABELS, n=n, random_state=0)
    spread = [np.var(draws[:, MASK].mean(axis=1) / 1.0) for draws in (drawn, proper)]
    # Parameters that vary add to the variance of what all imputed entries share.
    assert spread[1] > 1.2 * spread[0]
    twice = [fitted.impute(X, LABELS, n=2, random_state=3) for _ in range(2)]
    np.testing.assert_array_equal(*twice)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["misso", "mcem", "saem"])
def test_solvers_with_draws_find_the_same_maximum(fitted, solver):
    model = MissingLogisticRegression(solver, batch=0.25, random_state=0).fit(X, LABELS)
    assert model.converged_ and 0 <= model.gap_ <= 0.01 and model.n_iter_ > 1
    # Measured with an exact likelihood, the gap that was estimated from draws.
    assert 0 <= fitted.log_likelihood_ - model.log_likelihood_ < 0.02
    distance = (coefficients_of(model) - coefficients_of(fitted)) / fitted.standard_errors_
    assert (np.abs(distance) < 0.2).all()
    np.testing.assert_allclose(model.standard_errors_, fitted.standard_errors_, rtol=0.1)
    assert 0.5 < model.acceptance_ < 1 and (model.monte_carlo_error_ > 0).all()


def test_a_table_that_memory_does_not_hold_is_refused(monkeypatch):
    monkeypatch.setattr("provi.models.missing.solving.available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="solver='misso' keeps statistics of each row.*solver='exact'"):
        MissingLogisticRegression("misso").fit(X, LABELS)


@pytest.mark.slow
def test_too_few_iterations_are_reported():
    with pytest.warns(ConvergenceWarning, match="did not converge to tol=0.01 nats.*Increase max_iter"):
        model = MissingLogisticRegression("mcem", max_iter=2).fit(X, LABELS)
    assert not model.converged_ and model.n_iter_ == 2


@pytest.mark.slow
def test_one_factor_of_three_columns_is_no_restriction():
    rng = np.random.default_rng(11)
    shared = rng.normal(size=(ROWS, 1))
    values = np.where(MASK, np.nan, SCALES * (shared + rng.normal(size=(ROWS, 3))))
    labels = rng.random(ROWS) < special.expit(1.5 * shared[:, 0])
    full = MissingLogisticRegression(tol=1e-10).fit(values, labels)
    model = MissingLogisticRegression(rank=1, tol=1e-8).fit(values, labels)
    np.testing.assert_allclose(model.log_likelihood_, full.log_likelihood_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.coef_, full.coef_, rtol=0, atol=1e-3 * full.standard_errors_[1:].min())
    np.testing.assert_allclose(model.covariance_, full.covariance_, rtol=1e-3)
    assert model.num_parameters_ == full.num_parameters_
    # The information is estimated from the scores of 120 rows, not by Louis's formula.
    np.testing.assert_allclose(model.standard_errors_, full.standard_errors_, rtol=0.4)
    assert np.isfinite(model.impute(values, labels, n=3, random_state=0)).all()


@pytest.mark.slow
def test_more_columns_than_rows_with_a_rank_and_a_penalty():
    rng = np.random.default_rng(3)
    factor = rng.normal(size=(30, 2))
    wide = factor @ rng.normal(size=(2, 40)) + 0.5 * rng.normal(size=(30, 40))
    labels = (factor[:, 0] > 0).astype(int)
    wide[rng.random(wide.shape) < 0.2] = np.nan
    model = MissingLogisticRegression(rank=2, C=0.1).fit(wide, labels)
    assert model.converged_ and model.score(wide, labels) > 0.9
    assert np.isfinite(model.standard_errors_).all()
    with pytest.raises(ValueError, match="set proper=False"):
        model.impute(wide)
    assert model.num_parameters_ == 41 + 40 + 2 * 40 - 1 + 40
    values = np.linalg.eigvalsh(model.covariance_)
    assert values[0] > 0 and values[-3] < 0.1 * values[-2]


@pytest.mark.slow
def test_scikit_learn_checks_pass():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(MissingLogisticRegression(), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert sum(result["status"] == "passed" for result in results) > 50
