"""Metrics of predicted probabilities against scikit-learn, brute force and cases known by hand."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from provi.models.network import predictive as metrics

RNG = np.random.default_rng(5)
DRAWS = RNG.dirichlet(np.full(4, 0.7), size=(6, 300))
TABLE = DRAWS.mean(axis=0)
LABELS = np.array([RNG.choice(4, p=row) for row in TABLE])


def test_against_scikit_learn():
    assert metrics.accuracy(TABLE, LABELS) == accuracy_score(LABELS, TABLE.argmax(axis=1))
    np.testing.assert_allclose(metrics.negative_log_likelihood(TABLE, LABELS), log_loss(LABELS, TABLE), rtol=1e-12)
    theirs = brier_score_loss(LABELS, TABLE, scale_by_half=False)
    np.testing.assert_allclose(metrics.brier_score(TABLE, LABELS), theirs, rtol=1e-12)


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_calibration_error_against_a_loop_over_the_bins(num_bins):
    confidence, right = TABLE.max(axis=1), TABLE.argmax(axis=1) == LABELS
    error, found = 0.0, metrics.calibration(TABLE, LABELS, num_bins)
    for b in range(num_bins):
        inside = (confidence > b / num_bins) & (confidence <= (b + 1) / num_bins)
        assert found.count[b] == inside.sum()
        if inside.any():
            np.testing.assert_allclose(found.confidence[b], confidence[inside].mean(), rtol=1e-12)
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
        else:
            assert np.isnan(found.accuracy[b])
    np.testing.assert_allclose(metrics.expected_calibration_error(TABLE, LABELS, num_bins), error, rtol=1e-12)


def test_calibration_error_of_cases_known_by_hand():
    sure = np.tile([1.0, 0.0], (8, 1))
    assert metrics.expected_calibration_error(sure, np.zeros(8, int)) == 0
    assert metrics.expected_calibration_error(sure, np.ones(8, int)) == 1
    # Three of four right where it says 0.8: the confidence is on the edge of a bin of width 1/5, and belongs below it.
    eighty = np.tile([0.8, 0.2], (4, 1))
    np.testing.assert_allclose(metrics.expected_calibration_error(eighty, [0, 0, 0, 1], 5), 0.05, rtol=1e-12)
    assert metrics.calibration(eighty, [0, 0, 0, 1], 5).count.tolist() == [0, 0, 0, 4, 0]


def test_a_label_of_probability_zero_costs_the_largest_finite_amount():
    value = metrics.negative_log_likelihood(np.asarray([[1.0, 0.0]], np.float32), [1])
    np.testing.assert_allclose(value, 126 * np.log(2), rtol=1e-12)


def test_entropy_and_its_parts():
    whole, expected, information = metrics.entropy_parts(DRAWS)
    by_hand = -(TABLE * np.log(TABLE)).sum(axis=1)
    np.testing.assert_allclose(whole, by_hand, rtol=1e-12)
    np.testing.assert_allclose(metrics.entropy(TABLE), by_hand, rtol=1e-12)
    # The mutual information is the mean divergence of the draws from their mean.
    divergence = (DRAWS * np.log(DRAWS / TABLE)).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(information, divergence, rtol=1e-9)
    np.testing.assert_allclose(expected + information, whole, rtol=1e-12)


def test_entropy_of_draws_that_agree_and_that_disagree():
    agree = np.broadcast_to([[0.5, 0.5]], (3, 1, 2))
    disagree = np.asarray([[[1.0, 0.0]], [[0.0, 1.0]]])
    np.testing.assert_allclose(np.ravel(metrics.entropy_parts(agree)), [np.log(2), np.log(2), 0], atol=1e-15)
    np.testing.assert_allclose(np.ravel(metrics.entropy_parts(disagree)), [np.log(2), 0, np.log(2)], atol=1e-15)


@pytest.mark.parametrize(
    ("table", "labels", "message"),
    [
        ([[2.0, -1.0]], [0], "probabilities must be non-negative"),
        ([[0.5, 0.6]], [0], "rows that sum to 1"),
        ([[0.5, 0.5]], [2], "labels must be whole numbers from 0 to 1"),
        ([[0.5, 0.5]], [0.5], "labels must be whole numbers"),
        ([[0.5, 0.5]], [0, 1], "labels has length 2"),
        ([[np.nan, 0.5]], [0], "probabilities has 1 entries that are NaN"),
    ],
)
def test_bad_arguments_are_named(table, labels, message):
    with pytest.raises(ValueError, match=message):
        metrics.accuracy(table, labels)
