"""From evidence to a certificate: the verdict, the assumptions with their status, what would tighten it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from provi.algorithms.guarantee import Guarantee
from provi.certificates.bounds import STATUSES, GapBound
from provi.certificates.certificate import Assumption, Certificate, Counterexample
from provi.certificates.distance.bound import Deferred, PosteriorBound
from provi.core.limits import NO_LIMIT, Clock
from provi.families.base import AbstractFamily
from provi.targets.base import AbstractTarget, Constant, Constants

DEFAULT_GRADIENTS = 200_000


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was computed for a certificate."""

    bounds: tuple[GapBound, ...]
    distance: PosteriorBound | Deferred | None
    counterexample: Counterexample | None
    num_gradients: int
    tails: Assumption | None = None
    notes: tuple[str, ...] = ()
    obstacle: str | None = None
    """Why the distance to the posterior was left out; None where only the target can be the reason."""


@dataclasses.dataclass(frozen=True)
class Query:
    """What is asked of a certificate.

    - `confidence`: of the gap, and separately of the distance to the posterior. - `seed`: of fresh draws.
    - `wanted`: the gap that is enough; None spends `max_gradients`.
    - `known`: the deterministic bounds at the point, if the caller has computed them. - `clock`: when to be ready.
    """

    confidence: float
    seed: int
    wanted: float | None
    max_gradients: int
    known: tuple[GapBound, ...] | None
    clock: Clock = NO_LIMIT


def build_certificate(
    target: AbstractTarget,
    family: AbstractFamily | None,
    constants: Constants,
    evidence: Evidence,
    recompute: Callable[[int], Certificate],
) -> Certificate:
    """The certificate that the evidence amounts to: the smallest bound of the best status, with all its grounds."""
    found, bounds = evidence.counterexample, evidence.bounds
    status, gap, level = _verdict(bounds, found)
    distance = None if found is not None else evidence.distance
    return Certificate(
        status=status,
        gap=gap,
        assumptions=(*_assumptions(constants, found), *(() if evidence.tails is None else (evidence.tails,))),
        confidence=level,
        bounds=bounds,
        distance=distance,
        obstacle=evidence.obstacle or _obstacle(constants, family, found),
        counterexample=found,
        notes=(*evidence.notes, *_notes(constants, family, status, bounds, distance, found)),
        names=target.parameter_names,
        num_gradients=evidence.num_gradients,
        recompute=recompute,
    )


def with_guarantee(
    certificate: Certificate, family: AbstractFamily, guarantee: Guarantee | None, num_steps: int, rejected_steps: int
) -> Certificate:
    """Add what the algorithm's theorem promised a priori, for the `num_steps` actually taken.

    A run with rejected steps is not the one of the theorem.
    """
    if guarantee is None or num_steps < 1:
        return certificate
    if rejected_steps > 0:
        note = f"The theorem's bound does not apply: {rejected_steps} non-finite step(s) were rejected."
        return dataclasses.replace(certificate, notes=(*certificate.notes, note))
    rows = [Assumption(text, None, status, "used by the theorem") for text, status in guarantee.assumptions]
    return dataclasses.replace(
        certificate,
        assumptions=(*certificate.assumptions, _kurtosis(family), *rows),
        theorem=guarantee.theorem,
        a_priori_bound=float(guarantee.curve(np.asarray([num_steps]))[0]),
        a_priori_metric=guarantee.metric,
    )


def withdrawn(certificate: Certificate, statement: str, reason: str) -> Certificate:
    """No certificate, because `statement`, without which no bound means anything, does not hold; the facts stay."""

    def recompute(seed: int) -> Certificate:
        return withdrawn(certificate.verify(seed), statement, reason)

    return dataclasses.replace(
        certificate,
        status="none",
        gap=None,
        confidence=None,
        bounds=(),
        distance=None,
        theorem=None,
        a_priori_bound=None,
        a_priori_metric=None,
        assumptions=(Assumption(statement, False, "violated", reason), *certificate.assumptions),
        notes=(f"No certificate: {reason}.",),
        obstacle=reason,
        opening="",
        proviso="",
        recompute=recompute,
    )


