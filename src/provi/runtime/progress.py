"""A progress bar on a terminal, silence elsewhere."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """`show=None` shows the bar when standard error is a terminal; True and False force it.

    `unit` is what is counted, and `value` what is shown of it.
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
        text = "" if elbo is None else f"{self._value} {elbo:.4g}"
        self._progress.update(self._task, completed=step, elbo=text)
