"""What the pictures share: the house style around a figure, and a legend below it."""

import contextlib
from collections.abc import Iterator
from typing import Any

from provi.report.style import figure_style


@contextlib.contextmanager
def picture(width: float | int, height: float | int) -> Iterator[Any]:
    """An empty figure of so many inches, drawn in the house style; matplotlib is imported here and not before."""
    from matplotlib.figure import Figure

    with figure_style():
        yield Figure(figsize=(width, height))


def legend_below(figure: Any, axis: Any, columns: int) -> None:
    """The legend of all panels, which is that of `axis`."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
