"""Sections of the page: passes over a table on a GPU, data larger than memory, Gaussian processes for many data."""

from collections.abc import Sequence
from typing import Any

from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, aim, number

_PASS_TEXT = """\
Logistic regression on a table of float32 numbers that are made on the GPU and never leave it: milliseconds, the least
of some calls after the one that compiles. A natural-gradient pass is the ELBO with its gradient and curvature; the
floor is reading the table once at the bandwidth of a copy, measured in the same run. Steps round the factors of their
products to bfloat16; the proof is in double precision."""

_STREAM_TEXT = """\
Logistic regression on a table in Parquet that is never in memory (`from_parquet`), made by the script: the fit to a
proven gap of 0.1 nats in a process of its own, and the least wall seconds of one pass of a step beside those of reading
the files and of one weighted X'X per block with NumPy, by turns in the same process."""

_GP_TEXT = """\
Gaussian-process classification with a logit, synthetic: *smooth* (squared exponential, two columns) has a kernel matrix
of low rank, *rough* (Matern 1/2, five columns) has not. `provi.fit` in a process of its own, compilation included, and
a second time without it, beside one Cholesky factor of the kernel matrix; or one step of a method, compiled."""

_NATURAL, _BANDWIDTH, _PASSES, _MEMORY = 12.0, 0.8, 25.0, 1.3
"""Aims: ms of a natural-gradient pass, share of a copy's bandwidth, passes a fit may take, memory over the data."""
_STREAM_AIMS = (
    ("GiB of memory at the peak", "peak_gib", 2.0),
    ("Proven gap, nats", "gap", 0.1),
    ("Passes after the warm start", "passes_after_warm_start", 4),
    ("A pass over reading and X'X", "ratio", 1.5),
)
_MEASURED = {
    "reading the table once": "reading the table once, the floor",
    "gradient pass": "gradient pass",
    "natural-gradient pass": "natural-gradient pass",
    "natural-gradient pass, exact products": "natural-gradient pass, exact products",
    "the proof's pass in float64, with host algebra": "pass of the proof, double precision",
    "making the target": "making the target",
    "first fit": "certified fit, first call",
    "fit, second call": "certified fit, second call",
}
"""Names in the record, in milliseconds, and on the page."""


def pass_rows(record: dict[str, Any]) -> list[Row]:
    """The record has one table."""
    return [record["figures"]] if "figures" in record else []


def pass_cells(rows: Sequence[Row]) -> Cells:
    """One line a measurement; the floor is the unit of the last column."""
    (row,) = rows
    floor = row["reading the table once"]
    names = [f"{row['rows']:,} x {row['columns']}", "ms", "over the floor"]
    return names, [
        [words, number(row[name]), number(row[name] / floor)] for name, words in _MEASURED.items() if name in row
    ]


def pass_verdicts(rows: Sequence[Row]) -> list[str]:
    """Time, bandwidth and memory against the aims for an H200 and 8,000,000 x 256."""
    (row,) = rows
    return [
        aim("Milliseconds of a natural-gradient pass", row["natural-gradient pass"], _NATURAL),
        aim(
            "Bandwidth of a gradient pass over a copy's",
            row["gradient pass over the copy's bandwidth"],
            _BANDWIDTH,
            least=True,
        ),
        aim("Natural-gradient passes that a certified fit takes, second call", row["fit over one pass"], _PASSES),
        _memory_verdict(row),
        f"The fit: {row['message']}.",
    ]


def _memory_verdict(row: Row) -> str:
    """The device's mark never falls: where it is that of making the data, it bounds the fit and does not judge it."""
    peak, before = row["peak memory over the table's"], row.get("peak memory of making the data over the table's")
    if before is None or peak > before or peak <= _MEMORY:
        return aim("Memory at the peak over the table's", peak, _MEMORY)
    words = f"Memory at the peak over the table's: {peak:.3g}, which making the data took before the fit"
    return f"{words}; aim at most {_MEMORY:g}: **not shown**."


def stream_rows(record: dict[str, Any]) -> list[Row]:
    """The record is one row, and its "rows" a number."""
    return [record]


def stream_cells(rows: Sequence[Row]) -> Cells:
    """One line: the table, the fit, a pass."""
    names = [
        "table",
        "GiB of files",
        "survey, s",
        "fit, s",
        "peak GiB",
        "proven gap",
        "a pass, s",
        "reading and X'X, s",
    ]
    lines = []
    for row in rows:
        line = [f"{row['rows']:,} x {row['columns']}", number(row["bytes"] / 2**30)]
        line += [number(row[name]) for name in ("survey_seconds", "fit_seconds", "peak_gib", "gap")]
        lines.append([*line, number(row["pass_seconds"]), number(row["floor_seconds"])])
    return names, lines


def stream_verdicts(rows: Sequence[Row]) -> list[str]:
    """Memory, proof and time against the aims for two cores and 10^7 x 100."""
    return [aim(words, row[name], most) for row in rows for words, name, most in _STREAM_AIMS]


def gp_cells(rows: Sequence[Row]) -> Cells:
    """One line a problem and path."""
    names = ["problem", "N", "path", "CPU s", "wall s", "second call, s", "a Cholesky factor, s", "peak GiB", ""]
    lines = []
    for row in rows:
        a_step = "wall_seconds_a_step" in row
        suffix = "_a_step" if a_step else ""
        line = [row["problem"], f"{row['size']:,}", f"one step, {row['path']}" if a_step else row["path"]]
        line += [number(row[f"{clock}_seconds{suffix}"]) for clock in ("cpu", "wall")]
        extra = ("wall_seconds_second_call", "wall_seconds_of_a_cholesky_factor")
        line += [number(row.get(name)) for name in extra]
        lines.append([*line, number(row["peak_gib"], 2), row.get("message", "")])
    return names, lines


LINEAR_PASS = Section(
    kind="h200-linear-pass",
    heading="Passes over a table on a GPU",
    text=_PASS_TEXT,
    title="A logistic regression on a GPU, milliseconds",
    cells=pass_cells,
    verdicts=pass_verdicts,
    rows=pass_rows,
    made_by="`benchmarks/gpu_glm.py`",
)

STREAMING = Section(
    kind="streaming",
    heading="Data larger than memory",
    text=_STREAM_TEXT,
    title="A logistic regression read in blocks",
    cells=stream_cells,
    verdicts=stream_verdicts,
    rows=stream_rows,
    made_by="`benchmarks/streaming.py`",
)

GP = Section(
    kind="gp-large",
    heading="Gaussian processes for many data",
    text=_GP_TEXT,
    title="Gaussian processes for many data",
    cells=gp_cells,
    made_by="`benchmarks/gp_large.py`",
)

GP_H200 = Section(
    kind="h200-gp-large",
    heading="Gaussian processes for many data, on a GPU",
    text="The same on a GPU.",
    title="Gaussian processes for many data, on a GPU",
    cells=gp_cells,
    made_by="`benchmarks/gp_large.py`",
)
