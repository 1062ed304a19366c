"""Paper 001, Figure 2(b): MISSO beside gradient methods on a Bayesian ResNet-18, -ELBO by epochs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi.algorithms.incremental.network_surrogate import NetworkSurrogate, network_surrogate
from provi.core.arguments import double_precision
from provi_lab.common.report import Claim, Report
from provi_lab.papers.misso.lanes import START_SD, follow
from provi_lab.papers.misso.measuring import AT_PAPER_RATE
from provi_lab.papers.misso.network_page import Tables, conclude, facts_of
from provi_lab.papers.misso.networks import (
    ADAGRAD,
    ADAM,
    BBB,
    METHODS,
    MISSO,
    MOMENTUM,
    PACED,
    SAG,
    NetworkProblem,
    cifar_problem,
    small_problem,
)
from provi_lab.papers.misso.training import NUM_DRAWS, Training, at_rate, best, compare, score, trainings_of

NAME = "misso-figure2b"
TITLE = "Paper 001, Figure 2(b): MISSO beside gradient methods on a Bayesian ResNet-18"

PAPER_RATE = 1e-4
RATES = {
    MISSO: (1e-4, 3e-4, 1e-3),
    ADAM: (3e-3, 1e-2, 3e-2),
    PACED: (3e-3, 1e-2, 3e-2),
    MOMENTUM: (3e-5, 1e-4, 3e-4),
    BBB: (1e-4, 2e-4, 4e-4),
    ADAGRAD: (3e-2, 1e-1, 3e-1),
    SAG: (1e-6, 4e-6, 1.3e-5),
}
"""Tried in the pilots, in the order in which the methods run.

With one sigma and d weights on N images the KL part alone has the second derivative 2 d sigma^2 / N in log sigma, which
is 2200 nats per image for ResNet-18 on 10,000 images at sigma = 1: methods that do not scale their steps need rates
below 2 / 2200, and MISSO and SAG, whose gradients are half a pass old, smaller ones still.
"""

BLOCK, NUM_EPOCHS, NUM_SEEDS, PILOT_EPOCHS = 128, 10, 5, 3
QUICK = (MISSO, ADAM)


@double_precision
def run(
    output: Path,
    quick: bool = False,
    seed: int = 0,
    *,
    epochs: int = NUM_EPOCHS,
    seeds: int = NUM_SEEDS,
    pilot_epochs: int = PILOT_EPOCHS,
    methods: Sequence[str] = tuple(RATES),
    noise: str = "flipout",
) -> Report:
    """Run it; `quick` trains a small perceptron by two methods, two epochs, two seeds.

    **Arguments:** `pilot_epochs`: the length of the runs, with the first seed, that choose a method's rate.
    """
    if quick:
        epochs, seeds, pilot_epochs, methods = 2, 2, 1, QUICK
    measure(output, quick, seed, epochs=epochs, seeds=seeds, pilot_epochs=pilot_epochs, methods=methods, noise=noise)
    return page(output, [output])


@double_precision
def page(output: Path, sources: Sequence[Path]) -> Report:
    """The report of runs whose tables are in the folders `sources`."""
    return conclude(
        NAME,
        TITLE,
        Path(output),
        sources,
        PAPER_RATE,
        _setting,
        lambda curves, scores: claims(curves, PAPER_RATE),
    )


@double_precision
def measure(
    output: Path,
    quick: bool = False,
    seed: int = 0,
    *,
    epochs: int = NUM_EPOCHS,
    seeds: int = NUM_SEEDS,
    pilot_epochs: int = PILOT_EPOCHS,
    methods: Sequence[str] = tuple(RATES),
    noise: str = "flipout",
) -> None:
    """The runs alone, one after the other: their tables are in `output`, rewritten after each."""
    problem = small_problem(seed) if quick else cifar_problem()
    surrogate = network_surrogate(problem.target, posterior="global", noise=noise, block_size=BLOCK)
    facts = facts_of(problem, BLOCK, epochs=epochs, seeds=seeds, pilot_epochs=pilot_epochs, noise=noise)
    tables = Tables(Path(output), NAME, facts)
    tables.folder.mkdir(parents=True, exist_ok=True)
    for name in methods:
        rates = RATES[name][1:] if quick else RATES[name]
        pilots = [_follow_one(tables, problem, surrogate, name, rate, seed, pilot_epochs, "pilot") for rate in rates]
        chosen = min(pilots, key=lambda curve: curve.mean).rate
        wanted = dict.fromkeys((chosen, PAPER_RATE) if name in AT_PAPER_RATE else (chosen,))
        for rate in wanted:
            for each in range(seed, seed + seeds):
                _follow_one(tables, problem, surrogate, name, rate, each, epochs, "")


def _follow_one(
    tables: Tables,
    problem: NetworkProblem,
    surrogate: NetworkSurrogate,
    name: str,
    rate: float,
    seed: int,
    epochs: int,
    stage: str,
) -> Training:
    """One training, added to the tables and announced; all of a method's share one program."""
    means = problem.means([seed])
    records = range(1, epochs + 1) if not stage else (epochs,)
    trace = follow(METHODS[name], surrogate, means, [rate], [seed], epochs, records)
    (curve,) = trainings_of(trace, surrogate.posterior, name, [rate], [seed], stage)
    tables.curves.append(curve)
    line = f"{name}, rate {rate:g}, seed {seed}{', pilot' if stage else ''}: {trace.seconds:.1f} s, "
    line += "-ELBO {:.5g} = {:.4g} + KL {:.5g}".format(*curve.values[0, -1])
    if not stage and np.isfinite(curve.mean):
        found = score(problem, surrogate, curve, trace.points)
        tables.scores += found
        line += f", accuracy {found[0]['accuracy']:.3f}"
    tables.write()
    print(line, flush=True)
    return curve


