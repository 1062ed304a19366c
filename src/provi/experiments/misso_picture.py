"""The picture of paper 001's Figure 1: the gap and a few coefficients against passes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from provi.experiments.misso_claims import LEVELS
from provi.experiments.misso_measure import LATE_SAEM, MCEM, MISSO1, MISSO10, MISSO50, SAEM, UNIFORM10, Curve
from provi.experiments.misso_problem import Problem
from provi.report.style import INK, PALETTE, figure_style

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


def draw_passes(tasks: Sequence[Problem], curves: Sequence[Curve]) -> Any:
    """One row a data set: the gap on a logarithmic axis, then one panel a coefficient. Further seeds are fainter.

    In the panels of coefficients the dotted line is the exact maximum-likelihood estimate, the dashed one the truth.
    """
    from matplotlib.figure import Figure

    width = 1 + max(len(task.shown) for task in tasks)
    with figure_style():
        figure = Figure(figsize=(3.0 * width + 0.4, 2.7 * len(tasks) + 0.7))
        axes = figure.subplots(len(tasks), width, squeeze=False, sharex="row")
        for line, task in zip(axes, tasks, strict=True):
            _draw_gap(line[0], task, curves)
            for axis, place in zip(line[1:], task.shown, strict=True):
                _draw_coefficient(axis, task, curves, place)
        for axis in axes[-1]:
            axis.set_xlabel("passes through the data")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _draw_gap(axis: Any, task: Problem, curves: Sequence[Curve]) -> None:
    for name, look, curve, first in _runs(task, curves):
        finite = np.isfinite(curve.gaps)
        gaps = np.maximum(curve.gaps[finite], _SMALLEST)
        axis.plot(curve.passes[finite], gaps, label=name if first else None, **look)
    for level in LEVELS:
        axis.axhline(level, color=INK, linewidth=0.8, linestyle=":")
    axis.set_yscale("log")
    axis.set_ylim(bottom=_SMALLEST)
    axis.set_xlim(left=0)
    axis.set_title(task.title)
    axis.set_ylabel("gap to the maximum [nats]")


def _draw_coefficient(axis: Any, task: Problem, curves: Sequence[Curve], place: int) -> None:
    best = float(task.optimum.coefficients[place])
    drawn = []
    for _, look, curve, _ in _runs(task, curves):
        axis.plot(curve.passes[1:], curve.coefficients[1:, place], **look)
        drawn.append(curve.coefficients[2:, place])
    axis.axhline(best, color=INK, linewidth=0.9, linestyle=":")
    if np.isfinite(task.truth[place]):
        axis.axhline(task.truth[place], color=INK, linewidth=0.7, linestyle=(0, (6, 4)), alpha=0.6)
    # From the second pass on: the first step from zero would hide all that comes after.
    seen = np.concatenate([*drawn, [best]])
    seen = seen[np.isfinite(seen)]
    margin = 0.08 * max(float(np.ptp(seen)), 1e-6)
    axis.set_ylim(float(seen.min()) - margin, float(seen.max()) + margin)
    axis.set_title(f"coefficient of {task.names[place]}")


def _runs(task: Problem, curves: Sequence[Curve]) -> list[tuple]:
    """(method, look, curve, whether it is the first of its method), method by method."""
    found = []
    for name, (colour, line) in LOOKS.items():
        own = [curve for curve in curves if (curve.data, curve.method) == (task.title, name)]
        for index, curve in enumerate(own):
            look = {"color": colour, "linestyle": line, "alpha": 1.0 if index == 0 else 0.3}
            found.append((name, {**look, "linewidth": 1.6 if index == 0 else 1.0}, curve, index == 0))
    return found
