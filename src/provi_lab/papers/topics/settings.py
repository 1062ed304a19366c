"""Paper 002, Figure 3, what else it says: PG-SVI by equation (9) with its own settings, and other numbers of topics."""

import copy
import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.arguments import double_precision
from provi.core.files import write_text
from provi.models import CorrelatedTopicModel
from provi.models.topics.correlated_topic_model import _generator
from provi.models.topics.options import global_settings, read_options
from provi.report.style import PALETTE
from provi_lab.common.curves import Curve, all_rows, select
from provi_lab.common.page import listed
from provi_lab.common.pictures import legend_below, picture
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.topics import equation9
from provi_lab.papers.topics.figure3 import RULE, lower_claim
from provi_lab.papers.topics.measure import (
    AP,
    DELTA,
    DIAGONAL,
    FULL,
    LAPLACE,
    MEAN_FIELD,
    METHODS,
    NATS,
    NIPS,
    Corpus,
    corpus_problem,
    document_losses,
    follow,
    synthetic_problem,
)

NAME = "ctm-settings"
PAPERS = "PG-SVI, equation (9)"
RIVALS = (DELTA, LAPLACE, MEAN_FIELD)
ALL = (PAPERS, *METHODS)
PROBLEMS = ((AP, 5), (AP, 10), (AP, 20), (NIPS, 10))
PASSES, NUM_SEEDS = (1, 2, 5, 10), 3
"""The paper's markers are after two and five passes."""


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes 160 made-up documents, two numbers of topics, two passes and two seeds."""
    began, output = time.monotonic(), Path(output)
    if quick:
        problems, passes, seeds = [_with_topics(synthetic_problem(seed), number) for number in (2, 3)], (1, 2), 2
    else:
        corpora = {title: corpus_problem(title, seed) for title in (AP, NIPS)}
        problems = [_with_topics(corpora[title], number) for title, number in PROBLEMS]
        passes, seeds = PASSES, NUM_SEEDS
    parts = output / f"{NAME}.parts"
    kept = Fits(parts, tuple(passes))
    curves = [
        curve for problem in problems for method in ALL for curve in kept.of(problem, method, range(seed, seed + seeds))
    ]
    report = publish(
        output,
        began - kept.earlier,
        name=NAME,
        title="Paper 002, the correlated topic model: the paper's own settings, and other numbers of topics",
        setting=_setting(problems, passes, seeds),
        picture=draw_passes(problems, curves),
        lines=all_rows(curves),
        rows=[row for problem in problems for row in summary(problem, curves, passes)],
        claims=[claim for problem in problems for claim in claims(problem, curves)],
    )
    shutil.rmtree(parts)
    return report


class Fits:
    """Each fit is a file of `folder` as soon as it is done: a run that was cut off goes on with the next one.

    `earlier` counts the seconds of the fits that were there already.
    """

    def __init__(self, folder: Path, passes: tuple[int, ...]):
        self.folder, self.passes, self.earlier = folder, passes, 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, problem: Corpus, method: str, seeds: Sequence[int]) -> list[Curve]:
        """Those of one method, from their files or made now; what is made is compiled before, and announced."""
        curves, compiled = [], False
        for seed in seeds:
            file = self.folder / f"{problem.title}, {method}, seed {seed}, {self.passes[-1]} passes.json"
            if file.is_file():
                curves.append(_read(file))
                self.earlier += curves[-1].more["wall"]
                continue
            began = time.monotonic()
            if not compiled:
                _fit(
                    problem, method, seed, (1,) if method == PAPERS else (2,)
                )  # ours: the second goes on from the first
                compiled = True
            curve = _fit(problem, method, seed, self.passes)
            curve.more["wall"] = time.monotonic() - began
            write_text(file, json.dumps([curve.names, _plain(curve.columns), _plain(curve.more)]))
            curves.append(curve)
            print(f"{file.stem}: {curve.more['wall']:.0f} s, {curve[NATS][-1]:.4f} nats a word", flush=True)
        return curves


def _fit(problem: Corpus, method: str, seed: int, passes: Sequence[int]) -> Curve:
    if method == PAPERS:
        return follow_equation9(problem, seed, passes)
    return follow(problem, method, seed, tuple(passes), all_scores=False)


def _plain(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in arrays.items()}


def _read(file: Path) -> Curve:
    names, columns, more = json.loads(file.read_text(encoding="utf-8"))
    more["own"] = np.asarray(more["own"])
    return Curve(names, {name: np.asarray(column) for name, column in columns.items()}, more)


def _with_topics(problem: Corpus, number: int) -> Corpus:
    return dataclasses.replace(problem, title=f"{problem.title}, {number} topics", num_topics=number)


def follow_equation9(problem: Corpus, seed: int, passes: Sequence[int]) -> Curve:
    """As `measure.follow`, from the start of a fit with this seed; posteriors of test documents by `FULL`.

    `refused` counts the visits until then at which (9) as printed gave no Gaussian.
    """
    model: Any = CorrelatedTopicModel(
        problem.num_topics, max_iter=1, batch_size=problem.batch_size, tol=None, random_state=seed, **METHODS[FULL]
    ).fit(problem.train)  # for what the scores read
    options = read_options(model)
    topics, prior = model._start(problem.train, options, _generator(seed))
    table = equation9.table_of(problem.train)
    settings = global_settings(options, table.words.shape[0], np.float64)
    began, seconds, kept = time.perf_counter(), [], []
    for _, state in equation9.run_passes(table, topics, prior, settings, seed, passes):
        seconds.append(time.perf_counter() - began)
        kept.append(state)
    losses = [document_losses(_model_of(model, state), problem) for state in kept]
    return Curve(
        {"data": problem.title, "method": PAPERS, "seed": seed},
        {
            "passes": np.array(passes),
            "seconds": np.array(seconds),
            NATS: np.array([loss.sum() for loss in losses]) / problem.test_words.sum(),
        },
        {"own": losses[-1], "refused": int(kept[-1].refused), "visits": passes[-1] * table.words.shape[0]},
    )


def _model_of(model: Any, state: equation9.State) -> Any:
    found = copy.copy(model)
    found._keep(state.statistics, state.topics, state.prior)
    return found


def summary(problem: Corpus, curves: Sequence[Curve], passes: Sequence[int]) -> list[Row]:
    """Means over the seeds."""
    rows = []
    for method in ALL:
        own = select(curves, data=problem.title, method=method)
        losses = [float(np.mean([curve[NATS][place] for curve in own])) for place in range(len(passes))]
        refused = [curve.more["refused"] / curve.more["visits"] for curve in own if "refused" in curve.more]
        rows.append(
            {
                "data": problem.title,
                "method": method,
                **{f"after {number}": f"{loss:.4f}" for number, loss in zip(passes, losses, strict=True)},
                "spread": f"{np.std([curve[NATS][-1] for curve in own], ddof=1):.4f}",
                "not positive definite": f"{np.mean(refused):.1%}" if refused else "",
                "seconds": float(np.mean([curve["seconds"][-1] for curve in own])),
            }
        )
    return rows


def claims(problem: Corpus, curves: Sequence[Curve]) -> list[Claim]:
    """Of the paper's form and of ours, and which of them is better."""
    others = listed(RIVALS)
    return [
        lower_claim(
            problem,
            curves,
            PAPERS,
            RIVALS,
            "own",
            f"{problem.title}: PG-SVI as the paper runs it reaches a lower held-out negative log-likelihood than "
            f"{others} (rule, for each: {RULE}).",
        ),
        lower_claim(
            problem,
            curves,
            FULL,
            RIVALS,
            "own",
            f"{problem.title}: the same of ProVI's form of PG-SVI (the same rule).",
        ),
    ]


