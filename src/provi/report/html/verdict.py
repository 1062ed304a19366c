"""The verdict on a fit in plain words: certified, conditionally certified or not certified, and why."""

import dataclasses
import math
import re
from typing import Any

from provi.certificates.distance.bound import share_down
from provi.diagnostics.importance import ImportanceDiagnostics
from provi.diagnostics.pareto import SMALL_ERROR, usable_k
from provi.report.style import upper_bound
from provi.runtime.record import Outcome

_SCALES = {
    "triangular": "with full covariance",
    "symmetric": "with full covariance",
    "dual": "with full covariance",
    "diagonal": "with independent coordinates (mean field)",
    "low_rank": "with a low-rank covariance",
}
_BASES = {
    "normal": "Gaussian",
    "laplace": "Laplace distribution",
    "uniform": "uniform distribution on an ellipsoid",
    "student_t": "Student t distribution",
}
_RICHER = {
    "student": "Student t distribution with full covariance and fitted tails",
    "skewed": "Gaussian pushed through a monotone map of each coordinate",
    "flow": "normalising flow",
    "mixture": "mixture of Gaussians",
}
_INTERVAL = 0.94  # that of the page's tables and pictures
_WIDE = 1.0  # nats, from which a bound no longer shows that an approximation is a good one


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What stands on top, for people: `reasons` say why, `warning` what k-hat finds wrong, `next_steps` what to do.

    `level`: "certified", "caution", "conditional" or "none".
    """

    level: str
    title: str
    sentence: str
    reasons: tuple[str, ...]
    warning: str | None = None
    next_steps: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """One of the three answers on top: a question, what is known in a few words, its status, and a sentence."""

    question: str
    value: str
    status: str | None
    words: str


def answers(fit: Any) -> tuple[Answer, ...]:
    """How far from the best member, how far from the posterior, and what the intervals hold: what is proven of each."""
    certificate, gap, bound = fit.certificate, fit.certificate.gap, fit.certificate.posterior
    value, status = ("no bound", None) if gap is None else (f"at most {upper_bound(gap)} nats", certificate.status)
    if certificate.opening:
        best = Answer("How was it integrated?", "on nodes", "estimated", certificate.opening)
    else:
        best = Answer(f"How far from the best {_base_words(fit)}?", value, status, verdict(fit).sentence)
    question, evidence = "How far from the posterior itself?", _evidence_words(certificate.evidence)
    if bound is None:
        return best, Answer(question, "no bound", None, f"{_no_distance(certificate)} {evidence}".strip())
    given = f" {certificate.proviso}" if certificate.proviso else ""
    level = f"KL(q‖posterior){given}, with confidence {100 * bound.confidence:g}%."
    distance = Answer(question, f"at most {upper_bound(bound.kl)} nats", bound.status, f"{level} {evidence}")
    return best, distance, _content(certificate)


def _evidence_words(bracket: Any) -> str:
    """The bracket of the log evidence, with true minus signs."""
    if bracket is None:
        return ""
    words = bracket.ends.replace("-", "\N{MINUS SIGN}")
    return f"{words.capitalize()}."


def _no_distance(certificate: Any) -> str:
    words = certificate.obstacle
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _content(certificate: Any) -> Answer:
    """What the intervals hold, or that the bound is too wide to say."""
    bound, question = certificate.posterior, f"What do the {100 * _INTERVAL:g}% intervals hold?"
    if not bound.informative:
        _, _, helps = certificate.content_line.partition(": ")
        return Answer(question, "too wide to say", None, helps[:1].upper() + helps[1:])
    error = upper_bound(bound.total_variation, 2)
    words = f"of the posterior, each of them. No posterior probability is off by more than {error}."
    return Answer(question, f"at least {share_down(bound.content(_INTERVAL))}", bound.status, words)


def verdict(fit: Any, found: ImportanceDiagnostics | None = None, checked: Any = None) -> Verdict:
    """What may be said of the fit, on which grounds, and what to do next.

    `found` is what k-hat says of it, `checked` what the data say of the model (a `ModelCheck`, or None).
    """
    made = _nested(fit) if fit.certificate.opening else _certified(fit, found)
    if checked is None or checked.ok:
        return made
    title = "Certified approximation of a model that does not fit"
    title = title if made.level == "certified" else f"{made.title}; and the model does not fit"
    level = "caution" if made.level == "certified" else made.level
    return dataclasses.replace(
        made,
        level=level,
        title=title,
        reasons=(checked.verdict, *made.reasons),
        next_steps=(*checked.advice, *made.next_steps),
    )


def _nested(fit: Any) -> Verdict:
    """Of a mixture over hyperparameters: what is proven on the nodes, and the error of the rule, which is estimated."""
    certificate, converged = fit.certificate, fit.outcome is Outcome.TOLERANCE
    bound = certificate.posterior
    title = "Integrated over the hyperparameters" if converged else "Not converged"
    if bound is not None and converged:
        title += f"; within {upper_bound(bound.kl)} nats of the posterior on the nodes ({bound.status})"
    opening = certificate.opening
    reasons = ("The error of the integration over the nodes is estimated, not proven.", _ended(fit))
    steps = () if converged else certificate.notes[:1]
    return Verdict("conditional" if converged else "none", title, opening, reasons, None, tuple(steps))


def _certified(fit: Any, found: ImportanceDiagnostics | None) -> Verdict:
    certificate, gap = fit.certificate, fit.certificate.gap
    made = {"warning": _warning(fit, found), "next_steps": _next_steps(fit, found)}
    if gap is None:
        sentence = f"Nothing is proven of how far this approximation is from the best {family_words(fit)}."
        reasons = (*_obstacles(certificate), *_notes(certificate)[0], _ended(fit))
        return Verdict("none", "Not certified", sentence, reasons, **made)
    best = f"no {family_words(fit)} is more than {upper_bound(gap)} nats better than this one"
    level = "" if certificate.confidence is None else f", with confidence {100 * certificate.confidence:g}%"
    wide = (f"A bound of {upper_bound(gap)} nats is wide: it does not show that the approximation is a good one.",)
    wide = wide if gap > _WIDE else ()
    if certificate.status not in ("proven", "statistical"):
        sentence = f"If an assumption holds that was not verified, {best}{level}."
        reasons = (*wide, *_conditions(certificate), _ended(fit))
        return Verdict("conditional", "Conditionally certified", sentence, reasons, **made)
    proven = certificate.status == "proven"
    title = f"Certified {'' if proven else 'statistically '}within {upper_bound(gap)} nats"
    if wide and fit.outcome is not Outcome.TOLERANCE:
        title = f"Not certified: the bound of {upper_bound(gap)} nats is too wide"
    elif wide:
        title += ", which is wide"
    elif is_bad(found):
        title += ", but the family does not fit"
    reasons = (*wide, *_not_proven(certificate), _ended(fit))
    found_level = "caution" if wide or is_bad(found) else "certified"
    words = "It is proven" if proven else "Statistically, from draws of q whose tails were audited but are not known"
    return Verdict(found_level, title, f"{words}{level}: {best}.", reasons, **made)


def is_bad(found: ImportanceDiagnostics | None) -> bool:
    """Whether draws say that q misses part of the posterior, so that not even their weights can mend it."""
    return found is not None and found.misses_posterior


def _warning(fit: Any, found: ImportanceDiagnostics | None) -> str | None:
    """What draws say against the approximation, beside a certificate that does not speak of the posterior."""
    if found is None or math.isnan(found.pareto_k) or found.adequate:
        return None
    if not is_bad(found) or found.missed > SMALL_ERROR:
        return found.advice
    gap, family = fit.certificate.gap, family_words(fit)
    words = "This approximation is not the posterior"
    if gap is not None and gap <= _WIDE:
        words = f"Within {upper_bound(gap)} nats of the best {family}, but the best one is not the posterior"
    return (
        f"{words}: k-hat is {found.pareto_k:.2f}, above {usable_k(found.num_draws):.2f}. Means, standard deviations "
        f"and intervals on this page may be far from those of the posterior."
    )


def _next_steps(fit: Any, found: ImportanceDiagnostics | None) -> tuple[str, ...]:
    """What the user can do about what is missing, the most useful first."""
    certificate, steps, wide = fit.certificate, [], (fit.certificate.gap or 0.0) > _WIDE
    bent = any(row.status == "violated" and "convex" in row.statement for row in certificate.assumptions)
    if fit.outcome is Outcome.IMPROPER:
        steps.append("Give every parameter a proper prior, or say where it lives: constraints=.")
    elif fit.outcome is Outcome.NONFINITE or not math.isfinite(fit.elbo.value):
        steps.append("Look where the log density or its gradient is not finite, or start elsewhere: start=.")
    elif fit.outcome is Outcome.INTERRUPTED:
        steps.append("Run it to its end; with checkpoint= and resume=True it goes on from where it stopped.")
    elif fit.outcome in (Outcome.GRADIENT_BUDGET, Outcome.TIME_BUDGET) or wide:
        steps.append("Give it a larger budget: the run may not have converged.")
    if certificate.status == "conditional":
        steps += certificate.notes[:1]
    if certificate.status == "none":
        steps += _notes(certificate)[1]
    if bent:
        steps.append(
            "No budget proves a bound for a posterior that is not log-concave. Judge the fit by k-hat, and compare it "
            "with draws of NUTS: fit.report(path, reference=draws)."
        )
    if found is not None and is_bad(found) and not wide:  # before that, q is not the best of its family
        advice = found.advice.partition("Next: ")[2]
        steps += [f"Mend the family or the model: {advice}"] if advice else []
    return tuple(steps)


def _notes(certificate: Any) -> tuple[list[str], list[str]]:
    """The notes of a certificate without a bound: those that say why there is none, and what would give one."""
    why = [note for note in certificate.notes if note.startswith("No certificate")]
    return why, [note for note in certificate.notes if note not in why]


def _ended(fit: Any) -> str:
    # The message of a conditional end repeats what the bound assumes.
    conditional = fit.outcome is Outcome.CONDITIONAL or not fit.message
    if not fit.outcome.ok:
        return f"The run did not finish: {fit.outcome.value}. {fit.message}"
    return f"How the run ended: {fit.outcome.value if conditional else fit.message}."


def estimate_words(fit: Any, found: ImportanceDiagnostics | None) -> str:
    """What draws estimate of the distance to the posterior; empty where a warning has said it."""
    return "" if found is None or _warning(fit, found) else f"An estimate, no proof: {found.advice}"


def family_words(fit: Any) -> str:
    """The family, for the middle of a sentence: "Gaussian with full covariance"."""
    return f"{_base_words(fit)} {_SCALES.get(fit.posterior.family.scale, '')}".strip()


def _base_words(fit: Any) -> str:
    scale, name = fit.posterior.family.scale, fit.posterior.family.base.name
    if scale in _RICHER:
        return _RICHER[scale]
    return _BASES.get(name, f"member of the {name} family")


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
        valid = ", and valid for any number of them" if certificate.status == "proven" else ", and asymptotic"
        words.append(f"The confidence is over ProVI's own random draws{valid}.")
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
    # A point of many numbers stands in the ledger.
    rows = [re.sub(r"\[[^\]]{30,}\]", "a point (see below)", row) for row in _rows(certificate, "violated")]
    violated = [f"An assumption fails: {row}." for row in rows]
    if violated:
        return tuple(violated)
    return tuple(
        f"The bound {bound.name} gives nothing: {bound.detail}."
        for bound in certificate.bounds
        if not math.isfinite(bound.value) and bound.detail
    )
