"""`provi bench gp-sparse`: inducing points and mini-batches; seconds a pass, and what the answer is worth."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from provi.bench.blackbox import Row, finite
from provi.bench.gp_oracle import score_sparse
from provi.bench.gp_problem import SparseGPProblem
from provi.bench.methods import Method, MethodFailed, Trace, run_method


def measure_sparse(
    problems: Sequence[SparseGPProblem],
    methods: Sequence[Method],
    seconds: float,
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Run every method on every problem with each of its settings, one process after the other.

    **Arguments:**

    - `seconds`: wall-clock limit of each run without compilation; a pass that has begun is ended.
    - `report`: told what is being run.

    **Returns:** a row for each run; one for a method that is not installed.
    """
    rows = []
    for problem in problems:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.npz"
            problem.save(path)
            for method in methods:
                for setting in (method.settings[0],) if method.missing else method.settings:
                    report(f"{problem.name}: {method.name}, {method.quantity} {setting:g}")
                    row = {"problem": problem.name, "method": method.name}
                    row["setting"] = f"{method.quantity} {setting:g}"
                    rows.append({**row, **_run(method, problem, path, setting, seconds)})
    return rows


def _run(method: Method, problem: SparseGPProblem, path: Path, setting: float, seconds: float) -> Row:
    if method.missing:
        return {"status": "not installed", "note": f"pip install {method.install}"}
    try:
        trace = run_method(method, path, setting, seconds)
    except MethodFailed as error:
        return {"status": "failed", "note": str(error)}
    return {"status": "ran", "note": trace.facts.get("error", ""), **_facts(problem, trace)}


def _facts(problem: SparseGPProblem, trace: Trace) -> Row:
    """The answers after one pass and at the end scored; a pass took the time of the run divided by its passes."""
    whole = int(np.argmax(trace.gradients >= 1))
    first, last = (score_sparse(problem, trace.mean[index], trace.covariance[index]) for index in (whole, -1))
    passes = float(trace.gradients[-1])
    times = {"cpu": float(trace.cpu[-1]), "wall": float(trace.wall[-1])}
    return {
        "passes": finite(passes),
        **times,
        "cpu_compiling": times["cpu"] + trace.compile_cpu,
        "wall_compiling": times["wall"] + trace.compile_wall,
        "cpu_a_pass": finite(times["cpu"] / passes),
        "wall_a_pass": finite(times["wall"] / passes),
        "first_elbo": finite(first.elbo) if len(trace.cpu) > 1 else None,
        "elbo": finite(last.elbo),
        "log_loss": finite(last.log_loss),
        "facts": trace.facts,
    }
