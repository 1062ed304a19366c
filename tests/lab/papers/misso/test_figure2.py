"""Figure 2 of paper 001: lanes beside runs by themselves, tables and back, the verdicts' rules, and small runs."""

import csv
import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms.incremental.network_surrogate import NetworkPoint, network_surrogate
from provi.families.base import AnyParameters
from provi.nets import LeNet5
from provi.runtime import run
from provi_lab.common.tables import write_rows
from provi_lab.papers import reproduce
from provi_lab.papers.misso import figure2a as misso_figure2a
from provi_lab.papers.misso import figure2b as misso_figure2b
from provi_lab.papers.misso.lanes import START_SD, Trace, follow
from provi_lab.papers.misso.measuring import PARTS, measure, next_place
from provi_lab.papers.misso.network_page import LOOKS
from provi_lab.papers.misso.networks import (
    ADAGRAD,
    ADAM,
    AVERAGED,
    BBB,
    GROWING,
    METHODS,
    MISSO,
    MOMENTUM,
    PACED,
    SAG,
    beyond,
    geometric,
    in_products,
    small_problem,
)
from provi_lab.papers.misso.stepwise import train
from provi_lab.papers.misso.training import Training, at_rate, best, compare, read_trainings, trainings_of

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    output = tmp_path_factory.mktemp("figure2a")
    return output, reproduce("misso-figure2a", output, quick=True)


def made_up(method, ends, rate=0.1, posterior="global", seeds=None, stage=""):
    values = np.zeros((len(ends), 2, 3))
    values[:, 1, 0] = ends
    return Training(posterior, method, rate, tuple(seeds or range(len(ends))), (1, 2), values, stage)


@pytest.mark.parametrize("method", [MISSO, PACED])
def test_a_lane_is_the_run_by_itself(small, method):
    """Same seed, same rate: the -ELBO that the table has, from the ordinary loop and its own evaluation."""
    curve = best(read_trainings([small[0] / "misso-figure2a.csv"]), "global", method)
    problem, seed = small_problem(0), curve.seeds[1]
    surrogate = network_surrogate(problem.target, posterior="global", rate=curve.rate)
    start = NetworkPoint(jnp.asarray(problem.means([seed])[0]), surrogate.start(START_SD).log_sd)
    steps = curve.epochs[-1] * surrogate.num_terms
    alone = run(METHODS[method].make(curve.rate), surrogate, AnyParameters(), start, seed=seed, num_steps=steps)
    key = jax.random.fold_in(jax.random.key(1_000_003), curve.epochs[-1])
    found = [float(part) for part in surrogate.negative_elbo(key, alone.point, 1)]
    np.testing.assert_allclose(curve.values[1, -1], found, rtol=2e-5)
    assert abs(curve.values[0, -1, 0] - found[0]) > 1e-3  # the other seed is another run


def test_small_run(small):
    output, report = small
    names = [file.name for file in report.files]
    assert names == [f"misso-figure2a{end}" for end in (".png", "-rotation.png", ".csv", "-scores.csv")] + [
        "misso-figure2a-rotation.csv",
        "misso-figure2a.md",
    ]
    assert all(report.files[k].read_bytes().startswith(b"\x89PNG") for k in (0, 1))
    with report.files[2].open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 3 * 2 * 3 and {row["method"] for row in rows} == {MISSO, ADAM, PACED}
    for row in rows:
        parts = float(row["nll"]) + float(row["kl"])
        assert float(row["negative_elbo"]) == pytest.approx(parts, rel=1e-5) and float(row["kl"]) > 0
    summary = {row["method"]: row for row in report.rows}
    last = [row for row in rows if (row["method"], row["epoch"]) == (ADAM, "3")]
    means = [
        np.mean([float(r["negative_elbo"]) for r in last if r["rate"] == rate]) for rate in {r["rate"] for r in last}
    ]
    assert summary[ADAM]["-ELBO"] == pytest.approx(min(means)) and summary[ADAM]["accuracy"] > 0.5
    first = [float(row["negative_elbo"]) for row in rows if (row["method"], row["epoch"]) == (ADAM, "1")]
    assert min(means) < min(first)
    assert "n = 640 images, 556 weights, blocks of 128 (5 of them)" in report.files[-1].read_text(encoding="utf-8")
    assert [claim.verdict != "not tested" for claim in report.claims].count(True) == 1 and len(report.claims) == 9
    assert "Did not run: BBB, Momentum." in {claim.evidence for claim in report.claims}


