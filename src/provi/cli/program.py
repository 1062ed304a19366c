"""The command `provi` as a whole: every way in which it can end, its line and its exit code."""

import contextlib
import functools
import gc
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from provi.cli.errors import describe, line_in
from provi.cli.model_file import is_model_file, path_of

BAD_INPUT, LOST, INTERRUPTED, CLOSED_PIPE = 2, 75, 130, 141  # the last two as shells count them: 128 + the signal

_OBJECTS_BETWEEN_COLLECTIONS = 100_000

# The base of all errors that typer itself finds. Its home moved from click into typer; the class that is exported is
# one of its descendants.
_UsageError = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class Program(TyperGroup):
    """A group of commands whose errors are one line on standard error and the exit code 2."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run the command of `args`, and exit."""
        # What a command makes it mostly keeps to its end: looking for garbage as often as usual is a tenth of its time.
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        words = sys.argv[1:] if args is None else list(args)
        run = functools.partial(super().main, words, *rest, **{**options, "standalone_mode": False})
        code = exit_code(run, words)
        several = sys.modules.get("provi.runtime.distributed")
        if code in (BAD_INPUT, INTERRUPTED, LOST) and several is not None and several.started():
            several.end_now(code)  # others wait for this process: they hear by its end
        sys.exit(code)


def exit_code(run: Callable[[], Any], words: Sequence[str]) -> int:
    """The exit code of `run`, with what went wrong on standard error.

    Whatever the error, with --json among `words` standard output has one object, and without --debug there is no
    traceback.
    """
    try:
        with _short_warnings(), _termination_interrupts():
            code = run()
        if sys.stdout is not None:  # None: closed by the caller
            sys.stdout.flush()  # Here a closed pipe can still be caught; at the end of the process it is a traceback.
    except BrokenPipeError:
        return _hang_up()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return _hang_up()
        if not _in_model_file(error, words):  # of shell completion
            raise
        return _fail(error, words)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        return _fail(error, words)
    if code == INTERRUPTED:
        _say("Interrupted.", words)
    return code if isinstance(code, int) else 0


def _fail(error: BaseException, words: Sequence[str]) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # `provi` alone: the message is the help
        typer.echo(getattr(error, "message", ""), err=True)
        return BAD_INPUT
    if "--debug" in words:
        traceback.print_exception(error)
    _say(_usage(error) if isinstance(error, _UsageError) else describe(error, _model_files(words)), words)
    return LOST if type(error).__name__ == "ProcessLostError" else BAD_INPUT


def _usage(error: Any) -> str:
    """What typer says about options and arguments, and which help has more."""
    command = getattr(getattr(error, "ctx", None), "command_path", "provi")
    message = " ".join(error.format_message().replace("Value error, ", "").split())
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help."


def _say(message: str, words: Sequence[str]) -> None:
    typer.echo(f"Error: {message}", err=True)
    if "--json" in words:
        typer.echo(json.dumps({"verdict": "error", "error": message}))


def _model_files(words: Sequence[str]) -> list[str]:
    return [path_of(word) for word in words if is_model_file(word)]


def _in_model_file(error: BaseException, words: Sequence[str]) -> bool:
    return any(line_in(error, file) is not None for file in _model_files(words))


def _hang_up() -> int:
    """The reader has gone (`provi fit ... | head`): nothing more is written, not even at the end of the process."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


@contextlib.contextmanager
def _termination_interrupts() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, in whatever it is doing."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # as in tests of other programs
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Warnings in one line each. Overflow inside ProVI is none of the user's business: results are checked."""

    def show(message: Any, *_: Any, **__: Any) -> None:
        typer.echo(f"Warning: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"provi\b")
        warnings.showwarning = show
        yield
