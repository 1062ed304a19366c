"""`MODEL.py:NAME`: a target, or a function that makes one, in a Python file."""

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provi.targets.base import AbstractTarget


class ModelFileError(ValueError):
    """A model file that ends the program."""


def is_model_file(source: str) -> bool:
    """Whether `source` names a Python file rather than a table."""
    return source.endswith(".py") or source.rpartition(":")[0].endswith(".py")


def load_target(source: str) -> AbstractTarget:
    """The target that `source`, MODEL.py:NAME, names. The file is run as `python MODEL.py` would run it."""
    path, _, name = source.rpartition(":")
    if source.endswith(".py") or not name:
        raise ValueError(f"{source} does not say which target: write {source.rstrip(':')}:NAME, the name in the file.")
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}.")
    with _beside(file):
        found = _lookup(_run(file), name, source)
        made = found if isinstance(found, AbstractTarget) else _call(found, source)
    if not isinstance(made, AbstractTarget):
        what = "is" if made is found else "returns something"
        raise TypeError(
            f"{source} {what} of type {type(made).__name__}, not a provi target. Wrap a log density: "
            f"provi.targets.LogDensity(fn, dim)."
        )
    return made


@contextlib.contextmanager
def _beside(file: Path) -> Iterator[None]:
    """The file's folder first on the import path, for modules that lie beside it; exit() is no way to end."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    except SystemExit as error:
        raise ModelFileError(f"the file ends the program (exit {error.code}) instead of making a target.") from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _run(file: Path) -> Any:
    # Not under its own name, which might be that of a package such as numpyro.
    spec = importlib.util.spec_from_file_location(f"_provi_model_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} cannot be read as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses and pickling look it up there.
    spec.loader.exec_module(module)
    return module


def _lookup(module: Any, name: str, source: str) -> Any:
    if not hasattr(module, name):
        targets = [key for key, value in vars(module).items() if isinstance(value, AbstractTarget)]
        functions = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        listed = ", ".join((*targets, *functions)) or "no target and no function"
        raise ValueError(f"{source}: there is no {name!r} in the file; it has {listed}.")
    return getattr(module, name)


def _call(found: Any, source: str) -> Any:
    """What a function returns; anything else as it is."""
    if not callable(found):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise TypeError(
            f"{source} cannot be called without arguments ({error}): give a target, or a function without arguments "
            f"that returns one. Wrap a log density: provi.targets.LogDensity(fn, dim)."
        ) from None
    except ValueError:  # some built-in functions have no signature
        pass
    return found()
