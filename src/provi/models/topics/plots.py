"""Pictures of a topic model: the words of each topic, and how the topics go together."""

import textwrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator
from scipy.cluster.hierarchy import leaves_list, linkage

from provi.core.arguments import as_array, check_count, check_length
from provi.report.style import INK, PALETTE, figure_style

_LITERAL: dict[str, Any] = {"parse_math": False, "usetex": False}  # a $ in a word is a dollar, not a formula
_CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}
_NEGATIVE, _POSITIVE, _BLANK = PALETTE[1], PALETTE[0], "#EBEBEB"
_DIVERGING = LinearSegmentedColormap.from_list("provi-diverging", (_NEGATIVE, "white", _POSITIVE))
_EDGES = ((_POSITIVE, 0.9), (_NEGATIVE, 0.5))  # with their opacity: the negative ones are long and cross the others
_LARGEST_WITH_VALUES, _LINE_WIDTH = 12, 6.0  # points for an edge of correlation 1
_NODE_RADIUS, _SMALLEST_RADIUS, _GAP = 0.19, 0.13, 0.05  # in inches, as all lengths of the graph


def plot_topics(top_words: list[list], weights: Any, *, shares: Any = None, columns: int = 5) -> Figure:
    """One panel a topic: bars of p(word | topic) of its first words, on one scale, so that topics can be compared.

    **Arguments:**

    - `top_words`: of each topic its n first words; shown in this order, those of more than 16 characters shortened.
      Scripts beyond matplotlib's own font need one that has them: `matplotlib.rcParams["font.family"]`.
    - `weights`: their probabilities, (topics, n).
    - `shares`: the topics' mean shares of the corpus, (topics,), for the titles.
    - `columns`: panels in a row.

    **Returns:** a matplotlib figure, higher for each row of panels. Topic k is row k of `components_`.
    """
    weights = as_array("weights", weights, ndim=2)
    if [len(words) for words in top_words] != [weights.shape[1]] * len(weights):
        raise ValueError(f"top_words must hold a word for each of weights, whose shape is {weights.shape}.")
    if (weights < 0).any():
        raise ValueError(f"weights must not be negative, but the least is {weights.min():.3g}; pass probabilities.")
    shares = None if shares is None else _check_shares(shares, len(weights))
    columns = min(check_count("columns", columns), len(weights))
    rows = 1 + (len(weights) - 1) // columns
    with figure_style():
        figure = plt.figure(layout="none")
        panels = [figure.add_axes((0, 0, 1, 1), label=f"topic {topic}") for topic in range(len(weights))]
        for topic, panel in enumerate(panels):
            _bars(panel, top_words[topic], weights[topic])
            panel.set_xlim(0, 1.05 * weights.max() or 1)
            panel.tick_params(axis="x", labelbottom=topic + columns >= len(weights))
        margin, width, height = _names_width(panels) + 0.15, 1.3, 0.145 * weights.shape[1]
        for topic, panel in enumerate(panels):
            share = "" if shares is None else f" · {shares[topic]:.0%}".replace(" 0%", " <1%")
            panel.set_title(f"Topic {topic}{share}", fontweight="bold", x=-margin / width + 0.05)
        across, down = margin + width + 0.15, height + 0.4
        top = 0.45 + (rows - 1) * down
        boxes = [(margin + j * across, top - i * down, width, height) for i, j in np.ndindex(rows, columns)]
        _place(figure, (columns * across, rows * down + 0.45), panels, boxes)
        figure.text(0.5, 0.06 / figure.get_figheight(), "p(word | topic)", ha="center")
    return figure


def plot_correlations(correlation: Any, labels: Any = None, *, shares: Any = None, threshold: Any = None) -> Figure:
    r"""The graph of the stronger correlations of topics, beside all of them with similar topics side by side.

    Nodes i and j of the graph want the distance $\sqrt{2(1-r_{ij})}$, that of standardised variables; then they are
    moved until no label covers another. The diagonal of the matrix is left grey.

    **Arguments:**

    - `correlation`: (topics, topics). Of z less its mean over the K topics, independent topics have -1/(K - 1).
    - `labels`: some words for each topic, written after its number, the row of `components_`.
    - `shares`: the topics' mean shares of the corpus, (topics,), for the areas of the nodes; the smallest are enlarged.
    - `threshold`: pairs with |r| above it have an edge. Default: 0.1, or more so that there are 2 K edges at most.

    **Returns:** a matplotlib figure; the same arguments give the same picture.
    """
    correlation = _check_correlation(correlation)
    size, order = len(correlation), _similarity_order(correlation)
    names = [""] * size if labels is None else [_clean(label, 34) for label in labels]
    check_length("labels", np.empty(len(names)), size, "correlation")
    areas = np.ones(size) if shares is None else _check_shares(shares, size)
    radii = np.maximum(_NODE_RADIUS * np.sqrt(areas / max(areas.mean(), 1e-9)), _SMALLEST_RADIUS)
    threshold = _default_threshold(correlation) if threshold is None else float(threshold)
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must lie in [0, 1], not {threshold}: it is a correlation.")
    with figure_style():
        figure = plt.figure(layout="none")
        graph, matrix, bar = (figure.add_axes((0, 0, 1, 1), label=part) for part in ("graph", "matrix", "bar"))
        width, height = _draw_graph(graph, correlation, names, radii, threshold)
        _draw_matrix(matrix, bar, correlation[np.ix_(order, order)], [names[k] for k in order], order)
        left = 0.6 + width + _names_width([matrix])
        boxes = [(0.15, 0.45, width, height), (left, 0.45, height, height), (left + height + 0.12, 0.45, 0.12, height)]
        _place(figure, (left + height + 1.0, height + 0.9), [graph, matrix, bar], boxes)
    return figure


