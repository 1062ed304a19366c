"""The page of the suite's table, from its record and the names of all that could have run."""

from typing import Any

from provi_lab.posteriors.suite import EVERY, SUITE
from provi_lab.posteriors.table import with_peers

COLUMNS = {
    "default": "default",
    "corrected": "`corrected()`",
    "auto": '`family="auto"`',
    "auto corrected": "auto, corrected",
}
PEERS = {
    "AutoMultivariateNormal": "NumPyro AutoMultivariateNormal",
    "AutoIAFNormal": "NumPyro AutoIAFNormal",
    "Pathfinder": "BlackJAX Pathfinder",
    "multi-path Pathfinder": "BlackJAX multi-path Pathfinder",
}
ALARMS = 0.15
"""The share of false alarms that the suite was to stay below."""

_CHOICES = {"either": "`corrected()` or auto, the better", "final": "auto, corrected where it warns"}
_WORDS = {**COLUMNS, **_CHOICES, **PEERS}
_HEAD = """# Many posteriors

Drawn by `python -m provi_lab.posteriors.table --out RECORD --page docs/posteriors.md`; a test compares. Each row is a
posterior of `provi_lab.posteriors`, written in NumPyro. References are long NUTS runs (`python -m
provi_lab.posteriors.references`) or closed forms, in `benchmarks/results/posterior-references.json`; ones whose
chains disagree are left out. Errors are over all values of all latent sites in the model's own space: the worst error
of a mean in standard deviations, and the ratio of standard deviations that is farthest from one. **Right** is a mean
error of at most 0.1 and a ratio within 10% of one; a ! marks what was warned of. CPU seconds include compilation, with
no programs kept from before; a column finds those that the columns before it have made.

The command writes a row when it is measured and goes on where it was stopped; `--again` measures rows of another state
of the code anew. All columns of these rows took {ours:.0f} CPU seconds, other libraries {theirs:.0f} more.
"""
_MIXED = """
The rows are of {count} states of the code, so that their CPU seconds compare within one state only: {states}.
"""
_ONE = """
All rows are from one machine and one state of the code ({where}, a digest of the library's code).
"""
_NOT_ITS_COST = """
The CPU seconds of corrections are not their cost in {count} of {all} rows: they were measured with the seed that the
summary of the fit uses, which keeps as many draws where q's weights are heavy, so that they were found and not made.
It is said beside the sums, and these cells have no time. A row that is measured again has draws of its own.
"""
_CAVEAT = """
Rules of the library were set after fits to posteriors of the suite, so that it is no held-out test; those held out were
written before any of them was fitted, and are counted apart. "Corrected or auto, the better" chooses with the truth in
hand.
"""
_BESIDE = """## Beside other libraries

Every fifth posterior of the suite in alphabetical order, chosen before any of the others ran: {names}. NumPyro's guides
by 5000 steps of Adam with a learning rate of 0.005 and 10 draws a step; BlackJAX's Pathfinder with its own settings,
from NumPyro's random start; of 16 paths, 1000 draws each, resampled by Pareto-smoothed weights, warned of where their
k-hat is 0.7 or more. Each of them approximates the density that NumPyro makes of the model (`python -m
provi_lab.posteriors.table --out RECORD --peers PYTHON`, on the same machine as the rows above, in processes of their
own). CPU seconds are those of all these posteriors together, those of failures included.
"""


def final(row: dict[str, Any]) -> dict[str, Any]:
    """What a user ends with who follows the advice: `family="auto"`, corrected where its summary warns."""
    auto, corrected = row["auto"], row.get("auto corrected", {})
    return corrected if auto["warned"] and "failed" not in corrected and corrected else auto


def tally(rows: dict[str, Any]) -> dict[str, Any]:
    """Counts by column: rows, right ones, silent failures, false alarms."""
    found = {}
    for column in _WORDS:
        cells = [cell for cell in (_cell(row, column) for row in rows.values()) if cell]
        if cells:
            right = [cell for cell in cells if cell["right"]]
            found[column] = {
                "rows": len(cells),
                "right": len(right),
                "silent": sum(not cell["right"] and not cell["warned"] for cell in cells),
                "alarms": sum(cell["warned"] for cell in right),
                # What is chosen of other columns has no time of its own.
                "cpu": None if column in _CHOICES else sum(cell.get("cpu_seconds", 0.0) for cell in cells),
                "own": all(_own_time(column, cell) for cell in cells),
            }
    return found


def _own_time(column: str, cell: dict[str, Any]) -> bool:
    """Whether the seconds are the cell's cost: corrections have the seed of draws of their own, or failed first."""
    return not column.endswith("corrected") or "seed" in cell or "failed" in cell


def _cell(row: dict[str, Any], column: str) -> dict[str, Any] | None:
    if column in PEERS:
        return row.get("peers", {}).get(column)
    if "default" not in row:
        return None
    if column == "final":
        return final(row)
    if column == "either":
        cells = [row[name] for name in ("default", "corrected", "auto", "auto corrected") if name in row]
        return max(cells[1:] or cells, key=lambda cell: cell["right"])
    return row.get(column)


def _origins(where: dict[str, str]) -> str:
    """Which rows are of which machine and code; the state with the most rows is named, the others with theirs."""
    kinds = sorted(set(where.values()), key=lambda kind: -list(where.values()).count(kind))
    if len(kinds) == 1:
        return _ONE.format(where=kinds[0])
    named = [f"({kind}) for {', '.join(n for n in where if where[n] == kind)}" for kind in kinds[1:]]
    return _MIXED.format(count=len(kinds), states="; ".join([*named, f"({kinds[0]}) for all others"]))


