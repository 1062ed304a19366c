"""Figure 1 of paper 001: the problem's maximum, the runs, the held-out loss, the verdicts' rules, and a small run."""

import csv
import math

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from provi_lab.bench.missing_oracle import MissingOracle
from provi_lab.bench.problems import MissingProblem
from provi_lab.common.curves import Curve
from provi_lab.data.missing_tables import synthetic_missing
from provi_lab.papers import reproduce
from provi_lab.papers.misso.figure1 import LOOKS, claims, lines_of, median_passes
from provi_lab.papers.misso.holdout import COMPLETE, MEANS, MEANS_INDICATORS, MODEL, MODEL_INDICATORS, HoldOut, hold_out
from provi_lab.papers.misso.runs import (
    LATE_SAEM,
    MCEM,
    MISSO1,
    MISSO10,
    MISSO50,
    SAEM,
    SOLVERS,
    follow,
    synthetic_problem,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def task():
    return synthetic_problem(0, 400, 4, 0.2)  # as in the small run, so that programs are compiled once


def made_up(method, gaps, data="synthetic, 20% missing", seed=0):
    gaps = np.array(gaps, float)
    columns = {f"coefficient_{place}": np.zeros(len(gaps)) for place in range(4)}
    columns |= {f"mean_{place}": np.ones(len(gaps)) for place in range(1, 4)}
    names = {"data": data, "method": method, "seed": seed}
    return Curve(names, {"passes": np.arange(len(gaps)), "gap": gaps, **columns})


def test_the_maximum_is_that_of_an_independent_program(task):
    oracle = MissingOracle.of(MissingProblem("p", np.asarray(task.features), task.response))
    # Standardised columns: the oracle's are the same, so the log-likelihoods can be compared as they are.
    assert task.maximum == pytest.approx(oracle.maximum, abs=1e-6) and task.left <= 1e-8
    np.testing.assert_allclose(task.optimum.coefficients, oracle.optimum.coefficients, atol=1e-4)
    table = synthetic_missing(0, 400, 4, 0.2)
    standardised = (table.complete - np.nanmean(table.features, axis=0)) / np.nanstd(table.features, axis=0)
    np.testing.assert_allclose(
        task.truth[0] + standardised @ task.truth[1:],
        table.coefficients[0] + table.complete @ table.coefficients[1:],
    )


def test_runs_start_together_and_come_near_the_maximum(task):
    curves = {method: follow(task, method, 1, 4) for method in (MISSO10, MCEM, SAEM)}
    for curve in curves.values():
        np.testing.assert_array_equal(curve["passes"], np.arange(5))
        assert (curve["gap"] > 0).all() and curve["gap"][-1] < curve["gap"][1] < curve["gap"][0]
    assert len({curve["gap"][0] for curve in curves.values()}) == 1
    assert curves[MISSO10]["gap"][-1] < 1 and curves[MCEM]["gap"][-1] < 1 < curves[SAEM]["gap"][-1]
    again = follow(task, MCEM, 1, 2)
    np.testing.assert_allclose(again["gap"], curves[MCEM]["gap"][:3], rtol=1e-9)
    np.testing.assert_array_equal([again[f"coefficient_{place}"][0] for place in range(5)], task.start.coefficients)
    np.testing.assert_array_equal([again[f"mean_{place}"][0] for place in range(1, 5)], task.start.mean)
    late = np.array([curves[MCEM][f"mean_{place}"][-1] for place in range(1, 5)])
    # Within 0.4 of the standard error 1/sqrt(400) = 0.05 of the exact estimates.
    np.testing.assert_allclose(late, task.optimum.mean, atol=0.02)
    assert follow(task, MCEM, 2, 2)["gap"][2] != again["gap"][2]


def test_settled_means_from_then_on():
    curve = made_up(MCEM, [9.0, 0.5, 2.0, 0.9, 0.05])
    assert (curve.settles("gap", 1.0), curve.settles("gap", 0.1), curve.settles("gap", 10.0)) == (3, 4, 0)
    assert (
        made_up(MCEM, [0.5, 2.0]).settles("gap", 1.0) == math.inf
        and made_up(MCEM, [0.5, np.nan]).settles("gap", 1.0) == math.inf
    )
    assert curve.at("gap", 2) == 2.0 and math.isnan(curve.at("gap", 7))
    rows = lines_of([curve], 2)
    assert rows[1] == {**rows[1], "passes": 1, "gap": 0.5, "coefficient_1": 0.0, "mean_1": 1.0}
    assert "coefficient_2" not in rows[1] and "mean_2" not in rows[1]


def test_a_run_that_breaks_off_never_settles(task, monkeypatch):
    def stops(rows, start, options):
        options.record(1, start)

    monkeypatch.setitem(SOLVERS, MCEM, (stops, {}))
    curve = follow(task, MCEM, 0, 3)
    assert curve["gap"][1] == curve["gap"][0] > 0 and (curve["gap"][2:] == math.inf).all()
    assert curve.settles("gap", 1e9) == math.inf and np.isnan(curve["coefficient_0"][2:]).all()


def scores(model, means, complete=(0.7, 0.7), seconds=1.0):
    losses = {MODEL: model, MEANS: means, COMPLETE: complete, MODEL_INDICATORS: (0.45, 0.55), MEANS_INDICATORS: model}
    return HoldOut("d", {name: np.array(values) for name, values in losses.items()}, seconds)


def test_verdicts_follow_their_rules(task):
    quick = [made_up(MISSO10, [9, 0.9, 0.05], task.title, seed) for seed in range(3)]
    others = [made_up(MCEM, [9, 2, 0.9, 0.05], task.title), made_up(SAEM, [9, 8, 7, 6], task.title)]
    better = scores([0.5, 0.6], [0.6, 0.71])
    assert [c.verdict for c in claims([task], quick + others, [better])] == ["holds"] * 4
    evidence = claims([task], quick + others, [better])[2].evidence
    assert "both with indicators of missing entries 0.50000 against 0.55000, difference -0.05000 -+ 0.00000" in evidence
    level = [made_up(MISSO10, [9, 2, 0.9, 0.09], task.title)]
    found = claims([task], level + others, [scores([0.5, 0.6], [0.4, 0.72], seconds=61.0)])
    assert [claim.verdict for claim in found] == ["does not hold"] * 4
    assert found[0].evidence == "MISSO10 2; MCEM 2; SAEM not within the run."
    mixed = [made_up(MISSO10, [9, 0.9], task.title), made_up(MISSO10, [9, 2], task.title, 1)]
    assert median_passes(task, mixed + quick, MISSO10, 1.0) == 1 and median_passes(task, [], MISSO10, 1.0) is not None
    assert better.difference(MEANS)[0] == pytest.approx(-0.105) and better.difference(MEANS)[1] == pytest.approx(0.005)


class FilledWithMeans:
    """Stands for the model: what mean imputation does, by other means."""

    def __init__(self, missing_indicators=False):
        self.indicators = missing_indicators

    def fit(self, features, response):
        self.means = np.nanmean(features, axis=0)
        self.inner = LogisticRegression(C=np.inf, max_iter=1000, tol=1e-10).fit(self.filled(features), response)
        return self

    def filled(self, features):
        missing = np.isnan(features)
        return np.hstack([np.where(missing, self.means, features), missing[:, : 3 * self.indicators]])

    def predict_proba(self, features):
        return self.inner.predict_proba(self.filled(features))


def test_held_out_losses_are_those_of_the_rows_left_out(monkeypatch):
    monkeypatch.setattr("provi_lab.papers.misso.holdout.MissingLogisticRegression", FilledWithMeans)
    table = synthetic_missing(3, 200, 3, 0.2)
    score = hold_out("d", table.features, table.response, 3, 5)
    np.testing.assert_allclose(score.losses[MODEL], score.losses[MEANS], atol=1e-4)
    np.testing.assert_allclose(score.losses[MODEL_INDICATORS], score.losses[MEANS_INDICATORS], atol=1e-4)
    assert (np.abs(score.losses[MODEL_INDICATORS] - score.losses[MODEL]) > 1e-3).any()
    assert len(set(score.losses[MEANS])) == 3 and score.seconds > 0
    order = np.random.default_rng([5, 1]).permutation(200)
    test, train = order[:40], order[40:]
    complete = train[~np.isnan(table.features[train]).any(axis=1)]
    model = LogisticRegression(C=np.inf, max_iter=1000).fit(table.features[complete], table.response[complete])
    means = np.nanmean(table.features[train], axis=0)
    filled = np.where(np.isnan(table.features[test]), means, table.features[test])
    expected = log_loss(table.response[test], model.predict_proba(filled)[:, 1])
    assert score.losses[COMPLETE][1] == pytest.approx(expected, abs=1e-4)


def test_every_method_has_a_look_of_its_own():
    assert set(LOOKS) == set(SOLVERS) and len(set(LOOKS.values())) == len(LOOKS)
    assert {MISSO1, MISSO10, MISSO50, MCEM, SAEM, LATE_SAEM} <= set(SOLVERS)


@pytest.mark.slow
def test_small_run(tmp_path):
    report = reproduce("misso-figure1", tmp_path, quick=True)
    assert [file.name for file in report.files] == [f"misso-figure1.{end}" for end in ("png", "csv", "md")]
    assert report.files[0].read_bytes().startswith(b"\x89PNG")
    with report.files[1].open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 9 and {row["method"] for row in rows} == {MISSO10, MCEM, SAEM}
    gaps = [float(row["gap"]) for row in rows if row["method"] == MISSO10]
    summary = {row["method"]: row for row in report.rows}
    assert summary[MISSO10]["last gap"] == pytest.approx(gaps[-1]) and summary[MISSO10]["gap at 8"] == gaps[8]
    assert len(report.claims) == 4 and all(claim.verdict != "not tested" for claim in report.claims)
    text = report.files[2].read_text(encoding="utf-8")
    assert "400 x 4, " in text and "10 + k^2 draws a row" in text
    assert jnp.isfinite(summary[SAEM]["last gap"]) and summary[SAEM]["last gap"] > summary[MCEM]["last gap"]
