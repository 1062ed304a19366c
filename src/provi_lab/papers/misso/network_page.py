"""The tables that runs of Figure 2 leave, written as they grow, and the page and pictures made from them.

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

from provi.core.files import write_text
from provi.report.style import INK, PALETTE, number, save_figure
from provi_lab.common.pictures import legend_below, picture
from provi_lab.common.report import Claim, Report, finish
from provi_lab.common.tables import Row, read_rows, write_rows
from provi_lab.papers.misso import tempered_page
from provi_lab.papers.misso.networks import (
    ADAGRAD,
    ADAM,
    AVERAGED,
    BBB,
    GROWING,
    METHODS,
    MISSO,
    MOMENTUM,
    PACED,
    SAG,
    NetworkProblem,
)
from provi_lab.papers.misso.training import Training, at_rate, best, read_trainings

SCORES, TURNED = "-scores", "-rotation"
"""What the names of the second and third table end with."""


@dataclasses.dataclass
class Tables:
    """The rows so far, and where they are written."""

    folder: Path
    name: str
    facts: dict[str, Any]
    began: float = dataclasses.field(default_factory=time.monotonic)
    curves: list[Training] = dataclasses.field(default_factory=list)
    scores: list[Row] = dataclasses.field(default_factory=list)
    turned: list[Row] = dataclasses.field(default_factory=list)

    def write(self) -> None:
        """All of them, anew."""
        rows = [row for curve in self.curves for row in curve.rows()]
        for end, table in (("", rows), (SCORES, self.scores), (TURNED, self.turned)):
            if table:
                write_rows(self.folder / f"{self.name}{end}.csv", table)
        facts = {**self.facts, "seconds": time.monotonic() - self.began}
        write_text(self.folder / f"{self.name}.json", json.dumps(facts, indent=1))


def facts_of(problem: NetworkProblem, block_size: int, **more: Any) -> dict[str, Any]:
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
    claims: Callable[[list[Training], list[dict[str, str]]], tuple[Claim, ...]],
    beside: Sequence[Row] = (),
) -> Report:
    """The report of the tables in the folders `sources`, with its pictures and its page in `output`.

    **Arguments:** `beside`: lines of `tempered`, which have a table of their own.
    """
    folders = [Path(folder) for folder in sources]
    curves = read_trainings(folder / f"{name}.csv" for folder in folders)
    scores, turned = (read_rows(folder / f"{name}{end}.csv" for folder in folders) for end in (SCORES, TURNED))
    facts = [json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for folder in folders]
    files = [save_figure(draw_training(curves, paper_rate), output / f"{name}.png")]
    if turned:
        files.append(save_figure(draw_turned(turned), output / f"{name}{TURNED}.png"))
    rows = [row for curve in curves for row in curve.rows()]
    for end, table in (("", rows), (SCORES, scores), (TURNED, turned), (tempered_page.TABLE, list(beside))):
        if table:
            files.append(write_rows(output / f"{name}{end}.csv", table))
    report = Report(
        name,
        title,
        setting(facts[0]) + _drawn_here(facts[0]),
        tuple(summary(curves, scores, paper_rate, beside)),
        claims(curves, scores),
        tuple(files),
        sum(fact["seconds"] for fact in facts) + sum(float(row["seconds"]) for row in beside),
    )
    return finish(report, output)


def summary(
    curves: Sequence[Training], scores: Sequence[dict[str, str]], paper_rate: float, beside: Sequence[Row] = ()
) -> list[Row]:
    """One row a posterior and method, at its best rate; then those of `tempered`."""
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
    return [*rows, *tempered_page.summary(beside, list(rows[0]))] if rows else []


def _mean(rows: Sequence[dict[str, str]], key: str) -> float:
    return float(np.mean([float(row[key]) for row in rows])) if rows else math.nan


def _edge(curves: Sequence[Training], chosen: Training) -> str:
    """A star where the best rate is the smallest or the largest of those tried."""
    own = [c.rate for c in curves if (c.posterior, c.method) == (chosen.posterior, chosen.method)]
    return "*" if len(set(own)) > 1 and chosen.rate in (min(own), max(own)) else ""


LOOKS = {
    BBB: (PALETTE[5], "-"),
    MOMENTUM: (PALETTE[2], "-"),
    ADAGRAD: (PALETTE[3], "-"),
    SAG: (PALETTE[4], "-"),
    MISSO: (PALETTE[0], "-"),
    GROWING: (PALETTE[0], "--"),
    ADAM: (INK, "-"),
    AVERAGED: (INK, "--"),
    PACED: (PALETTE[1], "-"),
}
"""Colour and line; two forms of one method share a colour."""

_WIDE = 30.0  # a ratio of largest to smallest from which 1, 2 and 5 are marks enough

TITLES = {"global": "one sigma", "tensor": "a sigma for each tensor", "weight": "a sigma for each weight"}


def draw_training(curves: Sequence[Training], paper_rate: float) -> Any:
    """One panel a posterior: the mean over seeds and a band of one standard deviation, each method at its best rate.

    The dotted line is MISSO at the paper's rate.
    """
    posteriors = list(dict.fromkeys(curve.posterior for curve in curves))
    with picture(4.4 * len(posteriors) + 0.4, 4.3) as figure:
        panels = figure.subplots(1, len(posteriors), squeeze=False)[0]
        shown: dict[str, Any] = {}
        for axis, posterior in zip(panels, posteriors, strict=True):
            for name, (colour, line) in LOOKS.items():
                curve = best(curves, posterior, name)
                if curve is not None and np.isfinite(curve.mean):
                    shown.setdefault(name, _draw(axis, curve, colour, line))
            slow = at_rate(curves, posterior, MISSO, paper_rate)
            if slow is not None and np.isfinite(slow.mean):
                shown.setdefault(f"MISSO at {paper_rate:g}", _draw(axis, slow, PALETTE[0], ":"))
            axis.set(title=TITLES[posterior], xlabel="epochs", yscale="log")
            _tick(axis)
        panels[0].set_ylabel("−ELBO per image [nats]")
        figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=5 if len(panels) > 1 else 3)
    return figure


def _tick(axis: Any) -> None:
    """Whole epochs, and plain numbers along the logarithmic axis: more of them where it spans little."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_ylim()
    places = (1.0, 2.0, 5.0) if high > _WIDE * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.yaxis.set_major_locator(LogLocator(subs=places, numticks=20))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda value, _: number(value))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _draw(axis: Any, curve: Training, colour: str, line: str) -> Any:
    table = curve.values[:, :, 0]
    middle = table.mean(axis=0)
    spread = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros_like(middle)
    axis.fill_between(curve.epochs, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
    return axis.plot(curve.epochs, middle, color=colour, linestyle=line, marker="." if line == "-" else "")[0]


def draw_turned(rows: Sequence[dict[str, Any]]) -> Any:
    """Medians of the predictive entropy with bands from the 10% to the 90% quantile, and the accuracy, by angle."""
    names = list(dict.fromkeys((row["posterior"], row["method"]) for row in rows))
    with picture(8.4, 3.6) as figure:
        left, right = figure.subplots(1, 2)
        for k, (posterior, method) in enumerate(names):
            own = [row for row in rows if (row["posterior"], row["method"]) == (posterior, method)]
            angles, low, middle, high, hits = (
                np.array([float(row[key]) for row in own])
                for key in ("degrees", "entropy_10", "entropy_50", "entropy_90", "accuracy")
            )
            look = {"color": PALETTE[k % len(PALETTE)], "linestyle": "-" if posterior == "global" else "--"}
            left.fill_between(angles, low, high, color=look["color"], alpha=0.12, linewidth=0)
            left.plot(angles, middle, marker="o", label=f"{method}, {TITLES[posterior]}", **look)
            right.plot(angles, hits, marker="o", **look)
        for axis in (left, right):
            axis.set_xlabel("rotation [degrees]")
            axis.set_ylim(bottom=0)
        left.set(title="predictive entropy [nats], median and 10% to 90%")
        right.set(title="accuracy")
        legend_below(figure, left, 2)
    return figure