def page(rows: dict[str, Any]) -> str:
    """The page, in Markdown."""
    done = {name: row for name, row in rows.items() if "default" in row}
    told = _origins({name: str(row.get("where")) for name, row in done.items()})
    alone = {name: {k: v for k, v in row.items() if k != "peers"} for name, row in done.items()}
    suite = {name: row for name, row in alone.items() if not row["held_out"]}
    apart = {name: row for name, row in alone.items() if row["held_out"]}
    beside = {name: row for name, row in done.items() if set(PEERS) & set(row.get("peers", {}))}
    lines = [
        _head(rows, done) + told + _borrowed(done) + _CAVEAT,
        f"## The suite: {len(suite)} of {len(SUITE)} posteriors",
        "",
        *_counts(suite),
        "",
    ]
    if apart:
        lines += [f"## Held out: {len(apart)} of {len(EVERY) - len(SUITE)} posteriors", "", *_counts(apart), ""]
    if beside:
        lines += [_BESIDE.format(names=", ".join(beside)), *_counts(beside), ""]
        lines += _cells(beside, {"default": COLUMNS["default"], "auto": COLUMNS["auto"], **PEERS}) + [""]
    lines += ["## Every row", "", *_cells(done, COLUMNS)]
    missing = [f"{name} ({rows.get(name, {}).get('failed', 'not run')})" for name in sorted(EVERY) if name not in done]
    peers = {name: rows.get(name, {}).get("peers", {"failed": "not run"}) for name in with_peers(SUITE)}
    missing += [f"{name}, other libraries ({cells['failed']})" for name, cells in peers.items() if "failed" in cells]
    lines += ["", "Not finished: " + "; ".join(missing) + "."] if missing else []
    return "\n".join(lines) + "\n"


def _head(rows: dict[str, Any], done: dict[str, Any]) -> str:
    """What the page shows, and how long its rows took."""
    ours = sum(row[column].get("cpu_seconds", 0.0) for row in done.values() for column in COLUMNS if column in row)
    peers = [row.get("peers", {}).get(name, {}) for row in rows.values() for name in PEERS]
    return _HEAD.format(ours=ours, theirs=sum(cell.get("cpu_seconds", 0.0) for cell in peers))


def _borrowed(rows: dict[str, Any]) -> str:
    """That corrections were timed with draws that had been made already, where any were."""
    kinds = [
        {name: row[name] for name in COLUMNS if name.endswith("corrected") and name in row} for row in rows.values()
    ]
    found = [cells for cells in kinds if cells]
    count = sum(not all(_own_time(*item) for item in cells.items()) for cells in found)
    return _NOT_ITS_COST.format(count=count, all=len(found)) if count else ""


def _counts(rows: dict[str, Any]) -> list[str]:
    """The table of the counts, and which methods give more false alarms than they should, by which reading."""
    lines = ["| method | rows | right | wrong and not warned of | right and warned of | CPU seconds |"]
    lines += ["| --- | --: | --: | --: | --: | --: |"]
    of_right, of_all = [], []
    for column, counts in tally(rows).items():
        alarms, right, every = counts["alarms"], counts["right"], counts["rows"]
        words = f"{alarms} ({_share(alarms, right)} of right, {_share(alarms, every)} of all)" if alarms else "0"
        seconds = "" if counts["cpu"] is None else f"{counts['cpu']:.0f}" + ("" if counts["own"] else ", not its cost")
        share = f"{right} ({_share(right, every)})"
        lines.append(f"| {_WORDS[column]} | {every} | {share} | {counts['silent']} | {words} | {seconds} |")
        of_right += [f"{_WORDS[column]} ({alarms} of {right})"] if alarms > ALARMS * right else []
        of_all += [f"{_WORDS[column]} ({alarms} of {every})"] if alarms > ALARMS * every else []
    lines += ["", f"More false alarms than {ALARMS:.0%} of the right rows: {'; '.join(of_right) or 'none'}."]
    return [*lines, f"Of all rows: {'; '.join(of_all) or 'none'}."]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}"


def _cells(rows: dict[str, Any], columns: dict[str, str]) -> list[str]:
    lines = ["Mean error / ratio of deviations, k-hat in brackets; CPU seconds:", ""]
    lines += ["| posterior | kind | dim | family | " + " | ".join(columns.values()) + " |"]
    lines += ["| --- | --- | --: | --- |" + " --: |" * len(columns)]
    for name, row in rows.items():
        cells = " | ".join(_words(column, _cell(row, column)) for column in columns)
        kind = row["kind"] + (", held out" if row["held_out"] else "")
        lines.append(f"| {name} | {kind} | {row['dim']} | {row['auto'].get('family', '')} | {cells} |")
    return lines


def _words(column: str, cell: dict[str, Any] | None) -> str:
    if not cell:
        return ""
    mark, seconds = "!" if cell["warned"] else "", cell.get("cpu_seconds")
    time = f"; {seconds:.{0 if seconds >= 9.95 else 1}f} s" if seconds is not None and _own_time(column, cell) else ""
    if "failed" in cell:
        return f"failed{mark}{time}"
    tail = "" if cell.get("k_hat") is None else f" ({cell['k_hat']:.2f})"
    text = f"{cell['mean_error']:.2f} / {cell['sd_ratio']:.2f}{tail}{mark}"
    return f"**{text}**{time}" if cell["right"] else text + time
