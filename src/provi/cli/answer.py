"""What a command answers: a verdict, printed for people or as JSON, and the exit code."""

import dataclasses
import json
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import typer
from rich.console import Console

from provi.certificates.bounds import at_most
from provi.certificates.certificate import Certificate
from provi.certificates.distance.bound import rounded_down_text, rounded_up_text
from provi.cli.program import INTERRUPTED
from provi.result.description import ModelDescription, describe_target
from provi.runtime.record import Outcome

GOOD, NOT_TO_BE_TRUSTED = 0, 1
_WIDTH, _NARROWEST, _TERMS = 118, 80, 40
_CUT_SHORT = "interrupted"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A word for programs, a sentence for people, whether the result may be used, and what to be warned of.

    The word: `certified`, `conditional`, `converged`, `not certified`, `not to be trusted`, `does not fit` or
    `interrupted`.
    """

    word: str
    sentence: str
    good: bool
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 when good, otherwise 1; that of an interruption where there was one."""
        if self.word == _CUT_SHORT:
            return INTERRUPTED
        return GOOD if self.good else NOT_TO_BE_TRUSTED


@dataclasses.dataclass(frozen=True)
class Answer:
    """The verdict, everything else as plain data for JSON, what prints it for people, and lines after the verdict."""

    verdict: Verdict
    document: dict[str, Any]
    show: Callable[[Console], None]
    afterwards: tuple[str, ...] = ()


def judge_fit(result: Any, tol: float, checked: Any = None, provable: bool = True) -> Verdict:
    """What may be said of a fit: its certificate, what k-hat says against q, and what the data say against the model.

    **Arguments:**

    - `checked`: the `ModelCheck`, or why there is none.
    - `provable`: False of a model that has no certificate, which was asked for by its name: then it is enough that the
      run has converged.
    """
    certificate = result.certificate
    if not provable:
        verdict = _converged(result)
    else:
        verdict = _nested(result) if certificate.opening else judge(certificate, tol, result.message)
    if result.outcome is Outcome.INTERRUPTED:
        steps = "1 step" if result.num_steps == 1 else f"{result.num_steps} steps"
        lead = f"Interrupted after {steps}; what follows is of the state that was reached."
        return Verdict(_CUT_SHORT, f"{lead} {verdict.sentence}", False, verdict.warnings)
    found = result.posterior.latest_diagnosis
    if found is not None and found.misses_posterior:
        warning = f"k-hat {found.pareto_k:.2f}: q misses part of the posterior, and its numbers cannot be trusted."
        lead = "Not to be trusted. " if verdict.good else ""
        word = "not to be trusted" if verdict.good else verdict.word
        verdict = Verdict(word, f"{lead}{verdict.sentence} But {warning}", False, (*verdict.warnings, found.advice))
    if checked is None or isinstance(checked, str) or checked.ok:
        return verdict
    lead = "Certified approximation of a model that does not fit. " if verdict.word == "certified" else ""
    lead = "Approximation of a model that does not fit. " if verdict.good and not lead else lead
    warnings = (*verdict.warnings, checked.verdict, *checked.advice)
    word = "does not fit" if verdict.good else verdict.word
    return Verdict(word, f"{lead}{verdict.sentence} {checked.verdict}", False, warnings)


def _converged(result: Any) -> Verdict:
    """Whether q has stopped moving: all that can be said where the density is not log-concave."""
    grounds = "The density is not log-concave: there is no certificate, and other maxima are possible"
    if result.outcome is Outcome.STATIONARY:
        return Verdict("converged", f"Converged: the approximation has stopped moving. {grounds}.", True)
    return Verdict("not certified", f"Not converged. {_sentence(result.message)} {grounds}.", False)


def _nested(result: Any) -> Verdict:
    """What is proven given the rule over the hyperparameters; as its error is an estimate, that is a condition."""
    certificate, good = result.certificate, result.outcome is Outcome.TOLERANCE
    ended = _sentence(result.message)
    if certificate.kl is None:
        state = "Converged, nothing proven (too large a model for a proof at every node)" if good else "Not converged"
        return Verdict("conditional" if good else "not certified", f"{state}. {ended}", good)
    evidence = result.evidence
    proven = {"proven": "is proven to be", "statistical": "is, statistically,"}.get(evidence.status, "is")
    return Verdict(
        "conditional",
        f"Given the rule over the hyperparameters KL(q || posterior) {proven} at most {at_most(certificate.kl)} nats, "
        f"and the log evidence to lie in [{rounded_down_text(evidence.lower)}, {rounded_up_text(evidence.upper)}]; the "
        f"error of the rule is estimated, not proven. {ended}",
        good,
        () if good else (f"The integration did not converge: {result.message}.",),
    )


def check_fit(result: Any, wanted: bool) -> Any:
    """The `ModelCheck` of a fit, why there is none, or None where it is not wanted."""
    if not wanted:
        return None
    try:
        return result.check()
    except ValueError as error:
        return str(error)


def check_document(checked: Any) -> dict[str, Any] | None:
    """A check as plain data for JSON."""
    return None if checked is None else {"skipped": checked} if isinstance(checked, str) else checked.to_dict()


def check_lines(checked: Any) -> list[Any]:
    """What is printed of a check: a line where all is well, the table and what to try where it is not."""
    if checked is None:
        return []
    if isinstance(checked, str):
        return ["", f"Whether the model fits was not checked ({checked.removeprefix('check: ').rstrip('.')})."]
    said = [] if checked.influence is None else [checked.influence.words]
    if checked.ok:
        return ["", checked.verdict, *said, *checked.notes]
    return ["", checked.grid(), checked.verdict, *checked.advice, *said, *checked.notes]