def _bars(axes: Axes, words: list, weights: np.ndarray) -> None:
    position = np.arange(len(words))
    axes.barh(position, weights, height=0.72, color=PALETTE[0])
    axes.set_yticks(position, [_clean(word, 16) for word in words], **_LITERAL)
    axes.set_ylim(len(words) - 0.4, -0.6)  # the first word on top
    axes.tick_params(axis="y", length=0, pad=2)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.spines["left"].set_visible(False)


def _draw_graph(axes: Axes, correlation: np.ndarray, names: list[str], radii: np.ndarray, threshold: float) -> list:
    """Nodes, edges and labels, in inches from the lower left corner; returns the extent of the graph."""
    ground = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.3}  # where an edge passes below the words
    wrapped = [textwrap.fill(name, 16, break_long_words=False) for name in names]
    texts = [axes.text(0, 0, name, ha="center", va="top", zorder=4, bbox=ground, **_LITERAL) for name in wrapped]
    extents = np.asarray([text.get_window_extent().size for text in texts]) / axes.figure.dpi
    boxes = np.stack((np.maximum(2 * radii, extents[:, 0]), 2 * radii + extents[:, 1]), axis=1) + 2 * _GAP
    points, extent = _separate(_stress_layout(correlation), boxes, max(4.0, 0.17 * len(radii)) * np.array((1.3, 1.0)))
    centres = points + np.stack((np.zeros(len(radii)), boxes[:, 1] / 2 - _GAP - radii), axis=1)
    pairs = np.argwhere(np.triu(np.abs(correlation) > threshold, 1))
    values = correlation[pairs[:, 0], pairs[:, 1]]
    upwards = np.argsort(values, kind="stable")  # positive ones above: they are shorter and would be hidden
    colours = [_EDGES[int(value < 0)] for value in values[upwards]]
    widths = _LINE_WIDTH * np.abs(values[upwards])
    axes.add_collection(LineCollection(list(centres[pairs[upwards]]), colors=colours, linewidths=widths))
    for k, (x, y) in enumerate(centres.tolist()):
        axes.add_patch(Circle((x, y), radii[k], facecolor=_BLANK, edgecolor=INK, linewidth=0.8, zorder=3))
        axes.text(x, y, str(k), **_CENTRED, fontweight="bold", zorder=4)
        texts[k].set_position((x, y - radii[k] - 0.03))
    axes.set(xlim=(0, extent[0]), ylim=(0, extent[1]), title=f"Correlations beyond ±{threshold:.2g}")
    axes.set_axis_off()
    samples = zip(("r = +0.5", "r = −0.5"), _EDGES, strict=True)
    keys = [Line2D([], [], color=colour, linewidth=0.5 * _LINE_WIDTH, label=label) for label, colour in samples]
    axes.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2)
    return extent.tolist()


