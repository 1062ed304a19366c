"""Runs: budgets, history, prefixes, blocks, interruption, silence."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import ProxSGD
from provi.families import Gaussian
from provi.runtime import Budget, loop, run
from provi.runtime.record import FIELDS, History, Outcome, recorded_steps
from provi.runtime.run import as_budget
from provi.schedules import GeometricAverage, PolynomialBatch, PolynomialStep
from provi.targets import Gaussian as GaussianTarget
from support.members import FACTOR, LOC, flat

driver = importlib.import_module("provi.runtime.run")  # the name `provi.runtime.run` is the function
TARGET = GaussianTarget(LOC, FACTOR @ FACTOR.T)
FAMILY = Gaussian(3)
START = FAMILY.point(np.zeros(3), 0.5)
ALGORITHM = ProxSGD(PolynomialStep(0.3, 0.6), PolynomialBatch(2, 0.5, 12), averaging=GeometricAverage(0.98, of="after"))


def go(num_steps=60, seed=4, algorithm=ALGORITHM, **options):
    return run(algorithm, TARGET, FAMILY, START, seed=seed, num_steps=num_steps, **options)


def batches(num_steps):
    return np.minimum(np.ceil(2 * np.arange(1, num_steps + 1) ** 0.5 - 1e-9), 12)


def test_history():
    result = go(num_steps=200)
    history, steps = result.history, result.history["step"]
    assert steps[0] == 1 and steps[-1] == 200 and (np.diff(steps) > 0).all()
    total = np.cumsum(batches(200))
    at = steps.astype(int) - 1
    np.testing.assert_array_equal(history["gradient_evaluations"], total[at])
    np.testing.assert_array_equal(history["num_draws"], batches(200)[at])
    np.testing.assert_allclose(history["step_size"], 0.3 / steps**0.6, rtol=1e-13)
    assert (np.diff(history["seconds"]) >= 0).all() and history["seconds"][-1] <= result.seconds
    assert (history["gradient_norm"] > 0).all()
    assert result.gradient_evaluations == total[-1] and result.num_steps == 200
    assert len(history) == len(steps) == history.as_array().shape[0]
    with pytest.raises(KeyError, match="history has no field 'loss'"):
        history["loss"]


def test_recorded_elbos_are_the_elbo():
    """Exact for a Gaussian target; a z-test at the last record of four runs, false-alarm rate 1e-6 each."""
    precision = np.linalg.inv(FACTOR @ FACTOR.T)
    for seed in range(4):
        result = go(seed=seed)
        m, C = np.asarray(result.point.loc), np.asarray(result.point.scale.matrix)
        energy = 0.5 * ((m - LOC) @ precision @ (m - LOC) + np.trace(precision @ C @ C.T))
        constant = 1.5 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
        entropy = 1.5 * (1 + np.log(2 * np.pi)) + np.linalg.slogdet(C)[1]
        error = abs(result.history["elbo"][-1] - (entropy - energy - constant))
        assert error < 4.9 * result.history["elbo_standard_error"][-1]


@pytest.mark.parametrize("num_steps", [1, 2, 3, 10, 1000, 10**6])
@pytest.mark.parametrize("num_records", [1, 2, 100])
def test_recorded_steps(num_steps, num_records):
    steps = recorded_steps(num_steps, num_records)
    assert steps[0] == 1 and steps[-1] == num_steps
    assert steps == sorted(set(steps)) and len(steps) <= max(4, num_records)


def test_history_round_trips_through_an_array():
    history = History()
    assert history.as_array().shape == (0, len(FIELDS))
    history.append(**{name: i + 0.5 for i, name in enumerate(FIELDS)})
    again = History.from_array(history.as_array())
    assert again.rows == history.rows and again["elbo"][0] == FIELDS.index("elbo") + 0.5


def test_gradient_budget():
    result = go(num_steps=10**6, budget=Budget(gradients=100))
    assert result.outcome is Outcome.GRADIENT_BUDGET
    total = np.cumsum(batches(100))
    needed = int(np.searchsorted(total, 100, side="right"))  # the steps that the budget pays for in full
    assert result.num_steps == needed and result.gradient_evaluations == total[needed - 1]
    assert result.history["step"][-1] == needed
    np.testing.assert_array_equal(flat(result.last), flat(go(num_steps=needed).last))


def test_budget_below_one_step_is_refused():
    with pytest.raises(ValueError, match="do not pay for one step"):
        run(ProxSGD(0.1, 8), TARGET, FAMILY, START, seed=0, num_steps=3, budget=Budget(gradients=7))


def test_time_budget():
    result = go(num_steps=10**9, budget=Budget(seconds=0.3))
    assert result.outcome is Outcome.TIME_BUDGET
    assert 0.3 <= result.seconds < 30
    assert 0 < result.num_steps < 10**9
    assert np.isfinite(flat(result.point)).all()


def test_steps_budget():
    result = go(num_steps=10**6, budget=Budget(steps=13))
    assert result.outcome is Outcome.COMPLETED and result.num_steps == 13
    assert go(num_steps=7, budget=Budget(steps=13)).num_steps == 7


def test_as_budget():
    assert as_budget(None) == Budget()
    assert as_budget(70) == Budget(gradients=70)
    assert as_budget(Budget(steps=3)) == Budget(steps=3)
    with pytest.raises(ValueError, match="budget must be at least 1, not -5"):
        as_budget(-5)


def advance_by(blocks):
    key = jax.random.split(jax.random.key(4))[0]
    carry, at = loop.initial_carry(ALGORITHM, START), 0
    limit = jnp.asarray(2**62)
    for block in blocks:
        at += block
        carry = loop.advance(key, ALGORITHM, TARGET, FAMILY, carry, jnp.asarray(at), limit)
    return carry


def test_the_partition_in_blocks_does_not_matter():
    whole = advance_by([60])
    for blocks in ([1] * 60, [1, 8, 32, 19], [59, 1], [60, 0, 0]):
        parts = advance_by(blocks)
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(flat(go().last), flat(whole.state.point))
    np.testing.assert_array_equal(flat(go(num_records=2).point), flat(ALGORITHM.output(whole.state)))


def test_the_speed_of_the_machine_does_not_matter(monkeypatch):
    expected = go()
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e-9)
    np.testing.assert_array_equal(flat(go().point), flat(expected.point))


def test_a_short_run_is_a_prefix_of_a_long_one():
    long = go(num_steps=100, num_records=200)
    short = go(num_steps=40, num_records=80)
    common = np.intersect1d(long.history["step"], short.history["step"])
    assert len(common) > 20
    columns = [FIELDS.index(name) for name in FIELDS if name != "seconds"]
    rows = [h.as_array()[np.isin(h["step"], common)][:, columns] for h in (long.history, short.history)]
    np.testing.assert_array_equal(*rows)


def test_seeds():
    assert np.abs(flat(go(seed=1).last) - flat(go(seed=2).last)).max() > 1e-3
    np.testing.assert_array_equal(flat(go(seed=1).last), flat(go(seed=1).last))


@pytest.mark.parametrize("call", [1, 3])
def test_an_interrupt_keeps_the_state(monkeypatch, tmp_path, call):
    calls, real, path = [], loop.advance, tmp_path / "run.safetensors"

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(driver, "advance", interrupted)
    result = go(checkpoint=path)
    assert result.outcome is Outcome.INTERRUPTED and not result.outcome.ok
    assert result.num_steps < 60
    expected = advance_by([result.num_steps])
    np.testing.assert_array_equal(flat(result.last), flat(expected.state.point))
    monkeypatch.setattr(driver, "advance", real)
    resumed = go(checkpoint=path, resume=True)
    np.testing.assert_array_equal(flat(resumed.point), flat(go().point))


def test_no_output_when_not_on_a_terminal(capsys):
    go(num_steps=5)
    go(num_steps=5, progress=False)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_the_progress_bar_shows_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    go(num_steps=5, progress=False)
    assert capsys.readouterr().err == ""
    go(num_steps=5)
    assert "provi" in capsys.readouterr().err
