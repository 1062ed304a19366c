"""Paper 001, Figure 2(a): MISSO beside gradient methods on a Bayesian LeNet-5, -ELBO by epochs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from provi.algorithms.incremental.network_surrogate import NetworkPoint, NetworkSurrogate, network_surrogate
from provi.core.arguments import double_precision
from provi_lab.common.report import Claim, Report
from provi_lab.papers.misso.lanes import START_SD, follow
from provi_lab.papers.misso.network_page import Tables, conclude, facts_of
from provi_lab.papers.misso.networks import (
    ADAGRAD,
    ADAM,
    AVERAGED,
    BBB,
    GROWING,
    METHODS,
    MISSO,
    MOMENTUM,
    MOST_DRAWS,
    PACED,
    SAG,
    NetworkProblem,
    beyond,
    geometric,
    mnist_problem,
    small_problem,
)
from provi_lab.papers.misso.training import (
    NUM_DRAWS,
    NUM_TURNED,
    Training,
    at_rate,
    best,
    compare,
    named,
    score,
    trainings_of,
    turn,
)

NAME = "misso-figure2a"
TITLE = "Paper 001, Figure 2(a): MISSO beside gradient methods on a Bayesian LeNet-5"

PAPER_RATE = 1e-3
HALF_DECADE = 10**0.5
RATES = {
    MISSO: geometric(10**-1.5, HALF_DECADE),
    BBB: geometric(10**-1.5, HALF_DECADE),
    MOMENTUM: geometric(10**-2.5, HALF_DECADE),
    ADAM: geometric(0.0025, 2.0),
    SAG: geometric(1e-4, HALF_DECADE),
    ADAGRAD: geometric(0.01, HALF_DECADE),
    PACED: geometric(0.0025, 2.0),
    AVERAGED: geometric(0.0025, 2.0),
}
"""Five for each method, and the paper's is added. The rate of 'MISSO, M = k' is the best of MISSO's."""

BLOCK, NUM_EPOCHS, NUM_SEEDS = 128, 20, 5
RECORDS = (1, 2, 3, 5, 10, 15, 20)
POSTERIORS = ("global", "weight")
QUICK = (MISSO, ADAM, PACED)


WANTED_ACCURACY = 0.987
"""Of the best method on MNIST's test images."""


@double_precision
def run(
    output: Path,
    quick: bool = False,
    seed: int = 0,
    *,
    epochs: int = NUM_EPOCHS,
    seeds: int = NUM_SEEDS,
    methods: Sequence[str] = tuple(METHODS),
    posteriors: Sequence[str] = POSTERIORS,
    extensions: int = 1,
) -> Report:
    """Run it; `quick` trains a small perceptron by three methods, three epochs, three rates, two seeds, one sigma.

    **Arguments:** `extensions`: how often a method whose best rate is at an edge gets as many rates beyond it.
    """
    measure(
        output,
        quick,
        seed,
        epochs=3 if quick else epochs,
        seeds=2 if quick else seeds,
        methods=QUICK if quick else methods,
        posteriors=POSTERIORS[:1] if quick else posteriors,
        extensions=0 if quick else extensions,
    )
    return page(output, [output], quick)


@double_precision
def page(output: Path, sources: Sequence[Path], quick: bool = False) -> Report:
    """The report of runs whose tables are in the folders `sources`."""
    return conclude(
        NAME,
        TITLE,
        Path(output),
        sources,
        PAPER_RATE,
        _setting,
        lambda curves, scores: claims(curves, scores, PAPER_RATE, quick),
    )


@double_precision
def measure(
    output: Path,
    quick: bool = False,
    seed: int = 0,
    *,
    epochs: int = NUM_EPOCHS,
    seeds: int = NUM_SEEDS,
    methods: Sequence[str] = tuple(METHODS),
    posteriors: Sequence[str] = POSTERIORS,
    extensions: int = 1,
) -> None:
    """The runs alone: their tables are in `output`, rewritten after each method."""
    problem = small_problem(seed) if quick else mnist_problem()
    tables = Tables(Path(output), NAME, facts_of(problem, BLOCK, epochs=epochs, seeds=seeds, extensions=extensions))
    tables.folder.mkdir(parents=True, exist_ok=True)
    runs = tuple(range(seed, seed + seeds))
    for posterior in posteriors:
        surrogate = network_surrogate(problem.target, posterior=posterior, block_size=BLOCK)
        ended: dict[str, tuple[Training, NetworkPoint]] = {}
        for name in methods:
            rates = _rates(name, tables.curves, posterior, quick)
            found, chosen, points = _tuned(name, problem, surrogate, rates, runs, epochs, extensions)
            tables.curves += found
            if np.isfinite(chosen.mean):
                ended[name] = chosen, points
                tables.scores += score(problem, surrogate, chosen, points)
            tables.write()
        winner = min(ended, key=lambda name: ended[name][0].mean, default=ADAM)
        for name in dict.fromkeys((winner, ADAM)):
            if name in ended:
                tables.turned += turn(problem, surrogate, *ended[name])
        tables.write()


def _rates(name: str, curves: Sequence[Training], posterior: str, quick: bool) -> tuple[float, ...]:
    if name == GROWING:
        chosen = best(curves, posterior, MISSO)
        return (RATES[MISSO][2] if chosen is None else chosen.rate,)
    own = RATES[name][1:3] if quick else RATES[name]
    return own if PAPER_RATE in own else (PAPER_RATE, *own)


