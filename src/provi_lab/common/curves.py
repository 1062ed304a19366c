"""One run of a method, followed: what it is called, and what was measured along the way."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from provi_lab.common.tables import Row


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A run.

    - `names`: what all its lines of a table begin with: method, seed, data set and the like.
    - `columns`: what was measured, arrays of one length; the first says when: passes, steps.
    - `more`: what belongs to the run as a whole and not into its lines.
    """

    names: Row
    columns: dict[str, np.ndarray]
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        """A column."""
        return self.columns[name]

    @property
    def method(self) -> str:
        """Its method's name."""
        return self.names["method"]

    @property
    def when(self) -> np.ndarray:
        """The first column."""
        return next(iter(self.columns.values()))

    def rows(self) -> list[Row]:
        """A line a record, for a CSV file."""
        lines = zip(*(column.tolist() for column in self.columns.values()), strict=True)
        return [{**self.names, **dict(zip(self.columns, line, strict=True))} for line in lines]

    def at(self, name: str, when: float | int) -> float:
        """A column's value at this time; NaN where it was not measured."""
        place = np.flatnonzero(self.when == when)
        return float(self[name][place[0]]) if len(place) else math.nan

    def first(self, name: str, level: float | int, along: str | None = None) -> float:
        """When a column is first seen at or below `level`, by the column `along`; infinite if it never is."""
        below = np.flatnonzero(self[name] <= level)
        times = self.when if along is None else self[along]
        return float(times[below[0]]) if len(below) else math.inf

    def settles(self, name: str, level: float | int) -> float:
        """The first time from which a column is at most `level` to the end of the run; infinite if there is none."""
        above = np.flatnonzero(~(self[name] <= level))
        after = above[-1] + 1 if len(above) else 0
        return float(self.when[after]) if after < len(self.when) else math.inf


def select(curves: Iterable[Curve], **names: Any) -> list[Curve]:
    """The runs of these names: `select(curves, data="sonar", method="SGD")`."""
    return [curve for curve in curves if names.items() <= curve.names.items()]


def all_rows(curves: Iterable[Curve]) -> list[Row]:
    """The lines of all runs, one after the other."""
    return [row for curve in curves for row in curve.rows()]
