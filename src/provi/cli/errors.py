"""Errors in one line, and files that can be written checked before the work."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from provi.core.files import try_writing

_LONGEST = 600


def describe(error: BaseException, files: Sequence[str] = ()) -> str:
    """An exception in one line, with the line of the model file (one of `files`) that it came from, if it did."""
    text = " ".join(str(error).split())
    if isinstance(error, SystemExit):
        text = f"the file ends the program (exit {text}) instead of making a target"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ... (--debug shows all)"
    name = type(error).__name__
    for file in files:
        line = line_in(error, file)
        if line is not None:
            return f"{file}, line {line}: {name}: {text}" if text else f"{file}, line {line}: {name}"
    if isinstance(error, SyntaxError) and files:  # Python names no line of a file that it cannot read at all
        return f"{files[0]}: {name}: {text}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    # ProVI's own messages say all; of an exception that nobody expected the type is half of the message.
    expected = type(error) in (ValueError, TypeError, FileNotFoundError, ImportError)
    expected = expected or name == "ProcessLostError"
    return text if expected and text else f"{name}: {text}".rstrip(": ")


def line_in(error: BaseException, name: str) -> int | None:
    """The last line of the file `name` that the exception passed through, that of its cause before its own."""
    if error.__cause__ is not None:
        line = line_in(error.__cause__, name)
        if line is not None:
            return line
    file = Path(name)
    if isinstance(error, SyntaxError) and error.filename is not None and _same(error.filename, file):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.lineno is not None and _same(frame.filename, file)]
    return lines[-1] if lines else None


def _same(name: str, file: Path) -> bool:
    return Path(name).name == file.name and Path(name).resolve() == file.resolve()


def check_destinations(source: str, destinations: dict[str, Path | None]) -> None:
    """Files to be written after a long run can be written, and overwrite neither the input nor one another.

    **Arguments:**

    - `source`: the file that is read.
    - `destinations`: by the option that names each; None where it is not given.
    """
    taken = {Path(source).resolve(): "the file that is read"}
    for option, path in destinations.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{option}: {path} is a folder; give a file in it.")
        if not path.parent.is_dir():
            raise ValueError(f"{option}: there is no folder {path.parent}; make it first.")
        if path.resolve() in taken:
            raise ValueError(f"{option}: {path} is {taken[path.resolve()]}; give another file.")
        taken[path.resolve()] = f"that of {option} already"
        _check_writable(option, path)


def _check_writable(option: str, path: Path) -> None:
    """By trial: what the file's permissions say is not all (a read-only disk, a folder such as /proc)."""
    try:
        if path.is_file():
            with path.open("ab"):  # a file that is protected is not replaced, though its folder would allow it
                pass
        try_writing(path)
    except OSError as error:
        raise ValueError(f"{option}: {path} cannot be written ({error.strerror}); give another place.") from None


@contextlib.contextmanager
def kept_for_the_answer(alone: bool) -> Iterator[None]:
    """If `alone`, standard output is kept for the answer: what a model file prints goes to standard error.

    The file descriptor as well, since compilers that a model starts (Stan's) write there without asking Python.
    """
    if not alone:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no descriptor 1 or 2: closed by the caller
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
        yield
