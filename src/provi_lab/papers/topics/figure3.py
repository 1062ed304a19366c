"""Paper 002, Figure 3: the correlated topic model on AP and NIPS, held-out log-likelihood against training time."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.arguments import double_precision
from provi.models import CorrelatedTopicModel
from provi.report.style import PALETTE, save_figure
from provi_lab.common.curves import Curve, select
from provi_lab.common.pictures import legend_below, picture
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.topics.measure import (
    AP,
    COMMON,
    DELTA,
    DIAGONAL,
    EQUATION_20,
    FULL,
    LAPLACE,
    MEAN_FIELD,
    METHODS,
    NATS,
    NIPS,
    PAPER_DRAWS,
    Corpus,
    compile_method,
    corpus_problem,
    follow,
    rows_of,
    synthetic_problem,
)

NAME = "ctm-figure3"
PASSES, NUM_SEEDS = (1, 2, 3, 5, 10, 20), 3
QUICK_PASSES, QUICK_SEEDS = (1, 2, 4), 2


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes three methods on 160 made-up documents of three topics, four passes, two seeds."""
    began, output = time.monotonic(), Path(output)
    if quick:
        problems, methods = [synthetic_problem(seed)], (FULL, DIAGONAL, LAPLACE)
        passes, seeds = QUICK_PASSES, QUICK_SEEDS
    else:
        problems, methods = [corpus_problem(title, seed) for title in (AP, NIPS)], tuple(METHODS)
        passes, seeds = PASSES, NUM_SEEDS
    curves = []
    for problem in problems:
        for method in methods:
            compile_method(problem, method)
            curves += [follow(problem, method, each, passes) for each in range(seed, seed + seeds)]
    words = {problem.title: float(problem.test_words.sum()) for problem in problems}
    return publish(
        output,
        began,
        name=NAME,
        title="Paper 002, Figure 3: the correlated topic model, held-out log-likelihood against time",
        setting=_setting(problems, passes, seeds),
        picture=draw_times(problems, curves),
        lines=[row for curve in curves for row in rows_of(curve, words[curve.names["data"]])],
        rows=[row for problem in problems for row in summary(problem, curves, passes)],
        claims=claims(problems, curves),
        more=picture_topics(problems[0], passes[-1], seed, output),
    )


def picture_topics(problem: Corpus, passes: int, seed: int, output: Path) -> tuple[Path, ...]:
    """The topics and their correlations, from a fit with the estimator's own settings but for the passes."""
    model = CorrelatedTopicModel(
        problem.num_topics, max_iter=passes, batch_size=problem.batch_size, random_state=seed
    ).fit(problem.train)
    figures = {
        "topics": model.plot_topics(vocabulary=problem.vocabulary),
        "correlations": model.plot_correlations(vocabulary=problem.vocabulary),
    }
    return tuple(save_figure(figure, output / f"{NAME}-{name}.png") for name, figure in figures.items())


def summary(problem: Corpus, curves: Sequence[Curve], passes: Sequence[int]) -> list[Row]:
    """Means over the seeds: seconds and nats a word at some passes, and the other two scores after the last pass."""
    rows = []
    for method in METHODS:
        own = select(curves, data=problem.title, method=method)
        if not own:
            continue
        losses = {
            f"after {number}": _nats(np.mean([curve[NATS][place] for curve in own]))
            for place, number in enumerate(passes)
        }
        rows.append(
            {
                "data": problem.title,
                "method": method,
                **losses,
                "spread": _nats(np.std([curve[NATS][-1] for curve in own], ddof=1)),
                COMMON: _nats(mean_loss(problem, curves, method, "common")),
                EQUATION_20: _nats(mean_loss(problem, curves, method, "paper")),
                "seconds": float(np.mean([curve["seconds"][-1] for curve in own])),
            }
        )
    return rows


def _nats(value: Any) -> str:
    """Four decimals: methods differ in the third."""
    return f"{value:.4f}"


