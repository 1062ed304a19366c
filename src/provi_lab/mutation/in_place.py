"""Changes of functions in a library that is imported already, so that a child begins with its tests at once.

The parent imports the library, as `tests/conftest.py` would have it imported, and notes its functions; a child compiles
the changed text with the module's own loader and gives the functions that differ their new code, whatever wraps them:
decorators hold the function and not what is in it. What differs outside of functions (constants, defaults, classes) is
imported anew, with the whole library.
"""

import contextlib
import gc
import importlib
import io
import pkgutil
import runpy
import sys
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType

_PACKAGE = "provi"
_functions: dict[str, list[FunctionType]] = {}
"""By the path of their module."""


def import_library(root: Path) -> None:
    """All of it but its commands, with the settings of the tests; what cannot be imported here is left out."""
    settings = root / "tests" / "conftest.py"
    if settings.exists():
        sys.path.insert(0, str(settings.parent))  # as pytest has it, by pyproject.toml
        runpy.run_path(str(settings))
    package = importlib.import_module(_PACKAGE)
    for found in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
        if not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError), contextlib.redirect_stdout(io.StringIO()):
                importlib.import_module(found.name)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(f"{root}/src/{_PACKAGE}/"):
            _functions.setdefault(each.__code__.co_filename, []).append(each)
    gc.collect()
    gc.freeze()  # a child of which no garbage is collected shares what its parent has imported


def forget_library() -> None:
    """Whoever imports it next gets it from the disk."""
    for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]


def changed_in_place(path: Path, new: bytes) -> bool:
    """Give the functions of the module at `path` their code in the text `new`; False where that is not enough."""
    name = str(path)
    module = next((each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == name), None)
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if loader is None or name not in _functions:
        return False
    pairs = _pairs(loader.source_to_code(path.read_bytes(), name), loader.source_to_code(new, name))
    if pairs is None:
        return False
    for before, after in pairs:
        live = [each for each in _functions[name] if _signature(each.__code__) == _signature(before)]
        if not live or any(each.__code__.co_freevars != after.co_freevars for each in live):
            return False
        for each in live:
            each.__code__ = after
    return True


def _pairs(before: CodeType, after: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """Functions of modules and classes that differ, old and new; None where something else does."""
    old, new = list(_codes(before)), list(_codes(after))
    if len(old) != len(new) or _plain(before, nested=False) != _plain(after, nested=False):
        return None
    found = []
    for one, other in zip(old, new, strict=True):
        if one.co_flags & CO_OPTIMIZED:  # a function; the body of a class is none
            found += [(one, other)] if _plain(one) != _plain(other) else []
        else:
            inside = _pairs(one, other)
            if inside is None:
                return None
            found += inside
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))


def _signature(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _plain(code: CodeType, *, nested: bool = True) -> tuple:
    """What a code does, without the places of it in its text."""
    constants = tuple(
        (_plain(each) if nested else None) if isinstance(each, CodeType) else (type(each).__name__, repr(each))
        for each in code.co_consts
    )
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_name, code.co_code, constants, names, code.co_exceptiontable, code.co_flags
