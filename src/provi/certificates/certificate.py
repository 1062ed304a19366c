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

from provi.certificates.bounds import GapBound, at_most
from provi.certificates.distance.bound import Deferred, EvidenceBracket, PosteriorBound


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
        return self.recompute(seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; infinite bounds become null."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("recompute", "distance")]
        fields = {name: getattr(self, name) for name in (*names, "kl", "posterior")}
        return {name: _plain(value) for name, value in fields.items()}

    def to_json(self) -> str:
        """The certificate as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> "Certificate":
        """The inverse of `to_dict`, but for `recompute`."""
        found, posterior = data["counterexample"], data["posterior"]
        return Certificate(
            **{
                **{name: value for name, value in data.items() if name not in ("kl", "posterior")},
                "assumptions": tuple(Assumption(**row) for row in data["assumptions"]),
                "bounds": tuple(
                    GapBound(**{**row, "value": math.inf if row["value"] is None else row["value"]})
                    for row in data["bounds"]
                ),
                "distance": posterior and PosteriorBound.from_dict(posterior),
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
        if self.gap is None:
            return "Not certified: no bound on the gap."
        level = "" if self.confidence is None else f" with confidence {self.confidence:g}"
        words = _VERDICTS.get(self.status, _VERDICTS["conditional"])
        other, more = self.statistical_gap, ""
        if self.status == "proven" and other is not None and _MUCH * other < self.gap:
            more = f" Statistical, not proven: within {at_most(other)}."
        return f"{words}: within {at_most(self.gap)} nats of the best member of the family{level}.{more}"

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

    def _posterior_table(self, bound: PosteriorBound) -> Table:
        title = f"Distance to the posterior, upper bounds, confidence {bound.confidence:g}"
        table = _table(title, "quantity", "at most")
        table.add_row("KL(q || posterior), nats", at_most(bound.kl))
        table.add_row("error of any posterior probability", at_most(bound.total_variation))
        listed = list(zip(self.names, bound.coordinate_error, strict=False))
        for name, error in listed[:_LARGEST_LISTED]:
            table.add_row(escape(f"error of the mean and of the sd of {name}"), at_most(error))
        if len(listed) > _LARGEST_LISTED:
            table.add_row(f"... of {len(listed) - _LARGEST_LISTED} more", at_most(max(bound.coordinate_error)))
        return table

    def print(self, console: Console | None = None) -> None:
        """Print the verdict, the tables, the theorem's bound and the notes."""
        console = console or Console()
        console.print(self.headline, style="bold", markup=False, highlight=False)
        for table in self.tables():
            console.print()
            console.print(table)
        if self.theorem is not None and self.a_priori_bound is not None:
            console.print(
                f"{self.theorem}: expected {self.a_priori_metric} <= {at_most(self.a_priori_bound, 4)}, a priori"
            )
        for note in self.notes:
            console.print(f"- {note}", style="dim", markup=False, highlight=False)

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
