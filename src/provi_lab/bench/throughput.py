"""`provi bench topics --throughput`: words a second as topics and documents grow, and the memory of a stream."""

from collections.abc import Callable, Sequence
from typing import Any

from provi_lab.bench.methods import PEERS, Method, MethodFailed, Trace, run_method, saved
from provi_lab.bench.problems import TopicsProblem
from provi_lab.bench.record import Section
from provi_lab.bench.topics import NUM_TOPICS, resampled
from provi_lab.common.tables import Cells, Row

_TEXT = """\
Words (repetitions counted) a wall-clock second of two passes of `CorrelatedTopicModel.fit`, its start included, without
compilation, on Associated Press documents drawn with replacement. `partial_fit` gets a stream of batches of 64 such
documents and iterates each to convergence; its peak memory is that of the whole process, compiled programs included,
after a tenth of the stream and after all of it, and its time includes compilation for batches of another shape."""

TOPICS, DOCUMENTS = (5, 10, 20, 50, 100), (500, 1000, 2000, 4000)
STREAM_BATCHES = 400
_FIXED_DOCUMENTS = 1000

_PASSES, _STREAM = ("fit, full", "fit, diagonal"), "partial_fit"


def _method(name: str, program: str, setting: float, quantity: str) -> Method:
    return Method(name, PEERS + program, (), "", (setting,), quantity, True)


def sizes(topics: Sequence[int] = TOPICS, documents: Sequence[int] = DOCUMENTS) -> list[tuple[int, int]]:
    """(documents, topics): the topics grow, then the documents; no pair twice."""
    pairs = [(_FIXED_DOCUMENTS, number) for number in topics] + [(number, NUM_TOPICS) for number in documents]
    return list(dict.fromkeys(pairs))


def measure_throughput(
    counts: Any,
    pairs: Sequence[tuple[int, int]],
    seconds: float,
    report: Callable[[str], None] = lambda line: None,
    stream_batches: int = STREAM_BATCHES,
) -> list[Row]:
    """A few passes of `fit` on documents drawn from `counts`, both covariances; then a stream for `partial_fit`.

    **Arguments:** `pairs` as `sizes` makes them; `seconds` and `report` as of `measure_topics`; `stream_batches`: the
    batches of the stream, whose peak memory is read after a tenth of them and after all.

    **Returns:** a row for each process, two for that of the stream.
    """
    rows = []
    for documents, topics in pairs:
        problem = resampled(counts, documents, topics)
        for name, setting in zip(_PASSES, (1.0, 0.0), strict=True):
            report(f"{problem.name}: {name}")
            rows += _run(_method(name, "provi:ctm_passes", setting, "full covariance"), problem, seconds, _fit_rows)
    report(f"a stream of {stream_batches} batches: {_STREAM}")
    method = _method(_STREAM, "provi:ctm_stream", float(stream_batches), "batches")
    return rows + _run(method, resampled(counts, _FIXED_DOCUMENTS, NUM_TOPICS), seconds, _stream_rows)


def _run(method: Method, problem: TopicsProblem, seconds: float, make_rows: Callable[[Trace], list[Row]]) -> list[Row]:
    row = {"method": method.name, "documents": problem.train.shape[0], "topics": problem.num_topics, "facts": {}}
    (setting,) = method.settings
    with saved(problem) as path:
        try:
            trace = run_method(method, path, setting, seconds)
        except MethodFailed as error:
            return [{**row, "status": "failed", "note": str(error)}]
    return [{**row, "status": "ran", "note": "", **more} for more in make_rows(trace)]


def _fit_rows(trace: Trace) -> list[Row]:
    words = trace.facts["tokens"] * float(trace.gradients[-1])
    times = {"wall": float(trace.wall[-1]), "cpu": float(trace.cpu[-1]), "compiling": trace.compile_wall}
    sums = {"words": words, "words_a_second": words / times["wall"], "peak_mib": float(trace.mean[-1])}
    return [{"passes": float(trace.gradients[-1]), **times, **sums}]


def _stream_rows(trace: Trace) -> list[Row]:
    columns = zip(trace.covariance, trace.mean, trace.wall, trace.cpu, strict=True)
    return [
        {"documents": int(seen), "peak_mib": float(peak), "wall": float(wall), "cpu": float(cpu)}
        for seen, peak, wall, cpu in columns
    ]


def throughput_cells(rows: Sequence[Row]) -> Cells:
    """One line a run."""
    names = ["method", "documents", "topics", "words a second", "wall s", "CPU s", "compilation s", "peak MiB", ""]
    lines = []
    for row in rows:
        start = [row["method"], f"{row['documents']:,}", str(row["topics"])]
        if row["status"] != "ran":
            lines.append([*start, *[""] * 5, f"{row['status']}: {row['note']}"])
            continue
        speed = f"{row['words_a_second']:,.0f}" if "words_a_second" in row else ""
        compiling = f"{row['compiling']:.3g}" if "compiling" in row else ""
        times = [f"{row[clock]:.3g}" for clock in ("wall", "cpu")]
        lines.append([*start, speed, *times, compiling, f"{row['peak_mib']:,.0f}", ""])
    return names, lines


def throughput_verdicts(rows: Sequence[Row]) -> list[str]:
    """How the time of a pass grows with the topics and with the documents, and whether a stream's memory grows."""
    lines = []
    for name in _PASSES:
        ran = [row for row in rows if row["method"] == name and row["status"] == "ran"]
        for size, fixed, value in (("topics", "documents", _FIXED_DOCUMENTS), ("documents", "topics", NUM_TOPICS)):
            series = sorted((row for row in ran if row[fixed] == value), key=lambda row: row[size])
            if len(series) > 1:
                first, last = series[0], series[-1]
                growth = (last["wall"] / last["words"]) / (first["wall"] / first["words"])
                times = last[size] / first[size]
                lines.append(f"{name}: {times:.3g} times the {size}, {growth:.3g} times as long for a word.")
    stream = [row for row in rows if row["method"] == _STREAM and row["status"] == "ran"]
    if len(stream) > 1:
        first, last = stream[0], stream[-1]
        times, more = last["documents"] / first["documents"], last["peak_mib"] / first["peak_mib"]
        lines.append(f"{_STREAM}: {times:.3g} times the documents, {more:.3f} times the peak memory.")
    return lines


SECTION = Section(
    "topics-throughput",
    "Throughput of the correlated topic model",
    _TEXT,
    "Throughput of the correlated topic model",
    throughput_cells,
    throughput_verdicts,
)