def _draw_matrix(axes: Axes, bar: Axes, correlation: np.ndarray, names: list[str], order: np.ndarray) -> None:
    """The matrix as it stands, its colours symmetric about 0."""
    size = len(order)
    off_diagonal = np.ma.masked_array(correlation, np.eye(size, dtype=bool))
    limit = max(0.1, np.ceil(10 * np.abs(off_diagonal).max() - 1e-9) / 10) if size > 1 else 1.0
    mesh = axes.pcolormesh(off_diagonal, cmap=_DIVERGING, vmin=-limit, vmax=limit, edgecolors="white", linewidth=0.5)
    axes.set_facecolor(_BLANK)
    centres = np.arange(size) + 0.5
    axes.set_xticks(centres, [str(k) for k in order])
    labels = [f"{name}  {k}" if name else str(k) for k, name in zip(order, names, strict=True)]
    axes.set_yticks(centres, labels, **_LITERAL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(ylim=(size, 0), title="All correlations, similar topics side by side")
    if size <= _LARGEST_WITH_VALUES:
        for i, j in np.argwhere(~np.eye(size, dtype=bool)):
            value = np.round(correlation[i, j], 2) + 0.0  # + 0.0: no "-0.00"
            colour = "white" if abs(value) > 0.6 * limit else INK
            axes.text(j + 0.5, i + 0.5, f"{value:.2f}".replace("-", "−"), color=colour, size=7, **_CENTRED)
    axes.figure.colorbar(mesh, cax=bar, ticks=np.linspace(-limit, limit, 5), format="{x:.2g}", label="correlation r")


def _names_width(panels: list[Axes]) -> float:
    """The width in inches of the longest name at the vertical axes."""
    widths = [text.get_window_extent().width for panel in panels for text in panel.get_yticklabels()]
    return max(widths) / panels[0].figure.dpi


def _place(figure: Figure, size: tuple[float, float], panels: list[Axes], boxes: list[tuple]) -> None:
    """Left, bottom, width and height of each panel in inches; constrained layout takes seconds for many panels."""
    figure.set_size_inches(*size)
    for panel, box in zip(panels, boxes, strict=False):  # the last row may have fewer panels than boxes
        panel.set_position(np.divide(box, 2 * size).tolist())


def _stress_layout(correlation: np.ndarray) -> np.ndarray:
    r"""Points that minimise $\sum_{i<j}(\|p_i-p_j\|/d_{ij}-1)^2$, $d_{ij}=\sqrt{2(1-r_{ij})}$, by majorisation."""
    size = len(correlation)
    wanted = np.sqrt(2 * np.maximum(1 - correlation, 0.02))
    centring = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(centring @ correlation @ centring)
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(size)])  # eigh leaves them open
    points = (vectors * signs * np.sqrt(np.maximum(values, 0)))[:, :-3:-1]
    # A little of a circle: with equal distances, classical scaling may put many into one point.
    points = points + 0.1 * np.exp(2j * np.pi * np.arange(size) / size).view(np.float64).reshape(size, 2)
    weights = 1 / wanted**2
    inverse = np.linalg.pinv(np.diag(weights.sum(axis=1)) - weights)
    for _ in range(200):
        distances = np.linalg.norm(points[:, None] - points[None], axis=2) + np.eye(size)
        ratios = weights * wanted / np.maximum(distances, 1e-9) * (1 - np.eye(size))
        points = inverse @ (np.diag(ratios.sum(axis=1)) - ratios) @ points
    return points


_MOST_GROWTHS = 100  # by a tenth each: to 14,000 times the size


def _separate(points: np.ndarray, boxes: np.ndarray, extent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centres of the boxes, spread over the extent and moved until no two overlap; and the extent, grown if need be."""
    low, high, largest = points.min(axis=0), points.max(axis=0), boxes.max(axis=0)
    extent = np.maximum(extent, largest)
    scale = ((extent - largest) / np.maximum(high - low, 1e-6)).min()  # one for both axes: distances have a meaning
    places = extent / 2 + scale * (points - (low + high) / 2)
    earlier = np.where(np.tri(len(points), dtype=bool), 1.0, -1.0)[..., None]  # which way to go from the same place
    reach = (boxes[:, None] + boxes[None]) / 2
    for _ in range(_MOST_GROWTHS):
        for _ in range(200):
            apart = places[:, None] - places[None]
            overlap = reach - np.abs(apart)
            overlapping = (overlap > 1e-9).all(axis=2) & ~np.eye(len(points), dtype=bool)
            if not overlapping.any():
                return places, extent
            direction = np.where(apart == 0, earlier, np.sign(apart))
            chosen = np.arange(2) == overlap.argmin(axis=2)[..., None]
            moves = np.where(chosen & overlapping[..., None], 0.51 * overlap * direction, 0.0)
            places = np.clip(places + moves.sum(axis=1), boxes / 2, extent - boxes / 2)
        extent, places = 1.1 * extent, 1.1 * places  # separates all points in the end
    return places, extent


def _similarity_order(correlation: np.ndarray) -> np.ndarray:
    """The topics along the tree of average linkage, turned so that neighbours are as similar as they can be."""
    if len(correlation) < 3:
        return np.arange(len(correlation))
    distances = np.sqrt(2 * np.maximum(1 - correlation[np.triu_indices(len(correlation), 1)], 0))
    return leaves_list(linkage(distances, method="average", optimal_ordering=True))


def _default_threshold(correlation: np.ndarray) -> float:
    """0.1, or the (2 K + 1)-th largest |r| where that is more: at most 2 K are above it, also with ties."""
    sizes = np.sort(np.abs(correlation[np.triu_indices(len(correlation), 1)]))[::-1]
    return float(np.max(sizes[2 * len(correlation) :], initial=0.1))


def _check_correlation(value: Any) -> np.ndarray:
    matrix = as_array("correlation", value, ndim=2).astype(np.float64)
    if matrix.shape != matrix.T.shape or np.abs(matrix - matrix.T).max() > 1e-5 or np.abs(matrix).max() > 1 + 1e-5:
        raise ValueError("correlation must be a symmetric matrix with entries in [-1, 1]; a covariance will not do.")
    return (matrix + matrix.T) / 2


def _check_shares(value: Any, size: int) -> np.ndarray:
    shares = as_array("shares", value, ndim=1).astype(np.float64)
    check_length("shares", shares, size, "the number of topics")
    if shares.min() < 0 or shares.max() > 1 + 1e-6:
        raise ValueError("shares must lie in [0, 1]; pass the mean over documents of what `transform` returns.")
    return shares


def _clean(text: Any, most: int) -> str:
    """On one line and with at most `most` characters, the last an ellipsis where some are left out."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
