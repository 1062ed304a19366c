"""`provi bench missing`: logistic regression with missing covariates, the time of a fit and its gap beside others."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from provi_lab.bench.methods import PEERS, Method, Trace, attempt, saved
from provi_lab.bench.missing_oracle import MissingOracle
from provi_lab.bench.problems import MissingProblem
from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, finite, finite_text, grouped, median
from provi_lab.data.missing_tables import support2, synthetic_missing

TOLERANCE, TIMES_FASTER = 0.01, 10.0
"""The largest gap, in nats, and how many times faster than misaem without its standard errors."""

NUM_SEEDS = 3

_TEXT = """\
Logistic regression with Gaussian covariates, partly missing: seconds of a fit from the table to the estimate without
(with) compilation, and the gap of its observed-data log-likelihood to the exact maximum, in nats. The maximum is found
by BFGS on a NumPy program with quadrature that shares nothing with ProVI. Medians over the data sets, each method alone
in its process with one thread of linear algebra. ProVI's fits include standard errors and the log-likelihood and stop
by themselves at an estimated gap of 0.01 nats; misaem has its own settings."""


def _ours(name: str, program: str, setting: float, quantity: str) -> Method:
    return Method(name, PEERS + program, (), "", (setting,), quantity, True)


def _misaem(name: str, setting: float) -> Method:
    return Method(name, PEERS + "misaem:saem", ("misaem",), "misaem", (setting,), "standard errors")


MISSING_METHODS: dict[str, Method] = {
    "exact": _ours("ProVI, exact", "provi:missing", TOLERANCE, "tol"),
    "misso10": _ours("ProVI, MISSO10", "provi:missing_misso", 0.1, "batch"),
    "misso50": _ours("ProVI, MISSO50", "provi:missing_misso", 0.5, "batch"),
    "mcem": _ours("ProVI, MCEM", "provi:missing_mcem", TOLERANCE, "tol"),
    "misaem": _misaem("misaem", 0.0),
    "misaem-errors": _misaem("misaem with standard errors", 1.0),
    "numpy": Method("NumPy EM (no errors)", PEERS + "numpy:missing_em", ("numpy",), "numpy", (TOLERANCE,), "tol"),
    "mean": Method(
        "mean imputation", PEERS + "sklearn:mean_imputation", ("sklearn",), "scikit-learn", (1e-8,), "solver's tol"
    ),
}


def _synthetic(share: float) -> Callable[[], list[MissingProblem]]:
    """n = 2000, p = 8, entries missing completely at random; one data set a seed."""

    def make() -> list[MissingProblem]:
        name = f"synthetic 2000 x 8, {share:.0%} missing"
        tables = [synthetic_missing(seed, 2000, 8, share) for seed in range(NUM_SEEDS)]
        return [MissingProblem(name, table.features, table.response, seed) for seed, table in enumerate(tables)]

    return make


def _support2() -> list[MissingProblem]:
    table = support2()
    return [MissingProblem("SUPPORT2, 9105 x 16, 17% missing", table.features, table.response)]


MISSING_PROBLEMS: dict[str, Callable[[], list[MissingProblem]]] = {
    "10%": _synthetic(0.1),
    "30%": _synthetic(0.3),
    "support2": _support2,
}


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
        with saved(problem) as path:
            for method in methods:
                report(f"{problem.name}, seed {problem.seed}: {method.name}")
                row = {"problem": problem.name, "seed": problem.seed, "method": method.name, "facts": {}}
                judge = partial(_facts, method, oracle)
                rows.append({**row, **attempt(method, path, method.settings[0], seconds, judge)})
    return rows


def _facts(method: Method, oracle: MissingOracle, trace: Trace) -> Row:
    return {
        "setting": f"{method.quantity} {trace.setting:g}",
        **trace.times(),
        "gap": finite(oracle.gap(trace.mean[-1], trace.covariance[-1])),
        "oracle_remainder": oracle.remainder,
        "passes": finite(trace.gradients[-1]),
        "facts": trace.facts,
    }


def missing_cells(rows: Sequence[Row]) -> Cells:
    """One line a method: medians over the data sets, the worst gap, and how many times faster than misaem."""
    names = ["method", "data sets", "CPU s", "wall s", "median gap", "worst gap", "passes", "times misaem", ""]
    theirs = median(_of(rows, "misaem"), "cpu")
    lines = []
    for method, own in grouped(rows, "method").items():
        ran = [row for row in own if row["status"] == "ran"]
        failed = "; ".join(f"{row['status']}: {row['note']}" for row in own if row["status"] != "ran")
        if not ran:
            lines.append([method, *[""] * 7, failed])
            continue
        times = [f"{median(ran, clock):.3g} ({median(ran, clock + '_compiling'):.3g})" for clock in ("cpu", "wall")]
        gaps = [np.inf if row["gap"] is None else row["gap"] for row in ran]
        passes = median(ran, "passes")
        ratio = theirs / median(ran, "cpu")
        cells = [f"{np.median(gaps):.2g}", f"{max(gaps):.2g}", finite_text(passes, ".3g")]
        lines.append([method, str(len(ran)), *times, *cells, finite_text(ratio, ".3g"), failed])
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
            ratio = median(_of(rows, peer), "cpu") / median(own, "cpu")
            if np.isfinite(ratio):
                fast = "yes" if ratio >= TIMES_FASTER else "no"
                name = MISSING_METHODS[peer].name
                parts.append(f"at least {TIMES_FASTER:g} times as fast as {name}: {fast} ({ratio:.3g})")
        lines.append(f"{MISSING_METHODS[key].name}: {'; '.join(parts)}.")
    return lines


def _of(rows: Sequence[Row], key: str) -> list[Row]:
    """The runs of a method that came to an end."""
    return [row for row in rows if row["method"] == MISSING_METHODS[key].name and row["status"] == "ran"]


SECTION = Section(
    "missing",
    "Logistic regression with missing covariates",
    _TEXT,
    "{problem}: seconds without (with) compilation",
    missing_cells,
    missing_verdicts,
)
