"""What the run of Figure 3 says about paper 002's claims on the correlated topic model, by rules fixed beforehand."""

import math
from collections.abc import Sequence

import numpy as np

from provi.experiments.ctm_measure import DELTA, DIAGONAL, FULL, LAPLACE, MEAN_FIELD, Curve
from provi.experiments.ctm_problem import Problem
from provi.experiments.report import Claim

OURS, RIVALS = (FULL, DIAGONAL), (DELTA, LAPLACE, MEAN_FIELD)

LEVEL = 0.01
"""Nats a word: how near to the best of the rivals' last scores a fit must come to count as there."""

_RULE = "the mean difference over seeds is below zero by more than twice its standard error"


def paired_difference(
    problem: Problem, curves: Sequence[Curve], one: str, other: str, scores: str = "own"
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


def _by_seed(problem: Problem, curves: Sequence[Curve], method: str, scores: str) -> dict[int, np.ndarray]:
    return {c.seed: getattr(c, scores) for c in curves if (c.data, c.method) == (problem.title, method)}


def claims(problems: Sequence[Problem], curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """For each corpus: the last scores, what of them is due to the topics, full and diagonal, and the time."""
    return tuple(claim for problem in problems for claim in _corpus_claims(problem, curves))


def _corpus_claims(problem: Problem, curves: Sequence[Curve]) -> list[Claim]:
    title, rivals = problem.title, tuple(name for name in RIVALS if any(c.method == name for c in curves))
    others = " and ".join(", ".join(rivals).rsplit(", ", 1))
    statements = {
        "own": f"reaches a lower held-out negative log-likelihood than {others} (rule, for each: {_RULE}).",
        "common": f"finds better topics than {others} (the same rule, all scored with PG-SVI at test time).",
        "paper": f"is better than {others} by the paper's own score, equation (20) (the same rule).",
    }
    full = f"{title}: PG-SVI, full covariance, is better than PG-SVI-MF, diagonal (rule: {_RULE})."
    return [
        *(
            _lower(problem, curves, one, rivals, scores, f"{title}: {one} {statement}")
            for scores, statement in statements.items()
            for one in OURS
        ),
        _lower(problem, curves, FULL, (DIAGONAL,), "own", full),
        _faster(problem, curves, rivals, others),
    ]


def _lower(
    problem: Problem, curves: Sequence[Curve], one: str, others: Sequence[str], scores: str, statement: str
) -> Claim:
    measured = {name: paired_difference(problem, curves, one, name, scores) for name in others}
    evidence = "; ".join(f"against {name} {mean:+.4f} -+ {error:.4f}" for name, (mean, error) in measured.items())
    return Claim.of(
        statement,
        all(mean + 2 * error < 0 for mean, error in measured.values()),
        f"{mean_loss(problem, curves, one, scores):.4f} nats a word; {evidence}.",
    )


def mean_loss(problem: Problem, curves: Sequence[Curve], method: str, scores: str = "own") -> float:
    """The mean over the seeds of the loss after the last pass, nats a word."""
    own = _by_seed(problem, curves, method, scores).values()
    return float(np.mean([losses.sum() for losses in own]) / problem.test_words.sum())


def _faster(problem: Problem, curves: Sequence[Curve], rivals: Sequence[str], others: str) -> Claim:
    level = min(mean_loss(problem, curves, name) for name in rivals) + LEVEL
    times = {
        name: float(np.median([c.reaches(level) for c in curves if (c.data, c.method) == (problem.title, name)]))
        for name in (*OURS, *rivals)
    }
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
