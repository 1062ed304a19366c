"""The page of a reproduction: three lines for a visitor and a picture first, then how it was run, claims, numbers.

What the lines say is computed from the lines of the CSV file beside the page, by the function that the reproduction's
own `about.py` has for that. So a page whose run takes long gets its head again from its files: `refreshed`.
"""

import csv
import dataclasses
import functools
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Lines = Sequence[dict[str, Any]]
"""The lines of a CSV file; numbers may be text."""

Settings = dict[str, Any]
"""What a run was made with, name to value: numbers, or sets of names."""


@dataclasses.dataclass(frozen=True)
class Head:
    """What a visitor reads first; without full stops at the ends."""

    measured: str
    verdict: str


@dataclasses.dataclass(frozen=True)
class About:
    """What is to be said of a reproduction beside its numbers; it lives beside its code and imports none of it.

    - `source`: paper and figure; `claim`: what the paper claims. `ours`: it is no paper's claim but our own.
    - `head`: the other two lines, from the lines of the CSV file.
    - `made`: with what settings a page was made, from those lines and its text; `defaults`: those of the command.
    - `left_out`: sentences on what of the figure is not there and why, of a page; none where it is complete.
    - `differs`: what is done in another way than in the paper, though nothing is missing.
    - `tables`: the parts `claims` and `numbers` of the page in a folder, where they follow from its CSV files alone.
    """

    name: str
    source: str
    claim: str
    head: Callable[[Lines], Head]
    made: Callable[[Lines, str], Settings]
    defaults: Callable[[], Settings]
    left_out: Callable[[Lines, str], list[str]] = lambda lines, text: []
    differs: str = ""
    ours: bool = False
    tables: Callable[[Path], dict[str, str]] = lambda folder: {}


@dataclasses.dataclass(frozen=True)
class Page:
    """The parts of a page; `files` are names beside it, the first picture is the one on top."""

    name: str
    title: str
    setting: str
    claims: str
    numbers: str
    files: tuple[str, ...]
    date: str
    where: str
    seconds: float


