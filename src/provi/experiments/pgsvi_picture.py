"""The pictures of Figures 1 and 2 of papers 000 and 002."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from provi.experiments.pgsvi_claims import PAPER_002
from provi.experiments.pgsvi_measure import Curve
from provi.experiments.pgsvi_problem import Problem
from provi.experiments.report import Row
from provi.report.style import INK, PALETTE, figure_style

_LINES = ("-", "--", "-.", ":")


def draw_steps(rows: list[Row], methods: Sequence[str], levels: Sequence[float]) -> Any:
    """Examples against step size, one panel a level; the dotted lines are the largest steps that converge."""
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(8.4, 3.6))
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
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(methods))
    return figure


def draw_passes(problems: Sequence[Problem], curves: Sequence[Curve], methods: Sequence[str]) -> Any:
    """One column a data set: the gap above, the test log-loss below, against passes through the data."""
    from matplotlib.figure import Figure

    looks = {name: (PALETTE[i % len(PALETTE)], _LINES[i // len(PALETTE)]) for i, name in enumerate(methods)}
    with figure_style():
        figure = Figure(figsize=(3.4 * len(problems) + 0.6, 6.2))
        axes = figure.subplots(2, len(problems), squeeze=False, sharex="col")
        for column, problem in enumerate(problems):
            for name, (colour, line) in looks.items():
                _draw_method(axes[:, column], problem, curves, name, colour, line)
            top, bottom = axes[:, column]
            top.set_title(problem.setting.title)
            top.set_yscale("log")
            top.set_ylim(bottom=1e-3)
            top.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
            bottom.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
            # A wrong mean with a small variance costs hundreds of bits, and would hide the rest.
            bottom.set_ylim(0.0, 1.25)
            bottom.set_xscale("symlog", linthresh=1.0)
            bottom.set_xlim(left=0.0)
            bottom.set_xticks([0, 1, 2, 4, 10, 20, 50, 100], ["0", "1", "2", "4", "10", "20", "50", "100"], minor=False)
            bottom.set_xticks([], minor=True)
            bottom.set_xlabel("passes through the data")
        axes[0, 0].set_ylabel("gap to the best Gaussian [nats]")
        axes[1, 0].set_ylabel("test log-loss [bits]")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _draw_method(axes: Any, problem: Problem, curves: Sequence[Curve], name: str, colour: str, line: str) -> None:
    own = [curve for curve in curves if (curve.data, curve.method) == (problem.setting.data, name)]
    for index, curve in enumerate(own):
        look = {"color": colour, "linestyle": line, "alpha": 1.0 if index == 0 else 0.35}
        look["linewidth"] = 2.4 if name == PAPER_002 else 1.4
        finite = np.isfinite(curve.gaps)
        label = name if index == 0 else None
        axes[0].plot(curve.passes[finite], np.maximum(curve.gaps[finite], 1e-9), label=label, **look)
        axes[1].plot(curve.passes[finite], curve.bits[finite], **look)
