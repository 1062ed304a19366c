"""`provi bench passes`: certified logistic regressions beside a natural gradient in plain NumPy, as they grow."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row

_TEXT = """\
Processor seconds of all threads, the least of some calls after the first, of `provi.fit` (logistic regression, float64,
tol 0.01, its proof included) and of a natural gradient written by hand with NumPy and BLAS: blocks of rows, 20 nodes of
Gauss and Hermite, with one thread of BLAS or all of them, whichever is better. NumPy makes one pass for every step of
the fit and one for its proof; what the fit needs beyond these (a start from a sample of the rows, more passes of the
proof) is its own cost. Slopes are fitted to the logarithms of ProVI's time a pass, over the rows at the same columns,
and over the columns at the same rows. `difference`: of the two means, in standard deviations."""

SIZES = ((20_000, 100), (10_000, 64), (20_000, 64), (40_000, 64), (80_000, 64), (20_000, 128), (20_000, 256))
LARGE = (1_000_000, 100)
_BLOCK, _NODES = 2048, 20
_QUIET = 0.5
"""Processes at work, on average over the minute before, up to which a machine counts as quiet."""


def table(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """A design with an intercept, and answers of the model."""
    rng = np.random.default_rng(0)
    design = rng.standard_normal((rows, columns))
    design[:, 0] = 1.0
    predictor = design @ (rng.standard_normal(columns) / columns**0.5)
    return design, (rng.random(rows) < 1 / (1 + np.exp(-predictor))).astype(float)


def hand_written(design: np.ndarray, response: np.ndarray, passes: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean and covariance after `passes` natural-gradient steps, from the curvature at zero; prior N(0, I).

    $\Lambda \leftarrow I + X'\mathrm{diag}(E\sigma'(\eta_i))X$, $m \leftarrow m - \Lambda^{-1}(X'(E\sigma(\eta)-y)+m)$,
    $\eta_i \sim N(x_i'm, |C'x_i|^2)$, with $E\sigma' = E[\sigma(\eta)u]/s$ from the same nodes.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    dim = design.shape[1]
    mean, factor = np.zeros(dim), np.zeros((dim, dim))
    for _ in range(passes):
        gradient, precision = mean.copy(), np.eye(dim)
        for first in range(0, len(design), _BLOCK):
            x, y = design[first : first + _BLOCK], response[first : first + _BLOCK]
            seen = x @ factor
            deviation = np.sqrt(np.maximum(np.einsum("ij,ij->i", seen, seen), 1e-12))
            values = nodes[:, None] * deviation[None, :]
            values += x @ mean
            values = 1 / (1 + np.exp(-values))
            gradient += x.T @ (weights @ values - y)
            curvature = ((weights * nodes) @ values) / deviation
            scaled = x * np.sqrt(np.maximum(curvature, 0.0))[:, None]
            precision += scaled.T @ scaled
        lower = np.linalg.cholesky(precision)
        mean = mean - np.linalg.solve(precision, gradient)
        factor = np.linalg.inv(lower).T
    return mean, factor @ factor.T


def measure_passes(
    sizes: Sequence[tuple[int, int]], repeats: int = 3, report: Callable[[str], None] = lambda line: None
) -> list[Row]:
    """A row for each size (rows, columns)."""
    load = os.getloadavg()[0]  # of others: nothing of this has run yet
    return [_measured(*size, repeats, report) | {"load": load} for size in sizes]


def _measured(rows: int, columns: int, repeats: int, report: Callable[[str], None]) -> Row:
    import provi  # compiled programs are ProVI's own cost, which the first call pays

    report(f"{rows} x {columns}")
    design, response = table(rows, columns)
    target = provi.targets.LogisticRegression(design, response, prior_scale=1.0)
    began = time.perf_counter()
    fit = provi.fit(target, tol=0.01, seed=0, progress=False)
    first = time.perf_counter() - began
    ours = _least(lambda: provi.fit(target, tol=0.01, seed=0, progress=False), repeats)
    passes = int(fit.num_steps) + 1
    theirs = min(_with_threads(count, lambda: hand_written(design, response, passes), repeats) for count in (1, None))
    mean, covariance = hand_written(design, response, 8)
    off = np.abs(np.asarray(fit.posterior.mean) - mean) / np.sqrt(np.diag(covariance))
    gap = fit.certificate.gap
    return {
        "rows": rows,
        "columns": columns,
        "passes": passes,
        "first_wall": first,
        "provi_cpu": ours[0],
        "provi_wall": ours[1],
        "numpy_cpu": theirs[0],
        "numpy_wall": theirs[1],
        "gap": None if gap is None else float(gap),
        "status": fit.certificate.status,
        "largest_difference": float(off.max()),
    }


def _least(work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Processor and wall-clock seconds, each the least."""
    found = []
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        found.append((time.process_time() - cpu, time.perf_counter() - wall))
    return min(cpu for cpu, _ in found), min(wall for _, wall in found)


