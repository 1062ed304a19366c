"""`provi bench blackbox`: the time to a true gap of 1, 0.1 and 0.01 nats, side by side with other libraries."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi.bench.methods import THRESHOLDS, Method, MethodFailed, Trace, run_method
from provi.bench.oracle import Oracle

Row = dict[str, Any]
"""One method on one problem, plain data for JSON."""


def compare(
    problems: Sequence[Any],
    methods: Sequence[Method],
    seconds: float,
    report: Callable[[str], None] = lambda line: None,
    oracle_of: Callable[[Any], Any] = Oracle.of,
    thresholds: Sequence[float] = THRESHOLDS,
) -> list[Row]:
    """Run every method on every problem, one process a setting, one after the other.

    **Arguments:**

    - `seconds`: wall-clock limit of each run without compilation.
    - `report`: told what is being run.
    - `oracle_of`: makes what has the `gap(mean, covariance)` of a problem; `thresholds`: the gaps that are timed.

    **Returns:** a row for each pair, also for the methods that are not installed or failed.
    """
    rows = []
    for problem in problems:
        oracle = oracle_of(problem)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.npz"
            problem.save(path)
            for method in methods:
                report(f"{problem.name}: {method.name}")
                row = _run(method, path, seconds, oracle, thresholds)
                rows.append({"problem": problem.name, "method": method.name, **row})
    return rows


def _run(method: Method, problem: Path, seconds: float, oracle: Any, thresholds: Sequence[float]) -> Row:
    empty: Row = {"times": {}, "final_gap": None, "facts": {}, "runs": []}
    if method.missing:
        return {**empty, "status": "not installed", "note": f"pip install {method.install}"}
    traces, errors = [], []
    for setting in method.settings:
        try:
            traces.append(run_method(method, problem, setting, seconds))
        except MethodFailed as error:
            errors.append(f"{method.quantity} {setting:g} failed: {error}")
    if not traces:
        return {**empty, "status": "failed", "note": "; ".join(errors)}
    broken = [trace for trace in traces if "error" in trace.facts]
    errors += [f"{method.quantity} {t.setting:g} broke off: {t.facts['error'][:100]}" for t in broken]
    gaps = [np.array([oracle.gap(m, c) for m, c in zip(t.mean, t.covariance, strict=True)]) for t in traces]
    runs = [_run_facts(method, trace, gap, thresholds) for trace, gap in zip(traces, gaps, strict=True)]
    best = min(range(len(traces)), key=lambda index: gaps[index].min())
    return {
        "status": "ran",
        "note": "; ".join(errors),
        "times": {f"{threshold:g}": time_to_gap(method, traces, gaps, threshold) for threshold in thresholds},
        "final_gap": finite(gaps[best].min()),
        "facts": traces[best].facts,
        "runs": runs,
    }


def _run_facts(method: Method, trace: Trace, gap: np.ndarray, thresholds: Sequence[float]) -> Row:
    return {
        "setting": f"{method.quantity} {trace.setting:g}",
        "times": {f"{threshold:g}": time_to_gap(method, [trace], [gap], threshold) for threshold in thresholds},
        "smallest_gap": finite(gap.min()),
        "last_gap": finite(gap[-1]),
        "cpu": float(trace.cpu[-1]),
        "wall": float(trace.wall[-1]),
        "compile_cpu": trace.compile_cpu,
        "compile_wall": trace.compile_wall,
        "facts": trace.facts,
    }


def time_to_gap(
    method: Method, traces: Sequence[Trace], gaps: Sequence[np.ndarray], threshold: float
) -> dict[str, Any] | None:
    """The shortest CPU time to a snapshot with a true gap of at most `threshold`; None when no run has one.

    A method that stops itself is timed by the run that was asked for this gap, to its end.
    """
    candidates = []
    for trace, gap in zip(traces, gaps, strict=True):
        reached = np.flatnonzero(gap <= threshold)
        if len(reached) == 0 or (method.stops_itself and not np.isclose(trace.setting, threshold)):
            continue
        first = reached[0]
        gradients = float(trace.gradients[first])
        candidates.append(
            {
                "cpu": float(trace.cpu[first]),
                "cpu_compiling": float(trace.cpu[first]) + trace.compile_cpu,
                "wall": float(trace.wall[first]),
                "wall_compiling": float(trace.wall[first]) + trace.compile_wall,
                "gradients": gradients if np.isfinite(gradients) else None,
                "setting": f"{method.quantity} {trace.setting:g}",
            }
        )
    return min(candidates, key=lambda one: one["cpu"], default=None)


def finite(value: float) -> float | None:
    """The number, or None for what JSON cannot write."""
    return float(value) if np.isfinite(value) else None