def _verdict(bounds: tuple[GapBound, ...], found: Counterexample | None) -> tuple[str, float | None, float | None]:
    """Status, gap and confidence: the smallest proven bound, else the smallest statistical, else conditional one."""
    if found is None:
        for status in STATUSES:
            finite = [bound for bound in bounds if bound.status == status and math.isfinite(bound.value)]
            if finite:
                best = min(finite, key=lambda bound: bound.value)
                return status, best.value, best.confidence
    return "none", None, None


def _assumptions(constants: Constants, found: Counterexample | None) -> tuple[Assumption, ...]:
    concave = _row("potential is convex (log-concave target)", constants.log_concave)
    if found is not None:
        concave = Assumption(concave.statement, False, "violated", str(found))
    return (
        concave,
        _row("strong convexity mu", constants.strong_convexity),
        _row("smoothness M", constants.smoothness),
    )


def _notes(
    constants: Constants,
    family: AbstractFamily | None,
    status: str,
    bounds: tuple[GapBound, ...],
    distance: PosteriorBound | Deferred | None,
    found: Counterexample | None,
) -> tuple[str, ...]:
    """What is missing, and what would tighten it."""
    concave = constants.log_concave
    if found is not None or concave.value is False:
        return ("No certificate: every bound needs a log-concave target. The ELBO is an estimate and a lower bound.",)
    notes = []
    if concave.status not in ("proven", "declared"):
        notes.append(
            "If the log density is known to be concave, pass log_concave=True, with strong_convexity= where it is "
            "known: the bound then no longer rests on an assumption that nobody made."
        )
    if status == "none" and family is not None and family.bounds_gap:
        notes.append("A larger budget, a longer run, or lighter tails (see the assumptions) would give a finite bound.")
    elif status == "statistical":
        notes.append(
            "Statistical: the confidence is asymptotic and presumes that draws reach what matters (see assumptions). "
            "With strong_convexity= and smoothness= declared, and a normal base, it would hold for any number of draws."
        )
    if distance is not None and any(bound.confidence is not None for bound in bounds):
        notes.append("The gap and the distance to the posterior each hold at the confidence stated, not jointly.")
    if family is not None and family.scale == "low_rank":
        notes.append("The gap of a low-rank member is bounded against all Gaussians, a larger family.")
    return tuple(notes)


def _obstacle(constants: Constants, family: AbstractFamily | None, found: Counterexample | None) -> str:
    """Why nothing bounds the distance of q to the posterior, should it be so."""
    known, convexity = ("proven", "declared"), constants.strong_convexity
    if found is not None or constants.log_concave.value is False:
        return "the target is not log-concave"
    if family is not None and not (family.base.has_score and family.base.has_fourth_moment(family.dim)):
        return f"it needs a base with a score and fourth moments, which {family.base.name} is not"
    if convexity.status in known and convexity.value and convexity.value > 0:
        return "q is too far from the posterior, its tails are too heavy, or there are too many parameters"
    if constants.log_concave.status in known:
        return (
            "it needs strong convexity > 0, as Gaussian priors on all parameters give it; where the program does not "
            "show it, declare strong_convexity="
        )
    return (
        "it needs log-concavity and strong convexity > 0, which the program does not show; where they hold, declare "
        "strong_convexity="
    )


def _kurtosis(family: AbstractFamily) -> Assumption:
    statement = f"kurtosis of the base ({family.base.name})"
    try:
        return Assumption(statement, float(family.base.kurtosis(family.dim)), "proven", "closed form")
    except ValueError as error:
        return Assumption(statement, None, "violated", str(error))


def _row(statement: str, constant: Constant) -> Assumption:
    value: Any = constant.value
    value = value if value is None or isinstance(value, bool) else float(value)
    return Assumption(statement, value, constant.status, constant.reason)
