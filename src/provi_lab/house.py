"""The house measured and drawn: how many modules and lines, what one default fit walks through, who imports whom.

`python -m provi_lab.house` prints the figures; `--write docs/developer` draws the map of the rooms and the walk of one
fit into `map.svg` and `walk.md`. A test draws both again and compares.
"""

import argparse
import ast
import dataclasses
import html
import json
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
SMALL, LARGE = 60, 450

_WALK = """
import json, sys
import provi
from provi.data import breast_cancer

data = breast_cancer()
target = provi.targets.LogisticRegression(data.features, data.response, names=data.names)
import provi.structures.linear
provi.fit, provi.Fit  # imports are not part of the walk
seen, visits, deepest = {}, [], 0


def ours(frame):
    name = frame.f_code.co_filename
    return name[len(ROOT):] if name.startswith(ROOT) and frame.f_code.co_name != "<module>" else None


def look(frame, event, _):
    global deepest
    file = ours(frame) if event == "call" else None
    if file is None:
        return
    depth, caller, above = 1, None, frame.f_back
    while above is not None:
        other = ours(above)
        if other is not None:
            depth += 1
            caller = caller or other
        above = above.f_back
    deepest = max(deepest, depth)
    if file not in seen:
        seen[file] = len(visits)
        visits.append((file, frame.f_code.co_qualname, caller))


sys.setprofile(look)
provi.fit(target, progress=False)
sys.setprofile(None)
print(json.dumps({"visits": visits, "deepest": deepest}))
"""


@dataclasses.dataclass(frozen=True)
class Walk:
    """The files that one default fit of a `LogisticRegression` calls into, in order, and its deepest chain of calls.

    `visits`: (file, the function that was entered first, the file of its caller or None).
    """

    visits: list[tuple[str, str, str | None]]
    deepest: int


