"""Pictures of an approximation: intervals, marginal densities beside reference draws, correlations."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from provi.core.arguments import as_array
from provi.report.plots.marginals import Marginals, model_marginals, reference_columns
from provi.report.style import INK, PALETTE, figure_style, number

LARGEST_INTERVALS, LARGEST_PANELS, LARGEST_MATRIX = 40, 12, 24
"""Parameters that the pictures show at most."""

_WIDTH = 4.1  # inches; small enough that the letters can be read on a telephone
# A parameter is off the axis where that makes it shorter by so much; intervals of so little of the axis are dots.
_CROWDED, _CROWDED_INTERCEPT, _DOT, _NINETY_FOUR = 4.0, 1.6, 0.01, 1.8808


def plot_intervals(posterior: Any, reference: Any = None) -> Figure:
    """Means with 50% and 94% intervals of the first 40 parameters; in orange those of the `reference` draws."""
    return draw_marginals(*read_marginals(posterior, reference, LARGEST_INTERVALS))


def draw_marginals(marginals: Marginals, draws: np.ndarray | None, part: slice = slice(None)) -> Figure:
    """The picture of `plot_intervals`, of a `part` of the parameters; all parts have the axis of the whole."""
    shown = len(marginals.names[part])
    with figure_style():
        height = (0.21 if draws is None else 0.27) * shown + 1.0
        figure, axes = plt.subplots(figsize=(_WIDTH, max(1.8, height)), layout="constrained")
        draw_intervals(axes, marginals, draws, part=part, letters=8)
    return figure


def plot_marginals(posterior: Any, reference: Any = None) -> Figure:
    """The marginal densities of the first 12 parameters, over histograms of the `reference` draws.

    Shaded, where the distance to the posterior is bounded closely: between what the posterior has of each bin at least
    and at most.

    Exact where the parameter is a free coordinate; else, as steps, the histogram of 10,000 draws of q. The extreme 1%
    of the draws are off the picture.
    """
    return draw_densities(*read_marginals(posterior, reference, LARGEST_PANELS))


def draw_densities(
    marginals: Marginals, draws: np.ndarray | None, part: slice = slice(None), columns: int = 3
) -> Figure:
    """The picture of `plot_marginals`, of a `part` of the parameters."""
    chosen = range(len(marginals.names))[part]
    columns = min(len(chosen), columns)
    rows = -(-len(chosen) // columns)
    with figure_style():
        size = (max(_WIDTH, 2.4 * columns if columns > 2 else 0), 1.5 * rows + 0.5)
        figure, panels = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        for axes in panels.flat[len(chosen) :]:
            axes.set_visible(False)
        for k, axes in zip(chosen, panels.flat, strict=False):
            if draws is not None and np.isfinite(draws[:, k]).all():
                _histogram(axes, draws[:, k], color=PALETTE[1], alpha=0.35, fill=True, label="reference")
            band = marginals.band(k)
            if band is not None:
                edges, low, high = band
                words = f"posterior, {_level(marginals.posterior.bound)}"
                axes.stairs(high, edges, baseline=low, fill=True, color=PALETTE[2], alpha=0.25, label=words)
            exact = marginals.density(k)
            if exact is not None:
                axes.plot(*exact, color=PALETTE[0], label="approximation")
            elif marginals.draws is not None:
                _histogram(axes, marginals.draws[:, k], color=PALETTE[0], linewidth=1.2, label="approximation")
            axes.set_title(shortened(marginals.names[k], 24), parse_math=False)
            axes.set_yticks([])
            axes.set_ylim(bottom=0)
            axes.spines["left"].set_visible(False)
            axes.xaxis.set_major_locator(MaxNLocator(4))
        entries = _legend_entries(panels.flat[: len(chosen)])
        if len(entries) > 1:
            figure.legend(
                entries.values(), entries.keys(), loc="outside lower center", ncols=min(len(entries), columns)
            )
    return figure


def plot_correlation_matrix(correlation: Any, names: Sequence[str]) -> Figure:
    """Correlations of up to 24 parameters, those with the strongest ones: blue above zero, orange below."""
    matrix = as_array("correlation", correlation, ndim=2)
    strength = np.abs(matrix - np.diag(np.diagonal(matrix))).max(axis=1)
    chosen = np.sort(np.argsort(-strength, kind="stable")[:LARGEST_MATRIX])
    matrix, size = matrix[np.ix_(chosen, chosen)], len(chosen)
    with figure_style():
        # Rows as high as letters that can be read, also where that makes the cells higher than wide.
        figure, axes = plt.subplots(figsize=(_WIDTH, min(0.4, 0.17 + 0.9 / size) * size + 0.5), layout="constrained")
        cells = [(row, column) for row in range(size) for column in range(size) if row != column]
        squares = [Rectangle((column, row), 1, 1) for row, column in cells]
        # The colour's opacity is the strength, so that zero is the page's own colour, dark or light; half as much
        # where a number has to be read on it.
        deepest = 0.5 if size <= 8 else 0.95
        colours = [(*to_rgb(PALETTE[int(matrix[c] < 0)]), deepest * min(1.0, abs(matrix[c]))) for c in cells]
        axes.add_collection(PatchCollection(squares, facecolors=colours, linewidths=0))
        if size <= 8:
            for row, column in cells:
                text = f"{round(matrix[row, column], 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}")
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5)
        axes.set(xlim=(0, size), ylim=(size, 0))
        places = np.arange(size) + 0.5
        axes.set_yticks(places, [f"{k + 1} · {shortened(names[k], 22)}" for k in chosen], parse_math=False)
        # Every second one of many: the rows have them all.
        labels = [str(k + 1) if size <= 16 or index % 2 == 0 else "" for index, k in enumerate(chosen)]
        axes.set_xticks(places, labels, rotation=90 if size > 12 else 0)
        axes.tick_params(length=0, labelsize=8)
        axes.tick_params(axis="x", labelsize=8 if size <= 12 else 7)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    return figure


def draw_intervals(
    axes: Axes, marginals: Marginals, draws: np.ndarray | None = None, *, part: slice = slice(None), letters: int = 7
) -> None:
    """The marginals as lines from quantile to quantile, the first parameter on top.

    A parameter that would press all others into dots, as an intercept may, is off the axis, its numbers written in its
    row; where the others differ too much as well, each is in its own posterior standard deviations.
    """
    names = marginals.names[part]
    position = np.arange(len(names))[::-1].astype(float)
    wide, unit, off = _axis(marginals)
    inside = ~off[part]
    shift, ends = 0.0 if draws is None else 0.17, []
    for probability, width in ((0.94, 1.4), (0.5, 3.2)):
        interval = marginals.interval(probability) / unit[:, None]
        axes.hlines((position + shift)[inside], *interval[part][inside].T, linewidth=width, color=PALETTE[0])
        ends.append(interval[~off])
        if draws is not None:
            low, high = np.quantile(draws, [(1 - probability) / 2, (1 + probability) / 2], axis=0) / unit
            axes.hlines((position - shift)[inside], low[part][inside], high[part][inside], linewidth=width,
                        color=PALETTE[1])  # fmt: skip
            ends.append(np.stack([low, high])[:, ~off])
    axes.plot((marginals.mean / unit)[part][inside], (position + shift)[inside], "o", markersize=3.5, color=INK)
    if draws is not None:
        means = draws.mean(axis=0) / unit
        axes.plot(means[part][inside], (position - shift)[inside], "s", markersize=3.5, color=INK)
        for marker, colour, words in (("o", PALETTE[0], "approximation"), ("s", PALETTE[1], "reference")):
            axes.plot([], [], marker, linestyle="-", color=colour, mfc=INK, mec=INK, markersize=3.5, label=words)
        axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2)  # pyright: ignore
    values = np.concatenate([end.ravel() for end in ends])
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) > 0:
        axes.set_xlim(values.min() - 0.05 * np.ptp(values), values.max() + 0.05 * np.ptp(values))
    if axes.get_xlim()[0] < 0 < axes.get_xlim()[1]:
        axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    for k in np.flatnonzero(~inside):
        place = int(np.arange(len(marginals.names))[part][k])
        words = f"{number(marginals.mean[place])} ({number(wide[place, 0])} to {number(wide[place, 1])}), off the axis"
        axes.text(0.02, position[k], words, transform=axes.get_yaxis_transform(), fontsize=letters, va="center")
    axes.set_yticks(position, [shortened(name, 28) for name in names], fontsize=letters, parse_math=False)
    axes.set_ylim(-0.8, len(names) - 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("value" if (unit == 1).all() else "value, in posterior standard deviations")
    first, last, _ = part.indices(len(marginals.names))
    whole = last - first == marginals.total
    axes.set_title(
        f"{marginals.title}: mean, 50%, 94%"
        if whole
        else f"{marginals.title} {first + 1} to {last} of {marginals.total}"
    )


def _axis(marginals: Marginals) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """94% intervals, the unit of each parameter, and which of them are off the axis that the others share."""
    wide = marginals.interval(0.94)
    known, off = np.isfinite(wide).all(axis=1), np.zeros(len(wide), bool)

    def span(kept: np.ndarray) -> float:
        return float(np.ptp(wide[kept])) if kept.any() else 0.0

    for _ in range(max(1, len(wide) // 10)):
        kept = known & ~off
        if kept.sum() < 2:
            break
        # Without the one at an end of the axis, whichever saves more.
        chosen = np.flatnonzero(kept)
        candidates = {int(chosen[wide[chosen, 0].argmin()]), int(chosen[wide[chosen, 1].argmax()])}
        spans = {k: span(kept & (np.arange(len(wide)) != k)) for k in candidates}
        best = min(spans, key=lambda k: spans[k])
        intercept = marginals.names[best].strip("(").casefold().startswith("intercept")
        few = kept.sum() < 3 and not intercept
        if few or spans[best] * (_CROWDED_INTERCEPT if intercept else _CROWDED) > span(kept):
            break
        off[best] = True
    kept, width = known & ~off, np.ptp(wide, axis=1)
    if kept.sum() > 1 and (width[kept] > 0).all() and np.mean(width[kept] < _DOT * span(kept)) >= 0.5:
        return wide, np.where(width > 0, width / (2 * _NINETY_FOUR), 1.0), np.logical_not(known)
    return wide, np.ones(len(wide)), off


def read_marginals(posterior: Any, reference: Any, most: int) -> tuple[Marginals, np.ndarray | None]:
    """The marginals of the first `most` parameters and, in the same columns, the reference draws if there are any."""
    return model_marginals(posterior, most), None if reference is None else reference_columns(
        reference, posterior, most
    )


def shortened(text: Any, most: int) -> str:
    """On one line, of characters that can be printed, and at most `most` of them, the middle then an ellipsis."""
    line = " ".join(str(text).split())
    # Controls and lone surrogates are no characters of XML or UTF-8; formats (Cf) can reverse what stands after them,
    # but for the two joiners, of which emoji and some scripts are made.
    line = "".join(
        "\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Cn") and c not in "\u200c\u200d" else c for c in line
    )
    if len(line) <= most:
        return line
    # Long names often differ at their ends.
    end = (most - 1) // 3
    return line[: most - 1 - end].rstrip() + "…" + line[len(line) - end :].lstrip()


def _level(distance: Any) -> str:
    return f"{distance.status}, {100 * distance.confidence:g}%"


def _histogram(axes: Axes, values: np.ndarray, **look: Any) -> None:
    """A histogram as steps, its area the share of the draws that it shows: the central 99%."""
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [0.005, 0.995]) if values.size else (0.0, 0.0)
    if high <= low:  # a constant
        axes.axvline(low, **{name: value for name, value in look.items() if name not in ("fill", "alpha")})
        return
    counts, edges = np.histogram(values, bins=40, range=(low, high))
    axes.stairs(counts / (len(values) * np.diff(edges)), edges, **look)


def _legend_entries(panels: Iterable[Axes]) -> dict[str, Any]:
    """Label -> handle over all panels: the first one may lack the reference."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found
