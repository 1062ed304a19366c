"""Standardisation and back against the definition, and every message about columns."""

import warnings

import numpy as np
import pytest
from scipy import stats

from provi.models.missing.reading import check_independent, check_shape, read_columns, refuse_singular

RNG = np.random.default_rng(5)


def table(rows=40, columns=4, missing=0.2):
    X = RNG.normal(size=(rows, columns)) * [1e-3, 1.0, 50.0, 7.0][:columns] + [0.0, -3.0, 1e4, 2.0][:columns]
    X[RNG.random(X.shape) < missing] = np.nan
    return X


def named(count):
    return [str(place) for place in range(count)]


def test_observed_entries_have_mean_zero_and_unit_variance_and_come_back():
    X = table()
    columns = read_columns(X, named(4))
    Z = columns.standardise(X)
    np.testing.assert_allclose(np.nanmean(Z, axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.nanstd(Z, axis=0), 1, rtol=1e-12)
    np.testing.assert_array_equal(np.isnan(Z), np.isnan(X))
    np.testing.assert_allclose(columns.restore(Z), X, rtol=1e-12)


def test_the_linear_predictor_and_the_density_are_the_same_in_both_units():
    X = table(missing=0)
    columns = read_columns(X, named(4))
    Z, coefficients = columns.standardise(X), RNG.normal(size=5)
    back = columns.transformation() @ coefficients
    np.testing.assert_allclose(back[0] + X @ back[1:], coefficients[0] + Z @ coefficients[1:], atol=1e-9)
    ours = stats.norm.logpdf(Z).sum() + columns.log_jacobian(X)
    np.testing.assert_allclose(stats.norm.logpdf(X, columns.centre, columns.scale).sum(), ours, rtol=1e-12)
    X[3, 1] = X[5, 2] = np.nan
    ours = np.nansum(stats.norm.logpdf(columns.standardise(X))) + columns.log_jacobian(X)
    np.testing.assert_allclose(np.nansum(stats.norm.logpdf(X, columns.centre, columns.scale)), ours, rtol=1e-12)


def test_errors_that_are_not_known_stay_where_they_belong():
    X = table(missing=0)
    columns = read_columns(X - np.nanmean(X, axis=0) + [0, 0, 0, 1], named(4))
    root = RNG.normal(size=(5, 5))
    T, full = columns.transformation(), root @ root.T
    np.testing.assert_allclose(columns.restore_errors(full), T @ full @ T.T, rtol=1e-12)
    full[4], full[:, 4] = np.nan, np.nan
    found = columns.restore_errors(full)
    # The last column is not centred: the intercept needs its coefficient. The others do not.
    np.testing.assert_array_equal(np.isnan(np.diag(found)), [True, False, False, False, True])
    np.testing.assert_allclose(found[1:4, 1:4], (T @ np.nan_to_num(full) @ T.T)[1:4, 1:4], rtol=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_extreme_units_neither_overflow_nor_vanish(size):
    X = table()[:, 1:] * size
    Z = read_columns(X, named(3)).standardise(X)
    np.testing.assert_allclose(np.nanstd(Z, axis=0), 1, rtol=1e-12)


def test_a_constant_column_is_left_out_with_a_warning_that_names_it():
    X = table()
    X[:, 2] = np.where(np.isnan(X[:, 2]), np.nan, 7.5)
    with pytest.warns(UserWarning, match="column 'dose' are all equal: left out, with coefficient 0"):
        columns = read_columns(X, ["'age'", "'size'", "'dose'", "'time'"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = read_columns(X[:, [0, 1, 3]], named(3))
    np.testing.assert_array_equal(columns.kept, [True, True, False, True])
    # Equal up to the order of summation.
    np.testing.assert_allclose(columns.standardise(X), alone.standardise(X[:, [0, 1, 3]]), atol=1e-13)
    np.testing.assert_allclose(columns.transformation()[[0, 1, 2, 4]], alone.transformation(), rtol=1e-12)
    assert (columns.transformation()[3] == 0).all()
    np.testing.assert_allclose(columns.log_jacobian(X), alone.log_jacobian(X[:, [0, 1, 3]]), rtol=1e-12)
    assert (columns.restore(columns.standardise(X))[:, 2] == 7.5).all()


def test_columns_without_information_are_refused_by_name():
    X = table()
    X[:, [1, 3]] = np.nan
    with pytest.raises(ValueError, match="no observed entry in columns 1 and 3: drop"):
        read_columns(X, named(4))
    with pytest.raises(ValueError, match="no observed entry in column 'b': drop"):
        read_columns(X[:, :2], ["'a'", "'b'"])
    with pytest.raises(ValueError, match="no column that varies: the observed entries of columns 0, 1, .* and 2 more"):
        read_columns(np.ones((5, 12)), named(12))


def test_more_columns_than_rows_need_a_rank():
    check_shape(6, 5, None)
    check_shape(5, 50, 2)
    with pytest.raises(ValueError, match="5 columns that vary and n_samples=5.*rank=5.*C=1.0"):
        check_shape(5, 5, None)


def test_dependent_columns_are_refused_by_name():
    Z = RNG.normal(size=(60, 5))
    check_independent(Z, named(5))
    total = Z.copy()
    total[:, 4] = total[:, 0] - 2 * total[:, 2] + 1
    with pytest.raises(ValueError, match="columns 0, 2 and 4 of X are linearly dependent.*Drop one.*rank="):
        check_independent(total, named(5))
    twin = Z.copy()
    twin[:, 3] = 3 - 2 * twin[:, 1]
    twin[RNG.random(twin.shape) < 0.5] = np.nan
    assert np.isnan(twin).any(axis=1).sum() > 55
    with pytest.raises(ValueError, match="columns 1 and 3 of X are linearly dependent"):
        check_independent(twin, named(5))
    # Nearly the same is not the same.
    near = Z.copy()
    near[:, 3] = near[:, 1] + 1e-3 * near[:, 3]
    near[0, 0] = np.nan
    check_independent(near, named(5))


def test_columns_that_are_hardly_ever_seen_together_are_refused():
    Z = RNG.normal(size=(30, 3))
    Z[:14, 0], Z[16:, 1] = np.nan, np.nan
    with pytest.raises(ValueError, match="columns 0 and 1 are both observed in 2 rows only"):
        check_independent(Z, named(3))
    # Never together: the likelihood is bounded, and flat in their correlation given the rest.
    Z[14:16, 0] = np.nan
    check_independent(Z, named(3))
    # A column that is constant on the rows it shares with another one makes no line.
    Z[16:, 0] = np.where(np.arange(14) < 7, 0, Z[16:, 0])
    Z[16:23, 1] = RNG.normal(size=7)
    check_independent(Z, named(3))


def test_a_singular_covariance_names_the_columns_that_matter():
    root = RNG.normal(size=(4, 4))
    root[3] = root[0] + root[1]
    with pytest.raises(ValueError, match="columns 0, 1 and 3 of X are linearly dependent"):
        refuse_singular(root @ root.T, named(4))
    refuse_singular(root @ root.T + 1e-6 * np.eye(4), named(4))
