"""A proof, read off the program, that a function is affine, or the exponential of an affine one.

Derivatives do not tell: that of `round` is zero everywhere, as JAX sees it, and so is that of the identity that
`stop_gradient` is. So each operation of the traced program must be on a list of those that keep affine what is affine
and whose derivative JAX has right: for the functions found here, `jax.jacobian` at one point is the linear map.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal


class Form(IntEnum):
    """What is known of an array as a function of the input."""

    CONSTANT = 0
    AFFINE = 1
    LOG_AFFINE = 2
    """c exp(affine), entry by entry, c a constant of either sign or zero."""
    OTHER = 3


# Operations that move, copy or drop entries. Any operand but the first says where, and must be constant.
_MOVES = set("broadcast_in_dim copy dynamic_slice expand_dims gather reshape rev slice split squeeze transpose".split())
# Operations that put together the entries of several arrays.
_JOINS = {"concatenate", "pad", "stack"}
_SUMS = {"add", "add_any", "sub"}
_PRODUCTS = {"mul", "dot_general"}
_REDUCTIONS = {"cumsum", "reduce_sum"}
_CALLS = {"closed_call", "jit", "pjit"}


def forms(function: Callable[[Any], Any], example: Any) -> list[Form]:
    """The form of each output leaf of `function`, as a function of all of its input, at every input like `example`."""
    program = jax.make_jaxpr(function)(example)
    return _run(program.jaxpr, [Form.AFFINE] * len(program.jaxpr.invars))


def _run(program: Any, inputs: Sequence[Form]) -> list[Form]:
    known: dict[Any, Form] = dict(zip(program.invars, inputs, strict=True))

    def read(atom: Any) -> Form:
        # Constants of the program are the variables that nothing writes to.
        return Form.CONSTANT if isinstance(atom, Literal) else known.get(atom, Form.CONSTANT)

    for equation in program.eqns:
        found = _apply(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in program.outvars]


def _apply(equation: Any, given: list[Form]) -> list[Form]:
    """The forms of the outputs of one operation."""
    if all(form == Form.CONSTANT for form in given):
        return [Form.CONSTANT] * len(equation.outvars)
    name = equation.primitive.name
    if name in _CALLS:
        return _run(equation.params["jaxpr"].jaxpr, given)
    one = Form.OTHER if Form.OTHER in given else _combine(name, equation, given)
    return [one] * len(equation.outvars)


def _combine(name: str, equation: Any, given: list[Form]) -> Form:
    """The form after one operation on forms of which not all are constant and none is OTHER."""
    first, rest = given[0], given[1:]
    others_constant = all(form == Form.CONSTANT for form in rest)
    if name == "convert_element_type":
        dtype = jnp.dtype(equation.params["new_dtype"])
        return first if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 4 else Form.OTHER
    if name in _MOVES:
        return first if others_constant else Form.OTHER
    if name in _JOINS:
        return _common(given)
    if name == "select_n":  # the predicate must not depend on the input
        return _common(rest) if first == Form.CONSTANT else Form.OTHER
    if name in ("scatter", "scatter-add"):  # operand, indices, updates
        both = _common([given[0], given[2]])
        keeps = both == Form.AFFINE or (name == "scatter" and both == Form.LOG_AFFINE)
        return both if given[1] == Form.CONSTANT and keeps else Form.OTHER
    if name == "neg":
        return first
    if name in _SUMS:
        return Form.OTHER if Form.LOG_AFFINE in given else Form.AFFINE
    if name in _REDUCTIONS:
        return first if first == Form.AFFINE else Form.OTHER
    return _multiply(name, given)


def _multiply(name: str, given: list[Form]) -> Form:
    if name == "exp":
        return Form.LOG_AFFINE if given == [Form.AFFINE] else Form.OTHER
    if name == "log":
        return Form.AFFINE if given == [Form.LOG_AFFINE] else Form.OTHER
    if name in _PRODUCTS:
        if sorted(given) == [Form.CONSTANT, Form.AFFINE]:
            return Form.AFFINE
        return Form.LOG_AFFINE if name == "mul" and Form.AFFINE not in given else Form.OTHER
    if name == "div":
        if given == [Form.AFFINE, Form.CONSTANT]:
            return Form.AFFINE
        return Form.LOG_AFFINE if Form.AFFINE not in given else Form.OTHER
    return Form.OTHER


def _common(given: Sequence[Form]) -> Form:
    """The form of entries some of which have one form, some another: constants join either kind."""
    kinds = set(given) - {Form.CONSTANT}
    if not kinds:
        return Form.CONSTANT
    return kinds.pop() if len(kinds) == 1 else Form.OTHER