def table_description(data: Any, words: str, target: Any = None) -> ModelDescription:
    """What was fitted to a table: the model in words, its formula, likelihood and priors, rows and columns.

    **Arguments:**

    - `data`: a `TableData`. - `words`: the model and its priors, in a sentence or two.
    """
    own = None if target is None else describe_target(target)
    terms = [column.name for column in data.features.columns]
    shown = terms[:_TERMS] + ([f"{len(terms) - _TERMS} more"] if len(terms) > _TERMS else [])
    smooth = target is not None and hasattr(target, "kernel")
    right = f"f({', '.join(shown)})" if smooth else " + ".join(["1", *shown])
    facts = [("response", f"{data.response_name}: {data.response.words}")]
    facts += [] if own is None else [(name.replace("response", "likelihood"), said) for name, said in own.facts]
    facts = [pair for pair in facts if pair[0] != "data"]
    rows, width = data.features.values.shape
    facts.append(("data", f"{data.source}: {rows} rows; features {width}, of the columns {len(terms)}"))
    facts += [("rows left out", f"{count}, {reason}") for reason, count in data.left_out.items()]
    if data.missing:
        facts.append(("missing entries", ", ".join(f"{name} {count}" for name, count in data.missing.items())))
    if data.features.constant:
        facts.append(("columns left out", f"{', '.join(data.features.constant)}: they do not vary"))
    columns = tuple((column.name, column.words) for column in data.features.columns)
    inputs = tuple(
        (name, column.centre, column.scale) for column in data.features.columns for name in column.feature_names
    )
    response = (data.response_name, getattr(data.response, "centre", 0.0), getattr(data.response, "scale", 1.0))
    return ModelDescription(words, f"{data.response_name} ~ {right}", tuple(facts), columns, inputs, response)


def judge(certificate: Certificate, tol: float | None, reason: str) -> Verdict:
    """The verdict: a bound that is no condition, and within `tol` where there is one; `reason`: why the run ended."""
    gap, level = certificate.gap, "" if certificate.confidence is None else f", confidence {certificate.confidence:g}"
    if gap is None:
        violated = next((row for row in certificate.assumptions if row.status == "violated"), None)
        grounds = reason if violated is None else f"{violated.statement}: violated, {violated.reason}"
        return Verdict(
            "not certified", f"Not certified: there is no bound on the gap. {_sentence(grounds)}".strip(), False
        )
    shown = {"proven": "is proven to be", "statistical": "is, statistically (not proven),"}.get(certificate.status)
    if shown is None:
        return Verdict(
            "conditional",
            f"Not certified: the gap is at most {at_most(gap)} nats{level}, "
            f"on the condition {_condition(certificate)}.",
            False,
        )
    closer = certificate.statistical_gap
    if tol is not None and closer is not None and closer <= tol < gap:
        return Verdict(
            "certified",
            f"Certified statistically (asymptotic confidence): the gap to the best member of the family is at most "
            f"{at_most(closer)} <= tol = {tol:g} nats{level}; proven to be at most {at_most(gap)}.",
            True,
        )
    if tol is not None and gap > tol:
        ended = f" {_sentence(reason)}" if reason else ""
        return Verdict(
            "not certified",
            f"Not certified within tol = {tol:g}: the gap {shown} at most {at_most(gap)} nats{level}.{ended}",
            False,
        )
    asked = "" if tol is None else f" <= tol = {tol:g}"
    words = "Certified" if certificate.status == "proven" else "Certified statistically (asymptotic confidence)"
    return Verdict(
        "certified",
        f"{words}: the gap to the best member of the family is at most {at_most(gap)}{asked} nats{level}.",
        True,
    )


def _condition(certificate: Certificate) -> str:
    """What a conditional gap rests on: convexity where that is not known, otherwise what its bound says."""
    convex = next(iter(certificate.assumptions), None)
    if convex is not None and convex.status in ("unknown", "estimated"):
        return f"that the {convex.statement}, which is {convex.status} ({convex.reason})"
    details = [row.detail for row in certificate.bounds if row.value == certificate.gap and row.detail]
    return f"of {details[0]}" if details else "of an assumption that was not verified"


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".") if text else ""


def deliver(answer: Answer, as_json: bool, quiet: bool) -> int:
    """Print the answer. **Returns:** the exit code."""
    if as_json:
        verdict = answer.verdict
        said = {"verdict": verdict.word, "sentence": verdict.sentence, "warnings": list(verdict.warnings)}
        document = {**said, **answer.document}
        typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False))
        return answer.verdict.exit_code
    if not quiet:
        console = Console(highlight=False, emoji=False)
        # In a file or a pipe nothing limits the width; 80, which rich would take, cuts words. A narrow terminal breaks
        # lines, where rich would cut numbers.
        known = console.is_terminal or "COLUMNS" in os.environ
        width = max(console.width, _NARROWEST) if known else _WIDTH
        answer.show(Console(highlight=False, emoji=False, width=width))
        typer.echo()
    typer.echo(answer.verdict.sentence)
    for line in answer.verdict.warnings if quiet else ():
        typer.echo(f"Warning: {line}", err=True)
    for line in () if quiet else answer.afterwards:
        typer.echo(line)
    return answer.verdict.exit_code


def print_plain(console: Console, *items: Any) -> None:
    """Print texts and tables whose words are the user's: brackets in them are no markup."""
    plain = Console(file=console.file, width=console.width, markup=False, highlight=False, emoji=False)
    for item in items:
        plain.print(item, soft_wrap=isinstance(item, str))


def _plain(value: Any) -> Any:
    """Numbers, texts, lists and dictionaries; null for what is not finite."""
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
