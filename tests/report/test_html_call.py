"""How a report says a fit can be made again: the call, and the fingerprint of model and data."""

import numpy as np
import pytest

import provi
from provi.families import Gaussian
from provi.report.html.page import fingerprint
from provi.result.fit import describe_call


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return rng.normal(size=(20, 3)), rng.integers(0, 2, 20)


def test_fingerprints_tell_data_apart(table):
    design, response = table
    target = provi.targets.LogisticRegression(design, response, names=["age", "dose", "rate"])
    same = provi.targets.LogisticRegression(design.copy(), response, names=["age", "dose", "rate"])
    assert fingerprint(same) == fingerprint(target) and len(fingerprint(target)) == 16
    changed = design.copy()
    changed[7, 1] += 1e-9
    assert fingerprint(provi.targets.LogisticRegression(changed, response)) != fingerprint(target)


def test_calls_have_the_settings_and_leave_out_what_was_not_given(table):
    target = provi.targets.LogisticRegression(*table)
    words = describe_call(target, Gaussian(3), provi.algorithms.ProxSGD(0.0125), budget=None, seed=3)
    assert words.startswith("provi.fit(\n    target,  # LogisticRegression, 3 parameters")
    assert "0.0125" in words and "seed=3," in words and "budget" not in words
