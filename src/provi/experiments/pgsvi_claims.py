"""What Figure 2's run says about the papers' claims, by rules fixed beforehand."""

import math
from collections.abc import Sequence

import numpy as np

from provi.experiments.pgsvi_measure import STABLE_SGD, Curve
from provi.experiments.pgsvi_problem import Problem
from provi.experiments.report import Claim

LEVEL, WITHIN, CLAIMED_PASSES = 1.0, 10, 100
"""Converged means a gap of at most LEVEL nats; the papers say within 10 passes for PG-SVI, above 100 for the others."""

PAPER_002, PAPER_000, PROXIMAL = "PG-SVI", "PG-SVI (000)", "PG-SVI (B)"
BASELINES = ("SGD", STABLE_SGD, "ADAGRAD", "RMSprop", "ADADELTA", "ADAM")
"""The papers' own, SGD also repaired."""


def claims(tasks: Sequence[Problem], curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Three a data set, one for all."""
    found = [claim for task in tasks for claim in _of(task, curves)]
    ahead = [_gap(task, curves, PAPER_002) < _gap(task, curves, PROXIMAL) for task in tasks]
    compared = "; ".join(
        f"{task.setting.title} {_gap(task, curves, PAPER_002):.3g} against {_gap(task, curves, PROXIMAL):.3g}"
        for task in tasks
    )
    natural = Claim.of(
        f"The mean update printed as approximate (natural form, A) beats the exact proximal one (B) after {WITHIN} "
        f"passes.",
        all(ahead),
        f"Gaps in nats: {compared}.",
    )
    return (*found, natural)


def _of(task: Problem, curves: Sequence[Curve]) -> list[Claim]:
    title = task.setting.title
    ours = {name: _gap(task, curves, name) for name in (PAPER_002, PAPER_000)}
    ours = {name: gap for name, gap in ours.items() if not math.isnan(gap)}
    others = {name: _gap(task, curves, name) for name in BASELINES}
    others = {name: gap for name, gap in others.items() if not math.isnan(gap)}
    nearest = min(others, key=lambda name: others[name])
    runs = [c for c in curves if c.data == task.setting.data and c.method in BASELINES]
    seen = max(int(curve.passes[-1]) for curve in runs)
    reached = {c.method: c.passes_to(LEVEL) for c in runs if math.isfinite(c.passes_to(LEVEL))}
    within = f"{title}: the others need more than {CLAIMED_PASSES} passes (rule: gap above {LEVEL:g} nat till then)."
    evidence = f"None within {seen} passes; the smallest gap was {min(np.min(c.gaps) for c in runs):.3g} nats."
    if reached:
        evidence = "; ".join(f"{name} after {passes:g}" for name, passes in reached.items())
    settled = seen >= CLAIMED_PASSES or reached
    return [
        Claim.of(
            f"{title}: PG-SVI converges within {WITHIN} passes (rule: mean gap of at most {LEVEL:g} nat by then, with "
            f"the step of either paper).",
            min(ours.values()) <= LEVEL,
            f"Mean gaps after {WITHIN} passes: {', '.join(f'{name} {gap:.3g}' for name, gap in ours.items())} nats.",
        ),
        Claim(within, ("does not hold" if reached else "holds") if settled else "not tested", evidence),
        Claim.of(
            f"{title}: PG-SVI is ahead of every baseline after {WITHIN} passes.",
            min(ours.values()) < others[nearest],
            f"PG-SVI {min(ours.values()):.3g} nats, the next {nearest} {others[nearest]:.3g}.",
        ),
    ]


def _gap(task: Problem, curves: Sequence[Curve], method: str) -> float:
    """The mean gap after ten passes; NaN without runs, infinite where one diverged."""
    own = [curve for curve in curves if (curve.data, curve.method) == (task.setting.data, method)]
    gaps = [curve.gap_at(WITHIN) for curve in own]
    return float(np.mean([math.inf if math.isnan(gap) else gap for gap in gaps])) if own else math.nan
