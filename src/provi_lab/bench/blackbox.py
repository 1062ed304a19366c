"""`provi bench blackbox`: the time to a true gap of 1, 0.1 and 0.01 nats, side by side with other libraries."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.bench.logistic import METHODS, THRESHOLDS, Oracle
from provi_lab.bench.methods import Method, MethodFailed, Trace, run_method, saved
from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, finite, number, seconds_text

_AIMS = (
    ("provi-glm", "cpu", 100, "without compilation"),
    ("provi-glm", "cpu_compiling", 5, "with compilation"),
    ("provi", "cpu_compiling", 3, "with compilation"),
    ("provi-optimiser", "cpu_compiling", 3, "with compilation"),
)
"""Method, time, and how many times faster than the best peer it should be."""

_TEXT = """\
CPU seconds of all threads until the Gaussian's true gap to the best Gaussian (by quadrature, after the run) is at most
1, 0.1 or 0.01 nats; in brackets with compilation, the first call in a fresh process with empty caches. Every library
runs alone, in double precision, from N(0, I) or its own start, with ten draws a step where it draws.

ProVI is timed until it stopped by itself at that tolerance, its certificate included. The others are stopped by the
oracle, for each gap at the best of their settings: a courtesy that a user does not have. viabel's full-rank family is a
multivariate t, here with 10^6 degrees of freedom. GSM minimises another divergence, so its gap need not go to zero."""


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
        with saved(problem) as path:
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
        setting = f"{method.quantity} {trace.setting:g}"
        candidates.append({**trace.times(int(first)), "gradients": finite(gradients), "setting": setting})
    return min(candidates, key=lambda one: one["cpu"], default=None)


def blackbox_cells(
    rows: list[Row], clock: str = "cpu", thresholds: Sequence[float] = THRESHOLDS, count: str = "gradients"
) -> Cells:
    """One line a method: seconds without and with compilation to each gap; `clock` is "cpu" or "wall"."""
    gaps = [f"{threshold:g}" for threshold in thresholds]
    names = ["method", *(f"gap {gap}" for gap in gaps), count, "smallest gap", "setting, remarks"]
    lines = []
    for row in rows:
        times = [row["times"].get(gap) for gap in gaps]
        last = next((time for time in reversed(times) if time is not None), None)
        setting = "" if last is None else last["setting"]
        remark = row["note"] if row["status"] == "ran" else f"{row['status']}: {row['note']}"
        lines.append(
            [
                row["method"],
                *(seconds_text(time, clock) for time in times),
                "" if last is None else number(last["gradients"]),
                number(row["final_gap"]),
                "; ".join(part for part in (setting, remark) if part),
            ]
        )
    return names, lines


def verdicts(rows: list[Row]) -> list[str]:
    """How much faster than the best peer ProVI is, to 0.01 nats, against what was aimed at; of one problem's rows."""
    gap, ours = f"{THRESHOLDS[-1]:g}", {METHODS[key].name for key in ("provi-glm", "provi", "provi-optimiser")}
    lines = []
    for key, clock, aim, words in _AIMS:
        if METHODS[key].name not in (row["method"] for row in rows):
            continue
        mine = next(row["times"].get(gap) for row in rows if row["method"] == METHODS[key].name)
        others = [row for row in rows if row["method"] not in ours]
        peers = {row["method"]: row["times"].get(gap) for row in others}
        peers = {name: time[clock] for name, time in peers.items() if time is not None}
        subject = f"{METHODS[key].name}, {gap} nats, {words}: "
        if mine is None:
            lines.append(subject + "not reached.")
        elif not peers:
            least = _least_time_spent(others, clock)
            more = "" if least is None else f" in {least:.3g} CPU s, {least / mine[clock]:.3g} times as long; aim {aim}"
            lines.append(subject + f"{mine[clock]:.3g} CPU s; no peer reached it{more}.")
        else:
            best = min(peers, key=lambda name: peers[name])
            ratio = peers[best] / mine[clock]
            judgement = "reached" if ratio >= aim else "not reached"
            lines.append(subject + f"{ratio:.3g} times as fast as the best peer ({best}); aim {aim}: {judgement}.")
    return lines


def _least_time_spent(rows: list[Row], clock: str) -> float | None:
    """How long the peers tried at least: the shortest of their longest runs, but for those that ended by themselves.

    The others were stopped by the clock, so their CPU times are alike.
    """
    extra = 1.0 if clock == "cpu_compiling" else 0.0
    runs = [row["runs"] for row in rows if row.get("runs")]
    longest = [max(group, key=lambda run: run["cpu"]) for group in runs]
    stopped = [run for run in longest if run["cpu"] >= 0.5 * max(other["cpu"] for other in longest)]
    return min((run["cpu"] + extra * run["compile_cpu"] for run in stopped), default=None)


SECTION = Section(
    "blackbox",
    "Side by side with other libraries",
    _TEXT,
    "{problem}: CPU seconds without (with) compilation",
    blackbox_cells,
    verdicts,
    (("Wall-clock seconds:", lambda rows: blackbox_cells(rows, "wall")),),
)
