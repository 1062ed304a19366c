"""`provi bench glm`: proven gap, passes and time of ProVI on logistic regressions of growing size."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from provi.bench.methods import METHODS, MethodFailed, Trace, run_method
from provi.bench.oracle import Oracle
from provi.bench.protocol import Problem

LARGEST_ORACLE = 400
"""Dimension up to which the true gap is computed; above it the oracle takes minutes."""

_TOLERANCES = {"breast cancer": 1e-4}
_TOLERANCE = 1e-2


def measure(
    problems: Sequence[Problem], seconds: float, report: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """One process for each problem: a fit with compilation, then the same without.

    **Arguments:**

    - `seconds`: sets the limit after which a process is given up, 300 + 4 `seconds`.
    - `report`: told what is being run.
    """
    rows = []
    for problem in problems:
        tol = _TOLERANCES.get(problem.name, _TOLERANCE)
        report(f"{problem.name}, tol {tol:g}")
        row = {"problem": problem.name, "terms": len(problem.design), "dim": problem.dim, "tol": tol}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.npz"
            problem.save(path)
            try:
                trace = run_method(METHODS["provi-glm"], path, tol, seconds)
            except MethodFailed as error:
                rows.append({**row, "status": "failed", "note": str(error)})
                continue
        rows.append({**row, "status": "ran", "note": "", **_facts(problem, trace)})
    return rows


def _facts(problem: Problem, trace: Trace) -> dict[str, Any]:
    true_gap = None
    if problem.dim <= LARGEST_ORACLE:
        true_gap = Oracle.of(problem, trace.facts["scale"]).gap(trace.mean[-1], trace.covariance[-1])
    return {
        **trace.facts,
        "true_gap": true_gap,
        "cpu": float(trace.cpu[-1]),
        "cpu_compiling": float(trace.cpu[-1]) + trace.compile_cpu,
        "wall": float(trace.wall[-1]),
        "wall_compiling": float(trace.wall[-1]) + trace.compile_wall,
    }
