"""The certificate of a fit: what is proven of it, on what assumptions, and what would prove more."""

import dataclasses
import io
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy import special

from provi.certificates.bounds import GapBound, at_most
from provi.certificates.distance.bound import (
    Deferred,
    EvidenceBracket,
    PosteriorBound,
    share_down,
)
from provi.core.notebook import as_html
from provi.targets.base import Constants


@dataclasses.dataclass(frozen=True)
class Counterexample:
    """Curvature of the potential below what was claimed of it; no bound that rests on the claim is issued.

    - `point`, `direction`: where. With a second derivative, the curvature is that at `point` along the unit vector
      `direction`; with first derivatives only, it is the average one on the segment from `point` to
      `point + direction`.
    - `curvature`: what was found, x' (Hessian) x for the unit vector x along `direction`.
    - `claimed`: the least that it should be: 0 for a convex potential, mu for a strongly convex one.
    """

    point: np.ndarray
    direction: np.ndarray
    curvature: float
    claimed: float

    def __str__(self) -> str:
        shown = np.array2string(self.point, precision=6, threshold=10)
        needed = "a log-concave density has at least 0"
        if self.claimed:
            needed = f"strong_convexity = {self.claimed:.4g} needs at least that"
        return f"curvature {self.curvature:.4g} found at {shown}, where {needed}"


class RefutedDeclarationError(ValueError):
    """What was declared of a target does not hold: the message has the place.

    - `counterexample`: where. - `certificate`: the one without a bound. - `fit`: what was fitted all the same, or None.
    """

    def __init__(self, message: str, certificate: "Certificate", fit: Any = None) -> None:
        super().__init__(message)
        self.certificate, self.counterexample, self.fit = certificate, certificate.counterexample, fit


def check_declared(constants: Constants, certificate: "Certificate", fit: Any = None) -> None:
    """A `RefutedDeclarationError` where the certificate has a counter-example to what was declared of the target."""
    found, names = certificate.counterexample, ("log_concave", "strong_convexity")
    declared = [name for name in names if getattr(constants, name).status == "declared"]
    if found is None or not declared:
        return
    kept = "" if fit is None else " The fit, without a certificate, is the `fit` of this error."
    raise RefutedDeclarationError(
        f"The target does not have what was declared of it ({' and '.join(declared)}): {found}. Leave the declaration "
        f"out, or correct the log density.{kept}",
        certificate,
        fit,
    )


_COLOURS = {
    "proven": "green",
    "statistical": "cyan",
    "declared": "cyan",
    "estimated": "yellow",
    "conditional": "yellow",
    "unknown": "dim",
    "violated": "bold red",
}
_LARGEST_LISTED = 5
_DERIVED = ("kl", "posterior", "evidence")
"""What a file holds beside the fields, for those who read it."""

_SHOWN_INTERVAL, _LARGEST_ERROR = 0.94, 0.5
"""The interval whose content is printed; standard deviations from which the error of a mean is not, as it says nothing.
"""

_VERDICTS = {
    "proven": "Proven",
    "statistical": "Statistical (asymptotic confidence, tails audited)",
    "conditional": "Conditional (see the bound's assumption)",
}
_MUCH = 3.0
"""How many times the statistical bound a proven one must be for the headline to name both."""


