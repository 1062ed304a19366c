"""Argument checks: what passes, what is refused and what the message says."""

import numpy as np
import pytest

from provi.core import arguments as checks
from provi.runtime.record import Outcome


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


def test_outcomes_that_are_failures():
    assert {outcome for outcome in Outcome if not outcome.ok} == {Outcome.NONFINITE, Outcome.INTERRUPTED}
