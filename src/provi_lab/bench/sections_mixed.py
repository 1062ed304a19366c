"""Sections of the page: mixed models beside NUTS and libraries of R, and as their groups grow."""

from collections.abc import Sequence

from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, aim, number

_NUTS_TEXT = """\
Eight mixed and latent Gaussian models by nested integration, and their distance from long NUTS runs: errors of means in
posterior standard deviations, ratios of standard deviations, over all quantities that have a reference. Wall seconds of
a first fit in a process that has fitted others, and of a second with its target made anew. NUTS is NumPyro's, as short
as reaches 400 effective draws in every quantity, without and with compilation: **timed in another run**
(`python -m provi_lab.mixed.references --times`), so that the ratios are not of one run."""

_PEERS_TEXT = """\
Three of these models in R: seconds of the call of the fit alone, the least of some. lme4 and glmmTMB maximise a
likelihood, which ProVI's posterior is not; rstanarm samples, four chains on one core. ProVI's own times on the same
models are in the table before (*radon*, *logistic*) and the one after (*large*: 100,000 rows)."""

_LARGE_TEXT = """\
Logistic regression with a random intercept, ten rows a group, by nested integration: wall seconds of a first fit and of
a second with its target made anew; *with proof* also has the bound on KL(q || posterior), which there is up to 600
effects only. Peak memory is that of the process, JAX included, after all sizes so far."""

_FASTER, _FASTER_COMPILING, _MEAN, _SPREAD = 20.0, 3.0, 0.05, 0.05
_AIMS = {
    120: ("second_seconds_with_proof", 0.3),
    100_000: ("second_seconds", 3.0),
    1_000_000: ("second_seconds", 60.0),
}
"""Number of rows to the seconds of a second fit that are aimed at, on two cores."""
_MEMORY = 2.0


def _worst(row: Row) -> tuple[float, float, float]:
    """Largest error of a mean, least and largest ratio of standard deviations."""
    ratios = [one["ratio"] for one in row["quantities"]]
    return max(abs(one["mean_error"]) for one in row["quantities"]), min(ratios), max(ratios)


def nuts_cells(rows: Sequence[Row]) -> Cells:
    """One line a problem."""
    names = ["problem", "largest error of a mean", "sd ratios", "first, s", "second, s", "NUTS, s", "with compilation"]
    lines = []
    for row in rows:
        if "quantities" not in row:
            lines.append([row["problem"], row["error"], *[""] * 6])
            continue
        error, low, high = _worst(row)
        line = [row["problem"], f"{error:.3f} sd", f"{low:.3f} to {high:.3f}", number(row["seconds_first"])]
        line += [number(row["seconds_second"]), number(row["nuts_seconds_second"]), number(row["nuts_seconds_first"])]
        lines.append([*line, "; ".join(row["faults"])])
    return [*names, "remarks"], lines


def nuts_verdicts(rows: Sequence[Row]) -> list[str]:
    """Errors against what they may be, and how many problems are so much faster than NUTS."""
    good = [row for row in rows if "quantities" in row]
    if not good:
        return []
    errors, lows, highs = zip(*map(_worst, good), strict=True)
    lines = [aim("Largest error of a mean, in standard deviations", max(errors), _MEAN)]
    lines.append(aim("Largest error of a standard deviation, relative", max(1 - min(lows), max(highs) - 1), _SPREAD))
    for words, call, times in (
        ("without compilation", "second", _FASTER),
        ("with compilation", "first", _FASTER_COMPILING),
    ):
        ratios = [row[f"nuts_seconds_{call}"] / row[f"seconds_{call}"] for row in good]
        reached = sum(ratio >= times for ratio in ratios)
        span = f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as NUTS"
        lines.append(f"{words.capitalize()}: {span}; aim {times:g}: {reached} of {len(good)} reach it.")
    return lines


def peer_cells(rows: Sequence[Row]) -> Cells:
    """One line a problem and library."""
    names = ["problem", "rows", "library", "wall s", "CPU s", "version"]
    lines = []
    for row in rows:
        ran = row["status"] == "ok"
        times = [number(row["seconds"]), number(row["cpu_seconds"])] if ran else ["", ""]
        remark = row["versions"] if ran else row["status"]
        lines.append([row["problem"], f"{row['rows']:,}", row["peer"], *times, remark])
    return names, lines


def large_cells(rows: Sequence[Row]) -> Cells:
    """One line a size."""
    names = ["rows", "groups", "first, s", "second, s", "with proof, first, s", "with proof, second, s", "peak GiB"]
    lines = []
    for row in rows:
        line = [f"{row['rows']:,}", f"{row['groups']:,}", number(row["first_seconds"]), number(row["second_seconds"])]
        proofs = [number(row.get(f"{call}_seconds_with_proof")) for call in ("first", "second")]
        lines.append([*line, *proofs, number(row["peak_gib"], 2)])
    return names, lines


def large_verdicts(rows: Sequence[Row]) -> list[str]:
    """Seconds and memory against the aims for two cores."""
    lines = []
    for row in rows:
        name, most = _AIMS.get(row["rows"], ("", 0.0))
        if row.get(name) is not None:
            words = ", with its proof" if name.endswith("proof") else ""
            lines.append(aim(f"{row['rows']:,} rows{words}, seconds of a second fit", row[name], most))
    largest = max(rows, key=lambda row: row["rows"])
    return [*lines, aim(f"{largest['rows']:,} rows, GiB at the peak", largest["peak_gib"], _MEMORY)]


SECTIONS = (
    Section(
        kind="mixed",
        heading="Mixed models beside NUTS",
        text=_NUTS_TEXT,
        title="Nested fits beside NUTS",
        cells=nuts_cells,
        verdicts=nuts_verdicts,
    ),
    Section(
        kind="mixed-peers",
        heading="Mixed models in R",
        text=_PEERS_TEXT,
        title="Fits in R, seconds of the fit alone",
        cells=peer_cells,
    ),
    Section(
        kind="mixed-large-cpu",
        heading="Mixed models as groups grow",
        text=_LARGE_TEXT,
        title="Random intercepts, small to large",
        cells=large_cells,
        verdicts=large_verdicts,
        made_by="`benchmarks/mixed_large.py`",
    ),
    Section(
        kind="mixed-large-h200",
        heading="Mixed models as groups grow, on a GPU",
        text="The same on a GPU.",
        title="Random intercepts, small to large, on a GPU",
        cells=large_cells,
        made_by="`benchmarks/mixed_large.py`",
    ),
)