def _setting(facts: dict[str, Any]) -> str:
    return (
        f"{facts['title']}: n = {facts['images']:,} images, {facts['weights']:,} weights, blocks of {BLOCK} "
        f"({facts['blocks']} of them), {facts['epochs']} epochs, "
        f"{facts['seeds']} seeds, on {facts['machine']}. q = N(mu, sigma^2 I) with one sigma, prior N(0, I); weights "
        f"start He-normal, from the seed, and sigma at {START_SD}; gradients with {_draws(facts)} and the noise "
        f"{facts['noise']!r}, the same blocks for all methods. No annealing and no augmentation: it is the ELBO of "
        f"this model. A method's rate is {_search(facts)}. {' and '.join(AT_PAPER_RATE)} also "
        f"run at the paper's rate {PAPER_RATE:g}. -ELBO in nats per training image, by one pass with a draw for each "
        f"block. Test scores: mean over seeds of the predictive distribution's, {NUM_DRAWS} draws. A band in the "
        f"picture is one standard deviation over the seeds; the dotted line is MISSO at the paper's rate."
    )


def _draws(facts: dict[str, Any]) -> str:
    return "k draws a step in epoch k (products in bfloat16)" if "whole" in facts else "one draw a step"


def _search(facts: dict[str, Any]) -> str:
    """How rates were chosen; and -ELBO of q = prior, where it was measured."""
    short = f"runs of {facts['pilot_epochs']} epochs with the first seed, by their -ELBO"
    if "whole" not in facts:
        return f"the best of three in {short}; a star marks one that is the smallest or largest"
    words = f"searched on the grid 10^(k/2) in {short}, until both neighbours of the best are worse"
    if facts["prior"]:
        words += f". q = prior has -ELBO {facts['prior'][0][0]:.5g}"
    return words if facts["whole"] else f"{words}. Not all of the planned runs are done"


def claims(curves: Sequence[Training], paper_rate: float) -> tuple[Claim, ...]:
    """MISSO beside Adam and Adagrad, at rates chosen by pilots and at the paper's; ours; the share of the KL."""

    def tuned(method: str) -> Training | str:
        return best(curves, "global", method) or method

    def paper(method: str) -> Training | str:
        return at_rate(curves, "global", method, paper_rate) or method

    words = "Each at its best rate"
    return (
        *compare(words, tuned(MISSO), "level with", [tuned(ADAM)]),
        *compare(f"Both at the paper's rate {paper_rate:g}", paper(MISSO), "level with", [paper(ADAM)]),
        *compare(words, tuned(ADAGRAD), "better than", [tuned(MISSO)]),
        *compare(words, tuned(MISSO), "better than", [tuned(BBB), tuned(MOMENTUM)]),
        *compare(words, tuned(PACED), "better than", [tuned(ADAM)]),
    )