def modules(package: Path) -> dict[str, int]:
    """Each Python file of a package, relative to it, and its number of lines."""
    files = sorted(package.rglob("*.py"))
    return {str(file.relative_to(package)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}


def walk_of_a_fit() -> Walk:
    """Profiled in a process of its own, so that nothing is compiled already."""
    root = str(SOURCE / "provi") + "/"
    done = subprocess.run(
        [sys.executable, "-c", f"ROOT = {root!r}\n{_WALK}"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return Walk([tuple(visit) for visit in found["visits"]], found["deepest"])


def import_seconds(statement: str = "import provi") -> float:
    """CPU seconds of a fresh process for `statement`, beyond those of an empty one; the least of three."""

    def least(code: str) -> float:
        probe = f"import time\n{code}\nprint(time.process_time())"
        return min(
            float(subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout)
            for _ in range(3)
        )

    return least(statement) - least("pass")


def layers(pyproject: Path) -> list[list[str]]:
    """The rooms from top to bottom, as the import contract has them."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract.get("containers") == ["provi"])
    return [[room.strip(" ()") for room in row.split("|")] for row in rows]


def rooms_imported(package: Path) -> dict[str, set[str]]:
    """Which rooms each room imports, at the top of a module or inside a function."""
    found: dict[str, set[str]] = {}
    for file in package.rglob("*.py"):
        room = file.relative_to(package).parts[0].removesuffix(".py")
        if room == "__init__":  # the package's own file stands above all rooms
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = node.module if isinstance(node, ast.ImportFrom) else None
            if name is not None and name.startswith("provi.") and name.split(".")[1] != room:
                found.setdefault(room, set()).add(name.split(".")[1])
    return found


def draw_map(rows: list[list[str]], walk: Walk, counts: dict[str, int]) -> str:
    """The rooms as an SVG picture: a row a layer, imports go down; those of the walk are filled and numbered."""
    order: dict[str, int] = {}
    for file, _, _ in walk.visits:
        order.setdefault(file.split("/")[0].removesuffix(".py"), len(order) + 1)
    width, height, gap = 880, 34, 10
    parts = []
    for index, row in enumerate(rows):
        box = (width - gap * (len(row) - 1)) / len(row)
        for place, room in enumerate(row):
            x, y = place * (box + gap), index * (height + gap)
            number = order.get(room)
            parts.append(
                f'<g class="{"walked" if number else "quiet"}"><rect x="{x:.1f}" y="{y}" width="{box:.1f}" '
                f'height="{height}" rx="6"/><text x="{x + 14:.1f}" y="{y + 22}">{html.escape(room)}</text>'
            )
            size = counts.get(room, 0)
            words = f"{size} module" + ("" if size == 1 else "s")
            mark = f"step {number} · " if number else ""
            parts.append(
                f'<text x="{x + box - 14:.1f}" y="{y + 22}" text-anchor="end" class="size">{mark}{words}</text></g>'
            )
    total = len(rows) * (height + gap) - gap
    style = (
        "text{font:14px system-ui,sans-serif;fill:#24292f}.size{font-size:12px;fill:#57606a}"
        "rect{stroke:#8c959f;fill:#f6f8fa}.walked rect{stroke:#0969da;fill:#ddf4ff}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.size{fill:#9198a1}rect{stroke:#656c76;fill:#151b23}"
        ".walked rect{stroke:#4493f8;fill:#12283f}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width + 8} {total + 8}" role="img" '
        f'aria-label="The rooms of provi from top to bottom, those that a fit walks through numbered">'
        f"<style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def describe_walk(walk: Walk) -> str:
    """The walk as a Markdown page: a row for each file, in the order in which the fit first enters it."""
    lines = [
        "# The walk of one fit",
        "",
        "Drawn by `python -m provi_lab.house --write docs/developer` from a profiled fit of a `LogisticRegression`; a",
        "test compares. Each row is a file, where the fit enters it first, and from which file.",
        "",
        "| | file | first entered at | from |",
        "| --: | --- | --- | --- |",
    ]
    for index, (file, function, caller) in enumerate(walk.visits, 1):
        lines.append(f"| {index} | `{file}` | `{function}` | {f'`{caller}`' if caller else 'the user'} |")
    return "\n".join([*lines, ""])


def room_sizes(package: Path) -> dict[str, int]:
    """Modules a room, those that only hold a docstring or names left out."""
    sizes: dict[str, int] = {}
    for file in modules(package):
        if not file.endswith("__init__.py"):
            room = file.split("/")[0].removesuffix(".py")
            sizes[room] = sizes.get(room, 0) + 1
    return sizes


def drawings(root: Path, walk: Walk) -> dict[str, str]:
    """The two files of `docs/developer` that are drawn from the code."""
    picture = draw_map(layers(root / "pyproject.toml"), walk, room_sizes(SOURCE / "provi"))
    return {"map.svg": picture, "walk.md": describe_walk(walk)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m provi_lab.house", description="Measure and draw the house.")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="draw map.svg and walk.md into this folder")
    folder = parser.parse_args().write
    if folder is not None:
        for name, text in drawings(SOURCE.parent, walk_of_a_fit()).items():
            (folder / name).write_text(text, encoding="utf-8")
            print(folder / name)
        return
    for package in ("provi", "provi_lab"):
        sizes = modules(SOURCE / package)
        largest = max(sizes, key=sizes.__getitem__)
        real = [lines for file, lines in sizes.items() if not file.endswith("__init__.py")]
        print(
            f"{package}: {len(sizes)} modules, {sum(sizes.values())} lines, median {statistics.median(real):.0f}, "
            f"largest {sizes[largest]} ({largest}); {sum(x < SMALL for x in real)} under {SMALL} lines, "
            f"{sum(x > LARGE for x in real)} over {LARGE}"
        )
    walk = walk_of_a_fit()
    print(f"a default fit of a LogisticRegression: {len(walk.visits)} files of ours, {walk.deepest} of our calls deep")
    for statement in ("import provi", "import jax", "import provi; provi.fit"):
        print(f"{statement}: {import_seconds(statement):.2f} CPU seconds")


if __name__ == "__main__":
    main()
