"""Which entries of a vector each row of a function can depend on, read off the program.

An array that depends on the vector is followed by a table: of each of its entries the places in the vector that it may
depend on, at most `MOST_ENTRIES`, filled up with -1. What only moves entries is carried out on the places' own numbers;
what combines entries unites their sets. Indices, as in `effect[group]`, are computed where they are constants of the
program. Any operation not known here, and sets that grow too large, mean "on all of them".
"""

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from provi.targets.convexity.facts import moved
from provi.targets.convexity.trace import constants as computed
from provi.targets.convexity.trace import host

MOST_ENTRIES = 8
"""Of a row; what has more is taken as full."""


class _Known:
    """A constant of the program, with its value."""

    def __init__(self, value: Any):
        self.value = value


class _Whole(Enum):
    HELD = 0
    """A function of what is held: nothing of the vector is in it, but its value is not known."""
    FULL = 1
    """Each entry may depend on all of the vector."""


_Seen: TypeAlias = "_Known | _Whole | np.ndarray"

_MOVES = set("broadcast_in_dim copy dynamic_slice expand_dims gather reshape rev slice split squeeze transpose".split())
_ENTRYWISE = set("add add_any sub mul div neg exp log convert_element_type copy integer_pow square select_n".split())


def columns_of_rows(
    function: Callable[[Any, dict[str, Any]], Any], held: Any, vectors: dict[str, Any]
) -> dict[str, np.ndarray | None]:
    """Of each of the `vectors`, the places that entries of `function(held, vectors)` may depend on, (N, k).

    `None` where they are too many.
    """
    closed, names = jax.make_jaxpr(function)(held, vectors), sorted(vectors)  # the order of a dictionary's leaves
    constants = [_Known(value) for value in closed.consts]
    found: dict[str, np.ndarray | None] = {}
    for name in vectors:
        inputs: list[Any] = [_Whole.HELD] * len(closed.jaxpr.invars)
        shape = np.shape(vectors[name])
        inputs[len(inputs) - len(names) + names.index(name)] = np.arange(np.size(vectors[name])).reshape(*shape, 1)
        (seen,) = _run(closed.jaxpr, constants, inputs)
        if isinstance(seen, np.ndarray):
            found[name] = seen
        else:
            found[name] = None if seen == _Whole.FULL else np.full((*closed.out_avals[0].shape, 1), -1)
    return found


def _run(program: Any, known_before: Sequence[_Seen], inputs: Sequence[_Seen]) -> list[_Seen]:
    known: dict[Any, _Seen] = dict(zip(program.constvars, known_before, strict=True))
    known |= dict(zip(program.invars, inputs, strict=True))

    def read(atom: Any) -> _Seen:
        return _Known(atom.val) if isinstance(atom, Literal) else known[atom]

    for equation in program.eqns:
        found = _apply(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in program.outvars]


def _apply(equation: Any, given: list[_Seen]) -> list[_Seen]:
    name, count = equation.primitive.name, len(equation.outvars)
    if "jaxpr" in equation.params and name in ("closed_call", "jit", "pjit"):
        inner = equation.params["jaxpr"]
        return _run(inner.jaxpr, [_Known(value) for value in inner.consts], given)
    if all(isinstance(x, _Known) for x in given):
        return [_Known(x) for x in computed(equation, [host(x.value) for x in given if isinstance(x, _Known)])]
    if not any(isinstance(x, np.ndarray) or x == _Whole.FULL for x in given):
        return [_Whole.HELD] * count
    if any(x is _Whole.FULL for x in given):
        return [_Whole.FULL] * count
    shapes = [atom.aval.shape for atom in equation.invars]
    if name in _MOVES:
        return _move(equation, given)
    one: _Seen = _Whole.FULL
    if name in _ENTRYWISE:
        one = _unite([_spread(x, equation.outvars[0].aval.shape) for x in given if isinstance(x, np.ndarray)])
    elif name == "concatenate":
        one = _concatenate(given, shapes, equation.params["dimension"])
    elif name == "reduce_sum" and isinstance(given[0], np.ndarray):
        one = _merge(given[0], equation.params["axes"])
    elif name == "dot_general":
        one = _contract(given, shapes, equation.params["dimension_numbers"])
    return [one] * count


