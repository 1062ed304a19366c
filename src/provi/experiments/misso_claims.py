"""What the run of Figure 1 says about paper 001's claim and the library's own aims, by rules fixed beforehand."""

import math
from collections.abc import Sequence

import numpy as np

from provi.experiments.misso_holdout import COMPLETE, MEANS, MEANS_INDICATORS, MODEL, MODEL_INDICATORS, HoldOut
from provi.experiments.misso_measure import LATE_SAEM, MCEM, MISSO1, MISSO10, MISSO50, SAEM, Curve
from provi.experiments.misso_problem import Problem
from provi.experiments.report import Claim

LEVELS = (1.0, 0.1)
"""Nats: settled means a gap of at most so much from then on. A gap of 1 puts the parameters about 0.1 errors off."""

LONGEST_FIT = 60.0
"""Seconds: what a fit of SUPPORT2 may take on two cores."""

OURS, OTHERS = (MISSO1, MISSO10, MISSO50), (MCEM, SAEM, LATE_SAEM)


def median_passes(task: Problem, curves: Sequence[Curve], method: str, level: float) -> float:
    """The median over the seeds of the pass at which a method settles; infinite where half of the runs do not."""
    own = [curve.settles(level) for curve in curves if (curve.data, curve.method) == (task.title, method)]
    return float(np.median(own)) if own else math.nan


def claims(tasks: Sequence[Problem], curves: Sequence[Curve], scores: Sequence[HoldOut]) -> tuple[Claim, ...]:
    """Two a data set about passes, two about what a user gets."""
    found = [_passes_claim(task, curves, level) for task in tasks for level in LEVELS]
    return (*found, *(claim for score in scores for claim in _worth(score)))


def _passes_claim(task: Problem, curves: Sequence[Curve], level: float) -> Claim:
    settled = {name: median_passes(task, curves, name, level) for name in (*OURS, *OTHERS)}
    settled = {name: passes for name, passes in settled.items() if not math.isnan(passes)}
    best = min(passes for name, passes in settled.items() if name in OTHERS)
    return Claim.of(
        f"{task.title}: MISSO needs fewer passes than MCEM and SAEM to settle within {level:g} nat (rule: medians over "
        f"the seeds of the first pass from which the gap stays below; MISSO10 against the best of the others).",
        settled[MISSO10] < best,
        "; ".join(f"{name} {_number(passes)}" for name, passes in settled.items()) + ".",
    )


def _worth(score: HoldOut) -> list[Claim]:
    means, of_means = score.difference(MEANS)
    cases, of_cases = score.difference(COMPLETE)
    both, of_both = score.difference(MEANS_INDICATORS, MODEL_INDICATORS)
    loss = {name: float(values.mean()) for name, values in score.losses.items()}
    return [
        Claim.of(
            f"{score.title}: the held-out log-loss is better than with mean imputation (rule: the mean difference over "
            f"the splits is below zero by more than twice its standard error).",
            means + 2 * of_means < 0,
            f"{loss[MODEL]:.5f} against {loss[MEANS]:.5f} nats a row, difference {means:.5f} -+ {of_means:.5f}; "
            f"complete cases {loss[COMPLETE]:.5f}, difference {cases:.5f} -+ {of_cases:.5f}; "
            f"both with indicators of missing entries {loss[MODEL_INDICATORS]:.5f} against "
            f"{loss[MEANS_INDICATORS]:.5f}, difference {both:.5f} -+ {of_both:.5f}; "
            f"{len(score.losses[MODEL])} splits.",
        ),
        Claim.of(
            f"{score.title}: a fit with standard errors takes at most {LONGEST_FIT:g} s after compilation.",
            score.seconds <= LONGEST_FIT,
            f"{score.seconds:.3g} s wall-clock.",
        ),
    ]


def _number(passes: float) -> str:
    return f"{passes:g}" if math.isfinite(passes) else "not within the run"
