"""The benchmarks' results for the repository: a dated JSON file a run, and the page made of the newest ones."""

import dataclasses
import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from provi_lab.common.tables import Cells, Row, grouped, markdown_cells, print_cells

RESULTS, PAGE = Path("benchmarks/results"), Path("docs/benchmarks.md")
_PACKAGES = ("provi", "jax", "numpy", "scipy", "numpyro", "blackjax", "pymc", "viabel", "gsmvi")
_OURS = ("provi", "jax", "numpy", "scipy")
"""What ProVI was measured with, whatever its peers have: their own versions stand in the facts of their rows."""
_OWN = 0.5
"""Processes at work above the number of cores up to which a measured one may be alone: its threads wait in turn."""
_HEAD = """\
Written by `provi bench`; do not edit. Every section is the newest record of its kind in `benchmarks/results`, and ends
with the command that made it. The load average that some of them name is the number of processes at work on the
machine, the measured one among them; where none is named, it has not been recorded."""


def _kept_rows(record: dict[str, Any]) -> list[Row]:
    return record["rows"]


@dataclasses.dataclass(frozen=True)
class Section:
    """How the rows of a benchmark are shown.

    - `kind`: as in the names of records. `heading`, `text`: on the page. `title`: of a table on the terminal, with
      `{problem}` where the rows of each problem have a table of their own; without it there is one table for all.
    - `cells`: the rows as a table. `verdicts`: what they say about our aims, a line each.
    - `further`: more tables for the page alone, each with the words before it.
    - `rows`: those of a record, where they are not under "rows"; a record without any is not of this section.
    - `made_by`: what makes the record, where it does not say.
    """

    kind: str
    heading: str
    text: str
    title: str
    cells: Callable[[list[Row]], Cells]
    verdicts: Callable[[list[Row]], list[str]] | None = None
    further: tuple[tuple[str, Callable[[list[Row]], Cells]], ...] = ()
    rows: Callable[[dict[str, Any]], list[Row]] = _kept_rows
    made_by: str = ""

    def show(self, rows: list[Row], echo: Callable[[str], None]) -> None:
        """Tables and verdicts on the terminal."""
        for problem, own in self._groups(rows).items():
            print_cells(self.title.format(problem=problem), self.cells(own))
            if self.verdicts is not None:
                echo("\n".join(self.verdicts(own)))

    def markdown(self, record: dict[str, Any]) -> list[str]:
        """The paragraphs of the page."""
        rows, parts = self.rows(record), [f"## {self.heading}", self.text]
        for problem, own in self._groups(rows).items():
            parts += [f"### {problem}"] if problem else []
            parts.append(markdown_cells(self.cells(own)))
            if self.verdicts is not None:
                parts.append("\n".join(f"- {line}" for line in self.verdicts(own)))
            for words, cells in self.further:
                parts += [words, markdown_cells(cells(own))]
        return [*parts, _origin(record, self.made_by, rows)]

    def _groups(self, rows: list[Row]) -> dict[str, list[Row]]:
        return grouped(rows, "problem") if "{problem}" in self.title else {"": rows}


def _origin(record: dict[str, Any], made_by: str, rows: list[Row]) -> str:
    """By what, when, where and how busy; older records and those of scripts do not have all of it."""
    command = f"`{record['command']}`" if "command" in record else f"{made_by}, whose arguments have not been recorded,"
    cores = [f"{record['cores']} cores"] if "cores" in record else []
    place = [record["machine"]] if "machine" in record else [*cores, *filter(None, [record.get("processor")])]
    device = record.get("device", "cpu")
    place += [] if device == "cpu" or device in ", ".join(place) else [device]
    place += [f"Python {record['python']}"] if "python" in record else []
    versions = record.get("versions") or {name: record[name] for name in ("provi", "jax") if name in record}
    place += [f"{name} {version}" for name, version in versions.items()]
    where = f"Made by {command} on {record['date']}" + (f": {', '.join(place)}." if place else ".")
    return where + _load_words(record, where, rows)


def _load_words(record: dict[str, Any], where: str, rows: list[Row]) -> str:
    """How busy the machine was, where the record or its rows say so and the number of cores is known."""
    loads = [row["load_average"] for row in rows if "load_average" in row]
    load, cores = record.get("load", max(loads, default=None)), re.search(r"(\d+) cores", where)
    if load is None or cores is None:
        return ""
    busy = ": **busy**, so trust ratios, not times" if load > int(cores[1]) + _OWN else ""
    return f" Load average {load:.2f}{busy}."


def make_record(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows with date, machine, versions and command, so that a number can be traced."""
    # A peer that runs in a Python of its own says which versions it found there.
    theirs = {name: version for row in rows for name, version in row.get("facts", {}).get("versions", {}).items()}
    ours = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    own = {name: version for name, version in ours.items() if name in _OURS or name not in theirs}
    return {
        "kind": kind,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {**theirs, **own},
        "command": _command(sys.argv),
        "load": round(os.getloadavg()[0], 2),
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
    from provi_lab.bench.sections import sections

    parts = ["# Benchmarks", _HEAD]
    for section in sections():
        newest = _newest(root, section)
        parts += [] if newest is None else section.markdown(newest)
    return "\n\n".join(parts) + "\n"


def _newest(root: Path, section: Section) -> dict[str, Any] | None:
    """The last record of exactly this kind that has rows for the section: h200-gp-large is not gp-large."""
    for file in sorted((root / RESULTS).glob(f"????-??-??-{section.kind}.json"), reverse=True):
        record = {"date": file.name[:10], **json.loads(file.read_text(encoding="utf-8"))}
        if section.rows(record):
            return record
    return None


def _command(words: list[str]) -> str:
    """What was called: `provi ...`, or a script. Where its folders lie on this machine is nobody's concern."""
    script, plain = Path(words[0]), ["." if Path(word).is_absolute() else word for word in words[1:]]
    name = script.name if script.is_absolute() else script.as_posix()
    return " ".join([*(["python", name] if script.suffix == ".py" else ["provi"]), *plain])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
