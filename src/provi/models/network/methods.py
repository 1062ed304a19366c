"""The training methods of `BayesianNetwork` by name, with rates that are a fair start."""

import dataclasses
from collections.abc import Callable
from typing import Any

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.block_rule import adagrad, adam, bayes_by_backprop, momentum
from provi.algorithms.misso import MISSO
from provi.algorithms.paced_misso import PacedMISSO
from provi.algorithms.sag import SAG
from provi.core.checks import check_positive


@dataclasses.dataclass(frozen=True)
class Method:
    """How an algorithm is made from a rate and draws a visit, and its default rate.

    MISSO's default is for one block and is multiplied by their number: with B blocks and the rate r its parameters
    move about as those of SAG with r / B.
    """

    make: Callable[..., AbstractAlgorithm]
    rate: float


def _paced(rate: float, num_draws: Any) -> PacedMISSO:
    return PacedMISSO(rule=adam(rate).rule, rate=rate, num_draws=num_draws)


def _misso(rate: float, num_draws: Any) -> MISSO:
    del rate  # the curvature of the surrogates has it
    return MISSO(sampling=1, num_draws=num_draws)


METHODS = {
    "paced": Method(_paced, 0.01),
    "adam": Method(lambda rate, num_draws: adam(rate, num_draws=num_draws), 0.01),
    "momentum": Method(lambda rate, num_draws: momentum(rate, num_draws=num_draws), 0.03),
    "bbb": Method(lambda rate, num_draws: bayes_by_backprop(rate, num_draws=num_draws), 0.3),
    "adagrad": Method(lambda rate, num_draws: adagrad(rate, num_draws=num_draws), 0.05),
    "sag": Method(lambda rate, num_draws: SAG(rate=rate, num_draws=num_draws), 0.01),
    "misso": Method(_misso, 0.01),
}
"""Rates at which LeNet-5 on 3,840 digits and a small perceptron both train; SAG and MISSO broke down on the former from
about ten times theirs."""


def make_algorithm(method: Any, rate: Any, num_draws: Any, num_blocks: int) -> tuple[AbstractAlgorithm, float]:
    """The algorithm and the rate of the surrogates, 1/L, which `MISSO` alone makes use of.

    **Arguments:**

    - `method`: a name, or an algorithm over the blocks, used as it is. - `rate`: None for the method's own.
    """
    rate = None if rate is None else check_positive("rate", rate)
    if isinstance(method, AbstractAlgorithm):
        if rate is not None and not isinstance(method, MISSO):
            raise ValueError(f"rate={rate} has no effect beside an algorithm: give it to {type(method).__name__}(...).")
        return method, METHODS["misso"].rate * num_blocks if rate is None else rate
    if not isinstance(method, str) or method not in METHODS:
        names = ", ".join(map(repr, METHODS))
        raise ValueError(f"method must be one of {names}, or an algorithm such as PacedMISSO(...), not {method!r}.")
    chosen = METHODS[method]
    if rate is None:
        rate = chosen.rate * (num_blocks if method == "misso" else 1)
    return chosen.make(rate, num_draws), rate
