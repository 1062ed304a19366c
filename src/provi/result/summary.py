"""A table of marginals: mean, standard deviation and central interval, by name."""

import dataclasses
import io

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of marginals; prints itself, `to_dict()` for code. `notes`: lines that stand under the table."""

    names: tuple[str, ...]
    mean: np.ndarray
    standard_deviation: np.ndarray
    interval: np.ndarray
    probability: float
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, dict[str, float]]:
        """name -> {"mean", "sd", "low", "high"}."""
        columns = zip(self.names, self.mean, self.standard_deviation, self.interval, strict=True)
        return {
            name: {"mean": float(mean), "sd": float(sd), "low": float(low), "high": float(high)}
            for name, mean, sd, (low, high) in columns
        }

    def table(self, largest: int = 40) -> Table:
        """A rich table of at most `largest` rows."""
        tail = 50 * (1 - self.probability)
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("parameter")
        for name in ("mean", "sd", f"{tail:g}%", f"{100 - tail:g}%"):
            table.add_column(name, justify="right")
        numbers = np.column_stack([self.mean, self.standard_deviation, self.interval])
        for name, row in zip(self.names[:largest], numbers[:largest], strict=True):
            # A `Text`, so that brackets in a name are no markup, whatever console prints the table.
            table.add_row(Text(name), *(f"{value:.3f}" for value in row))
        if len(self.names) > largest:
            table.add_row(f"... {len(self.names) - largest} more", "", "", "", "")
        return table

    def __str__(self) -> str:
        console = Console(width=100, file=io.StringIO())
        console.print(self.table())
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
