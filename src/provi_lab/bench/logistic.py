"""The logistic regressions of the benchmarks, all with a unit prior: data, methods, oracle; and `provi bench glm`."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from provi.data.loaders import breast_cancer as breast_cancer_table
from provi.data.loaders import load
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import linear_model_optimum
from provi.families.location_scale import Gaussian, LocationScale
from provi.targets.regressions import LogisticRegression
from provi_lab.bench.methods import PEERS, Method, Trace, attempt, saved
from provi_lab.bench.problems import LogisticProblem
from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, number, seconds_text

LARGEST_ORACLE = 400
"""Dimension up to which `provi bench glm` computes the true gap; above it the oracle takes minutes."""

THRESHOLDS = (1.0, 0.1, 0.01)
"""True gaps, in nats, that are timed."""

_TOLERANCES = {"breast cancer": 1e-4}
_TOLERANCE = 1e-2

_TEXT = """\
`provi.fit` on logistic regressions with a unit prior: the gap that the certificate states, the true one by quadrature
(where the dimension is at most 400), and seconds without compilation, in brackets with it."""

_RATES = (1e-3, 3e-3, 1e-2)

_CLOCKS = ("CPU s (with compilation)", "wall s (with compilation)")

METHODS: dict[str, Method] = {
    "provi-glm": Method("ProVI, GLM, with its proof", PEERS + "provi:glm", (), "", THRESHOLDS, "tol", True),
    "provi": Method("ProVI, black box, with its proof", PEERS + "provi:blackbox", (), "", THRESHOLDS, "tol", True),
    "provi-optimiser": Method("ProVI, black box, no proof", PEERS + "provi:optimiser", (), "", (0.5,), "largest step"),
    "numpyro": Method(
        "NumPyro AutoMultivariateNormal", PEERS + "numpyro:adam", ("numpyro",), "numpyro", _RATES, "Adam rate"
    ),
    "blackjax": Method(
        "BlackJAX full-rank VI (STL)", PEERS + "blackjax:full_rank", ("blackjax",), "blackjax", _RATES, "Adam rate"
    ),
    "pathfinder": Method(
        "BlackJAX Pathfinder",
        PEERS + "blackjax:pathfinder",
        ("blackjax",),
        "blackjax",
        (30.0, 100.0, 300.0),
        "iterations",
    ),
    "pymc": Method("PyMC FullRankADVI", PEERS + "pymc:full_rank", ("pymc",), "pymc", _RATES, "Adam rate"),
    "viabel": Method(
        "viabel MultivariateT (STL)", PEERS + "viabel:full_rank", ("viabel",), "viabel", (3e-3, 1e-2, 3e-2), "Adam rate"
    ),
    "gsm": Method("GSM-VI", PEERS + "gsmvi:gsm", ("gsmvi",), "gsmvi", (2.0, 16.0, 64.0), "batch"),
}


def breast_cancer() -> LogisticProblem:
    """569 x 31: standardised columns and an intercept."""
    table = breast_cancer_table()
    return LogisticProblem("breast cancer", _with_intercept(table.features), table.response)


def correlated(terms: int = 20_000, dim: int = 100, correlation: float = 0.9, seed: int = 0) -> LogisticProblem:
    """Columns with the AR(1) correlation `correlation^|i-j|`, labels from the model itself."""
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(terms, dim))
    for column in range(1, dim):
        design[:, column] = correlation * design[:, column - 1] + (1 - correlation**2) ** 0.5 * design[:, column]
    coefficients = 0.3 * rng.normal(size=dim)
    response = rng.random(terms) < 1 / (1 + np.exp(-design @ coefficients))
    return LogisticProblem(f"correlated {terms} x {dim}", design, response)


def german() -> LogisticProblem:
    """1,000 x 25: standardised columns and an intercept."""
    table = load("german_numeric").table()
    columns = (table.features - table.features.mean(axis=0)) / table.features.std(axis=0)
    return LogisticProblem("German credit", _with_intercept(columns), table.response)


def a9a() -> LogisticProblem:
    """32,561 x 124: the training set's binary columns and an intercept."""
    table = load("a9a").table("train")
    return LogisticProblem("a9a", _with_intercept(table.features), table.response)


def w8a() -> LogisticProblem:
    """49,749 x 301: binary columns and an intercept."""
    table = load("w8a").table()
    return LogisticProblem("w8a", _with_intercept(table.features), table.response)


def mnist_3v5() -> LogisticProblem:
    """11,552 x 785: the training images of 3 (label 1) and 5, pixels / 255, and an intercept."""
    arrays = load("mnist").arrays
    labels = arrays["y_train"]
    kept = (labels == 3) | (labels == 5)
    pixels = arrays["X_train"][kept].reshape(int(kept.sum()), -1) / 255
    return LogisticProblem("MNIST 3 v 5", _with_intercept(pixels), labels[kept] == 3)


