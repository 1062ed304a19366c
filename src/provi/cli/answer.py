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

CERTIFIED, NOT_CERTIFIED = 0, 1
_WIDTH, _NARROWEST = 118, 80


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether the result is certified: a word, `certified`, `conditional` or `not certified`, and a sentence."""

    word: str
    sentence: str

    @property
    def exit_code(self) -> int:
        """0 when certified, otherwise 1."""
        return CERTIFIED if self.word == "certified" else NOT_CERTIFIED


@dataclasses.dataclass(frozen=True)
class Answer:
    """The verdict, everything else as plain data for JSON, what prints it for people, and lines after the verdict."""

    verdict: Verdict
    document: dict[str, Any]
    show: Callable[[Console], None]
    afterwards: tuple[str, ...] = ()


def judge(certificate: Certificate, tol: float | None, reason: str) -> Verdict:
    """The verdict: a bound that is no condition, and within `tol` where there is one; `reason`: why the run ended."""
    gap, level = certificate.gap, "" if certificate.confidence is None else f", confidence {certificate.confidence:g}"
    if gap is None:
        violated = next((row for row in certificate.assumptions if row.status == "violated"), None)
        grounds = reason if violated is None else f"{violated.statement}: violated, {violated.reason}"
        return Verdict("not certified", f"Not certified: there is no bound on the gap. {_sentence(grounds)}".strip())
    shown = {"proven": "is proven to be", "statistical": "is, statistically (not proven),"}.get(certificate.status)
    if shown is None:
        return Verdict(
            "conditional",
            f"Not certified: the gap is at most {at_most(gap)} nats{level}, "
            f"on the condition {_condition(certificate)}.",
        )
    if tol is not None and gap > tol:
        ended = f" {_sentence(reason)}" if reason else ""
        return Verdict(
            "not certified",
            f"Not certified within tol = {tol:g}: the gap {shown} at most {at_most(gap)} nats{level}.{ended}",
        )
    asked = "" if tol is None else f" <= tol = {tol:g}"
    words = "Certified" if certificate.status == "proven" else "Certified statistically (asymptotic confidence)"
    return Verdict(
        "certified",
        f"{words}: the gap to the best member of the family is at most {at_most(gap)}{asked} nats{level}.",
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
        document = {"verdict": answer.verdict.word, "sentence": answer.verdict.sentence, **answer.document}
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
    if not quiet:
        for line in answer.afterwards:
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
