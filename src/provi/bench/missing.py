"""`provi bench missing`: logistic regression with missing covariates, the time of a fit and its gap beside others."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from provi.bench.blackbox import Row, finite
from provi.bench.methods import Method, MethodFailed, run_method
from provi.bench.missing_methods import MISSING_METHODS, TIMES_FASTER, TOLERANCE
from provi.bench.missing_oracle import MissingOracle
from provi.bench.missing_problem import MissingProblem
from provi.bench.tables import Cells


def measure_missing(
    problems: Sequence[MissingProblem],
    methods: Sequence[Method],
    seconds: float,
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Every method on every data set, one process each: a fit with compilation, then the same without.

    **Arguments:**

    - `seconds`: sets the limit after which a process is given up, 300 + 4 `seconds`.
    - `report`: told what is being run.

    **Returns:** a row for each pair, also for the methods that are not installed or failed.
    """
    rows = []
    for problem in problems:
        oracle = MissingOracle.of(problem)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.npz"
            problem.save(path)
            for method in methods:
                report(f"{problem.name}, seed {problem.seed}: {method.name}")
                row = {"problem": problem.name, "seed": problem.seed, "method": method.name}
                rows.append({**row, **_run(method, path, oracle, seconds)})
    return rows


def _run(method: Method, path: Path, oracle: MissingOracle, seconds: float) -> Row:
    (setting,) = method.settings
    if method.missing:
        return {"status": "not installed", "note": f"pip install {method.install}", "facts": {}}
    try:
        trace = run_method(method, path, setting, seconds)
    except MethodFailed as error:
        return {"status": "failed", "note": str(error), "facts": {}}
    return {
        "status": "ran",
        "note": "",
        "setting": f"{method.quantity} {setting:g}",
        "cpu": float(trace.cpu[-1]),
        "cpu_compiling": float(trace.cpu[-1]) + trace.compile_cpu,
        "wall": float(trace.wall[-1]),
        "wall_compiling": float(trace.wall[-1]) + trace.compile_wall,
        "gap": finite(oracle.gap(trace.mean[-1], trace.covariance[-1])),
        "oracle_remainder": oracle.remainder,
        "passes": finite(trace.gradients[-1]),
        "facts": trace.facts,
    }


def missing_cells(rows: Sequence[Row]) -> Cells:
    """One line a method: medians over the data sets, the worst gap, and how many times faster than misaem."""
    names = ["method", "data sets", "CPU s", "wall s", "median gap", "worst gap", "passes", "times misaem", ""]
    theirs = _median(_of(rows, "misaem"), "cpu")
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        ran = [row for row in own if row["status"] == "ran"]
        failed = "; ".join(f"{row['status']}: {row['note']}" for row in own if row["status"] != "ran")
        if not ran:
            lines.append([method, *[""] * 7, failed])
            continue
        times = [f"{_median(ran, clock):.3g} ({_median(ran, clock + '_compiling'):.3g})" for clock in ("cpu", "wall")]
        gaps = [np.inf if row["gap"] is None else row["gap"] for row in ran]
        passes = _median(ran, "passes")
        ratio = theirs / _median(ran, "cpu")
        cells = [f"{np.median(gaps):.2g}", f"{max(gaps):.2g}", f"{passes:.3g}" if np.isfinite(passes) else ""]
        lines.append([method, str(len(ran)), *times, *cells, f"{ratio:.3g}" if np.isfinite(ratio) else "", failed])
    return names, lines


def missing_verdicts(rows: Sequence[Row]) -> list[str]:
    """ProVI's methods, standard errors included, against misaem without and with them; of one problem's rows."""
    lines = []
    for key in ("exact", "misso10", "misso50", "mcem"):
        own = _of(rows, key)
        if not own:
            continue
        gap = max(np.inf if row["gap"] is None else row["gap"] for row in own)
        reached = "yes" if gap <= TOLERANCE else "no"
        parts = [f"gap of at most {TOLERANCE:g} nats: {reached} ({gap:.2g} at worst)"]
        for peer in ("misaem", "misaem-errors"):
            ratio = _median(_of(rows, peer), "cpu") / _median(own, "cpu")
            if np.isfinite(ratio):
                fast = "yes" if ratio >= TIMES_FASTER else "no"
                name = MISSING_METHODS[peer].name
                parts.append(f"at least {TIMES_FASTER:g} times as fast as {name}: {fast} ({ratio:.3g})")
        lines.append(f"{MISSING_METHODS[key].name}: {'; '.join(parts)}.")
    return lines


def _of(rows: Sequence[Row], key: str) -> list[Row]:
    """The runs of a method that came to an end."""
    return [row for row in rows if row["method"] == MISSING_METHODS[key].name and row["status"] == "ran"]


def _median(rows: Sequence[Row], name: str) -> float:
    """Over the data sets; NaN where there is nothing."""
    values = [row[name] for row in rows if row[name] is not None]
    return float(np.median(values)) if values else np.nan
