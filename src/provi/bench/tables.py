"""The benchmarks' results for people: a table on the terminal, the same in Markdown, and the verdicts."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from provi.bench.methods import METHODS, THRESHOLDS

Row = dict[str, Any]
Cells = tuple[list[str], list[list[str]]]
"""Column names and rows of text."""

_AIMS = (
    ("provi-glm", "cpu", 100, "without compilation"),
    ("provi-glm", "cpu_compiling", 5, "with compilation"),
    ("provi", "cpu_compiling", 3, "with compilation"),
    ("provi-optimiser", "cpu_compiling", 3, "with compilation"),
)
"""Method, time, and how many times faster than the best peer it should be."""


def blackbox_cells(
    rows: list[Row], clock: str = "cpu", thresholds: Sequence[float] = THRESHOLDS, count: str = "gradients"
) -> Cells:
    """One line a method: seconds without and with compilation to each gap; `clock` is "cpu" or "wall"."""
    gaps = [f"{threshold:g}" for threshold in thresholds]
    names = ["method", *(f"gap {gap}" for gap in gaps), count, "smallest gap", "setting, remarks"]
    lines = []
    for row in rows:
        times = [row["times"].get(gap) for gap in gaps]
        last = next((time for time in reversed(times) if time is not None), None)
        setting = "" if last is None else last["setting"]
        remark = row["note"] if row["status"] == "ran" else f"{row['status']}: {row['note']}"
        lines.append(
            [
                row["method"],
                *(_pair(time, clock) for time in times),
                "" if last is None else _number(last["gradients"]),
                _number(row["final_gap"]),
                "; ".join(part for part in (setting, remark) if part),
            ]
        )
    return names, lines


def glm_cells(rows: list[Row]) -> Cells:
    """One line a problem: what is proven, what is true, and what it took."""
    names = ["problem", "size", "tol", "certified gap", "true gap", "steps", "gradients", "CPU s", "wall s", "ELBO", ""]
    lines = []
    for row in rows:
        size = f"{row['terms']} x {row['dim']}"
        if row["status"] != "ran":
            lines.append([row["problem"], size, f"{row['tol']:g}", *[""] * 7, f"{row['status']}: {row['note']}"])
            continue
        certified = "none" if row["certified_gap"] is None else f"{row['certified_gap']:.3g} ({row['certificate']})"
        counts = [_number(row["num_steps"]), _number(row["gradient_evaluations"])]
        times = [_pair(row, "cpu"), _pair(row, "wall")]
        gaps = [certified, _number(row["true_gap"])]
        remark = f"{row['scale']} scale, {row['outcome'].lower()}"
        lines.append([row["problem"], size, f"{row['tol']:g}", *gaps, *counts, *times, f"{row['elbo']:.2f}", remark])
    return names, lines


def sparse_cells(rows: list[Row]) -> Cells:
    """One line a run of a sparse Gaussian process: what a pass takes, and what the answer is worth."""
    names = ["method", "CPU s a pass", "wall s a pass", "passes", "CPU s", "ELBO after a pass", "ELBO", "log loss", ""]
    lines = []
    for row in rows:
        if row["status"] != "ran":
            lines.append([row["method"], *[""] * 7, f"{row['status']}: {row['note']}"])
            continue
        cells = [_number(row[name]) for name in ("cpu_a_pass", "wall_a_pass", "passes")]
        cells += [_pair(row, "cpu"), *(_number(row[name], 1) for name in ("first_elbo", "elbo"))]
        remark = "; ".join(part for part in (row["setting"], row["note"][:100]) if part)
        lines.append([row["method"], *cells, _number(row["log_loss"], 5), remark])
    return names, lines


def verdicts(rows: list[Row]) -> list[str]:
    """How much faster than the best peer ProVI is, to 0.01 nats, against what was aimed at; of one problem's rows."""
    gap, ours = f"{THRESHOLDS[-1]:g}", {METHODS[key].name for key in ("provi-glm", "provi", "provi-optimiser")}
    lines = []
    for key, clock, aim, words in _AIMS:
        if METHODS[key].name not in (row["method"] for row in rows):
            continue
        mine = next(row["times"].get(gap) for row in rows if row["method"] == METHODS[key].name)
        others = [row for row in rows if row["method"] not in ours]
        peers = {row["method"]: row["times"].get(gap) for row in others}
        peers = {name: time[clock] for name, time in peers.items() if time is not None}
        subject = f"{METHODS[key].name}, {gap} nats, {words}: "
        if mine is None:
            lines.append(subject + "not reached.")
        elif not peers:
            least = _least_time_spent(others, clock)
            more = "" if least is None else f" in {least:.3g} CPU s, {least / mine[clock]:.3g} times as long; aim {aim}"
            lines.append(subject + f"{mine[clock]:.3g} CPU s; no peer reached it{more}.")
        else:
            best = min(peers, key=lambda name: peers[name])
            ratio = peers[best] / mine[clock]
            judgement = "reached" if ratio >= aim else "not reached"
            lines.append(subject + f"{ratio:.3g} times as fast as the best peer ({best}); aim {aim}: {judgement}.")
    return lines


def _least_time_spent(rows: list[Row], clock: str) -> float | None:
    """How long the peers tried at least: the shortest of their longest runs, but for those that ended by themselves.

    The others were stopped by the clock, so their CPU times are alike.
    """
    extra = 1.0 if clock == "cpu_compiling" else 0.0
    runs = [row["runs"] for row in rows if row.get("runs")]
    longest = [max(group, key=lambda run: run["cpu"]) for group in runs]
    stopped = [run for run in longest if run["cpu"] >= 0.5 * max(other["cpu"] for other in longest)]
    return min((run["cpu"] + extra * run["compile_cpu"] for run in stopped), default=None)


def by_problem(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each problem, in their order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["problem"], []).append(row)
    return groups


def print_cells(title: str, cells: Cells, console: Console | None = None) -> None:
    """A table on the terminal."""
    if console is None:
        console = Console()
        # A file or a pipe has no width of its own; 80 columns would cut the tables.
        console = console if console.is_terminal else Console(width=180)
    table = Table(title=escape(title), title_justify="left")
    for index, name in enumerate(cells[0]):
        table.add_column(escape(name), justify="right" if 0 < index < len(cells[0]) - 1 else "left")
    for line in cells[1]:
        table.add_row(*(escape(cell) for cell in line))
    console.print(table)


def markdown_cells(cells: Cells) -> str:
    """The same as a Markdown table."""
    lines = [cells[0], ["---"] * len(cells[0]), *cells[1]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _pair(time: dict[str, Any] | None, clock: str) -> str:
    """Seconds without compilation, and with it in brackets."""
    return "-" if time is None else f"{time[clock]:.3g} ({time[clock + '_compiling']:.3g})"


def _number(value: float | int | None, decimals: int | None = None) -> str:
    if value is None:
        return ""
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
