"""The Gaussian-process benchmark: problems, launcher, rows and tables; of the peers only the NumPy one is run."""

import json
import sys
import textwrap

import numpy as np
import pytest
from typer.testing import CliRunner

from provi_lab.bench import record as records
from provi_lab.bench.blackbox import blackbox_cells
from provi_lab.bench.command import app
from provi_lab.bench.gp import (
    GP_METHODS,
    GP_THRESHOLDS,
    SPARSE_METHODS,
    compare_gp,
    gp_verdicts,
    measure_sparse,
    sparse_cells,
    synthetic,
)
from provi_lab.bench.gp_oracle import GPOracle, score_sparse
from provi_lab.bench.methods import Method, run_method
from provi_lab.bench.problems import GPProblem, SparseGPProblem, load_problem, snapshot_due
from provi_lab.bench.protocol import Recorder
from provi_lab.common.tables import markdown_cells


def tiny(terms=12, seed=1):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(terms, 2))
    inputs[1] = inputs[0]
    return GPProblem("tiny", inputs, (rng.random(terms) < 0.5).astype(float), 1.3, 3.0, 0.05)


def test_problems_survive_their_files(tmp_path):
    dense, sparse = tiny(), synthetic(60, 10, 5)
    for problem, kind in ((dense, GPProblem), (sparse, SparseGPProblem)):
        problem.save(tmp_path / "p.npz")
        read = load_problem(tmp_path / "p.npz")
        assert type(read) is kind
        for name, value in vars(problem).items():
            np.testing.assert_array_equal(getattr(read, name), value)
            assert isinstance(getattr(read, name), type(value))
    K = dense.covariance()
    assert K[0, 0] == K[1, 1] == pytest.approx(9.05) and K[0, 1] == pytest.approx(9.0)
    assert K[0, 2] == pytest.approx(9 * np.exp(-0.5 * ((dense.inputs[0] - dense.inputs[2]) ** 2).sum() / 1.3**2))


def test_schedule_covers_the_rows_and_says_when_a_snapshot_is_due():
    problem = synthetic(1050, 10, 5)
    taken = [next(pair) for pair in [problem.schedule()] for _ in range(3)]
    assert problem.batch == 1000 and [step[1] for step in taken] == [1, 2, 3] and all(step[2] for step in taken)
    short = SparseGPProblem(**{**vars(problem), "batch": 500})
    steps = [next(pair) for pair in [short.schedule()] for _ in range(4)]
    assert [step[1] for step in steps] == [0.5, 1, 1.5, 2] and [step[2] for step in steps] == [True, True, False, True]
    for first, second in (steps[:2], steps[2:]):
        assert len(np.unique(np.concatenate([first[0], second[0]]))) == 1000
    assert set(steps[0][0]) != set(steps[2][0])


def test_snapshots_are_dense_at_first_and_then_geometric():
    due = [step for step in range(1, 300) if snapshot_due(step)]
    assert due[:20] == list(range(1, 21)) and max(np.diff(due) / due[:-1]) <= 1.0
    late = [step for step in due if step >= 20]
    assert max(np.diff(late) / late[:-1]) <= 0.11 and len(due) < 80


def test_what_happens_off_the_clock_does_not_count():
    record = Recorder(10.0)
    record.start()
    with record.off_the_clock():
        sum(range(10**6))
    record(np.zeros(1), np.eye(1))
    assert record.snapshots[0][0] < 5e-3


def test_numpy_peer_reaches_the_optimum_and_makes_a_row(tmp_path):
    absent = Method("absent", "nothing", ("no_such_package",), "no-such-package", (1.0,), "step")
    method = Method(**{**vars(GP_METHODS["numpy"]), "settings": (0.5,)})
    rows = compare_gp([tiny()], [method, absent], 0.2)
    assert [row["status"] for row in rows] == ["ran", "not installed"]
    hard = rows[0]["times"]["0.001"]
    assert hard["setting"] == "step 0.5" and 1 < hard["gradients"] < 60 and abs(rows[0]["final_gap"]) < 1e-8
    assert rows[0]["times"]["0.01"]["cpu"] <= hard["cpu"] and "numpy" in rows[0]["facts"]["versions"]
    text = markdown_cells(blackbox_cells(rows, "cpu", GP_THRESHOLDS, "steps"))
    assert "| method | gap 0.01 | gap 0.001 | steps |" in text and "pip install no-such-package" in text
    assert gp_verdicts(rows) == ["ProVI, with its proof: 0.001 nats not reached."]


BARE = """
import sys
import numpy as np
from provi_lab.bench.problems import GPProblem

def solve(problem, setting, record):
    record(np.zeros(len(problem.inputs)), problem.covariance(), 1)
    path = [entry for entry in sys.path if entry.endswith("provi_lab/bench")]
    return {"jax": "jax" in sys.modules, "path": path, "setting": setting}

"""


