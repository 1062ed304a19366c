"""Loops of interpreted programs: `while`, `scan`, and sums over turns that threads share.

Interpreting the bodies is left to `interpreted`, of `core.host_program`, which gets the loops from here.
"""

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jax.extend import core as jax_core

from provi.core.compilation import scan_counts
from provi.core.host_primitives import PRIMITIVES
from provi.core.limits import available_cores

Program = Callable[..., list[Any]]
Interpreter = Callable[[Any], Program]


def while_loop(params: dict[str, Any], interpreted: Interpreter) -> Program:
    """The program of a `while` equation."""
    going, body = interpreted(params["cond_jaxpr"]), interpreted(params["body_jaxpr"])
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def loop(*operands: Any) -> list[Any]:
        constants, carried = operands[first:second], list(operands[second:])
        while np.any(unfinished := going(*operands[:first], *carried)[0]):
            found = body(*constants, *carried)
            if unfinished.ndim:  # a batch of loops: those that have ended stay
                found = [_chosen(unfinished, *pair) for pair in zip(found, carried, strict=True)]
            carried = found
        return carried

    return loop


def _chosen(which: Any, new: Any, old: Any) -> Any:
    return np.where(which.reshape(which.shape + (1,) * (new.ndim - which.ndim)), new, old)


_LARGE_BLOCK, _MOST_THREADS = 2**17, 16
"""Numbers of a table from which the turns of a sum are shared among threads, and by how many at the most."""


def scan(params: dict[str, Any], interpreted: Interpreter) -> Program:
    """The program of a `scan` equation; a sum over large blocks is shared among threads."""
    length, (num_constants, num_carried) = params["length"], scan_counts(params)
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    threads = min(available_cores(), length, _MOST_THREADS)
    if threads > 1 and (shared := _shared(params)) is not None:
        terms, joins = shared
        return functools.partial(_sum_by_threads, interpreted(terms), joins, order, num_constants, num_carried, threads)
    body, outputs = interpreted(params["jaxpr"]), [atom.aval for atom in params["jaxpr"].jaxpr.outvars[num_carried:]]

    def loop(*operands: Any) -> list[Any]:
        constants, rows = operands[:num_constants], operands[num_constants + num_carried :]
        carried = list(operands[num_constants : num_constants + num_carried])
        tables = [np.empty((length, *aval.shape), aval.dtype) for aval in outputs]
        for k in order:
            found = body(*constants, *carried, *(row[k] for row in rows))
            carried = found[:num_carried]
            for table, x in zip(tables, found[num_carried:], strict=True):
                table[k] = x
        return [*carried, *tables]

    return loop


def shares_turns(jaxpr: Any) -> bool:
    """Whether some loop of a program is a sum whose turns threads share, or would, were there more than one core."""
    waiting = [jaxpr]
    while waiting:
        for equation in waiting.pop().eqns:
            if equation.primitive.name == "scan" and _shared(equation.params) is not None:
                return True
            waiting += _inner(equation)
    return False


def _shared(params: dict[str, Any]) -> tuple[Any, list[Callable]] | None:
    """The turns of a sum over large blocks without its additions, and these, or maxima; None of other loops."""
    closed, (num_constants, num_carried) = params["jaxpr"], scan_counts(params)
    jaxpr = closed.jaxpr
    if len(jaxpr.outvars) > num_carried or _largest(jaxpr) < _LARGE_BLOCK or not _all_known(jaxpr):
        return None
    pieces = _terms(jaxpr, jaxpr.invars[num_constants : num_constants + num_carried])
    if pieces is None:
        return None
    others, joins = pieces
    return jax_core.ClosedJaxpr(jaxpr.replace(outvars=others), closed.consts), joins


def _terms(jaxpr: Any, carried: list[Any]) -> tuple[list[Any], list[Callable]] | None:
    """What a turn adds to each carried number, and how; None where a turn looks at what was carried in another way."""
    makers = {id(x): equation for equation in jaxpr.eqns for x in equation.outvars}
    readers = [x for equation in jaxpr.eqns for x in equation.invars]
    others, joins = [], []
    for sums, out in zip(carried, jaxpr.outvars, strict=True):
        equation = makers.get(id(out))
        if equation is None or (name := equation.primitive.name) not in _JOINS:
            return None
        terms = [x for x in equation.invars if x is not sums]
        if len(terms) != 1 or sum(x is sums for x in readers) != 1 or any(x is out for x in readers):
            return None
        others += terms
        joins.append(_JOINS[name])
    # A number that is carried into the sum of another, as where both are one sum.
    crossed = any(x is y for x in others for y in carried)
    return None if crossed else (others, joins)


_JOINS: dict[Any, Callable] = {"add": np.add, "max": np.maximum}

CALLS = {
    "pjit", "jit", "closed_call", "core_call", "remat", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr",
}  # fmt: skip
"""Equations that do nothing but call a program."""

_WITH_PROGRAMS = CALLS | {"while", "scan", "cond", "custom_linear_solve"}


def _inner(equation: Any) -> list[Any]:
    values = (x for value in equation.params.values() for x in (value if isinstance(value, tuple | list) else [value]))
    return [closed_program(x).jaxpr for x in values if isinstance(x, jax_core.ClosedJaxpr | jax_core.Jaxpr)]


def _all_known(jaxpr: Any) -> bool:
    """Whether nothing is left to JAX, whose settings are a thread's own, or to functions of the user."""
    names = {equation.primitive.name for equation in jaxpr.eqns}
    known = all(name in PRIMITIVES or name in _WITH_PROGRAMS for name in names) and "pure_callback" not in names
    return known and all(_all_known(part) for equation in jaxpr.eqns for part in _inner(equation))


def _largest(jaxpr: Any) -> int:
    return max((math.prod(x.aval.shape) for equation in jaxpr.eqns for x in equation.outvars), default=0)


def _sum_by_threads(
    term: Program, joins: Any, order: range, num_constants: int, num_carried: int, threads: int, *operands: Any
) -> list[Any]:
    """The turns side by side, joined in their order: the same bits as one after the other."""
    rows, carried = operands[num_constants + num_carried :], list(operands[num_constants:][:num_carried])

    def turn(k: int) -> list[Any]:
        with np.errstate(all="ignore"):  # a thread's own
            return term(*operands[: num_constants + num_carried], *(row[k] for row in rows))

    pool = ThreadPoolExecutor(threads)
    try:
        for found in pool.map(turn, order):
            carried = [join(sums, x) for join, sums, x in zip(joins, carried, found, strict=True)]
    finally:
        pool.shutdown(cancel_futures=True)
    return carried


def closed_program(program: Any) -> Any:
    """With its constants, which a jaxpr of jax 0.11 has itself."""
    return program if hasattr(program, "consts") else jax_core.ClosedJaxpr(program, ())
