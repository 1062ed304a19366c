"""The pictures of paper 001's Figure 2: -ELBO against epochs, and entropy against the angle of turned images."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from provi.experiments.network_curves import Curve, at_rate, best
from provi.experiments.network_methods import (
    ADAGRAD,
    ADAM,
    AVERAGED,
    BBB,
    GROWING,
    MISSO,
    MOMENTUM,
    PACED,
    SAG,
)
from provi.report.style import INK, PALETTE, figure_style, number

LOOKS = {
    BBB: (PALETTE[5], "-"),
    MOMENTUM: (PALETTE[2], "-"),
    ADAGRAD: (PALETTE[3], "-"),
    SAG: (PALETTE[4], "-"),
    MISSO: (PALETTE[0], "-"),
    GROWING: (PALETTE[0], "--"),
    ADAM: (INK, "-"),
    AVERAGED: (INK, "--"),
    PACED: (PALETTE[1], "-"),
}
"""Colour and line; two forms of one method share a colour."""

_WIDE = 30.0  # a ratio of largest to smallest from which 1, 2 and 5 are marks enough

TITLES = {"global": "one sigma", "tensor": "a sigma for each tensor", "weight": "a sigma for each weight"}


def draw_training(curves: Sequence[Curve], paper_rate: float) -> Any:
    """One panel a posterior: the mean over seeds and a band of one standard deviation, each method at its best rate.

    The dotted line is MISSO at the paper's rate.
    """
    from matplotlib.figure import Figure

    posteriors = list(dict.fromkeys(curve.posterior for curve in curves))
    with figure_style():
        figure = Figure(figsize=(4.4 * len(posteriors) + 0.4, 4.3))
        panels = figure.subplots(1, len(posteriors), squeeze=False)[0]
        shown: dict[str, Any] = {}
        for axis, posterior in zip(panels, posteriors, strict=True):
            for name, (colour, line) in LOOKS.items():
                curve = best(curves, posterior, name)
                if curve is not None and np.isfinite(curve.mean):
                    shown.setdefault(name, _draw(axis, curve, colour, line))
            slow = at_rate(curves, posterior, MISSO, paper_rate)
            if slow is not None and np.isfinite(slow.mean):
                shown.setdefault(f"MISSO at {paper_rate:g}", _draw(axis, slow, PALETTE[0], ":"))
            axis.set(title=TITLES[posterior], xlabel="epochs", yscale="log")
            _tick(axis)
        panels[0].set_ylabel("−ELBO per image [nats]")
        figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=5 if len(panels) > 1 else 3)
    return figure


def _tick(axis: Any) -> None:
    """Whole epochs, and plain numbers along the logarithmic axis: more of them where it spans little."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_ylim()
    places = (1.0, 2.0, 5.0) if high > _WIDE * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.yaxis.set_major_locator(LogLocator(subs=places, numticks=20))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda value, _: number(value))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _draw(axis: Any, curve: Curve, colour: str, line: str) -> Any:
    table = curve.values[:, :, 0]
    middle = table.mean(axis=0)
    spread = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros_like(middle)
    axis.fill_between(curve.epochs, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
    return axis.plot(curve.epochs, middle, color=colour, linestyle=line, marker="." if line == "-" else "")[0]


def draw_turned(rows: Sequence[dict[str, Any]]) -> Any:
    """Medians of the predictive entropy with bands from the 10% to the 90% quantile, and the accuracy, by angle."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys((row["posterior"], row["method"]) for row in rows))
    with figure_style():
        figure = Figure(figsize=(8.4, 3.6))
        left, right = figure.subplots(1, 2)
        for k, (posterior, method) in enumerate(names):
            own = [row for row in rows if (row["posterior"], row["method"]) == (posterior, method)]
            angles, low, middle, high, hits = (
                np.array([float(row[key]) for row in own])
                for key in ("degrees", "entropy_10", "entropy_50", "entropy_90", "accuracy")
            )
            look = {"color": PALETTE[k % len(PALETTE)], "linestyle": "-" if posterior == "global" else "--"}
            left.fill_between(angles, low, high, color=look["color"], alpha=0.12, linewidth=0)
            left.plot(angles, middle, marker="o", label=f"{method}, {TITLES[posterior]}", **look)
            right.plot(angles, hits, marker="o", **look)
        for axis in (left, right):
            axis.set_xlabel("rotation [degrees]")
            axis.set_ylim(bottom=0)
        left.set(title="predictive entropy [nats], median and 10% to 90%")
        right.set(title="accuracy")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
