"""The benchmarks' results for the repository: a dated JSON file a run, and the page made of the newest ones."""

import dataclasses
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from provi_lab.common.tables import Cells, Row, grouped, markdown_cells, print_cells

RESULTS, PAGE = Path("benchmarks/results"), Path("docs/benchmarks.md")
_PACKAGES = ("provi", "jax", "numpy", "scipy", "numpyro", "blackjax", "pymc", "viabel", "gsmvi")


@dataclasses.dataclass(frozen=True)
class Section:
    """How the rows of a benchmark are shown.

    - `kind`: as in the names of records. `heading`, `text`: on the page. `title`: of a table on the terminal, with
      `{problem}` where the rows of each problem have a table of their own; without it there is one table for all.
    - `cells`: the rows as a table. `verdicts`: what they say about our aims, a line each.
    - `further`: more tables for the page alone, each with the words before it.
    """

    kind: str
    heading: str
    text: str
    title: str
    cells: Callable[[list[Row]], Cells]
    verdicts: Callable[[list[Row]], list[str]] | None = None
    further: tuple[tuple[str, Callable[[list[Row]], Cells]], ...] = ()

    def show(self, rows: list[Row], echo: Callable[[str], None]) -> None:
        """Tables and verdicts on the terminal."""
        for problem, own in self._groups(rows).items():
            print_cells(self.title.format(problem=problem), self.cells(own))
            if self.verdicts is not None:
                echo("\n".join(self.verdicts(own)))

    def markdown(self, record: dict[str, Any]) -> list[str]:
        """The paragraphs of the page."""
        parts = [f"## {self.heading}", self.text]
        for problem, own in self._groups(record["rows"]).items():
            parts += [f"### {problem}"] if problem else []
            parts.append(markdown_cells(self.cells(own)))
            if self.verdicts is not None:
                parts.append("\n".join(f"- {line}" for line in self.verdicts(own)))
            for words, cells in self.further:
                parts += [words, markdown_cells(cells(own))]
        return [*parts, _origin(record)]

    def _groups(self, rows: list[Row]) -> dict[str, list[Row]]:
        return grouped(rows, "problem") if "{problem}" in self.title else {"": rows}


def _origin(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    place = f"{record['machine']}, Python {record['python']}, {versions}"
    return f"Made by `{record['command']}` on {record['date']}: {place}."


def make_record(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows with date, machine, versions and command, so that a number can be traced."""
    # A peer that runs in a Python of its own says which versions it found there.
    theirs = {name: version for row in rows for name, version in row.get("facts", {}).get("versions", {}).items()}
    ours = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    return {
        "kind": kind,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {**theirs, **ours},
        # Run from the checkout: where that lies on this machine is nobody's concern.
        "command": " ".join(["provi", *("." if Path(word).is_absolute() else word for word in sys.argv[1:])]),
        "rows": rows,
    }


def write_record(root: Path, record: dict[str, Any]) -> tuple[Path, Path]:
    """Write `benchmarks/results/DATE-KIND.json` under `root`, and the page `docs/benchmarks.md` anew."""
    path = root / RESULTS / f"{record['date']}-{record['kind']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page = root / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(make_page(root), encoding="utf-8")
    return path, page


def make_page(root: Path) -> str:
    """The page of the newest records under `root`; a benchmark that was never run has no section."""
    # Here, so that a script which only keeps a record of its own imports no benchmark.
    from provi_lab.bench import blackbox, distance, gp, logistic, missing, passes, throughput, topics

    dense, sparse = gp.SECTION, gp.SPARSE_SECTION
    linear = (blackbox.SECTION, logistic.SECTION, passes.SECTION, distance.SECTION)
    sections = (*linear, dense, sparse, missing.SECTION, topics.SECTION, throughput.SECTION)
    parts = ["# Benchmarks", "Written by `provi bench`; do not edit."]
    for section in sections:
        newest = _newest(root, section.kind)
        parts += [] if newest is None else section.markdown(newest)
    return "\n\n".join(parts) + "\n"


def _newest(root: Path, kind: str) -> dict[str, Any] | None:
    files = sorted((root / RESULTS).glob(f"*-{kind}.json"))
    return json.loads(files[-1].read_text(encoding="utf-8")) if files else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