def test_a_page_can_be_made_elsewhere_from_the_tables(small, tmp_path):
    output, report = small
    facts = json.loads((output / "misso-figure2a.json").read_text(encoding="utf-8"))
    again = misso_figure2a.page(tmp_path, [output], quick=True)
    assert again.rows == report.rows and again.claims == report.claims and again.seconds == facts["seconds"]
    assert (tmp_path / "misso-figure2a.csv").read_text() == (output / "misso-figure2a.csv").read_text()


def test_small_run_one_after_the_other(tmp_path, capsys):
    report = reproduce("misso-figure2b", tmp_path, quick=True)
    assert [file.suffix for file in report.files] == [".png", ".csv", ".csv", ".md"]
    curves = read_trainings([tmp_path / "misso-figure2b.csv"])
    assert {c.method for c in curves} == {MISSO, ADAM}
    pilots = [c for c in curves if c.method == ADAM and c.stage]
    chosen = min(pilots, key=lambda c: c.mean).rate
    assert min(c.rate for c in pilots) < chosen < max(c.rate for c in pilots)  # no best rate at an edge
    assert at_rate(curves, "global", ADAM, chosen).seeds == (0, 1)
    assert at_rate(curves, "global", ADAM, misso_figure2b.PAPER_RATE).epochs == (1, 2)
    text = capsys.readouterr().out
    assert text.count("['pilot', 'Adam'") == len(pilots) and text.count("['run', 'Adam'") == 4
    assert len(report.claims) == 5 and [c.verdict for c in report.claims].count("not tested") == 3
    assert best(curves, "global", ADAM).mean < best(curves, "global", MISSO).mean
    assert "2 seeds, on" in report.setting and "on 200 test images" in report.setting and report.seconds > 1
    assert not (tmp_path / PARTS).exists()  # all is done: another call measures anew


def test_tables_come_back_and_are_put_together(tmp_path):
    trace = Trace(np.array([1, 2]), np.arange(24.0).reshape(2, 4, 3), NetworkPoint(jnp.zeros(1), jnp.zeros(1)), 0.0)
    curves = trainings_of(trace, "weight", ADAM, (0.1, 0.2), (3, 4))
    np.testing.assert_array_equal(curves[1].values[0], [[6, 7, 8], [18, 19, 20]])  # rate 0.2, seed 3
    parts = [made_up(SAG, [5.0, math.nan], seeds=(0, 1)), made_up(SAG, [7.0], seeds=(2,))]
    files = [write_rows(tmp_path / f"{k}.csv", part.rows()) for k, part in enumerate(parts)]
    files.append(write_rows(tmp_path / "c.csv", [row for curve in curves for row in curve.rows()]))
    merged, *back = read_trainings([*files, tmp_path / "not there.csv"])
    assert merged.seeds == (0, 1, 2) and merged.last.tolist() == [5, math.inf, 7] and merged.mean == math.inf
    for one, other in zip(curves, back, strict=True):
        assert (one.rate, one.seeds, one.epochs) == (other.rate, other.seeds, other.epochs)
        np.testing.assert_array_equal(one.values, other.values)


def test_the_best_rate_is_that_of_the_lowest_mean_at_the_end():
    curves = [made_up(ADAM, [1.0, 5.0], 0.1), made_up(ADAM, [2.9, 3.0], 0.2), made_up(ADAM, [0.1, math.inf], 0.3)]
    curves += [made_up(ADAM, [0.0, 0.0], 0.4, stage="pilot"), made_up(ADAM, [0.0, 0.0], 0.5, "weight")]
    assert best(curves, "global", ADAM).rate == 0.2 and best(curves, "global", SAG) is None
    assert at_rate(curves, "global", ADAM, 0.4) is None and at_rate(curves, "weight", ADAM, 0.5).mean == 0
    assert best(curves, "global", ADAM).standard_error == pytest.approx(0.05)
    assert math.isnan(curves[2].standard_error)


