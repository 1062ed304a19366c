"""The rule of each operation of a traced program: what it makes of values that depend on z."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse import csr_matrix

from provi.targets.convexity.facts import LARGEST, Atoms, TooLarge, Value, moved
from provi.targets.convexity.functions import (
    absolute,
    apply,
    exponential,
    greatest,
    logarithm,
    logistic,
    maximum,
    opaque,
    product,
    raised,
    softplus,
)

_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_SAME = {"copy", "copy_p", "optimization_barrier", "device_put", "sharding_constraint"}


def varying(atoms: Atoms, equation: Any, given: list[Any]) -> list[Any]:
    """The outputs of an operation of which some input depends on z. What has no rule is bad: not even finite."""
    name, params = equation.primitive.name, equation.params
    shapes = [tuple(out.aval.shape) for out in equation.outvars]
    if name == "split":
        ends = np.cumsum([0, *params["sizes"]])
        grid = np.arange(given[0].size).reshape(given[0].shape)
        parts = [np.take(grid, range(a, b), params["axis"]) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        return [atoms.take(given[0], part, part.shape) for part in parts]
    found = _rule(atoms, name, params, given, equation.outvars[0].aval, equation) if len(shapes) == 1 else None
    if found is not None:
        return [found]
    nothing = [atoms.constant(np.zeros(shape)) for shape in shapes]
    return [dataclasses.replace(x, bad=np.ones(x.size, bool)) for x in nothing]


def _rule(atoms: Atoms, name: str, params: Any, given: list[Any], out: Any, equation: Any) -> Any:
    shape = tuple(out.shape)
    if name in ("add", "add_any", "sub", "mul", "div", "max", "min", "pow", *_COMPARISONS, "and", "or"):
        return _binary(atoms, name, *(_spread(atoms, x, shape) for x in given))
    x = given[0]
    if name in _SAME:
        return x
    if name == "convert_element_type":
        return _converted(atoms, x, np.dtype(equation.invars[0].aval.dtype), np.dtype(params["new_dtype"]))
    if name == "select_n":
        return _selected(atoms, given, shape)
    if name in ("concatenate", "stack"):
        return _concatenated(atoms, name, given, params, shape)
    if name == "dot_general":
        return _contracted(atoms, given, params, shape)
    if name == "triangular_solve":
        return _solved(atoms, given, params, shape)
    if name in ("scatter-add", "scatter_add", "scatter"):
        return _scattered(atoms, given, equation, shape)
    if not isinstance(x, Value) or any(isinstance(other, Value) for other in given[1:]):
        return None  # an index that depends on z
    if name in ("reduce_sum", "cumsum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"):
        return _reduced(atoms, name, params, x, shape)
    if name == "pad":
        return None if given[1].ndim else _moved(atoms, x, equation, given, float(given[1]))
    if name in _UNARY:
        return _UNARY[name](atoms, x, params)
    return _moved(atoms, x, equation, given)


def _spread(atoms: Atoms, x: Any, shape: tuple[int, ...]) -> Any:
    """An operand in the shape of the result: numbers without axes need not be."""
    if not isinstance(x, Value):
        return np.broadcast_to(x, shape)
    return x if x.shape == shape else atoms.take(x, np.broadcast_to(np.arange(x.size).reshape(x.shape), shape), shape)


def _value(atoms: Atoms, x: Any) -> Value:
    return x if isinstance(x, Value) else atoms.constant(x)


def _binary(atoms: Atoms, name: str, x: Any, y: Any) -> Any:
    constant = [not isinstance(part, Value) for part in (x, y)]
    if name == "mul" and any(constant):
        return atoms.scale(y, x) if constant[0] else atoms.scale(x, y)
    if name == "mul":
        return product(atoms, x, y)
    if name == "div":
        with np.errstate(all="ignore"):
            return atoms.scale(x, 1.0 / np.asarray(y, np.float64)) if constant[1] else _quotient(atoms, x, y)
    if name == "pow":
        return _power(atoms, x, y)
    if name == "min":
        flipped = [atoms.scale(part, -1.0) if isinstance(part, Value) else -part for part in (x, y)]
        return atoms.scale(_binary(atoms, "max", flipped[0], flipped[1]), -1.0)
    if name in _COMPARISONS:
        return _compared(atoms, name, x, y)
    if name == "max" and any(constant):
        value, other = (y, x) if constant[0] else (x, y)
        if np.all(other == -np.inf):
            return value
    x, y = _value(atoms, x), _value(atoms, y)
    if name in ("and", "or"):
        ends = zip(atoms.bounds(x), atoms.bounds(y), strict=True)
        join = np.minimum if name == "and" else np.maximum
        low, high = (join(*end) for end in ends)
        return _truth(atoms, name, [x, y], low, high)
    if name == "max":
        return maximum(atoms, x, y)
    return atoms.add(x, y, -1.0 if name == "sub" else 1.0)


def _quotient(atoms: Atoms, x: Any, y: Value) -> Value:
    inverse = raised(atoms, y, -1.0)
    return product(atoms, x, inverse) if isinstance(x, Value) else atoms.scale(inverse, x)


def _power(atoms: Atoms, x: Any, y: Any) -> Value | None:
    if not isinstance(x, Value):
        return exponential(atoms, atoms.scale(y, np.log(x))) if np.all(np.asarray(x) > 0) else None
    if isinstance(y, Value) or y.size == 0 or not np.all(y == y.flat[0]) or not np.isfinite(y.flat[0]):
        return None
    return raised(atoms, x, float(y.flat[0]))


def _compared(atoms: Atoms, name: str, x: Any, y: Any) -> Any:
    """True, false, or not known: the range of the difference says. What is finite is not infinite."""
    flat = [None if isinstance(part, Value) else np.asarray(part, np.float64).reshape(-1) for part in (x, y)]
    values = [_value(atoms, part) for part in (x, y)]
    gap = atoms.add(values[0], values[1], -1.0)
    low, high = atoms.bounds(gap)
    for part, sign in zip(flat, (1.0, -1.0), strict=True):
        if part is not None:
            other = values[1 if sign > 0 else 0]
            infinite = np.isinf(part) & ~other.bad
            low, high = (np.where(infinite, sign * part, end) for end in (low, high))
    equal = (np.diff(gap.rows.indptr) == 0) & (gap.offset == 0) & (gap.blur == 0) & ~gap.bad
    low = np.where((low <= 0) & atoms.above_zero(gap), np.finfo(np.float64).tiny, low)
    high = np.where((high >= 0) & atoms.above_zero(atoms.scale(gap, -1.0)), -np.finfo(np.float64).tiny, high)
    true, false = {
        "lt": (high < 0, (low >= 0) | equal),
        "le": ((high <= 0) | equal, low > 0),
        "gt": (low > 0, (high <= 0) | equal),
        "ge": ((low >= 0) | equal, high < 0),
        "eq": (equal, (low > 0) | (high < 0)),
        "ne": ((low > 0) | (high < 0), equal),
    }[name]
    found = _truth(atoms, name, values, true.astype(float), 1.0 - false.astype(float))
    if name == "lt" and isinstance(found, Value) and flat[1] is not None and np.ptp(flat[1]) == 0:
        atoms.thresholds[found.digest()] = values[0], float(flat[1][0])
    return found


def _truth(atoms: Atoms, name: str, parts: list[Value], low: np.ndarray, high: np.ndarray) -> Any:
    if np.array_equal(low, high):
        return (low > 0).reshape(parts[0].shape)
    return opaque(atoms, name, parts, parts[0].shape, low, high, False)


def _converted(atoms: Atoms, x: Value, old: np.dtype, new: np.dtype) -> Any:
    if not jnp.issubdtype(new, jnp.floating):
        low, high = atoms.bounds(x)
        fits = old == np.bool_ and new != np.bool_
        return x if fits else opaque(atoms, f"to {new}", [x], x.shape, np.floor(low), np.ceil(high), x.bad)
    # Rounded to fewer digits than z has, a number is a step function of z.
    narrow = jnp.issubdtype(old, jnp.floating) and jnp.finfo(new).bits < min(jnp.finfo(old).bits, atoms.bits)
    return opaque(atoms, f"to {new}", [x], x.shape, -np.inf, np.inf, x.bad) if narrow else x


def _selected(atoms: Atoms, given: list[Any], shape: tuple[int, ...]) -> Any:
    which, cases = given[0], [_value(atoms, _spread(atoms, x, shape)) for x in given[1:]]
    if not isinstance(which, Value):
        number = np.broadcast_to(np.asarray(which, np.int64), shape).reshape(-1)
        size = cases[0].size
        return atoms.take(atoms.join(cases), number * size + np.arange(size), shape)
    if all(case.digest() == cases[0].digest() for case in cases):
        return cases[0]
    known = _piecewise_softplus(atoms, _spread(atoms, which, shape), cases[0], cases[1]) if len(cases) == 2 else None
    if known is not None:
        return known
    ends = [atoms.bounds(case) for case in cases]
    low, high = np.min([end[0] for end in ends], axis=0), np.max([end[1] for end in ends], axis=0)
    bad = np.any([case.bad for case in cases], axis=0)
    found = opaque(atoms, "choice", [_spread(atoms, which, shape), *cases], shape, low, high, bad)
    _note_tail(atoms, _spread(atoms, which, shape), cases[0], cases[1], found)
    return found


def _note_tail(atoms: Atoms, which: Value, false: Value, true: Value, found: Value) -> None:
    """Remember that `found` is x + exp(-x) below some number above 33 and x beyond it: from 18 on, softplus in float64.

    PyTensor computes softplus so, and below -37 as exp(x).
    """
    x, threshold = atoms.thresholds.get(which.digest(), (None, 0.0))
    if x is not None and threshold >= 33 and false.digest() == x.digest():
        if true.digest() == atoms.add(x, exponential(atoms, atoms.scale(x, -1.0))).digest():
            atoms.tails[found.digest()] = x.digest()


def _piecewise_softplus(atoms: Atoms, which: Value, false: Value, true: Value) -> Value | None:
    """softplus(x), where the two cases are that function up to the rounding of float64, each on its side."""
    x, threshold = atoms.thresholds.get(which.digest(), (None, 0.0))
    if x is None or x.bad.any():
        return None
    whole = softplus(atoms, x)
    middle = threshold >= 18 and true.digest() == whole.digest() and atoms.tails.get(false.digest()) == x.digest()
    left = threshold <= -36 and false.digest() == whole.digest()
    if middle or left and true.digest() == exponential(atoms, x).digest():
        return dataclasses.replace(whole, shape=true.shape)
    return None


def _concatenated(atoms: Atoms, name: str, given: list[Any], params: Any, shape: tuple[int, ...]) -> Value:
    values = [_value(atoms, x) for x in given]
    starts = np.cumsum([0] + [x.size for x in values])
    grids = [start + np.arange(x.size).reshape(x.shape) for start, x in zip(starts, values, strict=False)]
    grid = np.stack(grids, params["axis"]) if name == "stack" else np.concatenate(grids, params["dimension"])
    return atoms.take(atoms.join(values), grid, shape)


def _moved(atoms: Atoms, x: Value, equation: Any, given: list[Any], fill: float = 0.0) -> Value | None:
    """Entries moved, copied or dropped: the same is done to their numbers."""
    name, params, shape = equation.primitive.name, equation.params, tuple(equation.outvars[0].aval.shape)
    numbers = np.arange(x.size).reshape(x.shape)
    with np.errstate(all="ignore"):
        found = moved(name, params, numbers, shape, given[1:])
    if found is None and name in ("gather", "pad", "reshape", "broadcast_in_dim"):
        changed = dict(params) | ({"fill_value": -1} if name == "gather" else {})
        rest = [np.asarray(-1)] if name == "pad" else given[1:]
        found = np.asarray(equation.primitive.bind(jnp.asarray(numbers), *map(jnp.asarray, rest), **changed))
        fill = np.nan if name == "gather" else fill
    return None if found is None else atoms.take(x, found, shape, fill)


def _reduced(atoms: Atoms, name: str, params: Any, x: Value, shape: tuple[int, ...]) -> Any:
    grid = np.arange(x.size).reshape(x.shape)
    if name == "cumsum":
        axis, length = params["axis"], x.shape[params["axis"]]
        if x.size * length > LARGEST:
            raise TooLarge
        triangle = np.tril(np.ones((length, length))) if not params["reverse"] else np.triu(np.ones((length, length)))
        lines = np.moveaxis(grid, axis, -1).reshape(-1, length)
        to, of = np.nonzero(triangle)
        pairs = lines[:, to].reshape(-1), lines[:, of].reshape(-1)
        return atoms.linear(x, csr_matrix((np.ones(pairs[0].size), pairs), shape=(x.size, x.size)), shape)
    axes = tuple(params["axes"])
    group = np.empty(x.size, np.int64)
    kept = [axis for axis in range(grid.ndim) if axis not in axes]
    size = math.prod(shape)
    if x.size == 0 or size == 0:
        return None
    group[grid.transpose([*kept, *axes]).reshape(size, -1)] = np.arange(size)[:, None]
    if name == "reduce_sum":
        return atoms.linear(x, csr_matrix((np.ones(x.size), (group, np.arange(x.size))), shape=(size, x.size)), shape)
    if name in ("reduce_max", "reduce_min"):
        sign = 1.0 if name == "reduce_max" else -1.0
        return atoms.scale(greatest(atoms, atoms.scale(x, sign), group, shape), sign)
    ends = []
    for end in atoms.bounds(x):
        found = np.full(size, 1.0 if name == "reduce_and" else 0.0)
        (np.minimum if name == "reduce_and" else np.maximum).at(found, group, end)
        ends.append(found)
    if np.array_equal(*ends):
        return (ends[0] > 0).reshape(shape)
    return opaque(atoms, f"{name} {axes}", [x], shape, *ends, False)


def _contracted(atoms: Atoms, given: list[Any], params: Any, shape: tuple[int, ...]) -> Value:
    """Sums of products, as a matrix where one side is constant."""
    (left, right), (batch, other) = params["dimension_numbers"]
    grids = []
    for x, summed, shared in zip(given, (left, right), (batch, other), strict=True):
        free = [axis for axis in range(len(x.shape)) if axis not in (*summed, *shared)]
        grid = np.arange(math.prod(x.shape)).reshape(x.shape).transpose([*shared, *free, *summed])
        sizes = [math.prod([x.shape[axis] for axis in part]) for part in (shared, free, summed)]
        grids.append(grid.reshape(sizes))
    batches, rows, terms = grids[0].shape
    full = (batches, rows, grids[1].shape[1], terms)
    if math.prod(full) > LARGEST:
        raise TooLarge
    first = np.broadcast_to(grids[0][:, :, None, :], full).reshape(-1)
    second = np.broadcast_to(grids[1][:, None, :, :], full).reshape(-1)
    size = math.prod(shape)
    to = np.repeat(np.arange(size), terms)
    x, y = given
    if isinstance(x, Value) and isinstance(y, Value):
        flat = (first.size,)
        terms_of = product(atoms, atoms.take(x, first, flat), atoms.take(y, second, flat))
        sums = csr_matrix((np.ones(first.size), (to, np.arange(first.size))), shape=(size, first.size))
        return atoms.linear(terms_of, sums, shape)
    value, matrix, source, where = (x, y, first, second) if isinstance(x, Value) else (y, x, second, first)
    weights = np.asarray(matrix, np.float64).reshape(-1)[where]
    keep = (weights != 0) | value.bad[source]
    finite = np.isfinite(weights[keep])
    sparse = csr_matrix((np.where(finite, weights[keep], 0.0), (to[keep], source[keep])), shape=(size, value.size))
    found = atoms.linear(value, sparse, shape)
    lost = np.bincount(to[keep], ~finite, size) > 0
    return dataclasses.replace(found, bad=found.bad | lost)


def _solved(atoms: Atoms, given: list[Any], params: Any, shape: tuple[int, ...]) -> Value | None:
    """The inverse of a constant triangle as a matrix, with a bound on its rounding."""
    triangle, x = given
    if isinstance(triangle, Value) or math.prod(shape[:-2]) != 1:
        return None
    triangle = np.asarray(triangle, np.float64).reshape(triangle.shape[-2:])
    triangle = np.tril(triangle) if params["lower"] else np.triu(triangle)
    length = triangle.shape[0]
    if params["unit_diagonal"]:
        np.fill_diagonal(triangle, 1.0)
    if not np.isfinite(triangle).all() or not np.diagonal(triangle).all():
        return None
    matrix = triangle.T if params["transpose_a"] else triangle
    inverse = solve_triangular(matrix, np.eye(length), lower=bool(params["lower"]) != bool(params["transpose_a"]))
    # (M + E) x = e with |E| <= length eps |M|; twice that, for |M^-1| is itself only known so.
    amplified = np.abs(inverse) @ np.abs(matrix) @ np.abs(inverse)
    error = 2 * (length + 2) * atoms.epsilon * amplified
    if (
        not np.isfinite(error).all()
        or (length + 2) * atoms.epsilon * np.linalg.norm(np.abs(inverse) @ np.abs(matrix)) > 0.1
    ):
        return None
    columns = shape[-1] if params["left_side"] else shape[-2]
    eye = np.eye(columns)
    operators = [np.kron(part, eye) if params["left_side"] else np.kron(eye, part.T) for part in (inverse, error)]
    if x.bad.any():
        return None
    return atoms.linear(x, csr_matrix(operators[0]), shape, csr_matrix(operators[1]))


def _scattered(atoms: Atoms, given: list[Any], equation: Any, shape: tuple[int, ...]) -> Value | None:
    """x.at[indices].set(y) and .add(y) with constant indices. Where each update goes, its cotangent says."""
    operand, indices, updates = _value(atoms, given[0]), given[1], _value(atoms, given[2])
    if isinstance(indices, Value):
        return None
    add = equation.primitive.name != "scatter"
    to = _destinations(equation.params, np.asarray(indices), shape, updates.shape)
    inside = np.flatnonzero(to >= 0)
    if not add and np.unique(to[inside]).size != inside.size:
        return None
    weights = csr_matrix((np.ones(inside.size), (to[inside], inside)), shape=(operand.size, updates.size))
    placed = atoms.linear(updates, weights, shape)
    if not add:
        kept = np.arange(operand.size)
        kept[to[inside]] = -1
        operand = atoms.take(operand, kept, shape)
    return atoms.add(operand, placed)


def _destinations(params: Any, indices: np.ndarray, shape: tuple[int, ...], updates: tuple[int, ...]) -> np.ndarray:
    """The flat place of each update; -1 for one that is dropped."""
    numbers, batch = params["dimension_numbers"], indices.ndim - 1
    window = tuple(range(batch, batch + len(shape) - 1))
    plain = numbers.scatter_dims_to_operand_dims == numbers.inserted_window_dims == (0,)
    inside = indices.size and indices.min() >= 0 and indices.max() < shape[0]
    if plain and inside and numbers.update_window_dims == window and updates[batch:] == shape[1:]:
        return np.arange(math.prod(shape)).reshape(shape)[indices[..., 0]].reshape(-1)
    with jax.enable_x64():
        places = jnp.arange(1.0, math.prod(shape) + 1).reshape(shape)

        def place(y: Any) -> Any:
            # Numbers are summed where they fall, so that an update sees the number of its place come back.
            return jax.lax.scatter_add_p.bind(jnp.zeros(shape), jnp.asarray(indices), y, **params)

        back = jax.vjp(place, jnp.zeros(updates))[1](places)[0]
    return np.asarray(back).reshape(-1).astype(np.int64) - 1


def _plain(kind: str) -> Callable[..., Any]:
    return lambda atoms, x, params: apply(atoms, kind, x)


def _truncated(kind: str) -> Callable[..., Any]:
    return lambda atoms, x, params: opaque(atoms, kind, [x], x.shape, -np.inf, np.inf, x.bad)


def _sign(atoms: Atoms, x: Value, params: Any) -> Any:
    del params
    low, high = (np.sign(end) for end in atoms.bounds(x))
    if np.array_equal(low, high):
        return low.reshape(x.shape)
    return opaque(atoms, "sign", [x], x.shape, low, high, x.bad)


def _not(atoms: Atoms, x: Value, params: Any) -> Any:
    del params
    low, high = atoms.bounds(x)
    return _truth(atoms, "not", [x], 1 - high, 1 - low)


def _shifted(atoms: Atoms, x: Value, by: float) -> Value:
    return atoms.add(x, atoms.constant(np.full(x.shape, by)))


def _pair(atoms: Atoms, x: Value, sign: float) -> Value:
    """(exp(x) +- exp(-x)) / 2."""
    both = exponential(atoms, x), exponential(atoms, atoms.scale(x, -1.0))
    return atoms.scale(atoms.add(*both, sign), 0.5)


_UNARY: dict[str, Callable[[Atoms, Value, Any], Any]] = {
    "neg": lambda atoms, x, _: atoms.scale(x, -1.0),
    "exp": lambda atoms, x, _: exponential(atoms, x),
    "exp2": lambda atoms, x, _: exponential(atoms, atoms.scale(x, np.log(2.0))),
    "expm1": lambda atoms, x, _: _shifted(atoms, exponential(atoms, x), -1.0),
    "log": lambda atoms, x, _: logarithm(atoms, x),
    "log1p": lambda atoms, x, _: logarithm(atoms, _shifted(atoms, x, 1.0)),
    "logistic": lambda atoms, x, _: logistic(atoms, x),
    "tanh": lambda atoms, x, _: _shifted(atoms, atoms.scale(logistic(atoms, atoms.scale(x, 2.0)), 2.0), -1.0),
    "cosh": lambda atoms, x, _: _pair(atoms, x, 1.0),
    "sinh": lambda atoms, x, _: _pair(atoms, x, -1.0),
    "abs": lambda atoms, x, _: absolute(atoms, x),
    "square": lambda atoms, x, _: raised(atoms, x, 2.0),
    "integer_pow": lambda atoms, x, params: raised(atoms, x, float(params["y"])),
    "sqrt": lambda atoms, x, _: raised(atoms, x, 0.5),
    "rsqrt": lambda atoms, x, _: raised(atoms, x, -0.5),
    "is_finite": lambda atoms, x, _: _truth(atoms, "is_finite", [x], (~x.bad).astype(float), np.ones(x.size)),
    "sign": _sign,
    "not": _not,
    **{name: _truncated(name) for name in ("stop_gradient", "floor", "ceil", "round")},
    **{name: _plain(name) for name in ("lgamma", "erf", "erfc", "sin", "cos")},
}
