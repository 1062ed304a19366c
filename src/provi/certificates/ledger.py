"""The assumption ledger: what is known of the problem, on what grounds, and what a theorem makes of it.

This version reports a-priori bounds only. Bounds computed from the result itself (the optimality gap, the
distance to the posterior) are not part of it: `gap` and `kl` are None and `status` is 'none'.
"""

import dataclasses
import io
import json
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from provi.certificates.guarantee import Guarantee
from provi.families.location_scale import LocationScale
from provi.targets.base import AbstractTarget
from provi.targets.constants import Constant

_COLOURS = {
    "proven": "green",
    "declared": "cyan",
    "estimated": "yellow",
    "unknown": "dim",
    "violated": "bold red",
}


@dataclasses.dataclass(frozen=True)
class Assumption:
    """One statement, its value if it has one, its status and the reason for the status."""

    statement: str
    value: float | bool | None
    status: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The ledger of a fit.

    - `status`: 'proven', 'conditional' or 'none'. - `gap`, `kl`: computed bounds in nats, None when there is none.
    - `assumptions`: one row each. - `theorem`, `a_priori_bound`, `a_priori_metric`: what the algorithm's theorem
      promised, in expectation over runs, before this run was made.
    - `notes`: what is missing and what would tighten the statement.
    """

    status: str
    gap: float | None
    kl: float | None
    assumptions: tuple[Assumption, ...]
    theorem: str | None = None
    a_priori_bound: float | None = None
    a_priori_metric: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """The ledger as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> "Certificate":
        """The inverse of `to_dict`."""
        rows = tuple(Assumption(**row) for row in data["assumptions"])
        return Certificate(**{**data, "assumptions": rows, "notes": tuple(data["notes"])})

    def table(self) -> Table:
        """The ledger as a rich table."""
        table = Table(title="Assumption ledger", title_justify="left", show_edge=False, pad_edge=False)
        for column in ("assumption", "value", "status", "grounds"):
            table.add_column(column)
        for row in self.assumptions:
            colour = _COLOURS.get(row.status, "")
            value = "" if row.value is None else str(row.value) if isinstance(row.value, bool) else f"{row.value:.4g}"
            table.add_row(row.statement, value, f"[{colour}]{row.status}[/]", row.reason)
        return table

    def print(self, console: Console | None = None) -> None:
        """Print the table, the theorem's bound and the notes."""
        console = console or Console()
        console.print(self.table())
        if self.theorem is not None:
            console.print(f"{self.theorem}: expected {self.a_priori_metric} <= {self.a_priori_bound:.4g}, a priori")
        for note in self.notes:
            console.print(f"- {note}", style="dim")

    def __str__(self) -> str:
        console = Console(width=110, file=io.StringIO())
        self.print(console)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def assumption_ledger(
    target: AbstractTarget, family: LocationScale, guarantee: Guarantee | None, num_steps: int, rejected_steps: int
) -> Certificate:
    """The first version of a certificate: assumptions, constants and the theorem's a-priori bound.

    The bound is that of the `num_steps` actually taken; a run with rejected steps is not the one of the theorem.
    """
    constants = target.constants
    rows = [
        _row("potential is convex (log-concave target)", constants.log_concave),
        _row("strong convexity mu", constants.strong_convexity),
        _row("smoothness M", constants.smoothness),
        _kurtosis(family),
    ]
    notes = ["No gap certificate in this version: the ELBO is an estimate, and no bound on the gap is claimed for it."]
    if guarantee is not None and rejected_steps > 0:
        notes.append(f"The theorem's bound does not apply: {rejected_steps} non-finite step(s) were rejected.")
    if guarantee is None or rejected_steps > 0 or num_steps < 1:
        return Certificate("none", None, None, tuple(rows), notes=tuple(notes))
    rows += [Assumption(text, None, status, "used by the theorem") for text, status in guarantee.assumptions]
    return Certificate(
        "none",
        None,
        None,
        tuple(rows),
        theorem=guarantee.theorem,
        a_priori_bound=float(guarantee.curve(np.asarray([num_steps]))[0]),
        a_priori_metric=guarantee.metric,
        notes=tuple(notes),
    )


def _kurtosis(family: LocationScale) -> Assumption:
    statement = f"kurtosis of the base ({family.base.name})"
    try:
        return Assumption(statement, float(family.base.kurtosis(family.dim)), "proven", "closed form")
    except ValueError as error:
        return Assumption(statement, None, "violated", str(error))


def _row(statement: str, constant: Constant) -> Assumption:
    value = constant.value if constant.value is None or isinstance(constant.value, bool) else float(constant.value)
    return Assumption(statement, value, constant.status, constant.reason)
