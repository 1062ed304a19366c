"""Tables: rows of numbers for files, and the same as cells of text for people."""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from provi.core.files import replacing

Row = dict[str, Any]
"""One line of a table: column name to value."""

Cells = tuple[list[str], list[list[str]]]
"""Column names and lines of text."""


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Rows as a CSV file with full precision."""
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_rows(paths: Iterable[Path]) -> list[dict[str, str]]:
    """The lines of several CSV files, one after the other; files that are not there have none."""
    found = []
    for path in paths:
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as stream:
                found += list(csv.DictReader(stream))
    return found


def grouped(rows: Iterable[Row], name: str) -> dict[str, list[Row]]:
    """The rows of each value of a column, in their order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups


def median(rows: Iterable[Row], name: str) -> float:
    """Of a column, where there is a number in it; NaN where there is none at all."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(np.median(values)) if values else math.nan


def finite(value: float) -> float | None:
    """The number, or None for what JSON cannot write."""
    return float(value) if np.isfinite(value) else None


def cells_of(rows: Sequence[Row], digits: int = 4) -> Cells:
    """Rows as text, all columns of the first one."""
    return list(rows[0]), [[format_value(value, digits) for value in row.values()] for row in rows]


def format_value(value: Any, digits: int = 4) -> str:
    """A few significant digits, for people."""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def number(value: float | int | None, decimals: int | None = None) -> str:
    """Three digits or all before the point, or so many `decimals`; nothing for None."""
    if value is None:
        return ""
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """Whole percents; nothing for None."""
    return "" if value is None else f"{value:.0%}"


def aim(what: str, value: float | int, limit: float | int, *, least: bool = False) -> str:
    """A line about a figure that should be at most `limit`, or at least with `least`; compared before it is rounded."""
    reached = value >= limit if least else value <= limit
    # As many digits as tell the two apart: 0.7905 must not stand as 0.8 beside an aim of 0.8.
    digits = next((d for d in range(3, 17) if value == limit or f"{value:.{d}g}" != f"{limit:.{d}g}"), 17)
    words = f"aim at {'least' if least else 'most'} {limit:g}: {'reached' if reached else '**not reached**'}"
    return f"{what}: {value:.{digits}g}; {words}."


def finite_text(value: float, form: str) -> str:
    """The number in this form; nothing where it is not finite."""
    return f"{value:{form}}" if math.isfinite(value) else ""


def seconds_text(time: Row | None, clock: str) -> str:
    """Seconds without compilation, and with it in brackets."""
    return "-" if time is None else f"{time[clock]:.3g} ({time[clock + '_compiling']:.3g})"


def print_cells(
    title: str, cells: Cells, console: Console | None = None, width: int = 180, words: Sequence[int] | None = None
) -> None:
    """A table on the terminal.

    **Arguments:** `width`: of a file or a pipe, which have none of their own: 80 columns would cut the tables. `words`:
    the columns that are not numbers, by default the first and the last.
    """
    if console is None:
        console = Console()
        console = console if console.is_terminal else Console(width=width)
    names, lines = cells
    left = (0, len(names) - 1) if words is None else words
    table = Table(title=escape(title), title_justify="left")
    for index, name in enumerate(names):
        table.add_column(escape(name), justify="left" if index in left else "right")
    for line in lines:
        table.add_row(*(escape(cell) for cell in line))
    console.print(table)


def markdown_cells(cells: Cells) -> str:
    """The same as a Markdown table; bars are escaped, or |x| would end a cell."""
    lines = [cells[0], ["---"] * len(cells[0]), *cells[1]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
