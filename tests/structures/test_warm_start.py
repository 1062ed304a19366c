"""Long passes: one of the site table first, then the natural gradient; the answer and the accounts are the same."""

import numpy as np
import pytest

import provi
from provi.algorithms import NaturalGradient
from provi.families import Gaussian
from provi.runtime.run import run
from provi.structures import linear, stopping
from support.linear_models import linear_model


@pytest.fixture
def calls(monkeypatch):
    """The algorithms that were run, in order; every pass counts as long."""
    seen = []

    def recorded(algorithm, *args, **options):
        found = run(algorithm, *args, **options)
        seen.append((type(algorithm).__name__, found.gradient_evaluations))
        return found

    monkeypatch.setattr(linear, "run", recorded)
    monkeypatch.setattr(stopping, "run", recorded)
    monkeypatch.setattr(linear, "SMALLEST_WORK", 0)
    return seen


def test_the_site_table_comes_first_and_its_pass_is_counted(calls, monkeypatch):
    target = linear_model("logistic", terms=700)
    warm = provi.fit(target, progress=False)
    assert [name for name, _ in calls] == ["SiteTable", "NaturalGradient"]
    assert warm.gradient_evaluations == calls[0][1] + calls[1][1] + 3
    assert warm.certificate.gap <= 0.01
    monkeypatch.setattr(linear, "SMALLEST_WORK", 1e10)
    cold = provi.fit(target, progress=False)
    assert len(calls) == 3 and calls[2][0] == "NaturalGradient" and calls[2][1] > calls[1][1]
    assert abs(warm.elbo.value - cold.elbo.value) <= 0.01


def test_budgets_hold_and_a_given_start_is_kept(calls):
    target = linear_model("logistic", terms=700)
    found = provi.fit(target, budget=12, tol=1e-9, progress=False)
    assert calls[0][0] == "SiteTable" and found.gradient_evaluations <= 12
    calls.clear()
    provi.fit(target, start=Gaussian(3).point(np.zeros(3), 1.0), progress=False)
    provi.fit(target, Gaussian(3, "diagonal"), progress=False)
    assert [name for name, _ in calls] == [NaturalGradient.__name__] * 2
