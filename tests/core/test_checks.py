"""Argument checks: what passes, what is refused and what the message says."""

import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import provi
from provi.core import arguments as checks
from provi.runtime.record import Outcome
from provi.targets import data


def test_as_array_passes_numbers_and_keeps_the_dtype():
    assert checks.as_array("x", [1, 2]).dtype == np.int64
    assert checks.as_array("x", np.ones(2, np.float32)).dtype == np.float32
    assert checks.as_array("x", [True, False], ndim=1).dtype == bool


@pytest.mark.parametrize(
    ("value", "ndim", "message"),
    [
        ([[1, 2], [3]], None, "x is not a rectangular array"),
        ([1j], None, "x must hold real numbers"),
        (["a"], None, "x must hold numbers"),
        ([None], None, "Encode categories"),
        ([1.0], 2, r"x must have 2 axes; its shape is \(1,\)"),
        ([], None, "x is empty"),
        ([[0.0, 1.0], [np.inf, np.nan]], None, r"x has 2 entries .* first at index \(1, 0\).*impute"),
    ],
)
def test_as_array_refuses(value, ndim, message):
    with pytest.raises(ValueError, match=message):
        checks.as_array("x", value, ndim)


def test_check_length():
    checks.check_length("y", np.zeros(3), 3, "X")
    with pytest.raises(ValueError, match="y has length 2, but X needs 3"):
        checks.check_length("y", np.zeros(2), 3, "X")


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf])
def test_check_positive_refuses(value):
    with pytest.raises(ValueError, match="step must be a positive number"):
        checks.check_positive("step", value)
    assert checks.check_positive("step", 0.5) == 0.5


@pytest.mark.parametrize("value", [1.5, True, np.nan, np.inf])
def test_check_count_refuses_what_is_not_whole(value):
    with pytest.raises(ValueError, match="draws must be a whole number"):
        checks.check_count("draws", value)


def test_check_count_has_a_minimum():
    assert checks.check_count("draws", 3.0) == 3
    assert checks.check_count("draws", 0, minimum=0) == 0
    with pytest.raises(ValueError, match="draws must be at least 1, not 0"):
        checks.check_count("draws", 0)


def test_check_positive_definite():
    factor = np.array([[2.0, 0.0], [0.5, 1.0]])
    np.testing.assert_allclose(checks.check_positive_definite("S", factor @ factor.T), factor, rtol=1e-14)
    with pytest.raises(ValueError, match=r"S must be a square matrix; its shape is \(2,\)"):
        checks.check_positive_definite("S", np.ones(2))
    with pytest.raises(ValueError, match=r"S is not symmetric .*0\.5.*A \+ A\.T"):
        checks.check_positive_definite("S", factor)
    with pytest.raises(ValueError, match=r"smallest eigenvalue is -1"):
        checks.check_positive_definite("S", np.array([[1.0, 2.0], [2.0, 1.0]]))


def test_factors_of_ill_conditioned_matrices_are_refined():
    """Correlation -1 + 1e-9, in rational numbers: how far det(LL') is from det(S).

    Rounding (1e-16, and 1e-19 of longdouble) times the condition number, 2e9: Cholesky's own is off by more than 1e-8.
    """

    def error(factor, matrix):
        (a, b), (_, d) = [[Fraction(float(x)) for x in row] for row in matrix]
        return abs(float((Fraction(float(factor[0, 0])) * Fraction(float(factor[1, 1]))) ** 2 / (a * d - b * b) - 1))

    rng, plain = np.random.default_rng(0), []
    for _ in range(20):
        scales = 10.0 ** rng.uniform(-6, 6, 2)
        matrix = np.outer(scales, scales) * np.array([[1.0, -1 + 1e-9], [-1 + 1e-9, 1.0]])
        plain.append(error(np.linalg.cholesky(matrix), matrix))
        assert error(checks.check_positive_definite("S", matrix), matrix) < 1e-9
    assert max(plain) > 1e-8


def test_outcomes_that_are_failures():
    assert {outcome for outcome in Outcome if not outcome.ok} == {
        Outcome.NONFINITE,
        Outcome.IMPROPER,
        Outcome.INTERRUPTED,
    }


@pytest.mark.parametrize("value", ["100", None, [5], {"a": 1}, object(), 10j, np.array([1, 2])])
def test_counts_and_numbers_of_odd_types_are_refused_by_name(value):
    with pytest.raises(ValueError, match="budget must be a whole number, not"):
        checks.check_count("budget", value)
    with pytest.raises(ValueError, match="tol must be a positive number, not"):
        checks.check_positive("tol", value)
    with pytest.raises(ValueError, match="confidence must lie between"):
        checks.check_confidence(value)


