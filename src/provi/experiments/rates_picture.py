"""The picture of the rates experiment: one panel a theorem, one row a problem."""

from typing import Any

from provi.experiments.rates_measure import Measured
from provi.experiments.slopes import mean_interval
from provi.report.style import INK, PALETTE, figure_style

_THEOREMS = ("7", "8", "10", "11")
_NAMES = {"7": "Prox-SGD", "8": "Prox-SGD", "10": "Proj-SGD", "11": "Proj-SGD"}
_LOOKS = {"decaying step": PALETTE[0], "constant step": PALETTE[1], "convex": PALETTE[2]}


def draw(results: list[Measured]) -> Any:
    """Mean errors with their intervals (solid), bounds (dashed) and the theorem's slope (dotted)."""
    from matplotlib.figure import Figure

    problems = list(dict.fromkeys(result.problem.name for result in results))
    with figure_style():
        figure = Figure(figsize=(11, 5.6))
        axes = figure.subplots(len(problems), len(_THEOREMS), sharex="col")
        for row, name in enumerate(problems):
            for column, theorem in enumerate(_THEOREMS):
                chosen = [r for r in results if r.problem.name == name and r.case.theorem == theorem]
                _panel(axes[row, column], chosen)
                if row == 0:
                    axes[row, column].set_title(f"Theorem {theorem}, {_NAMES[theorem]}")
                if row == len(problems) - 1:
                    axes[row, column].set_xlabel("steps T")
            problem = chosen[0].problem
            axes[row, 0].annotate(
                f"{name[0].upper()}{name[1:]}, d = {problem.target.dim}, M/mu = {problem.condition:.3g}",
                (0, 1.16 if row == 0 else 1.05),
                xycoords="axes fraction",
                fontsize=10,
                fontweight="bold",
            )
        figure.legend(*_legend(), loc="outside lower center", ncols=6)
    return figure


def _panel(axis: Any, results: list[Measured]) -> None:
    for result in results:
        colour = _LOOKS[result.case.part]
        low, high = mean_interval(result.errors, 0)
        marker = "o" if result.case.convex else ""
        axis.plot(result.steps, result.mean, color=colour, marker=marker)
        axis.fill_between(result.steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(result.steps, result.bound, "--", color=colour, linewidth=1.1)
        if result.case.exponent is not None:
            tail = result.steps[result.steps >= result.steps[-1] / 30]
            # Twice the last mean, so that the guide does not cover the curve.
            axis.plot(tail, 2 * result.mean[-1] * (tail / tail[-1]) ** -result.case.exponent, ":", color=INK)
    axis.set_xscale("log")
    axis.set_yscale("log")
    convex = results[0].case.convex
    axis.set_ylabel("mean gap of the average [nats]" if convex else "mean |w - w*|^2")


def _legend() -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour) for colour in _LOOKS.values()]
    labels = [name if name != "convex" else "step for each T" for name in _LOOKS]
    lines += [Line2D([], [], color=INK, linestyle="--", linewidth=1.1), Line2D([], [], color=INK, linestyle=":")]
    return lines, [*labels, "the theorem's bound", "the theorem's slope"]

