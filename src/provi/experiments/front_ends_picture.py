"""The picture of `front-ends`: errors of means and sds against NUTS, coordinate by coordinate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from provi.experiments.front_end_models import FRONT_ENDS
from provi.report.style import INK, PALETTE, figure_style

_MARKERS = ("o", "x", "+")


def draw(found: Sequence[Any]) -> Any:
    """Two rows (means, sds), a column for each model; the bands are two standard errors of NUTS."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(each.problem.name for each in found))
    with figure_style():
        figure = Figure(figsize=(3.6 * len(names), 5.6))
        _fill(figure.subplots(2, len(names), squeeze=False, sharex="col"), names, found)
    return figure


def _fill(axes: Any, names: Sequence[str], found: Sequence[Any]) -> None:
    for column, name in enumerate(names):
        own = [each for each in found if each.problem.name == name]
        _panel(axes[0, column], own, "mean_error", "mean_noise")
        _panel(axes[1, column], own, "deviation_error", "deviation_noise")
        axes[0, column].set_title(f"{name}: k-hat {own[0].tail:.2f}")
    axes[0, 0].set_ylabel("error of the mean, posterior sds")
    axes[1, 0].set_ylabel("relative error of the sd")
    axes[0, 1 % len(names)].legend(loc="lower left")


def _panel(axis: Any, own: Sequence[Any], error: str, noise: str) -> None:
    places = np.arange(len(own[0].mean_error))
    band = 2 * getattr(own[0], noise)
    axis.bar(places, 2 * band, 0.9, bottom=-band, color="0.88", label="NUTS, 2 standard errors")
    axis.axhline(0, color=INK, linewidth=0.8)
    for each in own:
        number = FRONT_ENDS.index(each.front_end)
        shift = 0.2 * (number - (len(own) - 1) / 2)
        axis.plot(
            places + shift, getattr(each, error), _MARKERS[number], color=PALETTE[number], label=each.front_end, ms=5
        )
    axis.set_xticks(places, own[0].names, rotation=90)
