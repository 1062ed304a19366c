"""The look of every picture: few colours, no frame, labels that can be read in print."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provi.certificates.bounds import at_most
from provi.core.files import replacing

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's colours, told apart with every common colour-vision deficiency; strongest contrasts first."""

INK = "#333333"
"""Axes, text and reference lines."""

_SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "figure.titlesize": 11,
    "font.size": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "savefig.dpi": 150,
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 8,
    "ytick.color": INK,
    "ytick.labelsize": 8,
}


def number(value: float, digits: int = 3) -> str:
    """A number for people: `digits` significant ones, a true minus sign, 85,300 and not 8.53e+04."""
    if math.isnan(value):
        return "not finite"
    text = f"{float(value):.{digits}g}"
    if "e+" in text and abs(float(value)) < 1e7:
        text = f"{float(text):,.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def upper_bound(value: float, digits: int = 3) -> str:
    """An upper bound for people: like `number`, but rounded up."""
    return number(float(at_most(value, digits)), digits)


@contextlib.contextmanager
def figure_style() -> Iterator[None]:
    """Within it, new matplotlib figures have ProVI's look; the user's own settings come back afterwards."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({**_SETTINGS, "axes.prop_cycle": cycler(color=PALETTE)}):
        yield


def save_figure(figure: Any, path: Path) -> Path:
    """Write the picture as PNG without any display, and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    with replacing(path) as draft:
        figure.savefig(draft)
    return path