def _move(equation: Any, given: list[_Seen]) -> list[_Seen]:
    """What only moves entries, carried out on their numbers; an entry from outside depends on nothing."""
    table, where = given[0], given[1:]
    if not isinstance(table, np.ndarray) or not all(isinstance(x, _Known) for x in where):
        return [_Whole.FULL] * len(equation.outvars)
    flat = np.concatenate([table.reshape(-1, table.shape[-1]), np.full((1, table.shape[-1]), -1)])
    numbers = np.arange(len(flat) - 1).reshape(table.shape[:-1])
    known = [host(x.value) for x in where if isinstance(x, _Known)]
    by_numpy = moved(equation.primitive.name, equation.params, numbers, equation.outvars[0].aval.shape, known)
    if by_numpy is not None:
        return [flat[by_numpy]]
    outside = {"fill_value": -1} if equation.primitive.name == "gather" else {}
    found = equation.primitive.bind(jnp.asarray(numbers), *map(jnp.asarray, known), **(equation.params | outside))
    return [flat[np.asarray(x)] for x in (found if equation.primitive.multiple_results else [found])]


def _spread(table: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(table, (*shape, table.shape[-1]))


def _unite(tables: Sequence[np.ndarray]) -> _Seen:
    """The union of sets, entry by entry: sorted, without repetitions, -1 last."""
    whole = np.sort(np.concatenate(tables, axis=-1), axis=-1)
    repeated = np.concatenate([np.zeros_like(whole[..., :1], bool), whole[..., 1:] == whole[..., :-1]], axis=-1)
    whole = np.sort(np.where(repeated, -1, whole), axis=-1)[..., ::-1]
    width = max(int((whole >= 0).sum(axis=-1).max(initial=0)), 1)
    return whole[..., :width] if width <= MOST_ENTRIES else _Whole.FULL


def _merge(table: np.ndarray, axes: Sequence[int]) -> _Seen:
    """The union over some axes."""
    kept = [axis for axis in range(table.ndim - 1) if axis not in axes]
    length = math.prod(table.shape[axis] for axis in axes)
    if length > 4 * MOST_ENTRIES:
        return _Whole.FULL
    moved = np.transpose(table, [*kept, *axes, table.ndim - 1])
    return _unite([moved.reshape(*(table.shape[axis] for axis in kept), length * table.shape[-1])])


def _concatenate(given: Sequence[_Seen], shapes: Sequence[tuple[int, ...]], axis: int) -> _Seen:
    width = max(x.shape[-1] for x in given if isinstance(x, np.ndarray))
    parts = []
    for x, shape in zip(given, shapes, strict=True):
        part = x if isinstance(x, np.ndarray) else np.full((*shape, 1), -1)
        parts.append(np.pad(part, [(0, 0)] * len(shape) + [(0, width - part.shape[-1])], constant_values=-1))
    return np.concatenate(parts, axis=axis)


def _contract(given: Sequence[_Seen], shapes: Sequence[tuple[int, ...]], numbers: Any) -> _Seen:
    """A product with an array that the vector is not in."""
    side = 0 if isinstance(given[0], np.ndarray) else 1
    table, other = given[side], shapes[1 - side]
    if not isinstance(table, np.ndarray) or isinstance(given[1 - side], np.ndarray):
        return _Whole.FULL
    contracted, batch = numbers[0][side], numbers[1][side]
    free = [axis for axis in range(table.ndim - 1) if axis not in (*contracted, *batch)]
    moved = np.transpose(table, [*batch, *free, *contracted, table.ndim - 1])
    merged = _merge(moved, range(len(batch) + len(free), table.ndim - 1))
    if not isinstance(merged, np.ndarray):
        return merged
    others = [size for axis, size in enumerate(other) if axis not in (*numbers[0][1 - side], *numbers[1][1 - side])]
    # The result has the batch, then what is free on the left, then on the right.
    lead, own = merged.shape[: len(batch)], merged.shape[len(batch) : -1]
    split = (*lead, *own, *(1,) * len(others)) if side == 0 else (*lead, *(1,) * len(others), *own)
    full = (*lead, *own, *others) if side == 0 else (*lead, *others, *own)
    return _spread(merged.reshape(*split, merged.shape[-1]), full)