def _setting(problems: Sequence[Corpus], passes: Sequence[int], seeds: int) -> str:
    sets = "; ".join(
        f"{problem.title}: {problem.train.shape[0]} documents to train on, {problem.held_out.shape[0]} to test, "
        f"vocabulary {problem.train.shape[1]}, {problem.num_topics} topics, {int(problem.test_words.sum())} held-out "
        f"words, {problem.unseen:.1%} of the test words not seen in training and left out; predicted by their "
        f"frequencies in training {problem.unigram_loss:.4f} nats a word"
        for problem in problems
    )
    return (
        f"A random half of the documents to train on; the words of each of the others in two random halves, one to "
        f"infer its topics from until convergence, one to predict ({sets}). The split is the same for all runs (the "
        f"paper's is not published); {seeds} seeds of the start and of the batches, which are the same for all "
        f"methods, and of the draws. Stochastic EM with batches of {problems[0].batch_size} documents, "
        f"{passes[-1]} passes, the same rates for all: 'delta' and 'Laplace' (Wang and Blei 2013) and 'MF' (Blei and "
        f"Lafferty 2007) differ from PG-SVI in the posteriors of the documents, and assign words to topics at their "
        f"means, as their papers do. The "
        f"columns 'after n' passes have minus the mean log probability of a held-out word in nats, with the method's "
        f"own posteriors of the test documents; 'spread' is the standard deviation over the seeds after the last "
        f"pass. 'Topics with PG-SVI' scores the same topics, mean and covariance with the posteriors of PG-SVI: what "
        f"differs there is due to training. 'Equation (20)' is the paper's own score, all occurrences of a word in a "
        f"document under one draw of the topics, by {PAPER_DRAWS} draws, divided by the number of occurrences. "
        f"Seconds are wall-clock, of the whole fit, after one that compiles; scores are off the clock. Standard "
        f"errors are of the seeds and of the test documents together, for this split of the documents. In the picture "
        f"the markers are after {', '.join(map(str, passes))} passes, and the bands have all seeds. The other pictures "
        f"are of {problems[0].title}: a fit of PG-SVI with the estimator's own rates."
    )


OURS, RIVALS = (FULL, DIAGONAL), (DELTA, LAPLACE, MEAN_FIELD)

LEVEL = 0.01
"""Nats a word: how near to the best of the rivals' last scores a fit must come to count as there."""

RULE = "the mean difference over seeds is below zero by more than twice its standard error"


def paired_difference(
    problem: Corpus, curves: Sequence[Curve], one: str, other: str, scores: str = "own"
) -> tuple[float, float]:
    """The mean over the seeds of `one`'s last loss minus that of `other`, nats a word, and its standard error.

    The squared error is the sum of two: of the seeds, from the spread of the paired differences, and of the test
    documents, as those of a ratio of sums over documents. What both share is counted twice, so it is rather too large.
    """
    ours, theirs = (_by_seed(problem, curves, name, scores) for name in (one, other))
    differences = np.stack([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])
    words = problem.test_words
    by_seed = differences.sum(axis=1) / words.sum()
    mean = float(by_seed.mean())
    of_documents = float(np.sum((differences.mean(axis=0) - mean * words) ** 2)) / float(words.sum()) ** 2
    return mean, math.sqrt(float(by_seed.var(ddof=1)) / len(by_seed) + of_documents)


def _by_seed(problem: Corpus, curves: Sequence[Curve], method: str, scores: str) -> dict[int, np.ndarray]:
    return {c.names["seed"]: c.more[scores] for c in select(curves, data=problem.title, method=method)}