def test_a_truth_value_is_no_number():
    with pytest.raises(ValueError, match="tol must be a positive number, not True"):
        checks.check_positive("tol", True)


@pytest.mark.parametrize("value", [2**63, 2**64 + 1, 1e30, np.uint64(2**63)])
def test_counts_beyond_the_integers_of_a_program_are_refused(value):
    """A seed of 2^64 + 1 would be the seed 1, and a budget of 2^63 overflows."""
    with pytest.raises(ValueError, match="seed must be below 2\\^63"):
        checks.check_count("seed", value)
    assert checks.check_count("seed", 2**63 - 1) == 2**63 - 1
    assert type(checks.check_count("seed", np.int8(3))) is int and checks.check_count("seed", np.asarray(4)) == 4


def test_arrays_of_the_other_byte_order_and_of_extended_precision():
    for kind in (">f8", ">f4", ">i4"):
        found = checks.as_array("X", np.array([1.0, 2.5]).astype(kind))
        assert found.dtype.isnative and found.dtype.itemsize == np.dtype(kind).itemsize
        assert np.array_equal(found, np.array([1.0, 2.5]).astype(kind))
    assert checks.floating_dtype(np.ones(2, ">f8")) == np.float64
    exact = np.array([1.0, 0.1], np.longdouble)
    assert checks.as_array("X", exact[:1]).dtype == np.float64
    if np.finfo(np.longdouble).eps < np.finfo(float).eps:
        with pytest.raises(ValueError, match=r"X has dtype .* 1 of its numbers .*X.astype\(float\)"):
            checks.as_array("X", exact / 3 * 3 + np.array([0, 1e-20], np.longdouble))


def test_masked_entries_dates_and_sparse_matrices_are_refused():
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    with pytest.raises(ValueError, match="y is a masked array with 1 masked entries"):
        checks.as_array("y", masked)
    assert checks.as_array("y", np.ma.masked_array([1.0, 2.0], mask=[False, False])).tolist() == [1.0, 2.0]
    for kind in ("m8[s]", "M8[s]"):
        with pytest.raises(ValueError, match="y must hold numbers, not dtype .*choose a unit"):
            checks.as_array("y", np.arange(3).astype(kind))
    with pytest.raises(ValueError, match=r"X is sparse.*X.toarray\(\)"):
        checks.as_array("X", scipy.sparse.eye(3, format="csr"))
    with pytest.raises(ValueError, match="y has whole numbers beyond floating point"):
        checks.as_array("y", [10**400])


def test_scales_whose_variances_overflow_are_refused():
    for value in (1e-160, 1e160):
        with pytest.raises(ValueError, match="prior_scale must lie between .*float64"):
            checks.check_scale("prior_scale", value)
    with pytest.raises(ValueError, match="prior_scale must lie between .*float32"):
        checks.check_scale("prior_scale", 1e-12, np.float32)
    assert checks.check_scale("prior_scale", [1e-70, 1e140]).shape == (2,)


def test_tables_on_a_device_are_checked_there_as_those_of_the_host_are(monkeypatch):
    """`LogisticRegression` of a device's array makes no copy of it, and refuses what it refuses of the host's."""
    good = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)))
    bad = good.at[4, 2].set(jnp.nan).at[6, 1].set(jnp.inf)
    y = np.arange(8) % 2
    expected = []
    for table in (bad, good[:0], good[0]):
        with pytest.raises(ValueError) as found:
            provi.targets.LogisticRegression(np.asarray(table), y)
        expected.append(str(found.value))
    assert "2 entries that are NaN or infinite, the first at index (4, 2)" in expected[0]
    monkeypatch.setattr(data, "stays_on_device", lambda value: isinstance(value, jax.Array))
    for table, words in zip((bad, good[:0], good[0]), expected, strict=True):
        with pytest.raises(ValueError, match=re.escape(words)):
            provi.targets.LogisticRegression(table, y)
    assert provi.targets.LogisticRegression(good, y).design is good
    with_ones = provi.targets.LogisticRegression(good, y, intercept=True, names=("a", "b", "c"))
    assert with_ones.parameter_names == ("intercept", "a", "b", "c")
    assert np.array_equal(with_ones.design, np.column_stack([np.ones(8), good]))