def test_rates():
    assert geometric(0.1, 10**0.5, 3) == (0.1, 0.316, 1.0)
    assert beyond((0.1, 0.2, 0.4), 0.4) == (0.8, 1.6, 3.2) and beyond((0.1, 0.2, 0.4), 0.1) == (0.05, 0.025, 0.0125)
    assert beyond((0.1, 0.2, 0.4), 0.2) == () and beyond((0.1,), 0.1) == ()
    assert set(misso_figure2a.RATES) == set(METHODS) - {GROWING} == set(LOOKS) - {GROWING}
    assert all(len(rates) == 5 for rates in misso_figure2a.RATES.values()) and len(set(LOOKS.values())) == len(LOOKS)


def test_verdicts_follow_their_rules():
    good, near, far = made_up(MISSO, [1.0, 1.2]), made_up(ADAM, [1.3, 1.1]), made_up(BBB, [2.0, 2.1])
    lost, single = made_up(MOMENTUM, [1.0, math.inf]), made_up(SAG, [1.5])

    def verdict(first, relation, *others):
        return [claim.verdict for claim in compare("x", first, relation, others)]

    assert verdict(good, "better than", far, lost) == ["holds"] and verdict(good, "level with", near) == ["holds"]
    assert verdict(good, "better than", near) == ["does not hold"] == verdict(good, "level with", far)
    assert verdict(lost, "better than", good) == ["does not hold"] == verdict(lost, "level with", lost)
    assert verdict(good, "better than", single) == ["not tested"] and verdict(good, "level with", SAG) == ["not tested"]
    assert verdict(good, "level with", far, single) == ["does not hold"]
    evidence = compare("x", good, "better than", [lost])[0].evidence
    assert evidence == "-ELBO per image: MISSO 1.1 -+ 0.1 (rate 0.1); Momentum diverged (rate 0.1)."
    # Standard errors 0.1 and 0.1: level up to 2 sqrt(0.02) = 0.283.
    assert verdict(good, "level with", made_up(ADAM, [1.28, 1.48])) == ["holds"]
    assert verdict(good, "level with", made_up(ADAM, [1.29, 1.49])) == ["does not hold"]


def test_claims_of_the_two_figures():
    names = (MISSO, BBB, MOMENTUM, ADAM, SAG, GROWING, PACED, AVERAGED, ADAGRAD)
    curves = [made_up(name, [k + 0.0, k + 0.1], 1e-3, p) for k, name in enumerate(names) for p in ("global", "weight")]
    scores = [
        {"posterior": "global", "method": MISSO, "accuracy": a, "test_nll": 0.1, "calibration_error": 0.01}
        for a in (0.98, 0.995)
    ]
    found = misso_figure2a.claims(curves, scores, 1e-3)
    verdicts = [claim.verdict for claim in found]
    assert verdicts == ["holds", "does not hold"] * 2 + ["does not hold"] + ["does not hold", "holds"] * 2 + ["holds"]
    assert "accuracy 98.75% (lowest 98.00%)" in found[-1].evidence
    assert [c.verdict for c in misso_figure2b.claims(curves, 1e-3)] == ["does not hold"] * 3 + [
        "holds",
        "does not hold",
    ]
    for nothing in (misso_figure2b.claims([], 1e-4), misso_figure2a.claims([], [], 1e-3)):
        assert nothing and {claim.verdict for claim in nothing} == {"not tested"}


def test_convolutions_as_products_are_the_same_network():
    network = LeNet5(jax.random.key(1))
    changed = in_products(network)
    image = jax.random.normal(jax.random.key(2), (28, 28), np.float32)
    assert [layer.products for layer in changed.convolutions] == [True, True]
    np.testing.assert_array_equal(changed.convolutions[1].weight, network.convolutions[1].weight)
    own, other = jax.jit(lambda x: (changed(x), network(x)))(image)
    np.testing.assert_allclose(own, other, rtol=1e-5)


