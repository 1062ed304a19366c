"""What the runs of Figure 2 say about paper 001's claims and about ours, by rules fixed beforehand.

A method's number is its mean -ELBO per image over the seeds after the last epoch. Two are *level* if they differ by at
most two standard errors of the difference, $2\\sqrt{s_1^2/n_1+s_2^2/n_2}$; one is *better* if it is lower by more.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from provi.experiments.network_curves import Curve, at_rate, best
from provi.experiments.network_methods import (
    ADAGRAD,
    ADAM,
    AVERAGED,
    BBB,
    GROWING,
    MISSO,
    MOMENTUM,
    PACED,
    SAG,
)
from provi.experiments.report import Claim

ERRORS = 2
"""Standard errors of the difference within which two means are level."""

WANTED_ACCURACY = 0.987
"""Of the best method on MNIST's test images."""

Relation = Literal["better than", "level with"]


def relation_holds(first: Curve, second: Curve, relation: Relation) -> bool | None:
    """Whether it does; None where no standard error can tell. A method that diverged is worse than all others."""
    if math.isinf(first.mean) or math.isinf(second.mean):
        return first.mean < second.mean if relation == "better than" else False
    error = math.hypot(first.standard_error, second.standard_error)
    if math.isnan(error):
        return None
    gap = first.mean - second.mean
    return gap < -ERRORS * error if relation == "better than" else abs(gap) <= ERRORS * error


def compare(words: str, first: Curve | None, relation: Relation, others: Sequence[Curve | None]) -> list[Claim]:
    """One claim: `first` stands in the relation to all `others`; none where a method did not run."""
    present = [other for other in others if other is not None]
    if first is None or not present or len(present) < len(others):
        return []
    names = " and ".join(_named(other.method) for other in present)
    rule = f"rule: {'lower by more than' if relation == 'better than' else 'within'} {ERRORS} standard errors"
    statement = f"{words}: {_named(first.method)} is {relation} {names} ({rule})."
    evidence = "-ELBO per image: " + "; ".join(_described(curve) for curve in (first, *present)) + "."
    found = [relation_holds(first, other, relation) for other in present]
    if False not in found and None in found:
        return [Claim(statement, "not tested", evidence)]
    return [Claim.of(statement, all(found), evidence)]


def figure2a_claims(
    curves: Sequence[Curve], scores: Sequence[dict[str, Any]], paper_rate: float, quick: bool = False
) -> tuple[Claim, ...]:
    """The paper's two claims at tuned rates and at its own, ours, and the accuracy."""

    def tuned(method: str, posterior: str = "global") -> Curve | None:
        return best(curves, posterior, method)

    def paper(method: str) -> Curve | None:
        return at_rate(curves, "global", method, paper_rate)

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


def figure2b_claims(curves: Sequence[Curve], paper_rate: float) -> tuple[Claim, ...]:
    """MISSO beside Adam and Adagrad, at rates chosen by pilots and at the paper's; ours; the share of the KL."""

    def tuned(method: str) -> Curve | None:
        return best(curves, "global", method)

    def paper(method: str) -> Curve | None:
        return at_rate(curves, "global", method, paper_rate)

    words = "Each at its best rate"
    return (
        *compare(words, tuned(MISSO), "level with", [tuned(ADAM)]),
        *compare(f"Both at the paper's rate {paper_rate:g}", paper(MISSO), "level with", [paper(ADAM)]),
        *compare(words, tuned(ADAGRAD), "better than", [tuned(MISSO)]),
        *compare(words, tuned(MISSO), "better than", [tuned(BBB), tuned(MOMENTUM)]),
        *compare(words, tuned(PACED), "better than", [tuned(ADAM)]),
    )


def _accuracy_claim(curves: Sequence[Curve], scores: Sequence[dict[str, Any]]) -> list[Claim]:
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
            f"{_named(winner.method)}, posterior {winner.posterior!r}: accuracy {accuracy.mean():.2%} "
            f"(lowest {accuracy.min():.2%}), negative log-likelihood {loss.mean():.4f}, expected calibration error "
            f"{error.mean():.4f}.",
        )
    ]


def _named(method: str) -> str:
    return f"'{method}'" if "," in method else method


def _described(curve: Curve) -> str:
    value = "diverged" if math.isinf(curve.mean) else f"{curve.mean:.5g} -+ {curve.standard_error:.2g}"
    return f"{_named(curve.method)} {value} (rate {curve.rate:g})"
