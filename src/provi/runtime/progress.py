"""A progress bar on a terminal, silence elsewhere."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


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
