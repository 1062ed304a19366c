"""The results of `provi bench topics` for people: medians over the splits, and what is better and faster."""

from collections.abc import Sequence

import numpy as np

from provi.bench.blackbox import Row
from provi.bench.tables import Cells
from provi.bench.topics_methods import OURS, RIVALS, TOPICS_METHODS


def topics_cells(rows: Sequence[Row]) -> Cells:
    """One line a method: medians over the splits, with the range of the score; times without (with) compilation."""
    names = ["method", "splits", "score", "range", "own score", "wall s", "CPU s", "passes", ""]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        ran = [row for row in own if row["status"] == "ran"]
        failed = "; ".join(f"{row['status']}: {row['note']}" for row in own if row["status"] != "ran")
        if not ran:
            lines.append([method, *[""] * 7, failed])
            continue
        scores = [-np.inf if row["score"] is None else row["score"] for row in ran]
        spread = f"{min(scores):.4f} to {max(scores):.4f}"
        cells = [f"{np.median(scores):.4f}", spread, _text(_median(ran, "own_score"), ".4f")]
        for clock in ("wall", "cpu"):
            alone, compiling = _median(ran, clock), _median(ran, clock + "_compiling")
            cells.append(f"{alone:.3g} ({compiling:.3g})" if np.isfinite(alone) else "")
        lines.append([method, str(len(ran)), *cells, _text(_median(ran, "steps"), ".4g"), failed])
    return names, lines


def topics_verdicts(rows: Sequence[Row]) -> list[str]:
    """ProVI's correlated topic models against each method of another library; of one problem's rows.

    Better means on every split, by the same scorer; faster in the median of wall-clock seconds without compilation.
    """
    lines = []
    for key in OURS:
        mine = _by_seed(rows, key)
        for rival in RIVALS:
            theirs = _by_seed(rows, rival)
            seeds = sorted(mine.keys() & theirs.keys())
            if seeds:
                verdict = _verdict([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])
                lines.append(f"{TOPICS_METHODS[key].name} beside {TOPICS_METHODS[rival].name}: {verdict}.")
    return lines


def _verdict(mine: list[Row], theirs: list[Row]) -> str:
    gains = [own["score"] - their["score"] for own, their in zip(mine, theirs, strict=True)]
    better = "yes" if min(gains) > 0 else "no"
    ratio = _median(theirs, "wall") / _median(mine, "wall")
    faster = "yes" if ratio > 1 else "no"
    passed = float(np.median([_time_to(own, their["score"]) for own, their in zip(mine, theirs, strict=True)]))
    reached = f"its score is passed after {passed:.3g} s" if np.isfinite(passed) else "its score is not passed"
    gain = f"{np.median(gains):+.4f} nats a word, {min(gains):+.4f} at least"
    return f"better: {better} ({gain}); faster: {faster} ({ratio:.3g} times); {reached}"


def _time_to(row: Row, score: float) -> float:
    """Wall-clock seconds without compilation to the first snapshot that is better than `score`."""
    times = (point["wall"] for point in row["curve"] if point["score"] is not None and point["score"] > score)
    return next(times, np.inf)


def _by_seed(rows: Sequence[Row], key: str) -> dict[int, Row]:
    """The runs of a method that came to an end with a score."""
    name = TOPICS_METHODS[key].name
    return {
        row["seed"]: row
        for row in rows
        if row["method"] == name and row["status"] == "ran" and row["score"] is not None
    }


def _median(rows: Sequence[Row], name: str) -> float:
    """Over the splits; NaN where there is nothing."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(np.median(values)) if values else np.nan


def _text(value: float, form: str) -> str:
    return f"{value:{form}}" if np.isfinite(value) else ""
