"""Long passes: a sample of the rows first, then all of them; the answer and the accounts are the same."""

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
        seen.append((type(algorithm).__name__, found.gradient_evaluations, args[0].num_terms))
        return found

    monkeypatch.setattr(linear, "run", recorded)
    monkeypatch.setattr(stopping, "run", recorded)
    monkeypatch.setattr(linear, "SMALLEST_WORK", 0)
    return seen


def test_a_sample_comes_first_and_its_passes_are_counted(calls, monkeypatch):
    target = linear_model("logistic", terms=1700)
    warm = provi.fit(target, progress=False)
    assert [name for name, *_ in calls] == ["NaturalGradient"] * 2 and [rows for *_, rows in calls] == [106, 1700]
    assert warm.gradient_evaluations == -(-calls[0][1] // 16) + calls[1][1] + 3
    assert warm.certificate.gap <= 0.01
    monkeypatch.setattr(linear, "SMALLEST_WORK", 1e10)
    cold = provi.fit(target, progress=False)
    assert len(calls) == 3 and calls[2][2] == 1700 and calls[2][1] > calls[1][1]
    assert abs(warm.elbo.value - cold.elbo.value) <= 0.01


def test_the_sample_has_one_row_of_every_few_and_its_start_the_precision_of_all():
    target = linear_model("logistic", terms=1700)
    sample = target.thinned(17, seed=3)
    assert sample.num_terms == 100 and target.thinned(17, seed=4).num_terms == 100
    rows = [next(n for n in range(1700) if np.array_equal(target.design[n], row)) for row in sample.design]
    assert [n // 17 for n in rows] == list(range(100)) and len({n % 17 for n in rows}) > 5
    assert np.array_equal(np.asarray(target.response)[rows], sample.response)
    # Every row seventeen times: the precision of the sample, multiplied up, is that of all of them.
    repeated = provi.targets.LogisticRegression(
        np.repeat(np.asarray(sample.design), 17, axis=0), np.repeat(np.asarray(sample.response), 17)
    )
    few, all_rows = (provi.fit(t, tol=1e-8, progress=False) for t in (sample, repeated))
    start = linear._for_all_rows(repeated, Gaussian(3), few.posterior.point, 17)
    precision = np.linalg.inv(np.asarray(start.scale.covariance()))
    prior, own = np.eye(3), np.linalg.inv(few.posterior.covariance)
    assert np.allclose(precision, prior + 17 * (own - prior), rtol=1e-6)
    assert np.allclose(np.diag(precision), np.diag(np.linalg.inv(all_rows.posterior.covariance)), rtol=0.2)


def test_budgets_hold_and_a_given_start_is_kept(calls):
    target = linear_model("logistic", terms=1700)
    found = provi.fit(target, budget=12, tol=1e-9, progress=False)
    assert calls[0][2] == 106 and found.gradient_evaluations <= 12
    calls.clear()
    provi.fit(target, start=Gaussian(3).point(np.zeros(3), 1.0), progress=False)
    provi.fit(target, Gaussian(3, "diagonal"), progress=False)
    assert [(name, rows) for name, _, rows in calls] == [(NaturalGradient.__name__, 1700)] * 2
