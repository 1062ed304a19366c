"""`provi reproduce list`: every figure and table of the five papers, with what its page says of how it was made.

    python -m provi_lab.papers.catalogue docs/results     # writes heads, remarks and feet of the pages anew

Seeds, place, date, and what is left out or otherwise are read from the pages and the tables beside them.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from provi.core.files import write_text
from provi_lab.common.page import other_settings, parts_of, read_lines, refreshed, seeds_of
from provi_lab.common.tables import print_cells
from provi_lab.papers.front_ends.about import FRONT_ENDS
from provi_lab.papers.misso import about as misso
from provi_lab.papers.mpsgd import about as mpsgd
from provi_lab.papers.pgsvi import about as pgsvi
from provi_lab.papers.prox_proj.about import RATES, STICKING_THE_LANDING, WHITENED
from provi_lab.papers.topics.about import FIGURE3, SETTINGS

PAGES = (
    FIGURE3,
    SETTINGS,
    FRONT_ENDS,
    misso.FIGURE1,
    misso.FIGURE2A,
    misso.FIGURE2B,
    mpsgd.FIGURE1,
    mpsgd.FIGURE2,
    mpsgd.FIGURE3,
    pgsvi.FIGURE1,
    pgsvi.FIGURE2,
    RATES,
    STICKING_THE_LANDING,
    WHITENED,
)
ABOUT = {about.name: about for about in PAGES}

_SETTINGS = "settings of the experiments, no results: they are those of provi_lab/papers/pgsvi/problem.py"


@dataclasses.dataclass(frozen=True)
class Item:
    """A figure, a table or a theorem of a paper, the reproduction that has it, and a word where that is not all."""

    paper: str
    what: str
    name: str
    word: str = ""


ITEMS = (
    Item("000", "Figure 1", "pgsvi-figure2"),
    Item("000", "Table 1", "pgsvi-figure2", _SETTINGS),
    Item("001", "Figure 1", "misso-figure1"),
    Item("001", "Figure 2(a)", "misso-figure2a"),
    Item("001", "Figure 2(b)", "misso-figure2b"),
    Item("002", "Figure 1", "pgsvi-figure1"),
    Item("002", "Figure 2", "pgsvi-figure2"),
    Item("002", "Figure 3", "ctm-figure3"),
    Item("002", "Figure 3: its own settings, other numbers of topics", "ctm-settings"),
    Item("002", "Table 1", "pgsvi-figure2", _SETTINGS),
    Item("003", "Theorems 7, 8, 10, 11 (no figures)", "prox-proj-rates"),
    Item("003", "Corollary 14 (no figures)", "stl-gaussian"),
    Item("004", "Figure 1", "mpsgd-figure1"),
    Item("004", "Figure 2", "mpsgd-figure2"),
    Item("004", "Figure 3", "mpsgd-figure3"),
    Item("ours", "Theorem 8 of 003, whitened and with certified distances", "prox-whitened"),
    Item("ours", "NumPyro, PyMC and Stan", "front-ends"),
)
"""All figures and tables of the papers; of paper 003, which has none, the theorems that are measured."""

RESULTS = Path(__file__).parents[3] / "docs" / "results"
"""The pages of a copy of the repository."""


def entry(item: Item, folder: Path = RESULTS) -> dict[str, Any]:
    """What is known of an item; without pages, no seeds, place and date."""
    about = ABOUT[item.name]
    row: dict[str, Any] = {"paper": item.paper, "what": item.what, "command": f"provi reproduce {item.name}"}
    page_file, table = folder / f"{item.name}.md", folder / f"{item.name}.csv"
    if not (page_file.is_file() and table.is_file()):
        if any(folder.glob("*.md")):  # others were run
            row |= {"complete": False, "left_out": "All: it has not been run whole.", "other_settings": ""}
            return row | {"differs": about.differs} | dict.fromkeys(("seeds", "where", "date", "seconds"))
        return (
            row
            | {"complete": None, "left_out": None, "differs": about.differs, "other_settings": None}
            | dict.fromkeys(("seeds", "where", "date", "seconds"))
        )
    page, lines = parts_of(page_file.read_text(encoding="utf-8"), item.name), read_lines(table)
    missing = [] if item.word else about.left_out(lines, page.setting)
    other = [] if item.word else other_settings(about.made(lines, page.setting), about.defaults())
    return row | {
        "complete": not missing and not other,
        "left_out": " ".join(missing),
        "differs": item.word or about.differs,
        "other_settings": "; ".join(other),
        "seeds": seeds_of(lines, page.setting),
        "where": page.where,
        "date": page.date,
        "seconds": page.seconds,
    }


def listing(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """All items."""
    return [entry(item, folder) for item in ITEMS]


def _status(row: dict[str, Any]) -> str:
    if row["complete"] is None:
        return "not known: there is no page of it; pages are in a copy of the repository, docs/results"
    parts = ["complete"] if row["complete"] else []
    parts += [f"left out: {row['left_out']}"] if row["left_out"] else []
    parts += [f"not the command's defaults: {row['other_settings']}"] if row["other_settings"] else []
    return "; ".join(parts)


def show(as_json: bool = False, folder: Path = RESULTS, console: Console | None = None) -> None:
    """The list, as a table or as JSON."""
    rows = listing(folder)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    names = [
        "paper",
        "what",
        "provi reproduce",
        "complete, or what is left out and why",
        "seeds",
        "where it ran",
        "date",
    ]
    cells = [
        [
            row["paper"],
            row["what"],
            row["command"].split()[-1],
            _status(row),
            *(str(row[name] or "-") for name in ("seeds", "where", "date")),
        ]
        for row in rows
    ]
    print_cells("Figures and tables of the papers", (names, cells), console, words=range(len(names)))


def refresh(folder: Path, *names: str) -> list[Path]:
    """Write the pages of these names, or all of the folder, anew, from what they and their tables have."""
    written = []
    for about in [ABOUT[name] for name in names] or PAGES:
        path = folder / f"{about.name}.md"
        if path.is_file():
            write_text(path, refreshed(folder, about))
            written.append(path)
    return written


if __name__ == "__main__":
    print("\n".join(str(path) for path in refresh(Path(sys.argv[1]), *sys.argv[2:])))
