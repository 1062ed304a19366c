"""Papers 000 and 002, Figure 1: how many examples GD, PG, PG-MC and PG-SVI need, against the step size."""

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.arguments import double_precision
from provi.report.style import PALETTE
from provi_lab.common.curves import Curve, all_rows, select
from provi_lab.common.pictures import legend_below, picture
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.pgsvi.baselines import decaying_sgd
from provi_lab.papers.pgsvi.measure import follow_pgsvi, follow_rule
from provi_lab.papers.pgsvi.problem import IONOSPHERE, Problem, factors, problem, synthetic_problem

NAME = "pgsvi-figure1"
METHODS = ("GD", "PG", "PG-MC", "PG-SVI")
LEVELS = (1.0, 0.1)
"""Gaps in nats at which a run has converged; the claims are judged by the first."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The step sizes of a method and how many passes each run may take, measured every `stride`."""

    method: str
    steps: tuple[float, ...]
    longest: int
    stride: int = 1
    seeds: int = 1


def _sweeps(quick: bool) -> tuple[Sweep, ...]:
    if quick:
        proximal = (0.25, 1.0, 4.0)
        return (
            Sweep("GD", (0.008, 0.03), 2000, 250),
            Sweep("PG", proximal, 60),
            Sweep("PG-MC", proximal, 30),
            Sweep("PG-SVI", proximal, 20),
        )
    proximal = tuple(2.0**k for k in range(-5, 4))
    return (
        Sweep("GD", tuple(2.0**k for k in (-8, -7.5, -7, -6)), 50_000, 1000),
        Sweep("PG", proximal, 250),
        Sweep("PG-MC", proximal, 100, seeds=3),
        Sweep("PG-SVI", proximal, 40, seeds=3),
    )


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes 40 made-up data and three steps instead of Ionosphere and nine."""
    began, output = time.monotonic(), Path(output)
    task = synthetic_problem(seed) if quick else problem(IONOSPHERE)
    sweeps = _sweeps(quick)
    curves = [curve for sweep in sweeps for curve in measure(task, sweep, seed)]
    rows = rows_of(curves, task.target.num_terms)
    return publish(
        output,
        began,
        name=NAME,
        title="Papers 000 and 002, Figure 1: examples to converge, against the step size",
        setting=_setting(task, sweeps),
        picture=draw_steps(rows, METHODS, LEVELS),
        lines=all_rows(curves),
        rows=rows,
        claims=claims(task.target.num_terms, task.setting.batch, rows),
    )


def measure(task: Problem, sweep: Sweep, seed: int) -> list[Curve]:
    """All runs of a sweep, each ended when it is within the lower level."""
    passes, terms = range(0, sweep.longest + 1, sweep.stride), task.target.num_terms
    if sweep.method == "GD":
        parts, rule = factors(task), decaying_sgd(0.0)
        options = {"batch": terms, "stride": sweep.stride, "enough": LEVELS[-1]}
        return [
            curve
            for step in sweep.steps
            for curve in follow_rule(task, parts, rule, "GD", (0,), passes, steps=(step,), **options)
        ]
    batch = task.setting.batch if sweep.method == "PG-SVI" else terms
    samples = None if sweep.method == "PG" else task.setting.samples
    curves = []
    for step in sweep.steps:
        # rho = beta N/M, so that beta N = rho M.
        for repeat in range(sweep.seeds):
            sizes = {"batch_size": batch, "num_samples": samples}
            curve = follow_pgsvi(task, sweep.method, seed + repeat, step * batch, passes, LEVELS[-1], **sizes)
            curves.append(dataclasses.replace(curve, names={**curve.names, "step_size": step}))
    return curves


def rows_of(curves: Sequence[Curve], terms: int) -> list[Row]:
    """One for each method and step: means over the seeds, infinite as soon as one of them does not get there."""
    rows = []
    for method, step in dict.fromkeys((curve.method, curve.names["step_size"]) for curve in curves):
        chosen = select(curves, method=method, step_size=step)
        reached = {
            f"examples to {level:g} nat": float(np.mean([curve.first("gap", level) for curve in chosen])) * terms
            for level in LEVELS
        }
        smallest = float(np.mean([np.min(curve["gap"]) for curve in chosen]))
        rows.append({"method": method, "step size": step, **reached, "smallest gap": smallest})
    return rows


def read_curves(lines: Sequence[Row]) -> list[Curve]:
    """The runs in the lines of this figure's CSV file."""
    runs: dict[tuple[str, str, str, str], list[Row]] = {}
    for line in lines:
        runs.setdefault((line["data"], line["method"], line["seed"], line["step_size"]), []).append(line)
    return [
        Curve(
            {"data": data, "method": method, "seed": int(seed), "step_size": float(step)},
            {name: np.array([float(line[name]) for line in run]) for name in ("passes", "gap", "test_bits")},
        )
        for (data, method, seed, step), run in runs.items()
    ]