def _with_threads(count: int | None, work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """`_least` with so many threads of BLAS: those of a busy machine wait for each other in loops."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(count, "blas"):
        return _least(work, repeats)


def slope(rows: Sequence[Row], varied: str, kept: str) -> tuple[float, int] | None:
    """Of log(time a pass) over log(`varied`), where `kept` is the same, at the `kept` that has the most sizes.

    **Returns:** the slope and how many sizes it is fitted to; None where there are not three.
    """
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[kept], []).append(row)
    most = max(groups.values(), key=len)
    if len(most) < 3:
        return None
    sizes, times = np.log([row[varied] for row in most]), np.log([row["provi_cpu"] / row["passes"] for row in most])
    return float(np.polyfit(sizes, times, 1)[0]), len(most)


def passes_cells(rows: Sequence[Row]) -> Cells:
    """One line a size."""
    names = ["rows", "columns", "passes", "ProVI, CPU s", "NumPy, CPU s", "ratio", "wall s", "proven gap", "difference"]
    lines = [
        [
            f"{row['rows']:,}",
            f"{row['columns']}",
            f"{row['passes']}",
            f"{row['provi_cpu']:.3g}",
            f"{row['numpy_cpu']:.3g}",
            f"{row['provi_cpu'] / row['numpy_cpu']:.2f}",
            f"{row['provi_wall']:.3g} and {row['numpy_wall']:.3g}",
            "-" if row["gap"] is None else f"{row['gap']:.2g}",
            f"{row['largest_difference']:.1g} s.d.",
        ]
        for row in rows
    ]
    return names, lines


def passes_verdicts(rows: Sequence[Row]) -> list[str]:
    """The slopes, the worst ratio at a hundred columns, and whether others were at work on the machine."""
    lines = []
    for varied, kept, aim in (("rows", "columns", "1"), ("columns", "rows", "at most 2 a row")):
        found = slope(rows, varied, kept)
        if found is not None:
            lines.append(f"Time a pass grows like {varied} to the power {found[0]:.2f} ({found[1]} sizes); aim {aim}.")
    ratios = [row["provi_cpu"] / row["numpy_cpu"] for row in rows if row["columns"] == 100]
    if ratios:
        lines.append(f"At 100 columns ProVI takes at most {max(ratios):.2f} times NumPy's processor time; aim 1.5.")
    loads = [row["load"] for row in rows if "load" in row]
    if loads:
        words = "busy: trust the ratios, not the times and slopes" if max(loads) > _QUIET else "quiet"
        lines.append(f"Load of the machine in the minute before the run: {max(loads):.2f}, so it was {words}.")
    else:
        lines.append("How busy the machine was has not been recorded: trust the ratios, not the times and slopes.")
    return lines


SECTION = Section(
    kind="passes",
    heading="What a pass costs, and how it grows",
    text=_TEXT,
    title="Logistic regression: certified fits beside a natural gradient in NumPy",
    cells=passes_cells,
    verdicts=passes_verdicts,
)
