"""Paper 001, Figure 2(b): MISSO beside gradient methods on a Bayesian ResNet-18, -ELBO by epochs.

The runs are those of `measuring`, the setting under which the network learns is that of `tempered`; this is the page.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provi.core.arguments import double_precision
from provi_lab.common.report import Claim, Report
from provi_lab.papers.misso import tempered_page
from provi_lab.papers.misso.lanes import START_SD
from provi_lab.papers.misso.measuring import (
    AT_PAPER_RATE,
    BLOCK,
    EPOCHS,
    FIRST,
    NAME,
    PAPER_RATE,
    PARTS,
    SEEDS,
    measure,
)
from provi_lab.papers.misso.network_page import conclude
from provi_lab.papers.misso.networks import ADAGRAD, ADAM, BBB, MISSO, MOMENTUM, PACED, small_problem
from provi_lab.papers.misso.training import NUM_DRAWS, Training, at_rate, best, compare

TITLE = "Paper 001, Figure 2(b): MISSO beside gradient methods on a Bayesian ResNet-18"
QUICK = (MISSO, ADAM)


@double_precision
def run(
    output: Path,
    quick: bool = False,
    seed: int = 0,
    *,
    epochs: int = EPOCHS,
    seeds: int = SEEDS,
    methods: Sequence[str] = tuple(FIRST),
    limit: float = math.inf,
) -> Report:
    """Run it; `quick` trains a small perceptron by two methods, two epochs, two seeds.

    What is done stays in `output` until all is: the same call goes on from there.

    **Arguments:** `limit`: seconds after which no other training is begun; the page is then of what there is.
    """
    output = Path(output)
    if quick:
        epochs, seeds, methods = 2, 2, QUICK
    problem = small_problem(seed) if quick else None
    whole = measure(output, limit, epochs, seeds, methods, problem, seed)
    report = page(output, [output])
    if whole:
        (output / PARTS).unlink()
    return report


@double_precision
def page(output: Path, sources: Sequence[Path]) -> Report:
    """The report of runs whose tables are in the folders `sources`; of `tempered` too, where it is in one of them."""
    folders = [Path(source) for source in sources]
    beside = tempered_page.read(folders)
    return conclude(
        NAME,
        TITLE,
        Path(output),
        [folder for folder in folders if (folder / f"{NAME}.json").is_file()],
        PAPER_RATE,
        lambda facts: _setting(facts) + tempered_page.setting(beside),
        lambda curves, scores: (*claims(curves, PAPER_RATE), *tempered_page.claims(beside)),
        beside,
    )


def _setting(facts: dict[str, Any]) -> str:
    return (
        f"{facts['title']}: n = {facts['images']:,} images, {facts['weights']:,} weights, blocks of {BLOCK} "
        f"({facts['blocks']} of them), {facts['epochs']} epochs, "
        f"{_seeds(facts)}, on {facts['machine']}. q = N(mu, sigma^2 I) with one sigma, prior N(0, I); weights "
        f"start He-normal, from the seed, and sigma at {START_SD}; gradients with {_draws(facts)} and the noise "
        f"{facts['noise']!r}, the same blocks for all methods. No annealing and no augmentation: it is the ELBO of "
        f"this model. A method's rate is {_search(facts)}. {' and '.join(AT_PAPER_RATE)} also "
        f"run at the paper's rate {PAPER_RATE:g}. -ELBO in nats per training image, by one pass with a draw for each "
        f"block. Test scores: mean over seeds of the predictive distribution's, {NUM_DRAWS} draws, on "
        f"{facts['test_images']:,} test images. A band in the "
        f"picture is one standard deviation over the seeds; the dotted line is MISSO at the paper's rate."
    )


def _seeds(facts: dict[str, Any]) -> str:
    """How many were asked for, and how many of them all methods have run."""
    done = facts.get("seeds_done", facts["seeds"])
    return f"{facts['seeds']} seeds" if done == facts["seeds"] else f"{done} of {facts['seeds']} seeds for all methods"


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
