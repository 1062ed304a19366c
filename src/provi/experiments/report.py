"""What an experiment hands back: a table, a verdict on each claim, and the files it wrote."""

import csv
import dataclasses
import os
import platform
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = dict[str, Any]
"""One line of a table: column name to value."""

Verdict = Literal["holds", "does not hold", "not tested"]

_COLOURS = {"holds": "green", "does not hold": "red", "not tested": "yellow"}


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper, what this run says about it, and the numbers behind the verdict."""

    statement: str
    verdict: Verdict
    evidence: str

    @staticmethod
    def of(statement: str, holds: Any, evidence: str) -> "Claim":
        """The verdict of a test that was made: `holds` is its truth value."""
        return Claim(statement, "holds" if bool(holds) else "does not hold", evidence)


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome of one experiment.

    - `name`: as in `EXPERIMENTS`; `title`, `setting`: what was run and how it was measured.
    - `rows`: the summary table; `claims`: one verdict each; `files`: pictures and tables written.
    - `seconds`: wall-clock time of the whole experiment.
    """

    name: str
    title: str
    setting: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    files: tuple[Path, ...]
    seconds: float

    def print(self, console: Console | None = None) -> None:
        """The table and the verdicts, for the terminal."""
        if console is None:
            console = Console()
            # A file or a pipe has no width of its own; 80 columns would cut the tables.
            console = console if console.is_terminal else Console(width=120)
        table = Table(title=self.title, title_justify="left")
        for column in self.rows[0]:
            table.add_column(escape(column), justify="left" if isinstance(self.rows[0][column], str) else "right")
        for row in self.rows:
            table.add_row(*(escape(format_value(value, 3)) for value in row.values()))
        console.print(table)
        for claim in self.claims:
            colour = _COLOURS[claim.verdict]
            console.print(f"[{colour}]{claim.verdict}[/{colour}]: {escape(claim.statement)}", highlight=False)
            console.print(f"    {escape(claim.evidence)}", style="dim", highlight=False)
        for file in self.files:
            console.print(f"wrote {file}", highlight=False)

    def markdown(self) -> str:
        """The same as a page, with the pictures in it and where it was run."""
        names = list(self.rows[0])
        pictures = [f"![{self.title}]({file.name})" for file in self.files if file.suffix == ".png"]
        tables = [f"[{file.name}]({file.name})" for file in self.files if file.suffix == ".csv"]
        claims = [f"| {_cell(c.statement)} | **{c.verdict}** | {_cell(c.evidence)} |" for c in self.claims]
        rows = ["| " + " | ".join(_cell(format_value(v)) for v in row.values()) + " |" for row in self.rows]
        parts = [
            f"# {self.title}",
            self.setting,
            "\n".join(pictures),
            "## Claims",
            "\n".join(["| Claim | Verdict | Measured |", "| --- | --- | --- |", *claims]),
            "## Numbers",
            "\n".join(["| " + " | ".join(names) + " |", "| " + " | ".join(["---"] * len(names)) + " |", *rows]),
            f"All recorded values: {', '.join(tables)}.",
            f"Made by `provi reproduce {self.name}` in {self.seconds:.0f} s: {surroundings()}. This page is "
            f"written by the run; do not edit it.",
        ]
        return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """The text with its bars escaped, or |x| would end a table's cell."""
    return text.replace("|", "\\|")


def finish(report: Report, output: Path) -> Report:
    """Print the report, write its page `NAME.md` beside its files, and return it with the page added."""
    page = output / f"{report.name}.md"
    report = dataclasses.replace(report, files=(*report.files, page))
    page.write_text(report.markdown(), encoding="utf-8")
    report.print()
    return report


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Rows as a CSV file with full precision."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def format_value(value: Any, digits: int = 4) -> str:
    """A few significant digits, for people."""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def surroundings() -> str:
    """Date, processor and versions, so that a number can be traced."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "equinox", "numpy"))
    return (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()} with {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {versions}"
    )
