"""The page of the suite's table, from its record alone."""

from typing import Any

COLUMNS = {
    "default": "default",
    "corrected": "`corrected()`",
    "auto": '`family="auto"`',
    "auto corrected": "auto, corrected",
    "AutoMultivariateNormal": "NumPyro AutoMultivariateNormal",
    "AutoIAFNormal": "NumPyro AutoIAFNormal",
}
_HEAD = """# Many posteriors

Drawn by `python -m provi_lab.posteriors.table --out RECORD --page docs/posteriors.md`; a test compares. Each row is a
posterior of `provi_lab.posteriors`, written in NumPyro. References are long NUTS runs (`python -m
provi_lab.posteriors.references`) or closed forms, in `benchmarks/results/posterior-references.json`; ones whose
chains disagree are left out. Errors are over all values of all latent sites in the model's own space: the worst error
of a mean in standard deviations, and the ratio of standard deviations that is farthest from one. **Right** is a mean
error of at most 0.1 and a ratio within 10% of one; a ! marks what was warned of. CPU seconds include compilation. Where
NumPyro's guides have columns, they ran 5000 steps of Adam with a learning rate of 0.005 and 10 draws a step.
"""
_MIXED = """
The rows are from two machines, so that CPU seconds do not compare between rows, and not all of one commit. This is no
held-out test: the search for modes was widened after `far_mode` was seen to fail, and only it and the rows that
were missing then were run with that; a rule of `family="auto"` was set after a fit to a relative of one of these.
"Corrected or auto, the better" chooses with the truth in hand.
"""
_ONE = """
All rows are from one machine ({where}, a digest of the library's code). Rules of the library were set after fits to
posteriors of the suite, so that it is no held-out test; the ones held out were written before any of them was fitted,
and are counted apart. "Corrected or auto, the better" chooses with the truth in hand.
"""


def final(row: dict[str, Any]) -> dict[str, Any]:
    """What a user ends with who follows the advice: `family="auto"`, corrected where its summary warns."""
    auto, corrected = row["auto"], row.get("auto corrected", {})
    return corrected if auto["warned"] and "failed" not in corrected and corrected else auto


def tally(rows: dict[str, Any]) -> dict[str, Any]:
    """Counts by column: rows, right ones, silent failures, false alarms."""
    found = {}
    for column in (*COLUMNS, "either", "final"):
        cells = [cell for cell in (_cell(row, column) for row in rows.values()) if cell]
        if cells:
            right = [cell for cell in cells if cell["right"]]
            found[column] = {
                "rows": len(cells),
                "right": len(right),
                "silent": sum(not cell["right"] and not cell["warned"] for cell in cells),
                "alarms": sum(cell["warned"] for cell in right),
                "cpu": sum(cell.get("cpu_seconds", 0.0) for cell in cells),
            }
    return found


def _cell(row: dict[str, Any], column: str) -> dict[str, Any] | None:
    if "default" not in row:
        return None
    if column == "final":
        return final(row)
    if column == "either":
        cells = [row[name] for name in ("default", "corrected", "auto", "auto corrected") if name in row]
        return max(cells[1:] or cells, key=lambda cell: cell["right"])
    return row.get(column)


def page(rows: dict[str, Any]) -> str:
    """The page, in Markdown."""
    done = {name: row for name, row in rows.items() if "default" in row}
    where = {row.get("where") for row in done.values()}
    told = _ONE.format(where=where.pop()) if len(where) == 1 and None not in where else _MIXED
    suite = {name: row for name, row in done.items() if not row.get("held_out")}
    apart = {name: row for name, row in done.items() if row.get("held_out")}
    lines = [_HEAD + told, f"{len(suite)} posteriors.", ""]
    lines += ["| method | rows | right | wrong and not warned of | right and warned of | CPU seconds |"]
    lines += ["| --- | --: | --: | --: | --: | --: |"]
    words = {**COLUMNS, "either": "`corrected()` or auto, the better", "final": "auto, corrected where it warns"}
    counted = [(words[column], counts) for column, counts in tally(suite).items()]
    counted += [(f"held out: {words[column]}", counts) for column, counts in tally(apart).items()]
    for title, counts in counted:
        share = f"{counts['right']} ({100 * counts['right'] / counts['rows']:.0f}%)"
        lines.append(
            f"| {title} | {counts['rows']} | {share} | {counts['silent']} | {counts['alarms']} | {counts['cpu']:.0f} |"
        )
    used = [column for column in COLUMNS if any(column in row for row in done.values())]
    lines += ["", "Mean error / ratio of deviations, k-hat in brackets:", ""]
    lines += ["| posterior | kind | dim | family | " + " | ".join(COLUMNS[column] for column in used) + " |"]
    lines += ["| --- | --- | --: | --- |" + " --: |" * len(used)]
    for name, row in done.items():
        cells = " | ".join(_words(row.get(column)) for column in used)
        kind = row["kind"] + (", held out" if name in apart else "")
        lines.append(f"| {name} | {kind} | {row['dim']} | {row['auto'].get('family', '')} | {cells} |")
    missing = [f"{name} ({row['failed']})" for name, row in rows.items() if "default" not in row]
    lines += ["", "Not finished: " + "; ".join(missing) + "."] if missing else []
    return "\n".join(lines) + "\n"


def _words(cell: dict[str, Any] | None) -> str:
    if not cell:
        return ""
    mark = "!" if cell["warned"] else ""
    if "failed" in cell:
        return f"failed{mark}"
    tail = "" if cell.get("k_hat") is None else f" ({cell['k_hat']:.2f})"
    text = f"{cell['mean_error']:.2f} / {cell['sd_ratio']:.2f}{tail}{mark}"
    return f"**{text}**" if cell["right"] else text
