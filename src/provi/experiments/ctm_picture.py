"""The picture of paper 002's Figure 3: held-out negative log-likelihood against seconds of training."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from provi.experiments.ctm_measure import DELTA, DIAGONAL, FULL, LAPLACE, MEAN_FIELD, Curve
from provi.experiments.ctm_problem import Problem
from provi.report.style import PALETTE, figure_style

LOOKS = {
    FULL: (PALETTE[0], "-", "o"),
    DIAGONAL: (PALETTE[4], "-", "s"),
    DELTA: (PALETTE[1], "--", "^"),
    LAPLACE: (PALETTE[2], "--", "v"),
    MEAN_FIELD: (PALETTE[3], "--", "D"),
}
"""Colour, line and marker: full lines are the paper's methods, dashed ones those that it compares with."""


def draw_times(problems: Sequence[Problem], curves: Sequence[Curve]) -> Any:
    """One panel a corpus: means over the seeds with markers at the recorded passes; bands have all seeds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    with figure_style():
        figure = Figure(figsize=(4.2 * len(problems) + 0.4, 3.7))
        axes = figure.subplots(1, len(problems), squeeze=False)[0]
        for axis, problem in zip(axes, problems, strict=True):
            _draw_corpus(axis, problem, curves)
            axis.set_xscale("log")
            # Runs of one or two decades would have one labelled tick.
            axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_title(f"{problem.title}, {problem.num_topics} topics")
            axis.set_xlabel("seconds of training, after compilation")
        axes[0].set_ylabel("held-out negative log-likelihood\n[nats a word]")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3 if len(problems) == 1 else len(labels))
    return figure


def _draw_corpus(axis: Any, problem: Problem, curves: Sequence[Curve]) -> None:
    for name, (colour, line, marker) in LOOKS.items():
        own = [curve for curve in curves if (curve.data, curve.method) == (problem.title, name)]
        if not own:
            continue
        losses, seconds = (np.stack([getattr(curve, what) for curve in own]) for what in ("losses", "seconds"))
        time = seconds.mean(axis=0)
        axis.fill_between(time, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        look = {"color": colour, "linestyle": line, "marker": marker, "markeredgecolor": "white"}
        axis.plot(time, losses.mean(axis=0), label=name, markeredgewidth=0.5, **look)
