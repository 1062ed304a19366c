"""Paper 001, Figure 1: MISSO, MCEM and SAEM on logistic regression with missing covariates, by passes."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.arguments import double_precision
from provi.report.style import INK, PALETTE
from provi_lab.common.curves import Curve, all_rows, select
from provi_lab.common.pictures import legend_below, picture
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.misso.holdout import (
    COMPLETE,
    MEANS,
    MEANS_INDICATORS,
    MODEL,
    MODEL_INDICATORS,
    TEST_SHARE,
    HoldOut,
    hold_out,
)
from provi_lab.papers.misso.runs import (
    BURN_IN,
    DRAWS_EXPONENT,
    DRAWS_OFFSET,
    LATE_SAEM,
    MCEM,
    MISSO1,
    MISSO10,
    MISSO50,
    SAEM,
    SOLVERS,
    UNIFORM10,
    TableProblem,
    follow,
    support2_problem,
    synthetic_problem,
)

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
    return publish(
        output,
        began,
        name=NAME,
        title="Paper 001, Figure 1: MISSO, MCEM and SAEM on logistic regression with missing covariates",
        setting=_setting(tasks, passes, splits),
        picture=draw_passes(tasks, curves),
        lines=lines_of(curves, common),
        rows=[row for task in tasks for row in summary(task, curves)],
        claims=claims(tasks, curves, scores),
    )


def lines_of(curves: Sequence[Curve], coefficients: int) -> list[Row]:
    """All runs for the CSV file, with so many coefficients: those that tables of different widths have in common."""
    wanted = ["data", "method", "seed", "passes", "gap", *(f"coefficient_{place}" for place in range(coefficients))]
    wanted += [f"mean_{place}" for place in range(1, coefficients)]
    return [{name: row[name] for name in wanted} for row in all_rows(curves)]


def summary(task: TableProblem, curves: Sequence[Curve]) -> list[Row]:
    """Mean gaps over the seeds, and medians of the passes to settle."""
    rows = []
    for method in SOLVERS:
        own = select(curves, data=task.title, method=method)
        if not own:
            continue
        shown = [p for p in SHOWN if p in own[0].when]
        gaps = {f"gap at {p}": float(np.mean([curve.at("gap", p) for curve in own])) for p in shown}
        settled = {f"settles at {level:g}": _passes(task, curves, method, level, own[0]) for level in LEVELS}
        last = float(np.mean([curve["gap"][-1] for curve in own]))
        rows.append({"data": task.title, "method": method, **gaps, "last gap": last, **settled})
    return rows


def _passes(task: TableProblem, curves: Sequence[Curve], method: str, level: float, run: Curve) -> str:
    passes = median_passes(task, curves, method, level)
    return f"{passes:g}" if math.isfinite(passes) else f"> {int(run.when[-1])}"


def _setting(tasks: Sequence[TableProblem], passes: int, splits: int) -> str:
    sets = "; ".join(
        f"{task.title}: {task.features.shape[0]} x {task.features.shape[1]}, {np.isnan(task.features).mean():.0%} "
        f"missing, maximum {task.maximum:.4f} nats, found to about {task.left:.0e}"
        for task in tasks
    )
    return (
        f"The paper's hospital data (TraumaBase, 6384 patients, 16 measurements) are not public. They are replaced by "
        f"tables of that size drawn from the paper's model, whose truth is known, and by the SUPPORT2 study of "
        f"seriously ill patients (UCI), with its own missing entries; so the paper's curves themselves cannot be "
        f"repeated. Covariates Gaussian, N(beta, Omega), partly missing; standardised columns ({sets}). "
        f"Every method starts from observed means "
        f"and variances with no correlation and zero slopes, makes {passes} passes, and in pass k = 0, 1, ... "
        f"takes {DRAWS_OFFSET} + k^{DRAWS_EXPONENT} draws a row (no cap), by Metropolis-Hastings from the conditional "
        f"Gaussian. MISSO refreshes one row a step, MISSO10 and MISSO50 10% and 50% of the rows, in a fresh random "
        f"order each pass; 'uniform draws' takes rows with replacement as the paper writes it. The surrogate of the "
        f"coefficients is the Newton-type one for all: a quadratic with the curvature at the draws. It "
        f"is no majoriser of the loss, so that Theorem 1 of the paper, which asks for one, does not cover these "
        f"runs. MCEM refreshes all rows a step; SAEM averages with gamma = 1/k "
        f"from the first pass, as the paper has it, or after {BURN_IN} passes with gamma = 1. The gap is that of "
        f"the exact observed-data log-likelihood, the covariates' part included. The picture has, as the paper's, the "
        f"logistic parameters delta and the means beta of the covariates, of the same two columns, with dotted lines "
        f"at the exact maximum-likelihood estimates and dashed ones at the truth. Held-out log-loss: "
        f"{splits} random splits, "
        f"{TEST_SHARE:.0%} of the rows held out."
    )


LEVELS = (1.0, 0.1)
"""Nats: settled means a gap of at most so much from then on. A gap of 1 puts the parameters about 0.1 errors off."""

LONGEST_FIT = 60.0
"""Seconds: what a fit of SUPPORT2 may take on two cores."""

OURS, OTHERS = (MISSO1, MISSO10, MISSO50), (MCEM, SAEM, LATE_SAEM)


def median_passes(task: TableProblem, curves: Sequence[Curve], method: str, level: float) -> float:
    """The median over the seeds of the pass at which a method settles; infinite where half of the runs do not."""
    own = [curve.settles("gap", level) for curve in select(curves, data=task.title, method=method)]
    return float(np.median(own)) if own else math.nan


def claims(tasks: Sequence[TableProblem], curves: Sequence[Curve], scores: Sequence[HoldOut]) -> tuple[Claim, ...]:
    """Two a data set about passes, two about what a user gets."""
    found = [_passes_claim(task, curves, level) for task in tasks for level in LEVELS]
    return (*found, *(claim for score in scores for claim in _worth(score)))


def _passes_claim(task: TableProblem, curves: Sequence[Curve], level: float) -> Claim:
    settled = {name: median_passes(task, curves, name, level) for name in (*OURS, *OTHERS)}
    settled = {name: passes for name, passes in settled.items() if not math.isnan(passes)}
    best = min(passes for name, passes in settled.items() if name in OTHERS)
    return Claim.of(
        f"{task.title}: MISSO needs fewer passes than MCEM and SAEM to settle within {level:g} nat (rule: medians over "
        f"the seeds of the first pass from which the gap stays below; MISSO10 against the best of the others).",
        settled[MISSO10] < best,
        "; ".join(f"{name} {_number(passes)}" for name, passes in settled.items()) + ".",
    )


def _worth(score: HoldOut) -> list[Claim]:
    means, of_means = score.difference(MEANS)
    cases, of_cases = score.difference(COMPLETE)
    both, of_both = score.difference(MEANS_INDICATORS, MODEL_INDICATORS)
    loss = {name: float(values.mean()) for name, values in score.losses.items()}
    return [
        Claim.of(
            f"{score.title}: the held-out log-loss is better than with mean imputation (rule: the mean difference over "
            f"the splits is below zero by more than twice its standard error).",
            means + 2 * of_means < 0,
            f"{loss[MODEL]:.5f} against {loss[MEANS]:.5f} nats a row, difference {means:.5f} -+ {of_means:.5f}; "
            f"complete cases {loss[COMPLETE]:.5f}, difference {cases:.5f} -+ {of_cases:.5f}; "
            f"both with indicators of missing entries {loss[MODEL_INDICATORS]:.5f} against "
            f"{loss[MEANS_INDICATORS]:.5f}, difference {both:.5f} -+ {of_both:.5f}; "
            f"{len(score.losses[MODEL])} splits.",
        ),
        Claim.of(
            f"{score.title}: a fit with standard errors takes at most {LONGEST_FIT:g} s after compilation.",
            score.seconds <= LONGEST_FIT,
            f"{score.seconds:.3g} s wall-clock.",
        ),
    ]


def _number(passes: float) -> str:
    return f"{passes:g}" if math.isfinite(passes) else "not within the run"


LOOKS = {
    MISSO1: (PALETTE[0], "-"),
    MISSO10: (PALETTE[1], "-"),
    UNIFORM10: (PALETTE[1], "--"),
    MISSO50: (PALETTE[2], "-"),
    MCEM: (INK, "-"),
    SAEM: (PALETTE[5], "-"),
    LATE_SAEM: (PALETTE[5], "--"),
}
"""Colour and line; two forms of one method share a colour."""

_SMALLEST = 1e-3


def draw_passes(tasks: Sequence[TableProblem], curves: Sequence[Curve]) -> Any:
    """One row a data set: the gap on a logarithmic axis, then delta and beta of each column shown.

    Further seeds are fainter. In the panels of parameters the dotted line is the exact maximum-likelihood estimate, the
    dashed one the truth.
    """
    width = 1 + 2 * max(len(task.shown) for task in tasks)
    with picture(2.9 * width + 0.4, 2.7 * len(tasks) + 0.7) as figure:
        axes = figure.subplots(len(tasks), width, squeeze=False, sharex="row")
        for line, task in zip(axes, tasks, strict=True):
            _draw_gap(line[0], task, curves)
            slopes, means = line[1 : 1 + len(task.shown)], line[1 + len(task.shown) :]
            for axis, other, place in zip(slopes, means, task.shown, strict=True):
                optimum, name = task.optimum, task.names[place]
                best, true = float(optimum.coefficients[place]), float(task.truth[place])
                _draw_parameter(axis, task, curves, f"coefficient_{place}", best, true)
                axis.set_title(f"δ of {name}")
                best, true = float(optimum.mean[place - 1]), float(task.true_mean[place - 1])
                _draw_parameter(other, task, curves, f"mean_{place}", best, true)
                other.set_title(f"β of {name}")
        for axis in axes[-1]:
            axis.set_xlabel("passes through the data")
        legend_below(figure, axes[0, 0], len(axes[0, 0].get_legend_handles_labels()[1]))
    return figure


def _draw_gap(axis: Any, task: TableProblem, curves: Sequence[Curve]) -> None:
    for name, look, curve, first in _runs(task, curves):
        finite = np.isfinite(curve["gap"])
        gaps = np.maximum(curve["gap"][finite], _SMALLEST)
        axis.plot(curve.when[finite], gaps, label=name if first else None, **look)
    for level in LEVELS:
        axis.axhline(level, color=INK, linewidth=0.8, linestyle=":")
    axis.set_yscale("log")
    axis.set_ylim(bottom=_SMALLEST)
    axis.set_xlim(left=0)
    axis.set_title(task.title)
    axis.set_ylabel("gap to the maximum [nats]")


def _draw_parameter(
    axis: Any, task: TableProblem, curves: Sequence[Curve], column: str, best: float, true: float
) -> None:
    drawn = []
    for _, look, curve, _ in _runs(task, curves):
        axis.plot(curve.when[1:], curve[column][1:], **look)
        drawn.append(curve[column][2:])
    axis.axhline(best, color=INK, linewidth=0.9, linestyle=":")
    if np.isfinite(true):
        axis.axhline(true, color=INK, linewidth=0.7, linestyle=(0, (6, 4)), alpha=0.6)
    # From the second pass on: the first step from zero would hide all that comes after.
    seen = np.concatenate([*drawn, [best]])
    seen = seen[np.isfinite(seen)]
    margin = 0.08 * max(float(np.ptp(seen)), 1e-6)
    axis.set_ylim(float(seen.min()) - margin, float(seen.max()) + margin)


def _runs(task: TableProblem, curves: Sequence[Curve]) -> list[tuple]:
    """(method, look, curve, whether it is the first of its method), method by method."""
    found = []
    for name, (colour, line) in LOOKS.items():
        own = select(curves, data=task.title, method=name)
        for index, curve in enumerate(own):
            look = {"color": colour, "linestyle": line, "alpha": 1.0 if index == 0 else 0.3}
            found.append((name, {**look, "linewidth": 1.6 if index == 0 else 1.0}, curve, index == 0))
    return found