@dataclasses.dataclass(frozen=True)
class Assumption:
    """One statement, its value if it has one, its status and the reason for the status."""

    statement: str
    value: float | bool | None
    status: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What is proven of a fit.

    - `status`: 'proven' when `gap` is deterministic or valid for any number of draws at its `confidence`, from proven
      or declared properties of the target; 'statistical' when its `confidence` is asymptotic and the tails, which are
      not known, were audited: a row in `assumptions`; 'conditional' when it rests on an assumption that was not
      verified and is named; 'none' when there is no bound.
    - `gap`: an upper bound, in nats, on how much better the best member of the family is; None when there is none.
    - `confidence`: the probability with which `gap` holds at least; None for a deterministic bound.
    - `kl`: an upper bound on KL(q || posterior), None when there is none; `posterior`: that and what follows from it.
      Both are computed when they are first asked for; `distance` is what computes them.
    - `bounds`: every bound that was computed; `gap` is the smallest of the best status.
    - `assumptions`: one row each. - `counterexample`: a place where an assumption fails, if one was found.
    - `theorem`, `a_priori_bound`, `a_priori_metric`: what the algorithm's theorem promised, in expectation over runs,
      before this run was made. - `notes`: what is missing and what would tighten the statement.
    - `elbo`: of q, with its error, where it is known: in a fit. `evidence`: the bracket of the log evidence.
    - `obstacle`: why there is no bound on the KL, should there be none. - `opening`: the first sentence where q is in
      no family, so that there is no gap to speak of. - `proviso`: what the distance to the posterior is given.
    - `names`: of the parameters. - `num_gradients`: of the log density, spent on the bounds; passes over the data where
      the bounds are deterministic.
    """

    status: str
    gap: float | None
    assumptions: tuple[Assumption, ...]
    confidence: float | None = None
    bounds: tuple[GapBound, ...] = ()
    distance: PosteriorBound | Deferred | None = dataclasses.field(default=None, compare=False, repr=False)
    counterexample: Counterexample | None = None
    theorem: str | None = None
    a_priori_bound: float | None = None
    a_priori_metric: str | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    num_gradients: int = 0
    elbo: tuple[float, float] | None = None
    obstacle: str = ""
    opening: str = ""
    proviso: str = ""
    recompute: Callable[[int], "Certificate"] | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def statistical_gap(self) -> float | None:
        """The smallest statistical bound, beside a proven one or instead of it."""
        values = [bound.value for bound in self.bounds if bound.status == "statistical"]
        return min(values) if values and math.isfinite(min(values)) else None

    @property
    def conditional_gap(self) -> float | None:
        """The smallest conditional bound, beside a proven one or instead of it; `bounds` says what it assumes."""
        values = [bound.value for bound in self.bounds if bound.status == "conditional"]
        return min(values) if values and math.isfinite(min(values)) else None

    @property
    def posterior(self) -> PosteriorBound | None:
        """The distance to the posterior; its draws are made when it is first asked for."""
        return self.distance() if isinstance(self.distance, Deferred) else self.distance

    @property
    def kl(self) -> float | None:
        """An upper bound on KL(q || posterior) in nats; `posterior.status` says of which kind."""
        return None if self.posterior is None else self.posterior.kl

    @property
    def evidence(self) -> EvidenceBracket | None:
        """The bracket of the log evidence; None where the ELBO is not known."""
        if self.elbo is None:
            return None if self.posterior is None else self.posterior.evidence
        return evidence_bracket(self, *self.elbo)

    @property
    def total_variation(self) -> float | None:
        """An upper bound on the error of any posterior probability; None where `kl` is."""
        return None if self.posterior is None else self.posterior.total_variation

    def content(self, probability: float = 0.94) -> float:
        """The least posterior probability of a set that holds the share `probability` of q, such as an interval of
        `fit.posterior.interval(probability)`; 0 where `kl` is None."""
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
        return 0.0 if self.posterior is None else self.posterior.content(probability)

    def verify(self, seed: int) -> "Certificate":
        """The same certificate computed again, with fresh randomness from `seed`."""
        if self.recompute is None:
            raise ValueError(
                "This certificate was read from a file, without the target that it is about: "
                "call provi.certify(target, fit, seed=...) instead."
            )
        found = self.recompute(seed)
        return found if self.elbo is None else dataclasses.replace(found, elbo=self.elbo)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; infinite bounds become null."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("recompute", "distance")]
        fields = {name: getattr(self, name) for name in (*names, *_DERIVED)}
        return {name: _plain(value) for name, value in fields.items()}

    def to_json(self) -> str:
        """The certificate as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> "Certificate":
        """The inverse of `to_dict`, but for `recompute`."""
        found, posterior, elbo = data["counterexample"], data["posterior"], data.get("elbo")
        return Certificate(
            **{
                **{name: value for name, value in data.items() if name not in _DERIVED},
                "assumptions": tuple(Assumption(**row) for row in data["assumptions"]),
                "bounds": tuple(
                    GapBound(**{**row, "value": math.inf if row["value"] is None else row["value"]})
                    for row in data["bounds"]
                ),
                "distance": posterior and PosteriorBound.from_dict(posterior),
                "elbo": elbo and tuple(elbo),
                "counterexample": found
                and Counterexample(
                    **{**found, "point": np.asarray(found["point"]), "direction": np.asarray(found["direction"])}
                ),
                "notes": tuple(data["notes"]),
                "names": tuple(data["names"]),
            }
        )

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.opening:
            return self.opening
        if self.gap is None:
            alone = not self.bounds and self.posterior is not None
            return "No gap, as q is in no family." if alone else "Not certified: no bound on the gap."
        level = "" if self.confidence is None else f" with confidence {self.confidence:g}"
        words = _VERDICTS.get(self.status, _VERDICTS["conditional"])
        other, more = self.statistical_gap, ""
        if self.status == "proven" and other is not None and _MUCH * other < self.gap:
            more = f" Statistical, not proven: within {at_most(other)}."
        return f"{words}: within {at_most(self.gap)} nats of the best member of the family{level}.{more}"

    @property
    def lines(self) -> tuple[str, ...]:
        """The answers to three questions, a sentence each.

        How far from the best member of the family? How far from the posterior, and what is the evidence? How much of
        the posterior do the intervals hold? Without a bound on the KL the last has none.
        """
        return (self.headline, self.distance_line, *(() if self.posterior is None else (self.content_line,)))

    @property
    def distance_line(self) -> str:
        """The bound on KL(q || posterior), or why there is none; the bracket of the log evidence."""
        bound, bracket = self.posterior, self.evidence
        if bound is None:
            ends = "" if bracket is None else f" {bracket.ends.capitalize()} (confidence {bracket.confidence:g})."
            return "No bound on KL(q || posterior)" + (f": {self.obstacle}." if self.obstacle else ".") + ends
        level = f"{bound.status}, confidence {bound.confidence:g}"
        given = f" {self.proviso}" if self.proviso else ""
        words = f"KL(q || posterior){given} at most {at_most(bound.kl)} nats ({level})"
        if bracket is None:
            return f"{words}."
        same = (bracket.status, bracket.confidence) == (bound.status, bound.confidence)
        other = "" if same else f" ({bracket.status}, confidence {bracket.confidence:g})"
        return f"{words}; {bracket.ends}{other}."

    @property
    def content_line(self) -> str:
        """How much of the posterior the intervals hold at least; where the bound is too wide to say, what would help.

        Empty without a bound on the KL.
        """
        bound = self.posterior
        if bound is None:
            return ""
        if bound.informative:
            error = at_most(bound.total_variation, 2)
            aside = "" if bound.status == "proven" else f" ({bound.status})"
            given = f" {self.proviso}" if self.proviso else ""
            words = f"{bound.content_words(_SHOWN_INTERVAL)}{given}{aside}"
            return f"{words}; no probability is off by more than {error}."
        return (
            "That is too wide to say what intervals hold of the posterior: more data, a stronger prior or a richer "
            "family would help; fit.diagnose() estimates the distance."
        )

    def tables(self) -> tuple[Table, ...]:
        """Gap bounds, distance to the posterior, assumptions."""
        tables = []
        if self.bounds:
            bounds = _table("Optimality gap, upper bounds in nats", "bound", "gap", "status", "holds", "grounds")
            for row in self.bounds:
                value = at_most(row.value) if math.isfinite(row.value) else "-"
                holds = "always" if row.confidence is None else f"{row.confidence:g}"
                bounds.add_row(escape(row.name), value, _coloured(row.status), holds, escape(row.detail))
            tables.append(bounds)
        if self.posterior is not None:
            tables.append(self._posterior_table(self.posterior))
        ledger = _table("Assumptions", "assumption", "value", "status", "grounds")
        for row in self.assumptions:
            value = "" if row.value is None else str(row.value) if isinstance(row.value, bool) else f"{row.value:.4g}"
            ledger.add_row(escape(row.statement), value, _coloured(row.status), escape(row.reason))
        return (*tables, ledger)

    def distance_rows(self) -> tuple[tuple[str, str], ...]:
        """Quantity and bound: the KL, the evidence, and what of the rest says something."""
        bound, bracket = self.posterior, self.evidence
        if bound is None:
            return ()
        given = f" {self.proviso}" if self.proviso else ""
        rows = [(f"KL(q || posterior){given}, nats", f"at most {at_most(bound.kl)}, {bound.status}")]
        if math.isfinite(bound.estimate):
            rows.append((f"what it bounds, estimated from {bound.num_samples:,} draws", f"{bound.estimate:.3g}"))
        if bracket is not None:
            rows.append(("log evidence, nats", bracket.ends.removeprefix("log evidence ")))
        if bound.informative:
            rows.append(("error of any posterior probability", f"at most {at_most(bound.total_variation, 2)}"))
            for probability in (0.5, _SHOWN_INTERVAL):
                content = share_down(bound.content(probability))
                rows.append((f"content of any {100 * probability:g}% interval", f"at least {content}"))
        return (*rows, *self._coordinate_rows(bound))

    def _coordinate_rows(self, bound: PosteriorBound) -> list[tuple[str, str]]:
        """Of the means and standard deviations that are known to within half a standard deviation; the others counted.

        The rows after the first stand for those of which nothing was said before: the largest bound of those that have
        one below a half, and how many have none.
        """
        pairs = list(zip(self.names, bound.relative_error, strict=False))
        listed = [(name, error) for name, error in pairs if error < _LARGEST_ERROR]
        rows = [
            (f"mean and sd of {name} are off by", f"at most {at_most(error, 2)} sd")
            for name, error in listed[:_LARGEST_LISTED]
        ]
        rest = [error for _, error in listed[_LARGEST_LISTED:]]
        if rest:
            rows.append((f"... of {len(rest)} more", f"at most {at_most(max(rest), 2)} sd"))
        unknown = len(pairs) - len(listed)
        if listed and unknown:
            rows.append((f"... of the other {unknown}", f"not known to within {_LARGEST_ERROR:g} sd"))
        return rows

    def _posterior_table(self, bound: PosteriorBound) -> Table:
        table = _table(f"Distance to the posterior, confidence {bound.confidence:g}", "quantity", "bound")
        for quantity, value in self.distance_rows():
            table.add_row(escape(quantity), escape(value))
        return table

    def print(self, console: Console | None = None) -> None:
        """Print the three answers, the tables, the theorem's bound and the notes."""
        console = console or Console()
        for index, line in enumerate(self.lines):
            console.print(line, style="" if index else "bold", markup=False, highlight=False)
        for table in self.tables():
            console.print()
            console.print(table)
        for line in self._after():
            console.print(line, style="dim" if line.startswith("- ") else "", markup=False, highlight=False)

    def _after(self) -> list[str]:
        """What stands below the tables."""
        found = [f"- {note}" for note in self.notes]
        if self.theorem is None or self.a_priori_bound is None:
            return found
        promise = f"{self.theorem}: expected {self.a_priori_metric} <= {at_most(self.a_priori_bound, 4)}, a priori"
        return [promise, *found]

    def _repr_html_(self) -> str:
        return as_html(*self.lines, *self.tables(), *self._after())

    def __str__(self) -> str:
        console = Console(width=118, file=io.StringIO())
        self.print(console)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def at_confidence(certificate: Certificate, confidence: float) -> Certificate:
    """The certificate with a lower `confidence`: the one that holds for all of the tries it was chosen from."""

    def lowered(level: float | None) -> float | None:
        return None if level is None else min(level, confidence)

    bounds = tuple(dataclasses.replace(row, confidence=lowered(row.confidence)) for row in certificate.bounds)
    distance = certificate.distance
    if distance is not None:
        distance = Deferred(lambda: _at_most_confident(certificate.posterior, confidence))
    return dataclasses.replace(
        certificate, bounds=bounds, distance=distance, confidence=lowered(certificate.confidence)
    )


