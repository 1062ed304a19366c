"""For tests that write a formula a second time: compiled functions by themselves, and bounds told apart."""

import dataclasses

import pytest

from provi.certificates.bounds import GapBound
from provi.core.interpreter import instant_jit


def fresh(function):
    """Traced anew, with the settings of the test, and interpreted; nothing of it is kept."""
    return instant_jit(getattr(function, "__wrapped__", function))


def same(found, name, value, detail=""):
    """Whether it is this proven bound, without a confidence level."""
    return dataclasses.replace(found, value=0.0) == GapBound(name, 0.0, "proven", detail=detail) and (
        found.value == pytest.approx(value, rel=1e-10)
    )
