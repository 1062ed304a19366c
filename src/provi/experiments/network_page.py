"""The tables that runs of Figure 2 leave, written as they grow, and the page that is made from them, here or elsewhere.

A run on a machine without matplotlib, or cut off, leaves its tables: `conclude` makes picture, verdicts and page of
them afterwards, of several runs together where a figure was measured in parts.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from provi.experiments.network_curves import Curve, at_rate, best, read_curves, read_rows
from provi.experiments.network_methods import METHODS
from provi.experiments.network_problem import Problem
from provi.experiments.report import Claim, Report, Row, finish, write_rows

SCORES, TURNED = "-scores", "-rotation"
"""What the names of the second and third table end with."""


@dataclasses.dataclass
class Tables:
    """The rows so far, and where they are written."""

    folder: Path
    name: str
    facts: dict[str, Any]
    began: float = dataclasses.field(default_factory=time.monotonic)
    curves: list[Curve] = dataclasses.field(default_factory=list)
    scores: list[Row] = dataclasses.field(default_factory=list)
    turned: list[Row] = dataclasses.field(default_factory=list)

    def write(self) -> None:
        """All of them, anew."""
        rows = [row for curve in self.curves for row in curve.rows()]
        for end, table in (("", rows), (SCORES, self.scores), (TURNED, self.turned)):
            if table:
                write_rows(self.folder / f"{self.name}{end}.csv", table)
        facts = {**self.facts, "seconds": time.monotonic() - self.began}
        (self.folder / f"{self.name}.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def facts_of(problem: Problem, block_size: int, **more: Any) -> dict[str, Any]:
    """What the page says of the problem and the machine."""
    return {
        "title": problem.title,
        "images": problem.target.num_terms,
        "weights": problem.target.dim,
        "blocks": -(-problem.target.num_terms // block_size),
        "machine": _machine(),
        **more,
    }


def _machine() -> str:
    device = jax.devices()[0]
    return f"{device.device_kind} ({device.platform}), jax {jax.__version__}"


def _drawn_here(facts: dict[str, Any]) -> str:
    """A word on the foot of the page, where that names another machine than the runs'."""
    return "" if facts["machine"] == _machine() else " The foot of the page names the machine that drew it afterwards."


def conclude(
    name: str,
    title: str,
    output: Path,
    sources: Sequence[Path],
    paper_rate: float,
    setting: Callable[[dict[str, Any]], str],
    claims: Callable[[list[Curve], list[dict[str, str]]], tuple[Claim, ...]],
) -> Report:
    """The report of the tables in the folders `sources`, with its pictures and its page in `output`."""
    from provi.experiments.network_picture import draw_training, draw_turned
    from provi.report.style import save_figure

    folders = [Path(folder) for folder in sources]
    curves = read_curves(folder / f"{name}.csv" for folder in folders)
    scores, turned = (read_rows(folder / f"{name}{end}.csv" for folder in folders) for end in (SCORES, TURNED))
    facts = [json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for folder in folders]
    files = [save_figure(draw_training(curves, paper_rate), output / f"{name}.png")]
    if turned:
        files.append(save_figure(draw_turned(turned), output / f"{name}{TURNED}.png"))
    rows = [row for curve in curves for row in curve.rows()]
    for end, table in (("", rows), (SCORES, scores), (TURNED, turned)):
        if table:
            files.append(write_rows(output / f"{name}{end}.csv", table))
    report = Report(
        name,
        title,
        setting(facts[0]) + _drawn_here(facts[0]),
        tuple(_summary(curves, scores, paper_rate)),
        claims(curves, scores),
        tuple(files),
        sum(fact["seconds"] for fact in facts),
    )
    return finish(report, output)


def _summary(curves: Sequence[Curve], scores: Sequence[dict[str, str]], paper_rate: float) -> list[Row]:
    """One row a posterior and method, at its best rate."""
    rows = []
    for posterior in dict.fromkeys(curve.posterior for curve in curves):
        for method in METHODS:
            curve = best(curves, posterior, method)
            if curve is None:
                continue
            at_paper = at_rate(curves, posterior, method, paper_rate)
            own = [row for row in scores if (row["posterior"], row["method"]) == (posterior, method)]
            own = [row for row in own if float(row["rate"]) == curve.rate]
            test = {key: _mean(own, key) for key in ("accuracy", "test_nll", "calibration_error", "median_sd")}
            rows.append(
                {
                    "posterior": posterior,
                    "method": method,
                    "rate": f"{curve.rate:g}{_edge(curves, curve)}",
                    "-ELBO": curve.mean,
                    "sd": float(np.std(curve.last, ddof=1)) if len(curve.seeds) > 1 else math.nan,
                    "of it KL": float(curve.values[:, -1, 2].mean()),
                    f"-ELBO at {paper_rate:g}": "" if at_paper is None else at_paper.mean,
                    **{key.replace("_", " "): value for key, value in test.items()},
                }
            )
    return rows


def _mean(rows: Sequence[dict[str, str]], key: str) -> float:
    return float(np.mean([float(row[key]) for row in rows])) if rows else math.nan


def _edge(curves: Sequence[Curve], chosen: Curve) -> str:
    """A star where the best rate is the smallest or the largest of those tried."""
    own = [c.rate for c in curves if (c.posterior, c.method) == (chosen.posterior, chosen.method)]
    return "*" if len(set(own)) > 1 and chosen.rate in (min(own), max(own)) else ""
