"""`MODEL.py:NAME`: a target, or a function that makes one, in a Python file."""

import contextlib
import difflib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provi.targets.base import AbstractTarget

_WRAPPERS = {
    "numpyro": "provi.from_numpyro(model, *arguments)",
    "pymc": "provi.from_pymc(model)",
    "stan": "provi.from_stan(program, data)",
}


def is_model_file(source: str) -> bool:
    """Whether `source` names a Python file rather than a table."""
    return source.endswith(".py") or source.rpartition(":")[0].endswith(".py")


def path_of(source: str) -> str:
    """The file of MODEL.py:NAME."""
    return source if source.endswith(".py") else source.rpartition(":")[0]


def load_target(source: str) -> "AbstractTarget":
    """The target that `source`, MODEL.py:NAME, names. The file is imported: `if __name__ == "__main__"` is not run."""
    from provi.targets.base import AbstractTarget  # with JAX, for which help and completion need not wait

    name = source.rpartition(":")[2]
    if source.endswith(".py") or not name:
        raise ValueError(f"{source} does not say which target: write {source.rstrip(':')}:NAME, the name in the file.")
    file = Path(path_of(source))
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}.")
    with _beside(file):
        found = _lookup(_run(file), name, source)
        made = found if isinstance(found, AbstractTarget) else _call(found, source)
    if not isinstance(made, AbstractTarget):
        what = "is" if made is found else "returns something"
        raise TypeError(f"{source} {what} of type {type(made).__name__}, not a provi target. {_remedy(made)}")
    return made


@contextlib.contextmanager
def _beside(file: Path) -> Iterator[None]:
    """The file's folder first on the import path, for modules that lie beside it."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    except EOFError as error:
        raise ValueError("the file asks for input, which a command cannot give.") from error
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
    from provi.targets.base import AbstractTarget

    if not hasattr(module, name):
        targets = [key for key, value in vars(module).items() if isinstance(value, AbstractTarget)]
        functions = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        listed = ", ".join((*targets, *functions)) or "no target and no function"
        near = difflib.get_close_matches(name, (*targets, *functions), 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{source}: there is no {name!r} in the file; it has {listed}.{meant}")
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
            f"that returns one. {_remedy(found)}"
        ) from None
    except ValueError:  # some built-in functions have no signature
        pass
    try:
        return found()
    except Exception as error:
        if "provi" in _packages(found) or not _wrapper(found):
            raise
        raise TypeError(f"{source} raises {type(error).__name__} when it is called. {_remedy(found)}") from None


def _remedy(found: Any) -> str:
    wrapper = _wrapper(found)
    return f"Wrap the model: {wrapper}." if wrapper else "Wrap a log density: provi.targets.LogDensity(fn, dim)."


def _wrapper(found: Any) -> str | None:
    """What makes a target of another package's model."""
    return next((wrapper for package, wrapper in _WRAPPERS.items() if package in _packages(found)), None)


def _packages(found: Any) -> set[str]:
    """The package of a thing's type, and those that the code of a function names."""
    modules = [type(found).__module__]
    if inspect.isfunction(found):
        modules += [getattr(found.__globals__.get(name), "__name__", "") for name in found.__code__.co_names]
    return {module.partition(".")[0] for module in modules}