def _setting(problems: Sequence[Corpus], passes: Sequence[int], seeds: int) -> str:
    words = "; ".join(
        f"{problem.title}: {problem.train.shape[0]} documents to train on, predicted by the words' frequencies "
        f"{problem.unigram_loss:.4f} nats a word"
        for problem in problems
    )
    return (
        f"Documents, split, start and score as on the page of Figure 3 ({words}); {passes[-1]} passes, {seeds} seeds. "
        f"'{PAPERS}': a constant step beta = {equation9.STEP:g} and batches of M = {equation9.BATCH} documents, "
        f"weighted by D/M as in equation (12), so that a document, visited once a pass, moves by beta D/M then and "
        f"towards the prior in all other steps; fresh draws at every visit, twice as many as topics; statistics of "
        f"the M-step with the same constant rate. The paper does not say how many draws, which M-step, and what is "
        f"done where (9) leaves no positive definite precision: there a second-order term is added, at the visits "
        f"counted in the column 'not positive definite'. The other methods have batches of "
        f"{problems[0].batch_size} and decaying rates, as on the page of Figure 3. Posteriors of test documents are "
        f"iterated to convergence, those of '{PAPERS}' by ProVI's PG-SVI. Columns: minus the mean log probability of "
        f"a held-out word in nats, 'spread' the standard deviation over the seeds; seconds are wall-clock, of "
        f"training, on a machine that did other work as well. In the picture bands have all seeds."
    )


LOOKS = {
    PAPERS: (PALETTE[5], "-", "o"),
    FULL: (PALETTE[0], "-", "s"),
    DIAGONAL: (PALETTE[1], "-", "^"),
    DELTA: (PALETTE[4], "--", "P"),
    LAPLACE: (PALETTE[2], "--", "v"),
    MEAN_FIELD: (PALETTE[3], "--", "D"),
}


def draw_passes(problems: Sequence[Corpus], curves: Sequence[Curve]) -> Any:
    """A panel a problem: nats a word against passes."""
    with picture(3.2 * len(problems) + 0.4, 3.4) as figure:
        axes = figure.subplots(1, len(problems), squeeze=False)[0]
        for axis, problem in zip(axes, problems, strict=True):
            for name, (colour, line, marker) in LOOKS.items():
                own = select(curves, data=problem.title, method=name)
                losses = np.stack([curve[NATS] for curve in own])
                when = own[0].when
                axis.fill_between(when, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.15, linewidth=0)
                axis.plot(when, losses.mean(axis=0), color=colour, linestyle=line, marker=marker, label=name)
            axis.set_xscale("log")
            axis.set_xticks(when, [f"{number:g}" for number in when])
            axis.set_xticks([], minor=True)
            axis.set_title(problem.title)
            axis.set_xlabel("passes")
        axes[0].set_ylabel("held-out negative log-likelihood\n[nats a word]")
        legend_below(figure, axes[0], len(LOOKS))
    return figure
