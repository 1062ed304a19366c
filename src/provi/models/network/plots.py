"""Pictures of a Bayesian network: is it as right as it is sure, does it know strange inputs, how did it train."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, MultipleLocator, NullFormatter, NullLocator
from scipy import ndimage
from scipy.stats import beta

from provi.core.arguments import as_array, check_length
from provi.models.network.predictive import calibration
from provi.report.style import INK, PALETTE, figure_style, number

_SIZE = (4.1, 3.5)  # inches; as the pictures of other reports
_LEVEL = 0.9  # of the intervals of the reliability diagram
_MARKS = ("o", "s", "^", "D", "v", "P")
_WIDE = 10.0  # a ratio of largest to smallest from which an axis is logarithmic


def plot_reliability(probabilities: Any, labels: Any, num_bins: int = 15) -> Figure:
    """Accuracy against confidence in bins of equal width, and the share of the predictions in each bin.

    On the diagonal a model is right as often as it says. Bars are exact (Clopper-Pearson) 90% intervals of a bin's
    accuracy: a bin with few predictions may be far from the diagonal by chance.

    **Arguments:**

    - `probabilities`: predictive, (n, k); `labels`: the true classes as columns of them, (n,).
    """
    found = calibration(probabilities, labels, num_bins)
    used = found.count > 0
    count, confidence, right = found.count[used], found.confidence[used], found.accuracy[used]
    hits, tail = np.rint(right * count), (1 - _LEVEL) / 2
    low = np.where(hits > 0, beta.ppf(tail, hits, count - hits + 1), 0.0)
    high = np.where(hits < count, beta.ppf(1 - tail, hits + 1, count - hits), 1.0)
    with figure_style():
        figure, (upper, lower) = plt.subplots(
            2, 1, figsize=(_SIZE[0], 4.4), layout="constrained", sharex=True, height_ratios=(3, 1)
        )
        upper.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":", label="as right as it says")
        upper.errorbar(
            confidence,
            right,
            yerr=(np.maximum(right - low, 0), np.maximum(high - right, 0)),
            fmt="o",
            capsize=0,
            elinewidth=1,
            label=f"bins, {100 * _LEVEL:g}% intervals",
        )
        upper.set(ylim=(-0.02, 1.02), ylabel="share that is right")
        upper.set_title(f"Reliability; expected calibration error {number(found.expected_error, 2)}")
        share = found.count / found.count.sum()
        lower.bar(found.edges[:-1], share, np.diff(found.edges), align="edge", edgecolor="white", color=PALETTE[0])
        lower.set(xlim=(0, 1), ylim=(0, None), xlabel="confidence: the largest probability", ylabel="share of rows")
        _legend_below(upper)
    return figure


def plot_rotation_entropy(degrees: Any, entropies: Any, num_classes: int | None = None) -> Figure:
    r"""The predictive entropy of rotated inputs: medians, with bands from the 10% to the 90% quantile of the inputs.

    **Arguments:**

    - `degrees`: the angles, (a,).
    - `entropies`: (a, n), of n inputs at each angle, in nats; or a dictionary of such arrays by name, to compare.
    - `num_classes`: draws a line at $\log k$, complete ignorance.
    """
    angles = as_array("degrees", degrees, ndim=1)
    named = dict(entropies) if isinstance(entropies, Mapping) else {"median, band 10% to 90%": entropies}
    _check_few(named)
    with figure_style():
        figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
        for k, (name, values) in enumerate(named.items()):
            table = as_array("entropies", values, ndim=2)
            check_length("entropies", table, len(angles), "degrees")
            low, middle, high = np.quantile(table, (0.1, 0.5, 0.9), axis=1)
            axes.plot(angles, middle, marker=_MARKS[k], label=name)
            axes.fill_between(angles, low, high, alpha=0.2, linewidth=0)
        if num_classes is not None:
            words = f"log {num_classes}: knows nothing"
            axes.axhline(np.log(num_classes), color=INK, linewidth=0.8, linestyle=":", label=words)
        if np.ptp(angles) >= 60:
            axes.xaxis.set_major_locator(MultipleLocator(30 if np.ptp(angles) <= 180 else 60))
        axes.set_ylim(bottom=0)
        axes.set(xlabel="rotation (degrees)", ylabel="predictive entropy (nats)", title="Entropy under rotation")
        _legend_below(axes)
    return figure


def plot_training(curves: Mapping[str, tuple[Any, Any]]) -> Figure:
    """The -ELBO in nats per row of data along the training, for one method or several.

    **Arguments:**

    - `curves`: by name of the method, epochs (t,) and values (t,), or (seeds, t), of which mean and band of one
      standard deviation are drawn.
    """
    _check_few(curves)
    lowest, highest = np.inf, -np.inf
    with figure_style():
        figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
        for k, (name, (epochs, values)) in enumerate(curves.items()):
            steps, table = np.asarray(epochs, dtype=float), np.atleast_2d(np.asarray(values, dtype=float))
            if steps.ndim != 1 or table.shape[1:] != steps.shape:
                raise ValueError(
                    f"curves[{name!r}] must be epochs (t,) and values (t,) or (seeds, t); the shapes are "
                    f"{steps.shape} and {table.shape}."
                )
            middle = table.mean(axis=0)
            axes.plot(steps, middle, marker=_MARKS[k] if len(steps) <= 30 else "", label=name)
            if len(table) > 1:
                spread = table.std(axis=0, ddof=1)
                axes.fill_between(steps, middle - spread, middle + spread, alpha=0.2, linewidth=0)
            shown = middle[np.isfinite(middle)]
            lowest, highest = min([lowest, *shown]), max([highest, *shown])
        if 0 < lowest and highest > _WIDE * lowest:
            _logarithmic(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        single = next(iter(curves)) if len(curves) == 1 else None
        axes.set(xlabel="epochs", ylabel="−ELBO per row (nats)")
        axes.set_title("−ELBO by epoch" if single is None else f"−ELBO by epoch, method {single}")
        if single is None:
            _legend_below(axes)
    return figure


def rotate(images: Any, degrees: float | int) -> np.ndarray:
    """Images (n, h, w) or (n, h, w, channels) turned counter-clockwise about their centre, in float32.

    Inputs that drift away from those of the training, by as much as one likes. Bilinear between pixels; the size stays,
    corners that turn out of the picture are lost, those that come in are 0. Whole numbers keep their scale: pixels from
    0 to 255 stay between 0.0 and 255.0, and the model's own scaling of uint8 no longer sees them, so divide them by 255
    first.
    """
    pixels = as_array("images", images)
    if pixels.ndim not in (3, 4):
        raise ValueError(f"images must have shape (n, h, w) or (n, h, w, channels), not {pixels.shape}.")
    if not np.isfinite(degrees):
        raise ValueError(f"degrees must be a finite angle, not {degrees}.")
    return ndimage.rotate(pixels.astype(np.float32), degrees, axes=(2, 1), reshape=False, order=1, mode="constant")


def _check_few(curves: Mapping[str, Any]) -> None:
    if not 1 <= len(curves) <= len(PALETTE):
        raise ValueError(f"Between 1 and {len(PALETTE)} curves can be told apart in one picture, not {len(curves)}.")


def _logarithmic(axes: Axes) -> None:
    """Plain numbers at 1, 2 and 5: exponents are too small to read."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend_below(axes: Axes) -> None:
    """Under the picture, where it hides no line."""
    figure: Any = axes.figure
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2)
