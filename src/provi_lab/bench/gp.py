"""`provi bench gp` and `gp-sparse`: Gaussian-process classification beside other libraries' natural gradients.

Dense problems are timed to a true gap of 0.01 and 0.001 nats; those with inducing points and mini-batches by the
seconds of a pass, and by what the answer is worth.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from provi.data.loaders import load
from provi_lab.bench.blackbox import blackbox_cells, compare
from provi_lab.bench.gp_oracle import GPOracle, score_sparse
from provi_lab.bench.methods import PEERS, Method, Trace, attempt, saved
from provi_lab.bench.problems import GPProblem, SparseGPProblem
from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, finite, number, seconds_text

_TEXT = """\
Gaussian-process classification, Bernoulli-logit, from the prior, with the kernels of Khan et al. (2015, 2016): CPU
seconds until the true gap (dense linear algebra and the eight-probit moments, after the run) is at most 0.01 or 0.001
nats; in brackets with compilation, imports left out. One thread, double precision. ProVI is timed until it stopped by
itself with a proof of that gap and chooses its own steps. The others take a constant natural-gradient step and are
stopped by the oracle at the best of a few. Their expectations are 20-node Gauss-Hermite rules, whose error leaves a gap
where marginal deviations are large."""

_SPARSE_TEXT = """\
Sparse variational Gaussian process, Bernoulli-logit, the same fixed kernel and inducing points for all, natural
gradients on mini-batches of 1000 (ProVI chooses its own steps and batches, and proves its gap). ELBO over all data and
log loss a held-out point in nats, both computed afterwards by one program from the answer's mean and covariance."""


def ionosphere() -> GPProblem:
    """280 points: log l = 1, log sigma = 2.5, jitter 1e-2."""
    return _published("Ionosphere", "ionosphere", 1.0, 2.5, 1e-2)


def sonar() -> GPProblem:
    """165 points: log l = -1, log sigma = 6, jitter 1e-4."""
    return _published("Sonar", "sonar", -1.0, 6.0, 1e-4)


def usps() -> GPProblem:
    """884 points, digits 2 and 4 (the papers' "3 v 5"): log l = 2.5, log sigma = 5, jitter 1e-4."""
    return _published("USPS 2 v 4", "usps_2v4_paper", 2.5, 5.0, 1e-4)


def synthetic(
    terms: int = 100_000, test_terms: int = 10_000, num_inducing: int = 500, seed: int = 0
) -> SparseGPProblem:
    """Eight standard normal columns, labels from a smooth and not additive log odds; inducing points are data."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(terms + test_terms, 8))
    first, second, third, fourth, fifth = inputs.T[:5]
    log_odds = 2 * np.sin(first + 0.5 * second * third) + fourth * np.tanh(fifth) + 0.5 * (second**2 - 1)
    response = (rng.random(len(inputs)) < 1 / (1 + np.exp(-1.5 * log_odds))).astype(float)
    inducing = inputs[rng.choice(terms, num_inducing, replace=False)]
    train, test = slice(terms), slice(terms, None)
    return SparseGPProblem(
        f"synthetic {terms} x 8, {num_inducing} inducing points",
        inputs[train],
        response[train],
        inputs[test],
        response[test],
        inducing,
        length_scale=3.0,
        amplitude=4.0,
        jitter=1e-6,
        batch=min(1000, terms),
    )


GP_PROBLEMS: dict[str, Callable[[], GPProblem]] = {"ionosphere": ionosphere, "sonar": sonar, "usps-2v4": usps}


def _published(name: str, data: str, log_length: float, log_amplitude: float, jitter: float) -> GPProblem:
    table = load(data).table("train")
    inputs, response = np.asarray(table.features, float), np.asarray(table.response, float)
    return GPProblem(name, inputs, response, math.exp(log_length), math.exp(log_amplitude), jitter)


GP_THRESHOLDS = (0.01, 1e-3)
"""True gaps, in nats, that are timed."""

SPARSE_TOLERANCE = 1.0
"""Nats: 1e-5 a datum, far less than the log loss can tell."""

_STEPS = (0.25, 0.375, 0.5, 0.67)
"""About the best constant steps for the three data sets, and a smaller one; at 1 they all fall into a cycle."""
_SPARSE_STEPS = (0.03, 0.1, 0.3)


def _method(name: str, program: str, package: str, settings: tuple[float, ...]) -> Method:
    return Method(name, PEERS + program, (package,), package, settings, "step")


GP_METHODS: dict[str, Method] = {
    "provi": Method("ProVI, with its proof", PEERS + "provi:gp", (), "", GP_THRESHOLDS, "tol", True),
    "numpy": _method("NumPy natural gradient", "numpy:natural_gradient", "numpy", _STEPS),
    "gpflow": _method("GPflow VGP", "gpflow:vgp", "gpflow", _STEPS),
    "gpytorch": _method("GPyTorch NGD", "gpytorch:natural_gradient", "gpytorch", _STEPS),
    "gpjax": _method("GPJax dual", "gpjax:natural_gradient", "gpjax", _STEPS),
}

SPARSE_METHODS: dict[str, Method] = {
    "provi": Method("ProVI, with its proof", PEERS + "provi:sparse_gp", (), "", (SPARSE_TOLERANCE,), "tol", True),
    "gpflow": _method("GPflow SVGP", "gpflow:svgp", "gpflow", _SPARSE_STEPS),
    "gpytorch": _method("GPyTorch SVGP", "gpytorch:svgp", "gpytorch", _SPARSE_STEPS),
}


def compare_gp(
    problems: Sequence[GPProblem],
    methods: Sequence[Method],
    seconds: float,
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Every method on every problem, one process a setting, judged by `GPOracle`; arguments as in `compare`."""
    return compare(problems, methods, seconds, report, GPOracle.of, GP_THRESHOLDS)


