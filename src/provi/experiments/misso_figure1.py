"""Paper 001, Figure 1: MISSO, MCEM and SAEM on logistic regression with missing covariates, by passes."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from provi.core.precision import double_precision
from provi.experiments.misso_claims import LEVELS, claims, median_passes
from provi.experiments.misso_holdout import TEST_SHARE, hold_out
from provi.experiments.misso_measure import (
    BURN_IN,
    DRAWS_EXPONENT,
    DRAWS_OFFSET,
    MCEM,
    MISSO10,
    SAEM,
    SOLVERS,
    Curve,
    follow,
)
from provi.experiments.misso_picture import draw_passes
from provi.experiments.misso_problem import Problem, support2_problem, synthetic_problem
from provi.experiments.report import Report, Row, finish, write_rows
from provi.report.style import save_figure

NAME = "misso-figure1"
SHOWN = (2, 4, 8, 16)
LONGEST, NUM_SEEDS, NUM_SPLITS = 20, 3, 10


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes three methods on one made-up table of 400 x 4, eight passes, one seed, two splits."""
    began, output = time.monotonic(), Path(output)
    if quick:
        tasks, methods = [synthetic_problem(seed, 400, 4, 0.2)], (MISSO10, MCEM, SAEM)
        passes, seeds, splits = 8, 1, 2
    else:
        tasks, methods = [synthetic_problem(seed), synthetic_problem(seed, share=0.3), support2_problem()], SOLVERS
        passes, seeds, splits = LONGEST, NUM_SEEDS, NUM_SPLITS
    curves = [
        follow(task, method, each, passes) for task in tasks for method in methods for each in range(seed, seed + seeds)
    ]
    scores = [hold_out(task.title, task.features, task.response, splits, seed) for task in tasks[-2:]]
    common = min(len(task.names) for task in tasks)
    lines = [row for curve in curves for row in curve.rows(tasks[0].names[:common])]
    files = (
        save_figure(draw_passes(tasks, curves), output / f"{NAME}.png"),
        write_rows(output / f"{NAME}.csv", lines),
    )
    report = Report(
        NAME,
        "Paper 001, Figure 1: MISSO, MCEM and SAEM on logistic regression with missing covariates",
        _setting(tasks, passes, splits),
        tuple(row for task in tasks for row in summary(task, curves)),
        claims(tasks, curves, scores),
        files,
        time.monotonic() - began,
    )
    return finish(report, output)


def summary(task: Problem, curves: Sequence[Curve]) -> list[Row]:
    """Mean gaps over the seeds, and medians of the passes to settle."""
    rows = []
    for method in SOLVERS:
        own = [curve for curve in curves if (curve.data, curve.method) == (task.title, method)]
        if not own:
            continue
        shown = [p for p in SHOWN if p in own[0].passes]
        gaps = {f"gap at {p}": float(np.mean([curve.gap_at(p) for curve in own])) for p in shown}
        settled = {f"settles at {level:g}": _passes(task, curves, method, level, own[0]) for level in LEVELS}
        last = float(np.mean([curve.gaps[-1] for curve in own]))
        rows.append({"data": task.title, "method": method, **gaps, "last gap": last, **settled})
    return rows


def _passes(task: Problem, curves: Sequence[Curve], method: str, level: float, run: Curve) -> str:
    passes = median_passes(task, curves, method, level)
    return f"{passes:g}" if math.isfinite(passes) else f"> {int(run.passes[-1])}"


def _setting(tasks: Sequence[Problem], passes: int, splits: int) -> str:
    sets = "; ".join(
        f"{task.title}: {task.features.shape[0]} x {task.features.shape[1]}, {np.isnan(task.features).mean():.0%} "
        f"missing, maximum {task.maximum:.4f} nats, found to about {task.left:.0e}"
        for task in tasks
    )
    return (
        f"Covariates Gaussian, partly missing; standardised columns ({sets}). Every method starts from observed means "
        f"and variances with no correlation and zero slopes, makes {passes} passes, and in pass k = 0, 1, ... "
        f"takes {DRAWS_OFFSET} + k^{DRAWS_EXPONENT} draws a row (no cap), by Metropolis-Hastings from the conditional "
        f"Gaussian. MISSO refreshes one row a step, MISSO10 and MISSO50 10% and 50% of the rows, in a fresh random "
        f"order each pass; 'uniform draws' takes rows with replacement as the paper writes it. The surrogate of the "
        f"coefficients is the Newton-type one for all. MCEM refreshes all rows a step; SAEM averages with gamma = 1/k "
        f"from the first pass, as the paper has it, or after {BURN_IN} passes with gamma = 1. The gap is that of "
        f"the exact observed-data log-likelihood, the covariates' part included. In the picture dotted lines are the "
        f"exact maximum-likelihood estimates, dashed ones the truth. Held-out log-loss: {splits} random splits, "
        f"{TEST_SHARE:.0%} of the rows held out."
    )
