"""Errors on the command line: one line and the exit code 2, a traceback only with --debug."""

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import typer

BAD_INPUT = 2
_LONGEST = 600


@contextlib.contextmanager
def one_line_errors(source: str, debug: bool, as_json: bool) -> Iterator[None]:
    """Turn any exception inside into a line on standard error (with `as_json` also an object on standard output).

    **Arguments:**

    - `source`: of the command, `MODEL.py:NAME` or a table. An error that passed through the model file names its line.
    - `debug`: print the traceback before.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):  # the last: of `provi fit ... | head`, no error
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        message = describe(error, source)
        typer.echo(f"Error: {message}", err=True)
        if as_json:
            typer.echo(json.dumps({"verdict": "error", "error": message}))
        raise typer.Exit(BAD_INPUT) from None


def describe(error: BaseException, source: str = "") -> str:
    """An exception in one line, with the line of the model file that it came from, if it came from there."""
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ... (--debug shows all)"
    name = type(error).__name__
    file = Path(source.rpartition(":")[0])
    line = _line_in(error, file) if file.suffix == ".py" else None
    if line is not None:
        return f"{file}, line {line}: {name}: {text}" if text else f"{file}, line {line}: {name}"
    # ProVI's own messages say all; of an exception that nobody expected the type is half of the message.
    expected = type(error) in (ValueError, TypeError, FileNotFoundError, ImportError)
    return text if expected and text else f"{name}: {text}".rstrip(": ")


def _line_in(error: BaseException, file: Path) -> int | None:
    """The last line of `file` that the exception passed through, that of its cause before its own."""
    if error.__cause__ is not None:
        line = _line_in(error.__cause__, file)
        if line is not None:
            return line
    if isinstance(error, SyntaxError) and error.filename is not None and _same(error.filename, file):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.lineno is not None and _same(frame.filename, file)]
    return lines[-1] if lines else None


def _same(name: str, file: Path) -> bool:
    return Path(name).name == file.name and Path(name).resolve() == file.resolve()


def check_destination(option: str, path: Path | None) -> None:
    """A file that is to be written after a long run can be written: its folder is there."""
    if path is not None and path.is_dir():
        raise ValueError(f"{option}: {path} is a folder; give a file in it.")
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"{option}: there is no folder {path.parent}; make it first.")


def kept_for_the_answer(alone: bool) -> contextlib.AbstractContextManager:
    """If `alone`, standard output is kept for the answer: what a model file prints goes to standard error."""
    return contextlib.redirect_stdout(sys.stderr) if alone else contextlib.nullcontext()
