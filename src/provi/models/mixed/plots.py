"""Pictures of a mixed model: fixed effects with their intervals, and the effects of levels in order."""

import math
from typing import Any

import numpy as np

from provi.models.mixed.assembly import Assembly
from provi.report.style import INK, PALETTE, figure_style
from provi.result.summary import Summary

_COLUMNS = 3


def plot_effects(summary: Summary, effects: Any, assembly: Assembly, most: int = 40) -> Any:
    """One panel for the fixed effects, one for scales and correlations, and one for each effect that varies.

    **Arguments:**

    - `effects`: the frame of `MixedModel.ranef`. - `most`: levels shown of a group; the outermost of more are kept.
    """
    import matplotlib.pyplot as plt

    names, structured = assembly.priors.fixed.names, {term.name: term for term in assembly.design.structured}
    places = [(term, effect) for term, effect in effects[["term", "effect"]].drop_duplicates().itertuples(index=False)]
    chosen = [k for k, name in enumerate(summary.names) if name in names and name != "Intercept"]
    chosen = chosen or [k for k, name in enumerate(summary.names) if name in names]
    rest = [k for k, name in enumerate(summary.names) if name not in names]
    panels = bool(chosen) + bool(rest) + len(places)
    wide = 2 if panels == 4 else min(panels, _COLUMNS)
    tall = max(len(chosen), len(rest), *(min(len(part), most) for _, part in effects.groupby(["term", "effect"])), 4)
    with figure_style():
        high = math.ceil(panels / wide)
        figure = plt.figure(figsize=(3.4 * wide, high * min(1.1 + 0.17 * tall, 7.5)))
        axes = iter(np.atleast_1d(figure.subplots(high, wide, squeeze=False)).ravel())
        for rows, title, zero in ((chosen, "Fixed effects", True), (rest, "Scales and other numbers", False)):
            if rows:
                _intervals(
                    next(axes), [summary.names[k] for k in rows], summary.mean[rows], summary.interval[rows], zero
                )
                figure.axes[bool(chosen) and not zero].set_title(title)
        for term, effect in places:
            part = effects[(effects["term"] == term) & (effects["effect"] == effect)]
            axis = next(axes)
            if term in structured and structured[term].kind not in ("besag", "bym2"):
                _curve(axis, structured[term], part)
            else:
                _caterpillar(axis, part, most)
            axis.set_title(term if effect == "value" else f"{effect} by {term}")
        for axis in axes:
            axis.set_axis_off()
        figure.suptitle(f"{100 * summary.probability:g}% intervals", x=0.01, ha="left", fontsize=9)
    return figure


def _intervals(axis: Any, names: list[str], mean: np.ndarray, interval: np.ndarray, zero: bool) -> None:
    places = np.arange(len(names))[::-1]
    axis.hlines(places, interval[:, 0], interval[:, 1], color=PALETTE[0], linewidth=2)
    axis.plot(mean, places, "o", color=PALETTE[0])
    if zero:
        axis.axvline(0, color=INK, linewidth=0.6, alpha=0.5)
    elif (interval > 0).all():
        axis.set_xlim(0, 1.05 * float(interval.max()))
    axis.set_yticks(places, names)
    axis.set_ylim(-0.7, len(names) - 0.3)


def _caterpillar(axis: Any, part: Any, most: int) -> None:
    """Levels by their mean; of many, the outermost on both sides."""
    part = part.sort_values("mean")
    hidden = max(len(part) - most, 0)
    if hidden:
        lower = most // 2
        part = part.iloc[[*range(lower), *range(len(part) - (most - lower), len(part))]]
        axis.set_xlabel(f"{hidden} levels in the middle are not shown")
    interval = part[["lower", "upper"]].to_numpy()
    _intervals(axis, [str(level) for level in part["level"]][::-1], part["mean"].to_numpy()[::-1], interval[::-1], True)


def _curve(axis: Any, term: Any, part: Any) -> None:
    """A function of time, or of one input, with its band; of several inputs, points in order."""
    inputs = np.asarray(term.levels, float)
    flat = inputs if inputs.ndim == 1 else inputs[:, 0]
    if inputs.ndim == 2 and inputs.shape[1] > 1:
        _caterpillar(axis, part, 40)
        return
    axis.axhline(0, color=INK, linewidth=0.6, alpha=0.5)
    axis.fill_between(flat, part["lower"], part["upper"], color=PALETTE[0], alpha=0.25, linewidth=0)
    axis.plot(flat, part["mean"], color=PALETTE[0])
    if np.array_equal(flat, np.round(flat)):
        axis.xaxis.get_major_locator().set_params(integer=True)  # years, not half years
    axis.set_xlabel(", ".join(term.columns))
