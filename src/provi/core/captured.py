"""What a function reads besides its arguments, so that a compiled program is not used again after it has changed.

JAX takes a function that is equal for a function that does the same. A user's model that reads a global variable, the
data of a notebook for example, is the same object after the variable was given another value.
"""

import functools
import hashlib
import itertools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype)
_NEVER_EQUAL = itertools.count()
LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
"""Folders of what is installed, which does not change while a process runs."""


def captured(function: Callable[..., Any]) -> str:
    """A fingerprint of the variables that the function and the functions that it calls read from outside.

    Equal for two calls where all of these are numbers, texts, arrays, containers of them, or functions, and have the
    same values. Unlike any other where there is something else among them, whose contents cannot be compared. What
    installed packages read does not count.
    """
    return hashlib.sha256("\n".join(_function(function, {})).encode()).hexdigest()


def _function(function: Any, seen: dict[int, int]) -> Iterator[str]:
    """Of anything that can be called."""
    if isinstance(function, functools.partial):
        yield from _function(function.func, seen)
        yield from _value((function.args, function.keywords), seen)
    elif isinstance(function, types.MethodType):
        yield from _function(function.__func__, seen)
        yield from _value(function.__self__, seen)
    elif isinstance(function, types.FunctionType):
        yield from _python_function(function, seen)
    elif type(function).__module__.startswith("jax") and callable(getattr(function, "__wrapped__", None)):  # jax.jit
        yield from _function(function.__wrapped__, seen)
    elif isinstance(function, types.BuiltinFunctionType | np.ufunc):
        yield f"{function!r}"
    elif isinstance(function, type) and _is_installed(sys.modules.get(function.__module__)):
        yield f"{function!r}"
    else:
        yield f"unknown {next(_NEVER_EQUAL)}"


def _python_function(function: types.FunctionType, seen: dict[int, int]) -> Iterator[str]:
    if id(function) in seen:
        yield f"function {seen[id(function)]} of those before"
        return
    seen[id(function)] = len(seen)
    if function.__code__.co_filename.startswith(LIBRARIES):
        yield f"{function.__module__}.{function.__qualname__}"
        yield from _cells(function, set(), seen)  # of a decorator: the user's function
        return
    codes = [function.__code__]
    for code in codes:  # grows as it goes: the functions inside the function
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    names = {name for code in codes for name in code.co_names}
    for code in codes:
        constants = [constant for constant in code.co_consts if not isinstance(constant, types.CodeType)]
        arguments = code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants} {arguments}"
        yield getattr(code, "co_exceptiontable", b"").hex()
    yield from _value((function.__defaults__, function.__kwdefaults__), seen)
    yield from _cells(function, names, seen)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield name
        if isinstance(value, types.ModuleType):
            yield from _module(value, names, seen)
        else:
            yield from _value(value, seen)


def _cells(function: types.FunctionType, names: set[str], seen: dict[int, int]) -> Iterator[str]:
    """What a function has from the functions around it."""
    for cell in function.__closure__ or ():
        try:
            found = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            yield "empty"
            continue
        yield from _module(found, names, seen) if isinstance(found, types.ModuleType) else _value(found, seen)


def _module(module: types.ModuleType, names: set[str], seen: dict[int, int]) -> Iterator[str]:
    """Of a module of the user's, the variables of these names."""
    yield module.__name__
    if _is_installed(module):
        return
    for name in sorted(names & vars(module).keys()):
        if not isinstance(vars(module)[name], types.ModuleType):
            yield name
            yield from _value(vars(module)[name], seen)


def _is_installed(module: types.ModuleType | None) -> bool:
    """Whether a module is Python's, of a package, or of ProVI, whose variables are constants."""
    if module is None or module.__name__ == "__main__":
        return False
    path = getattr(module, "__file__", None)
    return path is None or path.startswith(LIBRARIES) or module.__name__.split(".")[0] == "provi"


def _value(value: Any, seen: dict[int, int]) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, list | tuple | dict):
        items = itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else value
        yield f"{type(value).__name__} {len(value)}"
        for item in items:
            yield from _value(item, seen)
    elif isinstance(value, np.ndarray) or (isinstance(value, jax.Array) and not isinstance(value, Tracer)):
        yield from _array(value)
    elif callable(value):
        yield from _function(value, seen)
    else:
        yield f"unknown {next(_NEVER_EQUAL)}"


def _array(value: Any) -> Iterator[str]:
    if getattr(value.dtype, "kind", "O") in "OV":  # objects, keys of random numbers
        yield f"unknown {next(_NEVER_EQUAL)}"
        return
    array = np.asarray(value)
    yield f"{array.shape} {array.dtype} {hashlib.sha256(array.tobytes()).hexdigest()}"