def claims(problems: Sequence[Corpus], curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """For each corpus: the last scores, what of them is due to the topics, full and diagonal, and the time."""
    return tuple(claim for problem in problems for claim in _corpus_claims(problem, curves))


def _corpus_claims(problem: Corpus, curves: Sequence[Curve]) -> list[Claim]:
    title, rivals = problem.title, tuple(name for name in RIVALS if any(c.method == name for c in curves))
    others = " and ".join(", ".join(rivals).rsplit(", ", 1))
    statements = {
        "own": f"reaches a lower held-out negative log-likelihood than {others} (rule, for each: {RULE}).",
        "common": f"finds better topics than {others} (the same rule, all scored with PG-SVI at test time).",
        "paper": f"is better than {others} by the paper's own score, equation (20) (the same rule).",
    }
    full = f"{title}: PG-SVI, full covariance, is better than PG-SVI-MF, diagonal (rule: {RULE})."
    return [
        *(
            lower_claim(problem, curves, one, rivals, scores, f"{title}: {one} {statement}")
            for scores, statement in statements.items()
            for one in OURS
        ),
        lower_claim(problem, curves, FULL, (DIAGONAL,), "own", full),
        _faster(problem, curves, rivals, others),
    ]


def lower_claim(
    problem: Corpus, curves: Sequence[Curve], one: str, others: Sequence[str], scores: str, statement: str
) -> Claim:
    """That `one` has lower scores than each of `others`, by `RULE`."""
    measured = {name: paired_difference(problem, curves, one, name, scores) for name in others}
    evidence = "; ".join(f"against {name} {mean:+.4f} -+ {error:.4f}" for name, (mean, error) in measured.items())
    return Claim.of(
        statement,
        all(mean + 2 * error < 0 for mean, error in measured.values()),
        f"{mean_loss(problem, curves, one, scores):.4f} nats a word; {evidence}.",
    )


def mean_loss(problem: Corpus, curves: Sequence[Curve], method: str, scores: str = "own") -> float:
    """The mean over the seeds of the loss after the last pass, nats a word."""
    own = _by_seed(problem, curves, method, scores).values()
    return float(np.mean([losses.sum() for losses in own]) / problem.test_words.sum())


def _faster(problem: Corpus, curves: Sequence[Curve], rivals: Sequence[str], others: str) -> Claim:
    level = min(mean_loss(problem, curves, name) for name in rivals) + LEVEL
    runs = {name: select(curves, data=problem.title, method=name) for name in (*OURS, *rivals)}
    times = {name: float(np.median([c.first(NATS, level, "seconds") for c in own])) for name, own in runs.items()}
    return Claim.of(
        f"{problem.title}: PG-SVI and PG-SVI-MF converge faster than {others} (rule: medians over the seeds of the "
        f"seconds to the best last score of the latter plus {LEVEL:g} nats a word, at the recorded passes).",
        max(times[name] for name in OURS) < min(times[name] for name in rivals),
        f"To {level:.4f} nats a word: "
        + "; ".join(f"{name} {_seconds(seconds)}" for name, seconds in times.items())
        + ".",
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if math.isfinite(seconds) else "not within the run"


LOOKS = {
    FULL: (PALETTE[0], "-", "o"),
    DIAGONAL: (PALETTE[4], "-", "s"),
    DELTA: (PALETTE[1], "--", "^"),
    LAPLACE: (PALETTE[2], "--", "v"),
    MEAN_FIELD: (PALETTE[3], "--", "D"),
}
"""Colour, line and marker: full lines are the paper's methods, dashed ones those that it compares with."""


def draw_times(problems: Sequence[Corpus], curves: Sequence[Curve]) -> Any:
    """One panel a corpus: means over the seeds with markers at the recorded passes; bands have all seeds."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    with picture(4.2 * len(problems) + 0.4, 3.7) as figure:
        axes = figure.subplots(1, len(problems), squeeze=False)[0]
        for axis, problem in zip(axes, problems, strict=True):
            _draw_corpus(axis, problem, curves)
            axis.set_xscale("log")
            # Runs of one or two decades would have one labelled tick.
            axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_title(f"{problem.title}, {problem.num_topics} topics")
            axis.set_xlabel("seconds of training, after compilation")
        axes[0].set_ylabel("held-out negative log-likelihood\n[nats a word]")
        legend_below(figure, axes[0], 3 if len(problems) == 1 else len(axes[0].get_legend_handles_labels()[1]))
    return figure


def _draw_corpus(axis: Any, problem: Corpus, curves: Sequence[Curve]) -> None:
    for name, (colour, line, marker) in LOOKS.items():
        own = select(curves, data=problem.title, method=name)
        if not own:
            continue
        losses, seconds = (np.stack([curve[what] for curve in own]) for what in (NATS, "seconds"))
        time = seconds.mean(axis=0)
        axis.fill_between(time, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        look = {"color": colour, "linestyle": line, "marker": marker, "markeredgecolor": "white"}
        axis.plot(time, losses.mean(axis=0), label=name, markeredgewidth=0.5, **look)