def _tuned(
    name: str,
    problem: NetworkProblem,
    surrogate: NetworkSurrogate,
    rates: tuple[float, ...],
    seeds: tuple[int, ...],
    epochs: int,
    extensions: int,
) -> tuple[list[Training], Training, Any]:
    """All curves of a method, the best one, and where its seeds ended."""
    curves: list[Training] = []
    chosen, points, todo = None, None, rates
    for _ in range(1 + extensions):
        lanes = [(rate, seed) for rate in todo for seed in seeds]
        means = np.tile(problem.means(seeds), (len(todo), 1))
        trace = follow(
            METHODS[name],
            surrogate,
            means,
            [rate for rate, _ in lanes],
            [seed for _, seed in lanes],
            epochs,
            RECORDS,
        )
        found = trainings_of(trace, surrogate.posterior, name, todo, seeds)
        curves += found
        chosen = best(curves, surrogate.posterior, name)
        assert chosen is not None
        if chosen in found:
            first = found.index(chosen) * len(seeds)
            points = jax.tree.map(lambda x, first=first: x[first : first + len(seeds)], trace.points)
        print(
            f"{surrogate.posterior}, {name}: {len(lanes)} runs in {trace.seconds:.0f} s, best rate {chosen.rate:g}, "
            f"-ELBO {chosen.mean:.4f}; all: {', '.join(f'{c.rate:g} {c.mean:.4g}' for c in curves)}",
            flush=True,
        )
        todo = beyond(tuple(curve.rate for curve in curves), chosen.rate)[: len(rates)]
        if not todo:
            break
    assert chosen is not None
    return curves, chosen, points


def _setting(facts: dict[str, Any]) -> str:
    return (
        f"{facts['title']}: n = {facts['images']:,} images, {facts['weights']:,} weights, blocks of {BLOCK} "
        f"({facts['blocks']} of them), {facts['epochs']} epochs, {facts['seeds']} seeds, on {facts['machine']}. "
        f"q = N(mu, sigma^2 I) with one sigma, as the paper, or with a sigma for each weight; prior N(0, I); weights "
        f"start He-normal, from the seed, and every sigma at {START_SD}. All methods have the same blocks and the "
        f"same draws, one a step; 'MISSO, M = k' takes k draws in epoch k, {MOST_DRAWS} at most, at MISSO's best "
        f"rate. Every method runs with the paper's rate {PAPER_RATE:g} and with five of its own, for all seeds, and "
        f"is shown at the one with the lowest mean -ELBO after the last epoch; {_edges(facts)}. 'Adam, averaged' is "
        f"PacedMISSO(Adam) without its table: a geometric mean of Adam's iterates. -ELBO in nats per training image, "
        f"by one pass with a draw for each block. Test scores: mean over seeds of the predictive distribution's, "
        f"{NUM_DRAWS} draws. Rotated: the first {NUM_TURNED} test images, first seed, the best method and Adam. A "
        f"band in the picture is one standard deviation over the seeds; the dotted line is MISSO at the paper's rate."
    )


def _edges(facts: dict[str, Any]) -> str:
    """What was done where the best rate is the smallest or the largest of those tried."""
    if not facts["extensions"]:
        return "a star marks one that is the smallest or the largest of them, beyond which none was tried"
    return (
        "where that is the smallest or the largest, as many beyond it are tried, and a star marks one that is at an "
        "edge still"
    )


def claims(
    curves: Sequence[Training], scores: Sequence[dict[str, Any]], paper_rate: float, quick: bool = False
) -> tuple[Claim, ...]:
    """The paper's two claims at tuned rates and at its own, ours, and the accuracy."""

    def tuned(method: str, posterior: str = "global") -> Training | str:
        return best(curves, posterior, method) or method

    def paper(method: str) -> Training | str:
        return at_rate(curves, "global", method, paper_rate) or method

    own = f"One sigma, all methods at the paper's rate {paper_rate:g}"
    found = [
        *compare("One sigma, each at its best rate", tuned(MISSO), "better than", [tuned(BBB), tuned(MOMENTUM)]),
        *compare("One sigma, each at its best rate", tuned(MISSO), "level with", [tuned(ADAM), tuned(SAG)]),
        *compare(own, paper(MISSO), "better than", [paper(BBB), paper(MOMENTUM)]),
        *compare(own, paper(MISSO), "level with", [paper(ADAM), paper(SAG)]),
        *compare("One sigma, the same rate", tuned(GROWING), "better than", [tuned(MISSO)]),
    ]
    for posterior, words in (("global", "One sigma"), ("weight", "A sigma for each weight")):
        ours = tuned(PACED, posterior)
        found += compare(f"{words}, each at its best rate", ours, "better than", [tuned(ADAM, posterior)])
        found += compare(f"{words}, each at its best rate", ours, "better than", [tuned(AVERAGED, posterior)])
    return (*found, *([] if quick else _accuracy_claim(curves, scores)))


def _accuracy_claim(curves: Sequence[Training], scores: Sequence[dict[str, Any]]) -> list[Claim]:
    """Of the method with the lowest -ELBO of all."""
    if not curves or not scores:
        return []
    winner = min(curves, key=lambda curve: curve.mean)
    own = [row for row in scores if (row["posterior"], row["method"]) == (winner.posterior, winner.method)]
    if not own:
        return []
    accuracy, loss, error = (
        np.array([float(row[name]) for row in own]) for name in ("accuracy", "test_nll", "calibration_error")
    )
    return [
        Claim.of(
            f"The method with the lowest -ELBO has a test accuracy of {WANTED_ACCURACY:.1%} or more (mean over seeds).",
            accuracy.mean() >= WANTED_ACCURACY,
            f"{named(winner.method)}, posterior {winner.posterior!r}: accuracy {accuracy.mean():.2%} "
            f"(lowest {accuracy.min():.2%}), negative log-likelihood {loss.mean():.4f}, expected calibration error "
            f"{error.mean():.4f}.",
        )
    ]
