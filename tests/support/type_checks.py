"""Shapes and types of every call into ProVI checked, as jaxtyping's import hook checks them, and quicker.

jaxtyping looks at arguments twice and at results once, each time through a wrapper of its own around every function,
annotated or not; it binds signatures, and makes two checkers anew wherever an inner function is defined. Three files of
tests took 73 s of processor time so, and take 58 s now. Here a function without annotations is left as it is, one whose
annotations name no shape is beartype's alone, and one with shapes is beartype's inside one of jaxtyping's contexts, in
which a name of an axis has one size from the first argument to the result.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping

ORIGINAL = jaxtyping.jaxtyped
_CONTEXT = ORIGINAL("context")
# A `TypeError`, as callers of a function that checks its arguments itself expect it.
_guard = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError))
_MARK = "__shapes_are_checked__"


def install() -> None:
    """Check all modules of ProVI that are imported from now on."""
    # What the hook writes before each `def` and `class` is `@jaxtyping.jaxtyped(typechecker=...)`, looked up by name.
    jaxtyping.jaxtyped = _decorator
    jaxtyping.install_import_hook(["provi", "provi_lab"], "beartype.beartype")


def _decorator(subject: Any = None, *, typechecker: Any = None) -> Any:
    if subject is None:
        return functools.partial(_decorator, typechecker=typechecker)
    return ORIGINAL(subject) if isinstance(subject, str) else checked(subject)


def checked(subject: Any) -> Any:
    """A function, or a dataclass, whose calls are checked against its annotations."""
    if inspect.isclass(subject):
        # A class without fields of its own has the `__init__` of its parent, which is checked.
        if dataclasses.is_dataclass(subject) and not hasattr(subject.__init__, _MARK):
            subject.__init__ = checked(subject.__init__)
        return subject
    if inspect.isgeneratorfunction(subject):  # its body runs after the call, and would leave the context behind
        return ORIGINAL(subject, typechecker=beartype.beartype)
    annotations = _resolved(subject)
    if not annotations:
        return subject
    guarded = _guard(_with_annotations(subject, annotations))
    if not any(map(_names_shapes, annotations.values())):
        return guarded

    @functools.wraps(subject)
    def in_context(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with _CONTEXT:
            return guarded(*args, **kwargs)

    setattr(in_context, _MARK, True)
    return in_context


def _resolved(function: Callable) -> dict[str, Any]:
    """Its annotations, words read as the types that they name; left out where they cannot be, as jaxtyping does."""
    found = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        try:
            probe = types.SimpleNamespace(__annotations__={"value": annotation})
            found[name] = typing.get_type_hints(probe, function.__globals__, include_extras=True)["value"]
        except Exception:  # noqa: S112
            continue
    return found


def _with_annotations(function: Any, annotations: dict[str, Any]) -> Any:
    if annotations == function.__annotations__:
        return function
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    functools.update_wrapper(copy, function)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, annotations
    del copy.__wrapped__
    return copy


def _names_shapes(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_names_shapes, typing.get_args(annotation)))