def test_a_peer_runs_in_a_python_without_what_provi_needs(tmp_path, monkeypatch):
    """The launcher gives it the bench modules and not JAX; this Python stands for the other one."""
    (tmp_path / "bare_peer.py").write_text(textwrap.dedent(BARE), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    problem = tiny()
    problem.save(tmp_path / "p.npz")
    method = Method("bare", "bare_peer:solve", ("no_such_package",), "", (0.5,), "step", python=sys.executable)
    assert not method.missing
    trace = run_method(method, tmp_path / "p.npz", 0.5, 0.1)
    versions = trace.facts.pop("versions")  # asked of its Python, as the solver does not say
    assert versions["numpy"] == np.__version__ and "no_such_package" not in versions
    assert trace.facts == {"jax": False, "path": [], "setting": 0.5}
    assert GPOracle.of(problem).gap(trace.mean[0], trace.covariance[0]) > 0


def test_missing_packages_are_looked_for_in_other_pythons(tmp_path):
    having = tmp_path / "python"
    having.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")  # answers that it has every package
    having.chmod(0o755)
    missing = Method("m", "", ("no_such_package",), "", (), "")
    here = Method("m", "", ("numpy",), "", (), "")
    found = missing.found_in([sys.executable, str(having)])
    assert found.python == str(having) and not found.missing
    assert missing.found_in([sys.executable]).missing and here.found_in([str(having)]).python is None


def timed(method, cpu, compiling):
    time = dict(cpu=cpu, cpu_compiling=compiling, wall=cpu, wall_compiling=compiling, gradients=9.0, setting="s")
    row = dict(problem="p", method=GP_METHODS[method].name, status="ran", note="", final_gap=0.001, runs=[])
    return {**row, "times": {"0.01": time, "0.001": time}, "facts": {"versions": {method: "1.2"}}}


def test_verdicts_and_page(tmp_path):
    slow = {**timed("gpytorch", 1.0, 1.0), "times": {"0.01": None, "0.001": None}}
    rows = [timed("provi", 0.1, 2.0), timed("gpflow", 0.3, 5.0), slow]
    lines = gp_verdicts(rows)
    assert "3 times as fast as GPflow VGP to 0.01 nats without compilation, 2.5 times with it" in lines[0]
    assert lines[1] == "GPyTorch NGD did not reach 0.01 nats."
    _, page = records.write_record(tmp_path, records.make_record("gp", rows))
    sparse = dict(problem="q", method="GPflow SVGP", setting="step 0.1", status="ran", note="", passes=3.0, facts={})
    sparse |= dict(cpu=30.0, wall=31.0, cpu_compiling=35.0, wall_compiling=36.0, cpu_a_pass=10.0, wall_a_pass=10.3)
    sparse |= dict(first_elbo=None, elbo=-42451.808, log_loss=0.403322)
    failed = dict(problem="q", method="other", setting="s", status="failed", note="why", facts={})
    records.write_record(tmp_path, records.make_record("gp-sparse", [sparse, failed]))
    text = page.read_text(encoding="utf-8")
    assert "## Gaussian processes" in text and "gpflow 1.2" in text and "| GPflow VGP | 0.3 (5) |" in text
    assert "| GPflow SVGP | 10 | 10.3 | 3 | 30 (35) |  | -42,451.8 | 0.40332 | step 0.1 |" in text
    assert "failed: why" in text


SPARSE_PEER = """
import numpy as np

def solve(problem, setting, record):
    size = len(problem.inducing)
    for rows, passes, due in problem.schedule():
        if due:
            record(np.zeros(size), (1 - 0.1 * passes) * np.eye(size), passes)
        if passes == 2:
            return {"versions": {"peer": "1"}}

"""


def test_sparse_rows(tmp_path, monkeypatch):
    (tmp_path / "sparse_peer.py").write_text(SPARSE_PEER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    problem = SparseGPProblem(**{**vars(synthetic(300, 50, 10)), "batch": 100})
    peer = Method("peer", "sparse_peer:solve", (), "", (0.1,), "step")
    absent = Method("absent", "", ("no_such_package",), "absent", (0.1, 0.2), "step")
    wrong = Method("wrong", "no_such_module_of_provi", (), "", (0.1,), "step")
    ran, missing, failed = measure_sparse([problem], [peer, absent, wrong], 5.0)
    assert [row["status"] for row in (ran, missing, failed)] == ["ran", "not installed", "failed"]
    assert ran["passes"] == 2 and ran["cpu_a_pass"] == pytest.approx(ran["cpu"] / 2)
    scores = [score_sparse(problem, np.zeros(10), share * np.eye(10)) for share in (0.9, 0.8)]
    assert [ran["first_elbo"], ran["elbo"]] == pytest.approx([score.elbo for score in scores])
    assert ran["log_loss"] == pytest.approx(scores[1].log_loss)
    json.dumps([ran, missing, failed], allow_nan=False)
    assert len(sparse_cells([ran, missing, failed])[1]) == 3


@pytest.mark.parametrize("command, table", [("gp", GP_METHODS), ("gp-sparse", SPARSE_METHODS)])
def test_command_names_the_choices(command, table):
    result = CliRunner().invoke(app, [command, "--methods", "nuts"])
    assert result.exit_code == 2 and all(name in result.output for name in table) and "nuts" in result.output
