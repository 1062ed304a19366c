"""What an experiment hands back: a table, a verdict on each claim, and the files it wrote."""

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

from provi.core.files import write_text
from provi.report.style import save_figure
from provi_lab.common.page import About, Page, read_lines, text_of
from provi_lab.common.tables import Row, cells_of, markdown_cells, print_cells, write_rows

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

    - `name`: as in `provi_lab.papers.EXPERIMENTS`; `title`, `setting`: what was run and how it was measured.
    - `rows`: the summary table; `claims`: one verdict each; `files`: pictures and tables written.
    - `seconds`: wall-clock time of the whole experiment.
    - `about`: what its page begins with. `where`, `date`: where and when it was measured, if not here and now.
    """

    name: str
    title: str
    setting: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    files: tuple[Path, ...]
    seconds: float
    about: About | None = None
    where: str = ""
    date: str = ""

    def print(self, console: Console | None = None) -> None:
        """The table and the verdicts, for the terminal."""
        if console is None:
            console = Console()
            console = console if console.is_terminal else Console(width=120)
        words = [index for index, value in enumerate(self.rows[0].values()) if isinstance(value, str)]
        print_cells(self.title, cells_of(self.rows, 3), console, words=words)
        for claim in self.claims:
            colour = _COLOURS[claim.verdict]
            console.print(f"[{colour}]{claim.verdict}[/{colour}]: {escape(claim.statement)}", highlight=False)
            console.print(f"    {escape(claim.evidence)}", style="dim", highlight=False)
        for file in self.files:
            console.print(f"wrote {file}", highlight=False)

    def markdown(self) -> str:
        """The same as a page, with the pictures in it and where it was run."""
        tables = tables_of(self.claims, self.rows)
        page = Page(
            self.name,
            self.title,
            self.setting,
            tables["claims"],
            tables["numbers"],
            tuple(file.name for file in self.files if file.suffix in (".png", ".csv")),
            self.date or time.strftime("%Y-%m-%d"),
            self.where or surroundings(),
            self.seconds,
        )
        (table,) = [file for file in self.files if file.name == f"{self.name}.csv"]
        return text_of(page, self.about, read_lines(table))


def tables_of(claims: Sequence[Claim], rows: Sequence[Row]) -> dict[str, str]:
    """Both tables of a page, by the names that `Page` has for them."""
    lines = [[claim.statement, f"**{claim.verdict}**", claim.evidence] for claim in claims]
    return {
        "claims": markdown_cells((["Claim", "Verdict", "Measured"], lines)),
        "numbers": markdown_cells(cells_of(rows)),
    }


def publish(
    output: Path,
    began: float,
    *,
    name: str,
    title: str,
    setting: str,
    picture: Any,
    lines: Sequence[Row],
    rows: Sequence[Row],
    claims: Sequence[Claim],
    more: Sequence[Path] = (),
    about: About | None = None,
    where: str = "",
    date: str = "",
) -> Report:
    """Write an experiment's picture, all that it recorded and its page into `output`, and print its report.

    **Arguments:** `began`: its start by `time.monotonic`; `lines`: what was recorded, for `NAME.csv`; `rows`: the
    summary for the page; `more`: further files, written already; `about`, `where`, `date`: as in `Report`.
    """
    files = (save_figure(picture, output / f"{name}.png"), write_rows(output / f"{name}.csv", lines), *more)
    report = Report(name, title, setting, tuple(rows), tuple(claims), files, time.monotonic() - began, about)
    report = dataclasses.replace(report, where=where, date=date)
    return finish(report, output)


def finish(report: Report, output: Path) -> Report:
    """Print the report, write its page `NAME.md` beside its files, and return it with the page added."""
    page = output / f"{report.name}.md"
    report = dataclasses.replace(report, files=(*report.files, page))
    write_text(page, report.markdown())
    report.print()
    return report


def surroundings() -> str:
    """Processor and versions, so that a number can be traced."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "equinox", "numpy"))
    return f"{platform.machine()} with {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
