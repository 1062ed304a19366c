"""The training methods of paper 001's Figure 2 and ours beside them, each an algorithm for a rate, and their rates."""

import dataclasses
from collections.abc import Callable
from typing import Any

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.incremental.block_descent import adagrad, adam, bayes_by_backprop, momentum
from provi.algorithms.incremental.misso import MISSO as MISSOAlgorithm
from provi.algorithms.incremental.paced_misso import PacedMISSO
from provi.algorithms.incremental.sag import SAG as SAGAlgorithm
from provi.schedules.batch_sizes import PolynomialBatch

MISSO, BBB, MOMENTUM, ADAM, SAG, ADAGRAD = "MISSO", "BBB", "Momentum", "Adam", "SAG", "Adagrad"
GROWING, PACED, AVERAGED = "MISSO, M = k", "PacedMISSO(Adam)", "Adam, averaged"

MOST_DRAWS = 4
"""Where M_k = k, with k the epoch from 1 on, stops growing: the paper's has no end, and costs k draws a step."""

Make = Callable[[Any], AbstractAlgorithm]

_ADAM_RULE = adam(1.0).rule


@dataclasses.dataclass(frozen=True)
class Method:
    """A method: its name, and the algorithm that it is for a rate, which may be a traced number."""

    name: str
    make: Make


def _misso(rate: Any) -> AbstractAlgorithm:
    del rate  # the curvature of the surrogates has it
    return MISSOAlgorithm(sampling=1, num_draws=1)


def _growing(rate: Any) -> AbstractAlgorithm:
    del rate
    return MISSOAlgorithm(sampling=1, num_draws=PolynomialBatch(1, 1, largest=MOST_DRAWS))


def _sag(rate: Any) -> AbstractAlgorithm:
    return SAGAlgorithm(rate=rate)


def _paced(rate: Any) -> AbstractAlgorithm:
    return PacedMISSO(rule=_ADAM_RULE, rate=rate)


def _averaged(rate: Any) -> AbstractAlgorithm:
    return PacedMISSO(rule=_ADAM_RULE, rate=rate, table=False)


METHODS = {
    name: Method(name, make)
    for name, make in (
        (MISSO, _misso),
        (BBB, bayes_by_backprop),
        (MOMENTUM, momentum),
        (ADAM, adam),
        (SAG, _sag),
        (ADAGRAD, adagrad),
        (PACED, _paced),
        (AVERAGED, _averaged),
        (GROWING, _growing),
    )
}
"""By name; in this order they run and are shown. A program is compiled once for each, whatever the rates."""


def geometric(first: float, ratio: float, count: int = 5) -> tuple[float, ...]:
    """`count` rates, each `ratio` times the one before, to three digits."""
    return tuple(float(f"{first * ratio**k:.3g}") for k in range(count))


def beyond(rates: tuple[float, ...], best: float) -> tuple[float, ...]:
    """As many further rates on the side of `best`, the smallest or the largest of `rates`; none if it is neither."""
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return ()
    ratio = ordered[-1] / ordered[-2] if best == ordered[-1] else ordered[0] / ordered[1]
    return tuple(float(f"{best * ratio ** (k + 1):.3g}") for k in range(len(rates)))
