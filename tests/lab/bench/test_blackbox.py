"""The benchmark's protocol, oracle, times and tables, with a peer made for the test."""

import dataclasses
import io
import json
import sys
import textwrap
import time

import numpy as np
import pytest
from rich.console import Console
from scipy.integrate import quad
from typer.testing import CliRunner

from provi_lab.bench import logistic
from provi_lab.bench import record as records
from provi_lab.bench.blackbox import blackbox_cells, compare, time_to_gap, verdicts
from provi_lab.bench.command import app
from provi_lab.bench.logistic import BLACKBOX_PROBLEMS, METHODS, Oracle, correlated, glm_cells, measure
from provi_lab.bench.methods import Method, MethodFailed, Trace, run_method
from provi_lab.bench.problems import LogisticProblem, load_problem
from provi_lab.bench.protocol import Recorder, next_block
from provi_lab.common.tables import markdown_cells, print_cells

# Its mean comes closer to 0.3 by the factor `setting` at each snapshot; the first call "compiles" for 0.2 s.
FAKE = """
import time
import numpy as np

compiled = False

def solve(problem, setting, record):
    global compiled
    if setting < 0:
        raise ValueError("a rate must be positive")
    if not compiled:
        time.sleep(0.2)
        compiled = True
    factor, steps = 1.0, 0
    while not record.done:
        factor, steps = factor * setting, steps + 1
        record(np.full(1, 0.3 + factor), np.full((1, 1), 0.5), 10 * steps)
        if setting == 0.9 and steps == 3:
            raise FloatingPointError("overflow")
        time.sleep(0.002)
    return {"steps": steps}

"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_peer.py").write_text(textwrap.dedent(FAKE), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return Method("fake", "fake_peer:solve", ("numpy",), "fake", (0.5,), "rate")


def tiny():
    return LogisticProblem("tiny", np.array([[1.0], [2.0], [-1.0]]), np.array([1.0, 0.0, 1.0]), 1.5)


def negative_elbo(problem, mean, variance):
    """The one-dimensional integral by SciPy, the prior normalised."""
    deviation = np.sqrt(variance)

    def integrand(u):
        z = mean + deviation * u
        signs = 1 - 2 * problem.response
        energy = np.logaddexp(0, signs * problem.design[:, 0] * z).sum()
        energy += 0.5 * (z / problem.prior_scale) ** 2 + np.log(problem.prior_scale * np.sqrt(2 * np.pi))
        return energy * np.exp(-0.5 * u**2) / np.sqrt(2 * np.pi)

    return quad(integrand, -12, 12, epsabs=1e-12)[0] - 0.5 * np.log(2 * np.pi * np.e * variance)


def trace(setting, cpu, gradients=None, compile_cpu=2.0):
    cpu = np.array(cpu)
    gradients = np.full(len(cpu), np.nan) if gradients is None else np.array(gradients)
    means, covariances = np.zeros((len(cpu), 1)), np.ones((len(cpu), 1, 1))
    return Trace(setting, cpu, 3 * cpu, means, covariances, gradients, compile_cpu, 5.0, {})


def test_gap_agrees_with_scipy_and_is_infinite_for_nonsense():
    problem = tiny()
    oracle = Oracle.of(problem)
    for mean, variance in ((0.0, 1.0), (0.7, 0.2), (-1.0, 3.0)):
        expected = negative_elbo(problem, mean, variance) - oracle.negative_elbo
        assert oracle.gap(np.array([mean]), np.array([[variance]])) == pytest.approx(expected, abs=1e-9)
        assert expected > 0
    best = oracle.gap(np.array([0.0]), np.array([[-1.0]])), oracle.gap(np.array([np.nan]), np.eye(1))
    assert best == (np.inf, np.inf)


def test_oracle_is_the_minimum_over_a_grid():
    problem = tiny()
    values = [negative_elbo(problem, m, v) for m in np.linspace(-1, 1, 21) for v in np.geomspace(0.1, 2, 21)]
    assert 0 <= min(values) - Oracle.of(problem).negative_elbo < 0.01


def test_snapshots_are_geometric_and_free():
    record = Recorder(10.0)
    due = [step for step in range(1, 1000) if record.due(step)]
    assert due[:3] == [10, 20, 30] and max(np.diff(due[10:]) / due[10:-1]) <= 0.1
    assert next_block(0) == 10 and next_block(1000) == 100
    record.start()
    for _ in range(2):
        record(np.zeros(400), np.zeros((400, 400)))
    # The second snapshot is taken at once: copying the first is not on its clock.
    assert record.snapshots[1][1] - record.snapshots[0][1] < 1e-3


def test_recorder_stops_and_restarts():
    short = Recorder(10.0, largest=1)
    short(np.zeros(1), np.eye(1))
    late = Recorder(0.0)
    late(np.zeros(1), np.eye(1))
    assert short.done and late.done
    warm, cold = Recorder(10.0, warm=True), Recorder(10.0)
    time.sleep(0.05)
    for record in (warm, cold):
        record.compiled()
        record(np.zeros(1), np.eye(1))
    assert warm.snapshots[0][1] < 0.04 < cold.snapshots[0][1]


def test_problem_survives_the_file(tmp_path):
    problem = correlated(20, 3)
    problem.save(tmp_path / "p.npz")
    read = load_problem(tmp_path / "p.npz")
    assert read.name == problem.name and read.prior_scale == 1.0 and set(read.response) <= {0.0, 1.0}
    np.testing.assert_array_equal(read.design, problem.design)


def test_correlated_columns_have_the_correlation():
    """20,000 rows: a correlation of 0.9 has standard error 0.0013, one of 0.81 has 0.0024; 6 of them is 1e-9."""
    correlation = np.corrcoef(correlated(dim=5).design.T)
    assert np.abs(np.diagonal(correlation, 1) - 0.9).max() < 0.008
    assert np.abs(np.diagonal(correlation, 2) - 0.81).max() < 0.015


def test_time_to_gap_takes_the_best_setting_and_adds_compilation():
    method = Method("m", "", (), "", (0.1, 0.2), "rate")
    traces = [trace(0.1, [1.0, 4.0], [10, 40]), trace(0.2, [2.0, 3.0])]
    gaps = [np.array([0.5, 0.05]), np.array([0.9, 0.2])]
    one, tenth = (time_to_gap(method, traces, gaps, threshold) for threshold in (1.0, 0.1))
    assert one == dict(cpu=1, cpu_compiling=3, wall=3, wall_compiling=8, gradients=10, setting="rate 0.1")
    assert tenth is not None and tenth["cpu"] == 4.0 and tenth["setting"] == "rate 0.1"
    assert time_to_gap(method, traces, gaps, 0.01) is None
    fast = time_to_gap(method, traces, [gaps[0], np.array([0.05, 0.05])], 0.1)
    assert fast is not None and fast["cpu"] == 2.0 and fast["gradients"] is None


def test_a_method_that_stops_itself_is_timed_at_the_gap_asked_for():
    method = Method("m", "", (), "", (1.0, 0.1), "tol", stops_itself=True)
    traces, gaps = [trace(1.0, [1.0]), trace(0.1, [2.0])], [np.array([0.001]), np.array([0.001])]
    tenth = time_to_gap(method, traces, gaps, 0.1)
    assert tenth is not None and tenth["cpu"] == 2.0
    assert time_to_gap(method, traces, gaps, 0.01) is None
    assert time_to_gap(method, traces, [gaps[0], np.array([0.5])], 0.1) is None


def test_peer_process(fake, tmp_path):
    tiny().save(tmp_path / "p.npz")
    found = run_method(fake, tmp_path / "p.npz", 0.5, 0.3)
    np.testing.assert_allclose(found.mean[:3, 0], [0.8, 0.55, 0.425])
    assert found.gradients[2] == 30 and found.facts == {"steps": len(found.cpu)}
    # Sleeping takes wall time and no CPU time.
    assert 0.15 < found.compile_wall < 1.0 and found.compile_cpu < 0.1
    assert 0.3 <= found.wall[-1] < 0.6 and (np.diff(found.wall) > 0).all()
    broken = run_method(fake, tmp_path / "p.npz", 0.9, 0.3)
    assert len(broken.cpu) == 3 and broken.facts == {"error": "FloatingPointError: overflow"}
    with pytest.raises(MethodFailed, match="a rate must be positive"):
        run_method(fake, tmp_path / "p.npz", -1.0, 0.3)


def test_rows_of_methods_that_ran_failed_or_are_missing(fake):
    missing = Method("absent", "nothing", ("no_such_package",), "no-such-package", (1.0,), "rate")
    wrong = Method("wrong", "fake_peer:solve", (), "", (-1.0,), "rate")
    problem = tiny()
    rows = compare([problem], [fake, missing, wrong], 0.1)
    ran, absent, failed = rows
    oracle = Oracle.of(problem)
    assert [row["status"] for row in rows] == ["ran", "not installed", "failed"]
    gaps = [negative_elbo(problem, 0.3 + 0.5**k, 0.5) - oracle.negative_elbo for k in range(1, 40)]
    first = next(k for k, gap in enumerate(gaps, start=1) if gap <= 1)
    assert 1 < first and ran["times"]["1"]["gradients"] == 10 * first and ran["times"]["0.1"] is None
    assert ran["final_gap"] == pytest.approx(gaps[-1], abs=1e-2)
    assert absent["note"] == "pip install no-such-package" and "positive" in failed["note"]
    text = markdown_cells(blackbox_cells(rows))
    assert "not installed: pip install no-such-package" in text and text.count("\n") == 4
    json.dumps(rows, allow_nan=False)


def row(key, cpu, compiling):
    time = dict(cpu=cpu, cpu_compiling=compiling, wall=cpu, wall_compiling=compiling, gradients=None, setting="s")
    times = {"1": time, "0.1": time, "0.01": time}
    return dict(
        problem="p", method=METHODS[key].name, status="ran", note="", times=times, final_gap=0.001, facts={}, runs=[]
    )


def test_verdicts_name_the_best_peer_and_say_when_the_aim_is_missed():
    rows = [row("provi-glm", 0.01, 2.0), row("provi", 0.5, 3.0), row("blackjax", 2.0, 8.0), row("gsm", 5.0, 6.0)]
    lines = verdicts(rows)
    assert "200 times as fast as the best peer (BlackJAX full-rank VI (STL)); aim 100: reached" in lines[0]
    assert "3 times as fast as the best peer (GSM-VI); aim 5: not reached" in lines[1]
    assert "2 times as fast" in lines[2] and "aim 3: not reached" in lines[2]
    assert "no peer reached it" in verdicts(rows[:2])[0]
    assert len(verdicts(rows[1:])) == 1 and verdicts(rows[2:]) == []
    unreached = {**rows[1], "times": {"0.01": None}}
    assert verdicts([unreached, *rows[2:]])[0].endswith("not reached.")


def glm_row(**changes):
    facts = dict(certified_gap=2e-3, certificate="proven", num_steps=7, gradient_evaluations=9, elbo=-55.47)
    facts |= dict(scale="triangular", outcome="CONVERGED", message="", true_gap=1e-3, cpu=0.1, cpu_compiling=1.0)
    facts |= dict(wall=0.2, wall_compiling=2.0, problem="q", terms=5, dim=2, tol=0.01, status="ran", note="")
    return facts | changes


def test_record_and_page(tmp_path):
    blackbox = records.make_record("blackbox", [row("provi", 1.0, 2.0), row("gsm", 5.0, 6.0)])
    glm = records.make_record("glm", [glm_row(), glm_row(certified_gap=None), glm_row(status="failed", note="why")])
    written, page = records.write_record(tmp_path, blackbox)
    assert "## Linear models" not in page.read_text(encoding="utf-8")
    records.write_record(tmp_path, glm)
    text = page.read_text(encoding="utf-8")
    assert json.loads(written.read_text(encoding="utf-8")) == blackbox
    assert written.name == f"{blackbox['date']}-blackbox.json" and "jax" in blackbox["versions"]
    assert "### p" in text and "| GSM-VI | 5 (6) |" in text and "0.002 (proven)" in text and "failed: why" in text


def test_tables_print_on_a_console():
    console = Console(file=io.StringIO(), width=200)
    print_cells("A [title]", glm_cells([glm_row()]), console)
    output = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "A [title]" in output and "0.1 (1)" in output and "-55.47" in output


def test_glm_rows_survive_a_failing_program(monkeypatch):
    monkeypatch.setitem(METHODS, "provi-glm", Method("gone", "no_such_module_of_provi", (), "", (1.0,), "tol"))
    (found,) = measure([tiny()], 1.0)
    assert found["status"] == "failed" and "no_such_module_of_provi" in found["note"]


def test_glm_takes_the_least_time_of_some_processes(monkeypatch):
    runs = iter([{"status": "ran", "elbo": -5.0}, {"status": "ran"}, {"status": "ran"}])
    clocks = iter([(3.0, 9.0), (2.0, 8.0), (4.0, 7.0)])

    def attempt(*_):
        cpu, wall = next(clocks)
        return next(runs) | {"cpu": cpu, "cpu_compiling": cpu + 1, "wall": wall, "wall_compiling": wall + 1}

    monkeypatch.setattr(logistic, "attempt", attempt)
    (found,) = measure([tiny()], 1.0, repeats=3)
    assert [found[name] for name in ("cpu", "cpu_compiling", "wall", "wall_compiling")] == [2.0, 3.0, 7.0, 8.0]
    assert found["elbo"] == -5.0 and found["repeats"] == 3
    assert logistic.glm_verdicts([found]) == ["Times are the least of 3 processes."]
    assert logistic.glm_verdicts([glm_row(), found]) == ["Times are of one process."]
    failing = [{"status": "ran"}, {"status": "failed", "note": "why"}]
    assert logistic._least(failing) == failing[1] and logistic.glm_verdicts(failing[1:]) == []


def test_command_names_the_choices():
    result = CliRunner().invoke(app, ["blackbox", "--methods", "nuts"])
    assert result.exit_code == 2 and "provi-glm" in result.output and "nuts" in result.output


def test_command_runs_peers_in_other_pythons(fake, tmp_path, monkeypatch):
    """The other Python stands for one that has the package: it says so, and is this one."""
    other = tmp_path / "python"
    other.write_text(
        f'#!/bin/sh\ncase "$*" in *no_such_package*) exit 0;; esac\nexec {sys.executable} "$@"\n', encoding="utf-8"
    )
    other.chmod(0o755)
    monkeypatch.setitem(METHODS, "fake", dataclasses.replace(fake, requires=("no_such_package",)))
    monkeypatch.setitem(BLACKBOX_PROBLEMS, "tiny", tiny)
    words = ["blackbox", "--methods", "fake", "--problems", "tiny", "--seconds", "0.1"]
    alone, beside = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--python", str(other)]))
    assert alone.exit_code == beside.exit_code == 0
    assert "pip install fake" in alone.output and "rate 0.5" not in alone.output
    assert "rate 0.5" in beside.output and "pip install" not in beside.output
