"""Packages whose names are imported when they are first used: `import provi` is light, whatever is in it."""

import ast
import gc
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def imported(module: str) -> Any:
    """The module; while it is imported nothing looks for garbage, of which there is none: a fifth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collecting:
            gc.enable()


def is_instance(value: Any, module: str, name: str) -> bool:
    """`isinstance` of a class that is not imported for that: as long as nobody has, there is none of it."""
    found = sys.modules.get(module)
    return found is not None and isinstance(value, getattr(found, name))


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the stub `__init__.pyi` beside its `__init__.py`.

    The stub holds ordinary imports, `from provi.fit import fit as fit`, which type checkers and editors read: it is the
    only list of the package's names. A name that the stub takes from the package itself is a module of it.

    A function may have the name of its module, `provi.fit` that of `provi/fit.py`. Python sets a package's attribute to
    each module of it that is imported, and so would hide the function: here the function is set instead.

    **Arguments:**

    - `package`, `file`: the package's `__name__` and `__file__`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    sources = {
        alias.asname or alias.name: (node.module or package, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = sources[name]
        if module == package:
            return imported(f"{package}.{original}")
        return getattr(imported(module), original)

    class LazyPackage(types.ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if isinstance(value, types.ModuleType) and sources.get(name) == (f"{package}.{name}", name):
                value = getattr(value, name)
            super().__setattr__(name, value)

    sys.modules[package].__class__ = LazyPackage
    names = sorted(sources)
    return get, lambda: names, names
