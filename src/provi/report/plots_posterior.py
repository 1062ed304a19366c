"""Pictures of an approximation: intervals, marginal densities beside reference draws, correlations."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from scipy import special

from provi.core.checks import as_array
from provi.families.quantiles import marginal_quantile
from provi.report.style import INK, PALETTE, figure_style

LARGEST_INTERVALS, LARGEST_PANELS, LARGEST_MATRIX = 40, 12, 24
"""Parameters that the pictures show at most."""

_WIDTH = 4.1  # inches; small enough that the letters can be read on a telephone


def plot_intervals(posterior: Any, reference: Any = None) -> Figure:
    """Means with 50% and 94% intervals of the first 40 parameters; in orange those of `reference`, draws by rows."""
    shown = min(len(posterior.names), LARGEST_INTERVALS)
    draws = None if reference is None else _check_reference(reference, posterior)
    with figure_style():
        height = (0.21 if draws is None else 0.27) * shown + 1.0
        figure, axes = plt.subplots(figsize=(_WIDTH, max(1.8, height)), layout="constrained")
        draw_intervals(axes, posterior, draws, letters=8)
    return figure


def plot_marginals(posterior: Any, reference: Any = None) -> Figure:
    """The exact marginal densities of the first 12 parameters, over histograms of `reference`, draws by rows."""
    draws = None if reference is None else _check_reference(reference, posterior)
    count = min(len(posterior.names), LARGEST_PANELS)
    columns = min(count, 3)
    rows = -(-count // columns)
    centre, spread = posterior.mean, posterior.standard_deviation
    grid, density = _standard_density(posterior.family)
    with figure_style():
        size = (max(_WIDTH, 2.4 * columns), 1.7 * rows + 0.5)
        figure, panels = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        for axes in panels.flat[count:]:
            axes.set_visible(False)
        for k, axes in enumerate(panels.flat[:count]):
            if draws is not None:
                axes.hist(draws[:, k], bins=40, density=True, color=PALETTE[1], alpha=0.35, label="reference")
            axes.plot(centre[k] + spread[k] * grid, density / spread[k], color=PALETTE[0], label="approximation")
            axes.set_title(shortened(posterior.names[k], 28), parse_math=False)
            axes.set_yticks([])
            axes.xaxis.set_major_locator(MaxNLocator(4))
        if draws is not None:
            figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def plot_correlation_matrix(correlation: Any, names: Sequence[str]) -> Figure:
    """Correlations of up to 24 parameters, those with the strongest ones: blue above zero, orange below."""
    matrix = as_array("correlation", correlation, ndim=2)
    strength = np.abs(matrix - np.diag(np.diagonal(matrix))).max(axis=1)
    chosen = np.sort(np.argsort(-strength, kind="stable")[:LARGEST_MATRIX])
    matrix, size = matrix[np.ix_(chosen, chosen)], len(chosen)
    with figure_style():
        side = min(0.17 * size + 1.5, 3.9)
        figure, axes = plt.subplots(figsize=(max(side + 0.5, 3.6), side), layout="constrained")
        cells = [(row, column) for row in range(size) for column in range(size) if row != column]
        squares = [Rectangle((column, row), 1, 1) for row, column in cells]
        # The colour's opacity is the strength, so that zero is the page's own colour, dark or light; half as much
        # where a number has to be read on it.
        deepest = 0.5 if size <= 8 else 0.95
        colours = [(*to_rgb(PALETTE[int(matrix[c] < 0)]), deepest * min(1.0, abs(matrix[c]))) for c in cells]
        axes.add_collection(PatchCollection(squares, facecolors=colours, linewidths=0))
        if size <= 8:
            for row, column in cells:
                text = f"{round(matrix[row, column], 2) + 0.0:.2f}".replace("-", "−")
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5)
        axes.set(xlim=(0, size), ylim=(size, 0), aspect="equal")
        places = np.arange(size) + 0.5
        axes.set_yticks(places, [f"{shortened(names[k], 22)}  {k + 1}" for k in chosen], parse_math=False)
        axes.set_xticks(places, [str(k + 1) for k in chosen], rotation=90 if size > 12 else 0)
        axes.tick_params(length=0, labelsize=8 if size <= 12 else 6.5)
    return figure


def draw_intervals(axes: Axes, posterior: Any, draws: np.ndarray | None = None, letters: int = 7) -> None:
    """The marginals as lines from quantile to quantile, the first parameter on top."""
    count = min(len(posterior.names), LARGEST_INTERVALS)
    position = np.arange(count)[::-1].astype(float)
    shift = 0.0 if draws is None else 0.17
    for probability, width in ((0.94, 1.4), (0.5, 3.2)):
        low, high = posterior.interval(probability)[:count].T
        axes.hlines(position + shift, low, high, linewidth=width, color=PALETTE[0])
        if draws is not None:
            low, high = np.quantile(draws[:, :count], [(1 - probability) / 2, (1 + probability) / 2], axis=0)
            axes.hlines(position - shift, low, high, linewidth=width, color=PALETTE[1])
    axes.plot(posterior.mean[:count], position + shift, "o", markersize=3.5, color=INK, label="approximation")
    if draws is not None:
        axes.plot(draws[:, :count].mean(axis=0), position - shift, "s", markersize=3.5, color=INK, label="reference")
        axes.legend(loc="best", fontsize=7.5)
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_yticks(
        position, [shortened(name, 28) for name in posterior.names[:count]], fontsize=letters, parse_math=False
    )
    axes.set_ylim(-1, count)
    axes.set_xlabel("value")
    more = len(posterior.names) - count
    axes.set_title("Marginals: mean, 50%, 94%" + (f" (first {count}; {more} more)" if more else ""))


def shortened(text: Any, most: int) -> str:
    """On one line, of characters that can be printed, and at most `most` of them, the last then an ellipsis."""
    line = " ".join(str(text).split())
    # Controls and lone surrogates are no characters of XML or UTF-8; formats (Cf) can reverse what stands after them.
    line = "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Cn") else c for c in line)
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def _standard_density(family: Any) -> tuple[np.ndarray, np.ndarray]:
    """The density of one coordinate of the base, as the slope of its distribution between quantiles."""
    levels = special.ndtr(np.linspace(-4, 4, 161))
    quantiles = np.array([marginal_quantile(family.base, family.dim, level) for level in levels])
    return (quantiles[1:] + quantiles[:-1]) / 2, np.diff(levels) / np.diff(quantiles)


def _check_reference(reference: Any, posterior: Any) -> np.ndarray:
    draws = as_array("reference", reference, ndim=2).astype(np.float64)
    if draws.shape[1] != len(posterior.names) or len(draws) < 2:
        raise ValueError(
            f"reference has shape {draws.shape}; it must hold two or more draws, one a row, "
            f"with a column for each of the {len(posterior.names)} parameters."
        )
    return draws
