"""Figures 1 and 2 of papers 000 and 002: the baselines' gradient and updates, the measurements, and small runs."""

import csv
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from provi_lab.common.curves import Curve
from provi_lab.papers import reproduce
from provi_lab.papers.pgsvi import figure1 as pgsvi_figure1
from provi_lab.papers.pgsvi import figure2 as pgsvi_figure2
from provi_lab.papers.pgsvi.baselines import (
    EPSILON,
    Factored,
    Form,
    adaptive_rules,
    decaying_sgd,
    gradient,
    judge_factored,
    lower_product,
    sgd_state,
    start_at_prior,
)
from provi_lab.papers.pgsvi.figure2 import claims, read_curves
from provi_lab.papers.pgsvi.measure import follow_rule
from provi_lab.papers.pgsvi.problem import IONOSPHERE, factors, judge_dual, problem, synthetic_problem
from support.members import quick_jit

pytestmark = pytest.mark.usefixtures("quick_compilation")

RNG = np.random.default_rng(4)


@pytest.fixture(scope="module")
def task():
    return synthetic_problem(0)


def somewhere(task, whitened):
    start = start_at_prior(factors(task), whitened)
    size = len(start.mean)
    noise = 0.1 * np.tril(RNG.normal(size=(size, size)))
    return Factored(jnp.asarray(RNG.normal(size=size)), start.log_root + jnp.asarray(noise))


def test_both_judges_agree_at_the_prior_and_the_optimum_is_proven(task):
    prior = judge_dual(task, task.family.prior_point())
    for whitened in (False, True):
        parts = factors(task)
        same = judge_factored(task, parts, start_at_prior(parts, whitened), whitened)
        assert float(same.negative_elbo) == pytest.approx(float(prior.negative_elbo), rel=1e-10)
        assert float(same.test_bits) == pytest.approx(float(prior.test_bits), rel=1e-7)
    assert float(prior.test_bits) == pytest.approx(1.0, abs=1e-6)  # the prior knows nothing: a coin
    assert 0 <= task.proven <= 1e-5 and task.optimum < float(prior.negative_elbo)


@pytest.mark.parametrize("whitened", [False, True])
def test_the_gradient_of_all_data_is_that_of_the_negative_elbo(task, whitened):
    parts, point = factors(task), somewhere(task, whitened)
    everything = jnp.arange(task.target.num_terms)
    slope = quick_jit(lambda point: gradient(task, parts, point, everything, Form(whitened)))(point)
    loss = quick_jit(jax.grad(lambda point: judge_factored(task, parts, point, whitened).negative_elbo))(point)
    np.testing.assert_allclose(slope.mean, loss.mean, atol=1e-6)
    np.testing.assert_allclose(slope.log_root, np.tril(loss.log_root), atol=1e-6)


@pytest.mark.parametrize("whitened", [False, True])
def test_the_mean_gradient_over_a_pass_is_the_whole_one(task, whitened):
    """The factor N/M: eight batches of five are the forty data."""
    parts, point = factors(task), somewhere(task, whitened)
    compiled = quick_jit(lambda point, indices: gradient(task, parts, point, indices, Form(whitened)))
    order = RNG.permutation(40)
    batches = [compiled(point, jnp.asarray(part)) for part in np.split(order, 8)]
    whole = compiled(point, jnp.asarray(order))
    np.testing.assert_allclose(np.mean([b.mean for b in batches], axis=0), whole.mean, atol=1e-9)
    np.testing.assert_allclose(np.mean([b.log_root for b in batches], axis=0), whole.log_root, atol=1e-9)


def test_without_the_factor_the_likelihood_has_weight_m_over_n(task):
    """The authors' baselines: prior + (M/N)(whole - prior) in the mean over a pass."""
    parts, point = factors(task), somewhere(task, False)
    bare, full = Form(weighted=False), Form()
    batch = jnp.arange(5)
    own = gradient(task, parts, point, batch, bare).mean
    prior = parts.inverse @ point.mean
    np.testing.assert_allclose(8 * (own - prior), gradient(task, parts, point, batch, full).mean - prior, atol=1e-6)
    assert float(jnp.abs(own - prior).max()) > 1e-3


def test_block_columns_make_the_lower_part_of_the_product():
    left, lower = RNG.normal(size=(21, 21)), np.tril(RNG.normal(size=(21, 21)))
    product = quick_jit(lower_product)(left, lower)
    np.testing.assert_allclose(product, np.tril(left @ lower), atol=1e-13)


def paper_updates(name, gradients):
    """(88)-(100) of paper 002 in NumPy, with the settings for Ionosphere; the steps to subtract."""
    s = d = mu = np.zeros_like(gradients[0])
    steps = []
    for k, g in enumerate(gradients):
        match name:
            case "SGD":
                step = 25 / 280 * (k + 1) ** -0.51 * g
            case "ADAGRAD":
                s = s + g * g
                step = 4 / np.sqrt(s + EPSILON) * g
            case "RMSprop":
                s = 0.9999 * s + 0.0001 * g * g
                step = 0.04 / np.sqrt(s + EPSILON) * g
            case "ADADELTA":
                s = (1 - 1e-11) * s + 1e-11 * g * g
                step = 0.1 * np.sqrt(d + EPSILON) / np.sqrt(s + EPSILON) * g
                d = (1 - 1e-11) * d + 1e-11 * step**2
            case _:
                mu, s = 0.9 * mu + 0.1 * g, 0.999 * s + 0.001 * g * g
                step = 0.25 / (np.sqrt(s / (1 - 0.999 ** (k + 1))) + EPSILON) * mu / (1 - 0.9 ** (k + 1))
        steps.append(step)
    return steps


