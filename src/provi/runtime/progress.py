"""A progress bar on a terminal, silence elsewhere."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """`progress=None` shows the bar when standard error is a terminal; True and False force it."""

    def __init__(self, total: int, show: bool | None) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]provi"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[elbo]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (console.is_terminal if show is None else show),
        )
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
        text = "" if elbo is None else f"ELBO {elbo:.4g}"
        self._progress.update(self._task, completed=step, elbo=text)