def evidence_bracket(certificate: Certificate, elbo: float, error: float) -> EvidenceBracket:
    """[ELBO, ELBO + bound on KL(q || posterior)], with the `error` of the ELBO taken off and added."""
    posterior = certificate.posterior
    if posterior is not None and posterior.evidence is not None:
        return posterior.evidence
    deterministic = bool(certificate.bounds) and all(bound.confidence is None for bound in certificate.bounds)
    confidence = 0.99 if posterior is None else posterior.confidence
    # An ELBO from draws has a standard error, and its own share of what may go wrong. So has that of a large Gaussian
    # process, whose gap is deterministic; where the error is a bound, the factor does no harm.
    margin = -float(special.ndtri(1 - confidence)) * error
    lower = elbo - margin
    if posterior is None:
        return EvidenceBracket(lower, math.inf, confidence, "none", certificate.proviso)
    upper = elbo + margin + posterior.kl
    if not deterministic:
        return EvidenceBracket(lower, upper, max(2 * confidence - 1, 0.0), "statistical")
    return EvidenceBracket(lower, upper, confidence, posterior.status)


def _at_most_confident(bound: PosteriorBound | None, confidence: float) -> PosteriorBound | None:
    return None if bound is None else dataclasses.replace(bound, confidence=min(bound.confidence, confidence))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _coloured(status: str) -> str:
    return f"[{_COLOURS.get(status, '')}]{status}[/]" if status in _COLOURS else status


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case np.ndarray():
            return value.tolist()
        case tuple():
            return [_plain(item) for item in value]
        case Assumption() | GapBound() | PosteriorBound() | EvidenceBracket() | Counterexample():
            return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _:
            return value
