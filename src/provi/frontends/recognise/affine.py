"""A proof, read off the program, that a function is affine, quadratic, or the exponential of an affine one.

Derivatives do not tell: that of `round` is zero everywhere, as JAX sees it, and so is that of the identity that
`stop_gradient` is. So each operation of the traced program must be on a list of those that keep affine what is affine
and whose derivative JAX has right: for the functions found here, `jax.jacobian` at one point is the linear map, and
`jax.hessian` at one point is the quadratic one.

Of several inputs some may be held: then "constant" means a function of those alone, of whatever shape, and "affine" in
the others with coefficients that are such functions. One traced program answers for every choice.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from provi.core.compilation import scan_counts


class Form(IntEnum):
    """What is known of an array as a function of the input."""

    CONSTANT = 0
    AFFINE = 1
    QUADRATIC = 2
    """A polynomial of degree two at most, entry by entry."""
    LOG_AFFINE = 3
    """c exp(affine), entry by entry, c a constant of either sign or zero."""
    OTHER = 4


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


class Traced:
    """A function of arrays by name, run once with tracers, and asked what it is as a function of some of them."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], example: Mapping[str, Any]):
        """`example`: an array of the shape and type of each argument."""
        program, shapes = jax.make_jaxpr(function, return_shape=True)(dict(example))
        self._program, self._structure = program.jaxpr, jax.tree.structure(shapes)
        self._names = sorted(example)  # the order of a dictionary's leaves

    def forms(self, varying: Collection[str]) -> Any:
        """What `function` returns, with the form of each leaf in the arguments `varying`, given all the others."""
        given = [Form.AFFINE if name in varying else Form.CONSTANT for name in self._names]
        return jax.tree.unflatten(self._structure, _run(self._program, given))


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
    if name == "scan":
        return _repeat(equation, given)
    one = Form.OTHER if Form.OTHER in given else _combine(name, equation, given)
    return [one] * len(equation.outvars)


def _repeat(equation: Any, given: list[Form]) -> list[Form]:
    """The forms after a loop: what it carries has one form at every step, found by going up until nothing changes."""
    fixed, carried = scan_counts(equation.params)
    carry = given[fixed : fixed + carried]
    while True:
        found = _run(equation.params["jaxpr"].jaxpr, given[:fixed] + carry + given[fixed + carried :])
        wider = [_common(pair) for pair in zip(carry, found[:carried], strict=True)]
        if wider == carry:
            return carry + found[carried:]
        carry = wider


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
        keeps = both <= Form.QUADRATIC or (name == "scatter" and both == Form.LOG_AFFINE)
        return both if given[1] == Form.CONSTANT and keeps else Form.OTHER
    if name == "neg":
        return first
    if name in _SUMS:
        return Form.OTHER if Form.LOG_AFFINE in given else max(given)
    if name in _REDUCTIONS:
        return first if first <= Form.QUADRATIC else Form.OTHER
    if name == "triangular_solve":  # matrix, right-hand sides
        return given[1] if first == Form.CONSTANT and given[1] <= Form.QUADRATIC else Form.OTHER
    return _multiply(name, equation, given)


def _multiply(name: str, equation: Any, given: list[Form]) -> Form:
    if name == "exp":
        return Form.LOG_AFFINE if given == [Form.AFFINE] else Form.OTHER
    if name == "log":
        return Form.AFFINE if given == [Form.LOG_AFFINE] else Form.OTHER
    if name == "square" or (name == "integer_pow" and equation.params["y"] == 2):
        return _product([given[0], given[0]])
    if name in _PRODUCTS:
        # A sum of products of exponentials is none.
        return _product(given) if name == "mul" or Form.LOG_AFFINE not in given else Form.OTHER
    if name == "div":
        if given[0] <= Form.QUADRATIC and given[1] == Form.CONSTANT:
            return given[0]
        return _product(given) if Form.LOG_AFFINE in given else Form.OTHER
    return Form.OTHER


def _product(given: Sequence[Form]) -> Form:
    """The form of products, of degree two at most; exponentials go with exponentials and constants."""
    if Form.LOG_AFFINE in given:
        return Form.LOG_AFFINE if set(given) <= {Form.LOG_AFFINE, Form.CONSTANT} else Form.OTHER
    degree = sum(given)
    return Form(degree) if degree <= Form.QUADRATIC else Form.OTHER


def _common(given: Sequence[Form]) -> Form:
    """The form of entries some of which have one form, some another: constants join either kind."""
    kinds = set(given) - {Form.CONSTANT}
    if not kinds:
        return Form.CONSTANT
    return max(kinds) if Form.LOG_AFFINE not in kinds or len(kinds) == 1 else Form.OTHER
