"""Paper 002, Figure 3: the correlated topic model on AP and NIPS, held-out log-likelihood against training time."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.precision import double_precision
from provi.experiments.ctm_claims import claims, mean_loss
from provi.experiments.ctm_measure import (
    COMMON,
    DIAGONAL,
    EQUATION_20,
    FULL,
    LAPLACE,
    METHODS,
    PAPER_DRAWS,
    Curve,
    compile_method,
    follow,
)
from provi.experiments.ctm_picture import draw_times
from provi.experiments.ctm_problem import AP, NIPS, Problem, corpus_problem, synthetic_problem
from provi.experiments.report import Report, Row, finish, write_rows
from provi.models import CorrelatedTopicModel
from provi.report.style import save_figure

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
    files = (
        save_figure(draw_times(problems, curves), output / f"{NAME}.png"),
        write_rows(output / f"{NAME}.csv", [row for curve in curves for row in curve.rows(words[curve.data])]),
    )
    files += picture_topics(problems[0], passes[-1], seed, output)
    report = Report(
        NAME,
        "Paper 002, Figure 3: the correlated topic model, held-out log-likelihood against time",
        _setting(problems, passes, seeds),
        tuple(row for problem in problems for row in summary(problem, curves, passes)),
        claims(problems, curves),
        files,
        time.monotonic() - began,
    )
    return finish(report, output)


def picture_topics(problem: Problem, passes: int, seed: int, output: Path) -> tuple[Path, ...]:
    """The topics and their correlations, from a fit with the estimator's own settings but for the passes."""
    model = CorrelatedTopicModel(
        problem.num_topics, max_iter=passes, batch_size=problem.batch_size, random_state=seed
    ).fit(problem.train)
    figures = {
        "topics": model.plot_topics(vocabulary=problem.vocabulary),
        "correlations": model.plot_correlations(vocabulary=problem.vocabulary),
    }
    return tuple(save_figure(figure, output / f"{NAME}-{name}.png") for name, figure in figures.items())


def summary(problem: Problem, curves: Sequence[Curve], passes: Sequence[int]) -> list[Row]:
    """Means over the seeds: seconds and nats a word at some passes, and the other two scores after the last pass."""
    rows = []
    for method in METHODS:
        own = [curve for curve in curves if (curve.data, curve.method) == (problem.title, method)]
        if not own:
            continue
        losses = {
            f"after {number}": _nats(np.mean([curve.losses[place] for curve in own]))
            for place, number in enumerate(passes)
        }
        rows.append(
            {
                "data": problem.title,
                "method": method,
                **losses,
                "spread": _nats(np.std([curve.losses[-1] for curve in own], ddof=1)),
                COMMON: _nats(mean_loss(problem, curves, method, "common")),
                EQUATION_20: _nats(mean_loss(problem, curves, method, "paper")),
                "seconds": float(np.mean([curve.seconds[-1] for curve in own])),
            }
        )
    return rows


def _nats(value: Any) -> str:
    """Four decimals: methods differ in the third."""
    return f"{value:.4f}"


def _setting(problems: Sequence[Problem], passes: Sequence[int], seeds: int) -> str:
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
