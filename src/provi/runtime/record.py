"""What is told of a run: its history at chosen steps, why it stopped, and how far it is, on a terminal.

Outcomes are the third layer of error handling: arguments raise, bad values are rejected, outcomes are returned.
"""

import contextlib
import dataclasses
import enum
import time
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

FIELDS = (
    "step",
    "gradient_evaluations",
    "seconds",
    "elbo",
    "elbo_standard_error",
    "step_size",
    "num_draws",
    "gradient_norm",
    "rejected_steps",
)


@dataclasses.dataclass
class History:
    """Arrays per recorded step: `history["elbo"]`, `history["step"]`, ... (see `FIELDS`)."""

    rows: list[tuple[float, ...]] = dataclasses.field(default_factory=list)

    def append(self, **values: Any) -> None:
        """Add one recorded step; every field of `FIELDS` is required."""
        self.rows.append(tuple(float(values[name]) for name in FIELDS))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in FIELDS:
            raise KeyError(f"history has no field {name!r}; it has {', '.join(FIELDS)}.")
        return self.as_array()[:, FIELDS.index(name)]

    def last(self, name: str) -> float:
        """`self[name][-1]`, at a cost that does not grow with the length: asked after every step."""
        return self.rows[-1][FIELDS.index(name)]

    def __len__(self) -> int:
        return len(self.rows)

    def as_array(self) -> np.ndarray:
        """All rows, one column per field, float64."""
        return np.asarray(self.rows, dtype=np.float64).reshape(-1, len(FIELDS))

    @staticmethod
    def from_array(array: np.ndarray) -> "History":
        """The inverse of `as_array`."""
        return History([tuple(row) for row in np.asarray(array).tolist()])


def recorded_steps(num_steps: int, num_records: int) -> list[int]:
    """Step numbers to record, half evenly and half geometrically spaced, the last always among them."""
    even = np.linspace(1, num_steps, max(2, num_records // 2))
    geometric = np.geomspace(1, num_steps, max(2, num_records // 2))
    return sorted({int(round(step)) for step in (*even, *geometric)})


class Outcome(enum.Enum):
    """The reason a run ended. `fit.outcome.value` is a sentence for people."""

    COMPLETED = "all planned steps were taken"
    TOLERANCE = "the bound on the gap is within the tolerance"
    CONDITIONAL = "the gap is within the tolerance under an assumption that was not verified"
    STATIONARY = "the iterates look stationary; a heuristic, nothing is proven"
    TIME_BUDGET = "the time budget was used up"
    GRADIENT_BUDGET = "the budget of gradient evaluations was used up"
    NONFINITE = "numbers that are not finite could not be avoided; the last good state is returned"
    IMPROPER = "the density does not seem to be integrable: there is no posterior to approximate"
    INTERRUPTED = "interrupted by the user; the last good state is returned"

    @property
    def ok(self) -> bool:
        """True when the result is what the plan asked for."""
        return self not in (Outcome.NONFINITE, Outcome.IMPROPER, Outcome.INTERRUPTED)


@dataclasses.dataclass(frozen=True)
class Throughput:
    """Of a run over data: each step reads `per_step` `rows`, and what is recorded is minus the loss called `loss`."""

    per_step: float | int
    rows: str
    loss: str


_throughput: ContextVar[Throughput | None] = ContextVar("throughput", default=None)


@contextlib.contextmanager
def show_throughput(per_step: float | int, rows: str, loss: str) -> Iterator[None]:
    """Bars made within it say how many `rows` of data are read a second, and `loss` instead of the ELBO."""
    token = _throughput.set(Throughput(per_step, rows, loss))
    try:
        yield
    finally:
        _throughput.reset(token)


class ProgressBar:
    """`show=None` shows the bar when standard error is a terminal; True and False force it.

    `unit` is what is counted, and `value` what is shown of it; within `show_throughput`, rows a second, too.
    """

    def __init__(self, total: int, show: bool | None, unit: str = "steps", value: str = "ELBO") -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]provi"),
            BarColumn(),
            TextColumn(f"{{task.completed}}/{{task.total}} {unit}"),
            TextColumn("{task.fields[elbo]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (console.is_terminal if show is None else show),
        )
        self._value = value
        self._throughput = _throughput.get()
        self._first: tuple[int, float] | None = None
        self._task = self._progress.add_task("fit", total=total, elbo="compiling")

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, step: int, elbo: float | None) -> None:
        """Show the step number and the latest ELBO estimate."""
        self._progress.update(self._task, completed=step, elbo=self.words(step, elbo, time.monotonic()))

    def words(self, step: int, elbo: float | None, now: float) -> str:
        """What is said beside the bar at the time `now`."""
        measured = self._throughput
        if measured is None:
            return "" if elbo is None else f"{self._value} {elbo:.4g}"
        if self._first is None:  # until here most of the time went to the compiler
            self._first = (step, now)
        parts = [] if elbo is None else [f"{measured.loss} {-elbo:.4g}"]
        if now > self._first[1] and step > self._first[0]:
            rate = measured.per_step * (step - self._first[0]) / (now - self._first[1])
            parts.append(f"{float(f'{rate:.3g}'):,.0f} {measured.rows}/s")
        return ", ".join(parts)