BLACKBOX_PROBLEMS: dict[str, Callable[[], LogisticProblem]] = {
    "breast-cancer": breast_cancer,
    "correlated": correlated,
    "german": german,
    "a9a": a9a,
}

GLM_PROBLEMS: dict[str, Callable[[], LogisticProblem]] = {
    "breast-cancer": breast_cancer,
    "german": german,
    "a9a": a9a,
    "w8a": w8a,
    "mnist-3v5": mnist_3v5,
}


def _with_intercept(columns: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(columns)), columns])


@dataclasses.dataclass(frozen=True)
class Oracle:
    """The exact optimum of a problem over the Gaussians of one scale ("triangular" is any covariance)."""

    target: LogisticRegression
    family: LocationScale
    negative_elbo: float

    @staticmethod
    def of(problem: LogisticProblem, scale: str = "triangular") -> "Oracle":
        """Solve the problem, in seconds where the dimension is a few hundred."""
        target = LogisticRegression(problem.design, problem.response, problem.prior_scale)
        family = Gaussian(problem.dim, scale)
        return Oracle(target, family, linear_model_optimum(target, family).negative_elbo)

    def gap(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        """f(m, C) - f* in nats; infinite where the covariance is not positive definite or something is not finite."""
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            return np.inf
        symmetric = (covariance + covariance.T) / 2
        try:
            point = self.family.point_from_covariance(mean, symmetric)
        except ValueError:
            return np.inf
        value = float(exact_negative_elbo(self.target, self.family, point))
        return value - self.negative_elbo if np.isfinite(value) else np.inf


def measure(
    problems: Sequence[LogisticProblem],
    seconds: float,
    report: Callable[[str], None] = lambda line: None,
    repeats: int = 1,
) -> list[Row]:
    """A fit with compilation, then the same without, in each of some processes for each problem; the least times count.

    **Arguments:**

    - `seconds`: sets the limit after which a process is given up, 300 + 4 `seconds`.
    - `report`: told what is being run.
    - `repeats`: processes a problem. What they find, the first one says; its true gap is computed once.
    """
    rows = []
    for problem in problems:
        tol = _TOLERANCES.get(problem.name, _TOLERANCE)
        report(f"{problem.name}, tol {tol:g}")
        row = {"problem": problem.name, "terms": len(problem.design), "dim": problem.dim, "tol": tol}
        with saved(problem) as path:
            judges = [partial(_facts, problem), *[Trace.times] * (repeats - 1)]
            runs = [attempt(METHODS["provi-glm"], path, tol, seconds, judge) for judge in judges]
        rows.append({**row, **_least(runs)})
    return rows


def _least(runs: list[Row]) -> Row:
    """The first run with the least of each time; a run that failed has none, and the first to fail is told."""
    failed = next((run for run in runs if run["status"] != "ran"), None)
    if failed is not None:
        return failed
    clocks = ("cpu", "cpu_compiling", "wall", "wall_compiling")
    return {**runs[0], **{clock: min(run[clock] for run in runs) for clock in clocks}, "repeats": len(runs)}


def _facts(problem: LogisticProblem, trace: Trace) -> Row:
    true_gap = None
    if problem.dim <= LARGEST_ORACLE:
        true_gap = Oracle.of(problem, trace.facts["scale"]).gap(trace.mean[-1], trace.covariance[-1])
    return {**trace.facts, "true_gap": true_gap, **trace.times()}


def glm_cells(rows: list[Row]) -> Cells:
    """One line a problem: what is proven, what is true, and what it took."""
    names = ["problem", "size", "tol", "certified gap", "true gap", "steps", "gradients", *_CLOCKS, "ELBO", ""]
    lines = []
    for row in rows:
        size = f"{row['terms']} x {row['dim']}"
        if row["status"] != "ran":
            lines.append([row["problem"], size, f"{row['tol']:g}", *[""] * 7, f"{row['status']}: {row['note']}"])
            continue
        certified = "none" if row["certified_gap"] is None else f"{row['certified_gap']:.3g} ({row['certificate']})"
        counts = [number(row["num_steps"]), number(row["gradient_evaluations"])]
        times = [seconds_text(row, "cpu"), seconds_text(row, "wall")]
        gaps = [certified, number(row["true_gap"])]
        remark = f"{row['scale']} scale, {row['outcome'].lower()}"
        lines.append([row["problem"], size, f"{row['tol']:g}", *gaps, *counts, *times, f"{row['elbo']:.2f}", remark])
    return names, lines


def glm_verdicts(rows: Sequence[Row]) -> list[str]:
    """Of how many processes the times are the least."""
    counts = [row.get("repeats", 1) for row in rows if row["status"] == "ran"]
    if not counts:
        return []
    return [f"Times are the least of {min(counts)} processes." if min(counts) > 1 else "Times are of one process."]


SECTION = Section(
    kind="glm",
    heading="Linear models",
    text=_TEXT,
    title="Logistic regressions: seconds without (with) compilation",
    cells=glm_cells,
    verdicts=glm_verdicts,
)