@pytest.mark.parametrize("name", ["SGD", "ADAGRAD", "RMSprop", "ADADELTA", "ADAM"])
def test_updates_are_the_papers(name):
    gradients = list(RNG.normal(size=(6, 3)) * np.array([1e-4, 1.0, 1e3]))
    if name == "SGD":
        rule, state = decaying_sgd(IONOSPHERE.sgd[0]), sgd_state(IONOSPHERE.sgd[1] / 280)
    else:
        rule = adaptive_rules(IONOSPHERE)[name]
        state = rule.init(jnp.zeros(3))
    for g, expected in zip(gradients, paper_updates(name, gradients), strict=True):
        updates, state = rule.update(jnp.asarray(g), state, jnp.zeros(3))
        np.testing.assert_allclose(-np.asarray(updates), expected, rtol=1e-9)


def test_optax_differs_where_the_update_is_our_own():
    """Its ADADELTA leaves alpha_0 out of the average of squared updates."""
    ours, theirs = adaptive_rules(IONOSPHERE)["ADADELTA"], optax.adadelta(0.1, rho=1 - 1e-11, eps=EPSILON)
    states = [rule.init(jnp.zeros(1)) for rule in (ours, theirs)]
    for _ in range(3):
        pairs = [
            rule.update(jnp.asarray([1e7]), state, jnp.zeros(1))
            for rule, state in zip((ours, theirs), states, strict=True)
        ]
        states = [state for _, state in pairs]
    assert float(pairs[0][0][0]) != pytest.approx(float(pairs[1][0][0]), rel=1e-3)


def test_a_diverging_run_ends_with_an_infinite_gap(task):
    (curve,) = follow_rule(task, factors(task), decaying_sgd(0.0), "SGD", (0,), range(4), steps=(10.0,))
    assert curve["gap"][-1] == math.inf and curve.first("gap", 1.0) == math.inf and len(curve["passes"]) < 4


def made_up(method, gaps, seed=0):
    passes = np.array([0, 10, 100])[: len(gaps)]
    names = {"data": "synthetic", "method": method, "seed": seed, "step_size": 1.0}
    return Curve(names, {"passes": passes, "gap": np.array(gaps), "test_bits": np.ones(len(gaps))})


def verdicts(task, *curves):
    return [claim.verdict for claim in claims([task.setting], curves)]


def test_verdicts_follow_their_rules(task):
    slow, worse = made_up("ADAM", [50.0, 9.0, 2.0]), made_up("PG-SVI (B)", [50.0, 20.0])
    assert verdicts(task, made_up("PG-SVI", [50.0, 0.9]), slow, worse) == ["holds"] * 4
    quick = made_up("ADAM", [50.0, 9.0, 0.5])
    late = made_up("PG-SVI", [50.0, 30.0])
    assert verdicts(task, late, quick, worse) == ["does not hold"] * 4
    short = made_up("ADAM", [50.0, 9.0])
    assert verdicts(task, late, short, worse)[1] == "not tested"
    # One baseline with 100 passes says nothing of another that was followed for ten, unless that one diverged.
    assert verdicts(task, late, short, made_up("SGD", [50.0, 9.0, 2.0]), worse)[1] == "not tested"
    assert (
        verdicts(task, late, made_up("ADAM", [50.0, math.inf]), made_up("SGD", [50.0, 9.0, 2.0]), worse)[1] == "holds"
    )
    found = claims([task.setting], [late, short, made_up("SGD", [50.0, 9.0, 2.0]), worse])
    assert "None within 10 passes" in found[1].evidence


def check_files(report, name, *more):
    assert [file.name for file in report.files] == [f"{name}.png", f"{name}.csv", *more, f"{name}.md"]
    assert report.files[0].read_bytes().startswith(b"\x89PNG")
    with report.files[1].open() as stream:
        rows = list(csv.DictReader(stream))
    # The optimum is proven to 1e-5, so nothing can be better by more.
    assert min(float(row["gap"]) for row in rows) > -1e-5
    return rows


def test_figure1(tmp_path):
    report = reproduce(pgsvi_figure1.NAME, tmp_path, quick=True)
    check_files(report, pgsvi_figure1.NAME)
    assert [claim.verdict for claim in report.claims[:2]] == ["holds"] * 2
    full = [row["examples to 1 nat"] for row in report.rows if row["method"] == "PG"]
    assert all(math.isfinite(examples) and examples % 40 == 0 for examples in full)


@pytest.mark.slow
def test_figure2(tmp_path):
    report = reproduce(pgsvi_figure2.NAME, tmp_path, quick=True)
    rows = check_files(report, pgsvi_figure2.NAME, "pgsvi-figure2-others.png")
    by_method = {row["method"]: row for row in report.rows}
    assert set(by_method) == set(pgsvi_figure2.METHODS)
    assert by_method["PG-SVI"]["gap at 10"] < 1 < by_method["ADAM"]["gap at 10"]
    assert by_method["SGD"]["passes to 1 nat"] == "diverges"
    assert abs(by_method["full batch"]["last gap"]) < 1e-5
    assert len([row for row in rows if row["method"] == "ADAM"]) == 11
    again = [row for row in pgsvi_figure2.summary(synthetic_problem(0).setting, read_curves(report.files[1]))]
    assert [repr(row) for row in again] == [repr(row) for row in report.rows]  # the table can be made from the CSV


def test_without_the_data_the_error_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("PROVI_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="emtiyaz/prox-grad-svi"):
        problem(IONOSPHERE)