def text_of(page: Page, about: About | None, lines: Lines) -> str:
    """The page. Where nothing is known about the reproduction there is no head."""
    pictures = [f"![{page.title}]({file})" for file in page.files if file.endswith(".png")]
    tables = [f"[{file}]({file})" for file in page.files if file.endswith(".csv")]
    parts = [
        f"# {page.title}",
        *([] if about is None else head_of(about, lines, page.claims)),
        *pictures[:1],
        "## How it was run",
        page.setting,
        *([] if about is None else remarks(about, lines, page.setting)),
        "\n".join(pictures[1:]),
        "## Claims",
        page.claims,
        "## Numbers",
        page.numbers,
        f"All recorded values: {', '.join(tables)}.",
        f"Measured {page.date} on {page.where} in {page.seconds:.0f} s; {seeds_of(lines, page.setting)}. Made by "
        f"`provi reproduce {page.name}`; written by its code, so do not edit it.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def head_of(about: About, lines: Lines, claims: str) -> list[str]:
    """The three lines; the last one counts the tests of the table of claims."""
    head = about.head(lines)
    found = {word: claims.count(f"| **{word}** |") for word in ("holds", "does not hold", "not tested")}
    words = [f"{found['holds']} hold, {found['does not hold']} do not"]
    if found["not tested"]:
        words.append(f"{found['not tested']} could not be made")
    return [
        f"**{'We claim' if about.ours else 'The paper claims'}**: {about.claim}.",
        f"**We measured**: {head.measured}.",
        f"**Verdict**: {head.verdict}. Of the {sum(found.values())} tests below {', '.join(words)}.",
    ]


LEFT_OUT, OTHER_SETTINGS, DIFFERS = "Left out", "Not the command's defaults", "Unlike the paper"
"""How the sentences begin that say what is not there, and what is otherwise."""


def remarks(about: About, lines: Lines, setting: str) -> list[str]:
    """What is left out, what is otherwise than in the paper, and what is otherwise than by the command's defaults."""
    missing, other = about.left_out(lines, setting), other_settings(about.made(lines, setting), about.defaults())
    return [
        *([f"**{LEFT_OUT}**: {' '.join(missing)}"] if missing else []),
        *([f"**{DIFFERS}**: {about.differs}"] if about.differs else []),
        *([f"**{OTHER_SETTINGS}**: {'; '.join(other)}."] if other else []),
    ]


def other_settings(made: Settings, defaults: Settings) -> list[str]:
    """Where a page was made with other settings than the command's."""
    found = []
    for name in (name for name in defaults if name in made and made[name] != defaults[name]):
        here, there = made[name], defaults[name]
        if isinstance(there, set | frozenset):
            parts = [f"without {', '.join(sorted(map(str, there - here)))}"] if there - here else []
            parts += [f"with {', '.join(sorted(map(str, here - there)))}"] if here - there else []
            found.append(f"{name} {' and '.join(parts)}")
        else:
            found.append(f"{name} {here} instead of {there}")
    return found


def seeds_of(lines: Lines, setting: str) -> str:
    """The seeds of the lines, or how many replicates the text says there are."""
    if "seed" in lines[0]:
        found = sorted({int(float(line["seed"])) for line in lines})
        return f"seed{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
    replicates = re.search(r"(\d+) replicates", setting)
    return f"{replicates[1]} replicates from one seed" if replicates else "one seed"


_FOOT = re.compile(r"Measured (\S+) on (.+) in (\d+) s; (.+?)\. Made by ")
_OLD_FOOT = re.compile(r"Made by `provi reproduce \S+` in (\d+) s: (\S+), (.*?)\. This page is")
_DEVICE = re.compile(r", on (NVIDIA .*?jax [\d.]*\d)\.")


def parts_of(text: str, name: str) -> Page:
    """The parts of a page that `text_of` wrote, or its predecessor without a head."""
    title = text.partition("\n")[0].removeprefix("# ")
    rest, _, foot = text.rpartition("All recorded values: ")
    top, _, rest = rest.partition("## Claims\n\n")
    claims, _, numbers = rest.partition("\n\n## Numbers\n\n")
    before, heading, setting = top.partition("## How it was run\n\n")
    paragraphs = (setting if heading else before.partition("\n\n")[2]).strip().split("\n\n")
    files = (*re.findall(r"\]\((\S+\.png)\)", top), *re.findall(r"\]\((\S+\.csv)\)", foot))
    if new := _FOOT.search(foot):
        date, where, seconds = new[1], new[2], float(new[3])
    else:
        old = _OLD_FOOT.search(foot)
        if old is None:
            raise ValueError(f"{name}.md has no foot that says where it was made.")
        device = _DEVICE.search(paragraphs[0])
        date, where, seconds = old[2], device[1] if device else old[3], float(old[1])
    return Page(name, title, paragraphs[0], claims.strip(), numbers.strip(), files, date, where, seconds)


def read_lines(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def refreshed(folder: Path, about: About, **changes: Any) -> str:
    """The text of a stored page with its head, remarks, foot and `tables` made anew from the CSV files beside it."""
    page = parts_of((folder / f"{about.name}.md").read_text(encoding="utf-8"), about.name)
    page = dataclasses.replace(page, **about.tables(folder), **changes)
    return text_of(page, about, read_lines(folder / f"{about.name}.csv"))


# What the heads of several papers compute from lines.


def those(lines: Lines, **names: Any) -> list[dict[str, Any]]:
    """The lines with these values."""
    return [line for line in lines if all(str(line[key]) == str(value) for key, value in names.items())]


def values(lines: Lines, column: str) -> list[str]:
    """The different values of a column, in their order."""
    return list(dict.fromkeys(str(line[column]) for line in lines))


def last(lines: Lines, column: str, along: str) -> list[float]:
    """The column at the greatest value of `along`, one a seed (one where there are no seeds)."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        runs.setdefault(str(line.get("seed", "")), []).append(line)
    return [float(max(run, key=lambda line: float(line[along]))[column]) for run in runs.values()]


def mean(numbers: Iterable[float]) -> float:
    """Of no numbers it is NaN."""
    numbers = list(numbers)
    return statistics.fmean(numbers) if numbers else float("nan")


def count(lines: Lines, column: str) -> int:
    """How many different values a column has."""
    return len(values(lines, column))


def made_with(columns: dict[str, str], greatest: dict[str, str], lines: Lines, text: str) -> Settings:
    """Sets of the values of some columns, and the greatest of others, each by its name for people; and the seeds."""
    del text
    found: Settings = {name: set(values(lines, column)) for name, column in columns.items()}
    found |= {name: int(max(float(line[column]) for line in lines)) for name, column in greatest.items()}
    return found | ({"seeds": count(lines, "seed")} if "seed" in lines[0] else {})


def made_by(columns: dict[str, str], greatest: dict[str, str]) -> Callable[[Lines, str], Settings]:
    """`made_with` of these columns."""
    return functools.partial(made_with, columns, greatest)


def listed(words: Sequence[str]) -> str:
    """One, two and three."""
    return " and ".join(", ".join(words).rsplit(", ", 1)) if "," not in "".join(words) else "; ".join(words)
