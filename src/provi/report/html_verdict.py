"""The verdict on a fit in plain words: certified, conditionally certified or not certified, and why."""

import dataclasses
import math
from typing import Any

from provi.core.outcomes import Outcome
from provi.diagnostics.importance import ImportanceDiagnostics

_SCALES = {
    "triangular": "with full covariance",
    "symmetric": "with full covariance",
    "dual": "with full covariance",
    "diagonal": "with independent coordinates (mean field)",
    "low_rank": "with a low-rank covariance",
}
_LOOSE = 0.5  # nats of KL, from which Pinsker allows probabilities to be wrong by a half
_WIDE = 1.0  # nats, from which a bound no longer shows that an approximation is a good one


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`level`: "certified", "wide", "conditional" or "none"; `title`, `sentence`, `reasons`: for people."""

    level: str
    title: str
    sentence: str
    reasons: tuple[str, ...]


def verdict(fit: Any) -> Verdict:
    """What may be said of the fit, and on which grounds."""
    certificate = fit.certificate
    # The message of a conditional end repeats what the bound assumes.
    conditional = fit.outcome is Outcome.CONDITIONAL or not fit.message
    ended = f"How the run ended: {fit.outcome.value if conditional else fit.message}."
    if not fit.outcome.ok:
        ended = f"The run did not finish: {fit.outcome.value}. {fit.message}"
    if certificate.gap is None:
        sentence = f"Nothing is proven of how far this approximation is from the best {family_words(fit)}."
        return Verdict("none", "Not certified", sentence, (*_obstacles(certificate), *certificate.notes, ended))
    best = f"no {family_words(fit)} is more than {certificate.gap:.3g} nats better than this one"
    level = "" if certificate.confidence is None else f", with confidence {100 * certificate.confidence:g}%"
    wide = ()
    if certificate.gap > _WIDE:
        wide = (
            f"A bound of {certificate.gap:.3g} nats is wide: it does not show that the approximation is a good one. "
            f"A longer run may make it smaller.",
        )
    if certificate.status == "proven":
        sentence = f"It is proven{level}: {best}."
        level, title = ("wide", "Certified, but the bound is wide") if wide else ("certified", "Certified")
        return Verdict(level, title, sentence, (*wide, *_not_proven(certificate), ended))
    sentence = f"If an assumption holds that was not verified, {best}{level}."
    reasons = (*wide, *_conditions(certificate), *certificate.notes[:1], ended)
    return Verdict("conditional", "Conditionally certified", sentence, reasons)


def distance_words(fit: Any, found: ImportanceDiagnostics | None) -> str:
    """What is proven of the distance to the posterior itself, and what k-hat estimates of it."""
    bound = fit.certificate.posterior
    words = "Nothing is proven of the distance to the posterior itself, from which the best member may be far."
    if bound is not None:
        words = (
            f"Distance to the posterior itself, with confidence {100 * bound.confidence:g}%: KL(q‖posterior) is at "
            f"most {bound.kl:.3g} nats, and no posterior probability is off by more than {bound.total_variation:.2g}."
        )
        if bound.kl > _LOOSE:
            words += " That is too loose to be of use."
    return words if found is None else f"{words} An estimate, no proof: {found.advice}"


def family_words(fit: Any) -> str:
    """The family, for the middle of a sentence: "Gaussian with full covariance"."""
    family = fit.posterior.family
    base = "Gaussian" if family.base.name == "normal" else f"member of the {family.base.name} family"
    return f"{base} {_SCALES.get(family.scale, '')}".strip()


def _rows(certificate: Any, *statuses: str) -> list[str]:
    """Statement and grounds of the assumptions with one of the statuses."""
    return [f"{row.statement} ({row.reason})" for row in certificate.assumptions if row.status in statuses]


def _not_proven(certificate: Any) -> tuple[str, ...]:
    """Assumptions that stand on something else than a proof."""
    said, measured = _rows(certificate, "declared"), _rows(certificate, "estimated")
    words = []
    if said:
        words.append(f"Declared by you and not checked: {'; '.join(said)}.")
    if measured:
        words.append(f"Estimated numerically: {'; '.join(measured)}.")
    if not words:
        words.append("No assumption was taken on trust: all that the bound needs is proven for this model.")
    if certificate.confidence is not None:
        words.append("The confidence is over ProVI's own random draws, and asymptotic.")
    return tuple(words)


def _conditions(certificate: Any) -> tuple[str, ...]:
    """What a conditional bound assumes."""
    details = [
        f"The bound {bound.name} assumes: {bound.detail}."
        for bound in certificate.bounds
        if bound.status == "conditional" and bound.value == certificate.gap and bound.detail
    ]
    return tuple(details or [f"Not verified: {row}." for row in _rows(certificate, "unknown", "estimated")])


def _obstacles(certificate: Any) -> tuple[str, ...]:
    """Why there is no bound: assumptions that fail, else the bounds that were tried."""
    violated = [f"An assumption fails: {row}." for row in _rows(certificate, "violated")]
    if violated:
        return tuple(violated)
    return tuple(
        f"The bound {bound.name} gives nothing: {bound.detail}."
        for bound in certificate.bounds
        if not math.isfinite(bound.value) and bound.detail
    )
