"""Constants: what counts as known, and eigenvalues rounded outwards."""

import dataclasses
import fractions

import numpy as np
import pytest

from provi.targets import Constants
from provi.targets.base import declared, estimated, outer_spectrum, proven, unknown, violated


def test_constructors_set_the_status():
    made = [proven(1.0, "a"), declared(1.0), estimated(1.0, "b"), unknown("c"), violated(False, "d")]
    assert [constant.status for constant in made] == [
        "proven",
        "declared",
        "estimated",
        "unknown",
        "violated",
    ]
    assert [constant.known for constant in made] == [True, True, True, False, False]
    assert unknown("c").value is None and made[0].reason == "a"


def test_false_and_zero_are_known_values():
    assert proven(False, "").known and proven(0.0, "").known


def test_frozen():
    constants = Constants(proven(True, ""), unknown(""), unknown(""))
    with pytest.raises(dataclasses.FrozenInstanceError):
        constants.log_concave = unknown("")  # type: ignore[misc]


def test_outer_spectrum_encloses_and_is_tight():
    matrix = np.random.default_rng(0).normal(size=(30, 20))
    matrix = matrix.T @ matrix
    low, high = outer_spectrum(matrix)
    expected = np.linalg.eigvalsh(matrix)
    assert low < expected[0] and expected[-1] < high
    assert type(low) is type(high) is float
    np.testing.assert_allclose([low, high], expected[[0, -1]], rtol=1e-10)


def test_outer_spectrum_adds_the_error_of_the_matrix():
    matrix = np.array([[2.0, 1.0], [1.0, 2.0]])
    low, high = outer_spectrum(matrix, error=0.25)
    np.testing.assert_allclose([low, high], [0.75, 3.25], rtol=1e-13)
    assert low < 0.75 and high > 3.25


def test_a_wide_diagonal_keeps_its_small_end():
    low, high = outer_spectrum(np.diag([1e-12, 1.0, 1e12]))
    assert 0 < low <= 1e-12 and fractions.Fraction(low) > fractions.Fraction(9, 10**13)
    assert 1e12 <= high < 1.0001e12


def test_a_singular_matrix_is_not_called_definite():
    vector = np.random.default_rng(1).normal(size=(6, 1))
    assert outer_spectrum(vector @ vector.T)[0] <= 0
