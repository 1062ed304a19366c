"""Bounds in print are never below the bounds."""

import math

import numpy as np
import pytest

from provi.certificates.bounds import at_most


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0020601, "0.00207"), (0.00206, "0.00206"), (0.25, "0.25"), (9.991, "10"), (7275.9, "7.28e+03"), (0.0, "0")],
)
def test_rounds_up(value, text):
    """0.00206 is a float a little above the decimal, but it is what the text reads back as."""
    assert at_most(value) == text


def test_never_below_and_within_a_digit():
    for value in np.random.default_rng(0).lognormal(0, 20, 2000):
        assert value <= float(at_most(value)) <= value * 1.0101
        assert value <= float(at_most(value, 5)) <= value * 1.000101


def test_what_is_no_number():
    assert at_most(math.inf) == "inf" and at_most(math.nan) == "nan"
