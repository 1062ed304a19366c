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
        figure = Figure(figsize=(11, 0.6 + 2.6 * len(problems)))
        parts: Any = figure.subfigures(len(problems) + 1, 1, height_ratios=[2.6] * len(problems) + [0.3])
        for part, name in zip(parts, problems, strict=False):
            _row(part, [result for result in results if result.problem.name == name])
        parts[-1].legend(*_legend(), loc="center", ncols=5)
    return figure


def _row(part: Any, results: list[Measured]) -> None:
    problem = results[0].problem
    title = f"{problem.name[0].upper()}{problem.name[1:]}: d = {problem.target.dim}, $M/\\mu$ = {problem.condition:.3g}"
    part.suptitle(title, x=0.01, ha="left", fontweight="bold")
    for axis, theorem in zip(part.subplots(1, len(_THEOREMS)), _THEOREMS, strict=True):
        _panel(axis, [result for result in results if result.case.theorem == theorem])
        axis.set_title(f"Theorem {theorem}, {_NAMES[theorem]}")
        axis.set_xlabel("steps T")


def _panel(axis: Any, results: list[Measured]) -> None:
    from matplotlib.ticker import NullFormatter

    for result in results:
        colour = _LOOKS[result.case.part]
        low, high = mean_interval(result.errors, 0)
        marker, width = "o" if result.case.convex else "", 3.2 if result.case.part == "decaying step" else 1.6
        # The wide line shows beneath the other one as long as the decaying step has not begun to decay.
        axis.plot(result.steps, result.mean, color=colour, marker=marker, linewidth=width)
        axis.fill_between(result.steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(result.steps, result.bound, "--", color=colour, linewidth=1.1)
        if result.case.exponent is not None and result.asymptotic:
            _guide(axis, result, result.case.exponent)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    convex = results[0].case.convex
    axis.set_ylabel("mean gap [nats]" if convex else r"mean $|w_T - w^*|^2$")


def _guide(axis: Any, result: Measured, exponent: float) -> None:
    """A line of the theorem's slope, just above the last part of the curve."""
    tail = result.steps >= result.steps[-1] / 30
    height = 1.6 * max(result.mean[tail] * result.steps[tail] ** exponent)
    axis.plot(result.steps[tail], height * result.steps[tail] ** -exponent, ":", color=INK)


def _legend() -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour) for colour in _LOOKS.values()]
    labels = [name if name != "convex" else "step for each T" for name in _LOOKS]
    lines += [Line2D([], [], color=INK, linestyle="--", linewidth=1.1), Line2D([], [], color=INK, linestyle=":")]
    return lines, [*labels, "the theorem's bound", "the theorem's slope"]
