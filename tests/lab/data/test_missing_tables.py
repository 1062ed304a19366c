"""Made-up tables with missing entries: the share, the mechanism, the truth they claim to come from."""

import numpy as np
import pytest

from provi.data.loaders import Dataset
from provi_lab.data.missing_tables import LABEL_SLOPE, NEIGHBOUR_SLOPE, support2, synthetic_missing


def z_score(value, expected, variance):
    return (value - expected) / np.sqrt(variance)


@pytest.mark.parametrize("mechanism", ["mcar", "mar"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_share_is_reached_and_the_rest_is_untouched(mechanism, share):
    table = synthetic_missing(3, 4000, 9, share, mechanism)
    missing = np.isnan(table.features)
    # The variance of the share is at most that of independent entries times the columns that may be missing together.
    assert abs(missing.mean() - share) < 5 * np.sqrt(0.25 * 9 / missing.size) and missing.any() == (share > 0)
    np.testing.assert_array_equal(table.features[~missing], table.complete[~missing])
    again = synthetic_missing(3, 4000, 9, share, mechanism)
    np.testing.assert_array_equal(again.features, table.features)
    other = synthetic_missing(4, 4000, 9, share, mechanism)
    assert not np.array_equal(other.complete, table.complete)


def test_rows_and_labels_have_the_stated_law():
    table = synthetic_missing(5, 40_000, 6, 0.1, correlation=-0.4)
    centred = table.complete - table.mean
    # Each test fails by chance once in 1.7 million (5 standard deviations); 6 + 36 + 7 of them: below 3e-5.
    assert np.abs(z_score(centred.mean(axis=0), 0, np.diagonal(table.covariance) / len(centred))).max() < 5
    products = np.einsum("ij,ik->ijk", centred, centred)
    spread = np.abs(products.mean(axis=0) - table.covariance) / (products.std(axis=0) / np.sqrt(len(centred)))
    assert spread.max() < 5
    design = np.column_stack([np.ones(len(centred)), table.complete])
    probability = 1 / (1 + np.exp(-design @ table.coefficients))
    score = design * (table.response - probability)[:, None]
    assert np.abs(score.mean(axis=0) / (score.std(axis=0) / np.sqrt(len(score)))).max() < 5
    assert np.linalg.eigvalsh(table.covariance).min() > 0 and table.covariance[0, 2] == pytest.approx(0.16)


def slopes_of_missingness(design, missing, steps=30):
    """Maximum-likelihood logistic regression by Newton's method, and standard errors."""
    weights = np.zeros(design.shape[1])
    for _ in range(steps):
        probability = 1 / (1 + np.exp(-design @ weights))
        information = (design * (probability * (1 - probability))[:, None]).T @ design
        weights = weights + np.linalg.solve(information, design.T @ (missing - probability))
    return weights, np.sqrt(np.diagonal(np.linalg.inv(information)))


def test_missing_at_random_depends_on_what_is_observed_alone():
    """The log odds of being missing, regressed on all that could matter, the missing value itself included."""
    table = synthetic_missing(7, 20_000, 6, 0.25, "mar")
    missing = np.isnan(table.features)
    assert not missing[:, ::2].any() and missing[:, 1::2].mean() == pytest.approx(0.5, abs=0.02)
    for column in (1, 3, 5):
        design = np.column_stack([np.ones(20_000), table.complete, table.response])
        weights, errors = slopes_of_missingness(design, missing[:, column].astype(float))
        expected = np.zeros(8)
        expected[[column, -1]] = NEIGHBOUR_SLOPE, LABEL_SLOPE  # entry 1 + (column - 1): the left neighbour
        assert np.abs((weights - expected)[1:] / errors[1:]).max() < 5  # alarm rate below 1.3e-5 for all 21
        assert weights[column] / errors[column] > 10  # it does depend on the neighbour


def test_missing_completely_at_random_depends_on_nothing():
    table = synthetic_missing(8, 20_000, 4, 0.3)
    design = np.column_stack([np.ones(20_000), table.complete, table.response])
    for column in range(4):
        weights, errors = slopes_of_missingness(design, np.isnan(table.features[:, column]).astype(float))
        assert np.abs(weights[1:] / errors[1:]).max() < 5


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="mechanism must be 'mcar' or 'mar'"):
        synthetic_missing(0, 10, 4, 0.1, "mnar")
    with pytest.raises(ValueError, match="share must be at least 0 and below 0.5"):
        synthetic_missing(0, 10, 4, 0.5, "mar")
    with pytest.raises(ValueError, match="correlation must be between"):
        synthetic_missing(0, 10, 4, 0.1, correlation=1.0)


def test_support2_takes_logarithms_of_the_skewed_columns(monkeypatch):
    names = ("age", "wblc", "alb", "bili", "crea", "glucose", "bun", "urine")
    features = np.array([[50.0, 0.0, 2.0, 1.0, 1.0, 90.0, 20.0, 0.0], [60.0, 9.0, np.nan, 3.0, 2.0, 100.0, 30.0, 5.0]])
    arrays = {"X": features.copy(), "y": np.array([0, 1], np.int8), "feature_names": np.array(names)}
    monkeypatch.setattr("provi_lab.data.missing_tables.load", lambda name: Dataset(name, arrays))
    table = support2()
    assert table.names[:4] == ("age", "log(1 + wblc)", "log alb", "log bili") and table.names[-1] == "urine"
    np.testing.assert_allclose(table.features[:, 1], [0.0, np.log(10)])
    np.testing.assert_allclose(table.features[:, 2:7], np.log(features[:, 2:7]))
    np.testing.assert_array_equal(table.features[:, [0, 7]], features[:, [0, 7]])
    np.testing.assert_array_equal(arrays["X"], features)  # the loaded arrays are as they were