def claims(terms: int, batch: int, rows: list[Row]) -> tuple[Claim, ...]:
    """By rules fixed beforehand, at a gap of 1 nat; `terms` and `batch`: N and M."""
    column = f"examples to {LEVELS[0]:g} nat"
    best = {m: min((row[column] for row in rows if row["method"] == m), default=math.inf) for m in METHODS}
    largest = {
        m: max((row["step size"] for row in rows if row["method"] == m and row[column] < math.inf), default=0.0)
        for m in METHODS
    }
    examples = ", ".join(f"{m} {best[m]:.4g}" for m in METHODS)
    return (
        Claim.of(
            "GD requires many more passes than PG (rule: ten times as many, each at its best step).",
            best["GD"] >= 10 * best["PG"],
            f"Examples to {LEVELS[0]:g} nat at the best step: {examples}.",
        ),
        Claim.of(
            "The upper bound on the step size is much larger for PG than for GD (rule: ten times).",
            largest["PG"] >= 10 * largest["GD"],
            f"Largest step that converges: GD {largest['GD']:g}, PG {largest['PG']:g}, PG-MC {largest['PG-MC']:g}, "
            f"PG-SVI {largest['PG-SVI']:g} (as beta N/M).",
        ),
        Claim.of(
            "PG-SVI is as fast as PG in examples (rule: at most twice as many, each at its best step).",
            best["PG-SVI"] <= 2 * best["PG"],
            f"PG-SVI {best['PG-SVI']:.4g}, PG {best['PG']:.4g}. But every step is a factorisation, whatever its batch: "
            f"PG-SVI needs {best['PG-SVI'] / batch:.4g}, PG {best['PG'] / terms:.4g}.",
        ),
    )


def _setting(task: Problem, sweeps: tuple[Sweep, ...]) -> str:
    setting, limits = task.setting, ", ".join(f"{sweep.method} {sweep.longest}" for sweep in sweeps)
    return (
        f"{setting.title}, N = {task.target.num_terms}: GP classification, Bernoulli-logit, squared-exponential kernel "
        f"with log length-scale {setting.log_length:g} and log amplitude {setting.log_amplitude:g}, jitter "
        f"{setting.jitter:g}; from the prior. The optimum, -ELBO = {task.optimum:.6f}, is proven to {task.proven:.1g} "
        f"nats. The papers' threshold is not given; here a run has converged when its exact gap is at most "
        f"{LEVELS[0]:g} nat (or {LEVELS[1]:g}), looked at after each pass (GD: every {sweeps[0].stride}). GD moves m "
        f"and the Cholesky factor of V by exact gradients; PG, PG-MC (S = {setting.samples}) and PG-SVI "
        f"(M = {setting.batch}, S = {setting.samples}, score estimator) are PGSVI in the natural form, step size beta "
        f"for the first two and beta N/M for the last. At most so many passes: {limits}. Means over "
        f"{max(sweep.seeds for sweep in sweeps)} seeds where there is noise; infinite if one did not get there."
    )


def draw_steps(rows: list[Row], methods: Sequence[str], levels: Sequence[float]) -> Any:
    """Examples against step size, one panel a level; the dotted lines are the largest steps that converge."""
    with picture(8.4, 3.6) as figure:
        axes = figure.subplots(1, len(levels), sharex=True, sharey=True)
        for axis, level in zip(axes, levels, strict=True):
            for colour, method in zip(PALETTE, methods, strict=False):
                own = [row for row in rows if row["method"] == method]
                pairs = [(row["step size"], row[f"examples to {level:g} nat"]) for row in own]
                reached = [(x, y) for x, y in pairs if math.isfinite(y)]
                if reached:
                    axis.plot(*zip(*reached, strict=True), "o-", color=colour, label=method)
                    axis.axvline(reached[-1][0], color=colour, linewidth=0.9, linestyle=":")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(f"To a gap of {level:g} nat")
            axis.set_xlabel(r"step size: $\alpha$ (GD), $\beta$ (PG), $\beta N/M$ (PG-SVI)")
        axes[0].set_ylabel("examples looked at")
        legend_below(figure, axes[0], len(methods))
    return figure