def gp_verdicts(rows: Sequence[Row]) -> list[str]:
    """ProVI to its proven 0.001 nats against each peer to 0.01 nats; of one problem's rows.

    The peers are stopped by the oracle at the easier gap, and at the best of their steps: twenty Gauss-Hermite nodes
    keep them from the harder one.
    """
    easy, hard = (f"{threshold:g}" for threshold in GP_THRESHOLDS)
    name = GP_METHODS["provi"].name
    mine = next((row["times"].get(hard) for row in rows if row["method"] == name), None)
    if mine is None:
        return [f"{name}: {hard} nats not reached."]
    lines = []
    for row in rows:
        theirs = row["times"].get(easy)
        if row["method"] == name or row["status"] != "ran":
            continue
        if theirs is None:
            lines.append(f"{row['method']} did not reach {easy} nats.")
            continue
        warm, cold = (theirs[clock] / mine[clock] for clock in ("cpu", "cpu_compiling"))
        lines.append(
            f"{name}, {hard} nats: {warm:.3g} times as fast as {row['method']} to {easy} nats without compilation, "
            f"{cold:.3g} times with it."
        )
    return lines


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
        with saved(problem) as path:
            for method in methods:
                for setting in (method.settings[0],) if method.missing else method.settings:
                    report(f"{problem.name}: {method.name}, {method.quantity} {setting:g}")
                    row = {"problem": problem.name, "method": method.name}
                    row["setting"] = f"{method.quantity} {setting:g}"
                    rows.append({**row, **attempt(method, path, setting, seconds, partial(_facts, problem))})
    return rows


def _facts(problem: SparseGPProblem, trace: Trace) -> Row:
    """The answers after one pass and at the end scored; a pass took the time of the run divided by its passes."""
    whole = int(np.argmax(trace.gradients >= 1))
    first, last = (score_sparse(problem, trace.mean[index], trace.covariance[index]) for index in (whole, -1))
    passes = float(trace.gradients[-1])
    times = trace.times()
    return {
        "passes": finite(passes),
        **times,
        "cpu_a_pass": finite(times["cpu"] / passes),
        "wall_a_pass": finite(times["wall"] / passes),
        "first_elbo": finite(first.elbo) if len(trace.cpu) > 1 else None,
        "elbo": finite(last.elbo),
        "log_loss": finite(last.log_loss),
        "facts": trace.facts,
    }


def sparse_cells(rows: list[Row]) -> Cells:
    """One line a run of a sparse Gaussian process: what a pass takes, and what the answer is worth."""
    names = ["method", "CPU s a pass", "wall s a pass", "passes", "CPU s", "ELBO after a pass", "ELBO", "log loss", ""]
    lines = []
    for row in rows:
        if row["status"] != "ran":
            lines.append([row["method"], *[""] * 7, f"{row['status']}: {row['note']}"])
            continue
        cells = [number(row[name]) for name in ("cpu_a_pass", "wall_a_pass", "passes")]
        cells += [seconds_text(row, "cpu"), *(number(row[name], 1) for name in ("first_elbo", "elbo"))]
        remark = "; ".join(part for part in (row["setting"], row["note"][:100]) if part)
        lines.append([row["method"], *cells, number(row["log_loss"], 5), remark])
    return names, lines


SECTION = Section(
    "gp",
    "Gaussian processes",
    _TEXT,
    "{problem}: CPU seconds without (with) compilation",
    lambda rows: blackbox_cells(rows, "cpu", GP_THRESHOLDS, "steps"),
    gp_verdicts,
)

SPARSE_SECTION = Section("gp-sparse", "Sparse Gaussian processes", _SPARSE_TEXT, "{problem}", sparse_cells)