@pytest.mark.parametrize(("method", "rate"), [(MISSO, 0.1), (SAG, 0.01), (PACED, 0.01), (MOMENTUM, 0.01)])
def test_a_shared_gradient_makes_the_same_run(method, rate):
    """The programs in two parts beside those of the lanes, which are the algorithms' own steps."""
    problem = small_problem(0)
    surrogate = network_surrogate(problem.target, posterior="global", noise="flipout", block_size=128)
    one = follow(METHODS[method], surrogate, problem.means([3]), [rate], [3], 2, (1, 2))
    two = train(METHODS[method], surrogate, problem.means([3])[0], rate, 3, 2, most_draws=1, quiet=True)
    np.testing.assert_allclose(two.values, one.values, rtol=1e-5)
    np.testing.assert_allclose(two.points.mean, one.points.mean, atol=1e-5)


def test_rates_are_searched_until_both_neighbours_are_worse():
    found, lowest = {}, 7
    while (place := next_place(found, 3)) is not None:
        found[place] = float(abs(place - lowest)) if place < 9 else math.nan
    assert found[lowest] == 0 and {6, 8} <= set(found) <= set(range(2, 10))
    assert next_place({3: math.inf, 4: math.inf}, 3) == 2  # where all diverge, smaller ones
    assert next_place({-1: 1.0, 0: 0.5}, -1) == 1


def test_measuring_in_parts_goes_on_where_it_stopped(tmp_path):
    options = {"epochs": 2, "seeds": 1, "methods": (ADAM, MISSO), "problem": small_problem(0)}
    assert not measure(tmp_path, limit=-1.0, **options)
    assert measure(tmp_path, limit=500.0, **options)
    before = (tmp_path / "parts.jsonl").read_text(encoding="utf-8")
    assert (
        measure(tmp_path, limit=500.0, **options) and (tmp_path / "parts.jsonl").read_text(encoding="utf-8") == before
    )
    curves = read_trainings([tmp_path / "misso-figure2b.csv"])
    for method in (ADAM, MISSO):
        pilots = [curve for curve in curves if curve.method == method and curve.stage]
        chosen = min(pilots, key=lambda curve: curve.mean).rate
        assert min(c.rate for c in pilots) < chosen < max(c.rate for c in pilots)
        assert at_rate(curves, "global", method, chosen) is not None
    facts = json.loads((tmp_path / "misso-figure2b.json").read_text(encoding="utf-8"))
    spent = sum(json.loads(line)["seconds"] for line in before.splitlines())
    assert facts["seconds"] == pytest.approx(spent, rel=0.05) and facts["seeds_done"] == 1
    assert facts["whole"] and facts["prior"][0][0] == pytest.approx(facts["prior"][0][1])
    assert facts["prior"][0][0] > 1
    page = misso_figure2b.page(tmp_path / "page", [tmp_path])
    assert f"q = prior has -ELBO {facts['prior'][0][0]:.5g}" in page.setting and "k draws a step" in page.setting
    assert not any("*" in row["rate"] for row in page.rows)
    assert {"Did not run: Adagrad.", "Did not run: BBB, Momentum."} <= {claim.evidence for claim in page.claims}


def test_a_budget_leaves_whole_seeds_and_the_page_says_how_many(tmp_path):
    options = {"epochs": 1, "methods": (ADAM,), "problem": small_problem(0)}
    assert measure(tmp_path, limit=500.0, seeds=1, **options)
    assert not measure(tmp_path, limit=-1.0, seeds=3, **options)
    page = misso_figure2b.page(tmp_path / "page", [tmp_path])
    assert "1 of 3 seeds for all methods" in page.setting and "Not all of the planned runs" in page.setting
    with pytest.raises(ValueError, match="another problem"):
        measure(tmp_path, limit=500.0, problem=small_problem_of_another_name())
    # Parts of other lengths are others: none of them is there.
    measure(tmp_path, limit=-1.0, **{**options, "epochs": 2})
    assert all(curve.stage for curve in read_trainings([tmp_path / "misso-figure2b.csv"]))


def small_problem_of_another_name():
    return dataclasses.replace(small_problem(0), title="another")
