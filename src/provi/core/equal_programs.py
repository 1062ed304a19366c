"""Traced programs that compare equal where they are the same, equation by equation.

JAX compares them by identity: a model that is translated anew, with other data of the same shapes, would be compiled
anew.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core as jax_core

from provi.core.captured import LIBRARIES

_NEVER_EQUAL = itertools.count()


class EqualProgram:
    """A jaxpr, as a static part of a pytree. Its constants are not part of it."""

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr

    @functools.cached_property
    def text(self) -> str:
        """A hash of all that it computes."""
        return hashlib.sha256("\n".join(_program(self.jaxpr)).encode()).hexdigest()

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, EqualProgram) and (self.jaxpr is other.jaxpr or self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return str(self.jaxpr)


def _program(jaxpr: Any) -> Iterator[str]:
    """Variables by the order in which they appear."""
    names: dict[Any, str] = {}

    def new(atom: Any) -> str:
        names[atom] = f"v{len(names)}"
        return f"{names[atom]}:{atom.aval.str_short()}:{getattr(atom.aval, 'weak_type', None)}"

    def read(atom: Any) -> str:
        if not isinstance(atom, jax_core.Literal):
            return names[atom]
        return f"{atom.aval.str_short()}:{getattr(atom.aval, 'weak_type', None)}:{''.join(_value(atom.val))}"

    yield " ".join(map(new, (*jaxpr.constvars, *jaxpr.invars)))
    for equation in jaxpr.eqns:
        yield f"{equation.primitive.name} {' '.join(map(read, equation.invars))}"
        origin = _origin(equation.params) if equation.primitive.name.startswith("custom_") else None
        for name in sorted(equation.params):
            yield f"  {name}="
            yield from _value(equation.params[name], origin)
        yield f"-> {' '.join(map(new, equation.outvars))}"
    yield f"returns {' '.join(map(read, jaxpr.outvars))}"


def _value(value: Any, origin: str | None = None) -> Iterator[str]:
    """A parameter; what cannot be compared is unlike all others."""
    if isinstance(value, jax_core.ClosedJaxpr):
        yield from _program(value.jaxpr)
        for constant in value.consts:
            yield from _value(constant)
    elif isinstance(value, jax_core.Jaxpr):
        yield from _program(value)
        for constant in getattr(value, "consts", ()):  # which a jaxpr of jax 0.11 has itself
            yield from _value(constant)
    elif isinstance(value, np.ndarray | np.generic | jax.Array) and getattr(value.dtype, "kind", "O") not in "OV":
        array = np.asarray(value)
        yield f"{array.shape} {array.dtype} {hashlib.sha256(array.tobytes()).hexdigest()}"
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}"
        for part in value:
            yield from _value(part, origin)
    elif isinstance(value, dict):
        yield f"{type(value).__name__} {sorted(map(str, value))}"
        for key in sorted(value, key=str):
            yield from _value(value[key], origin)
    else:
        text = f"{type(value).__name__} {value!r}"
        # Functions have addresses; those that JAX has wrapped say nothing of what they do.
        if " at 0x" not in text and not text.startswith("WrappedFun"):
            yield text
        else:
            yield f"unlike any other {next(_NEVER_EQUAL)}" if origin is None else origin


def _origin(params: dict[str, Any]) -> str | None:
    """Where the function of a `custom_jvp` or `custom_vjp` stands, with which its rule goes, if in a package.

    The rules themselves are closures, which cannot be compared.
    """
    called = params.get("call_jaxpr", params.get("fun_jaxpr"))
    known = getattr(getattr(called, "jaxpr", called), "debug_info", None)
    if known is None or not str(known.func_filename).startswith(LIBRARIES):
        return None
    return str(known.func_src_info)
