"""Nonlinear functions of what the facts describe: new atoms, with the facts that composition gives them.

A function of one number says on a range: its own range, bounds of its second derivative, whether it grows or falls. The
rule of disciplined convexity then says the rest: convex and growing of convex is convex, convex of affine is convex
with a ridge, and so on. Sums of exponentials are remembered as such, so that their logarithm is a log-sum-exp.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import expit, gammaln, log_ndtr, ndtr

from provi.targets.convexity.facts import Atoms, Ridges, Value, canonical, row_numbers

_HUGE = 700.0  # of which the exponential is finite
_LOGISTIC_BEND = 0.0963  # above 1 / (6 sqrt 3), the largest second derivative of the logistic function
_ERF_BEND = 0.9679  # above 2 sqrt(2 / (pi e)), that of erf
_TURN_OF_LGAMMA = 1.4617  # above the argument where it is least


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a function of one number is on the ranges asked about: its values, its second derivative, its direction."""

    lower: Any
    upper: Any
    bend: tuple[Any, Any]
    grows: Any = False
    falls: Any = False
    defined: Any = True


Function = Callable[[np.ndarray, np.ndarray], Shape]


def _exp(low: np.ndarray, high: np.ndarray) -> Shape:
    # Outward by far more than the rounding of exp; below stays positive or zero.
    top = np.where(high < _HUGE, np.exp(np.minimum(high, _HUGE)) * (1 + 1e-12), np.inf)
    return Shape(np.exp(np.minimum(low, _HUGE)) * (1 - 1e-12), top, (0.0, top), True)


def _log(low: np.ndarray, high: np.ndarray) -> Shape:
    defined = low > 0
    safe, top = np.where(defined, low, 1.0), np.where(defined, high, 1.0)
    bend = np.where(safe > 1e-100, -1.0 / np.maximum(safe, 1e-100) ** 2 * (1 + 1e-12), -np.inf)
    return Shape(_down(np.log(safe)), _up(np.log(top)), (bend, 0.0), True, False, defined)


def _square(low: np.ndarray, high: np.ndarray) -> Shape:
    inside = (low <= 0) & (high >= 0)
    least = np.where(inside, 0.0, np.minimum(low**2, high**2) * (1 - 1e-12))
    return Shape(least, np.maximum(low**2, high**2) * (1 + 1e-12), (2.0, 2.0), low >= 0, high <= 0)


def power(exponent: float) -> Function:
    """x^exponent, a constant."""
    whole = float(exponent).is_integer()

    def shape(low: np.ndarray, high: np.ndarray) -> Shape:
        even = whole and exponent % 2 == 0
        if even and exponent >= 2:
            return Shape(0.0, np.inf, (0.0, np.inf), low >= 0, high <= 0)
        if whole and exponent > 0:  # odd
            bend = np.where(low >= 0, 0.0, -np.inf), np.where(high <= 0, 0.0, np.inf)
            return Shape(np.where(low >= 0, 0.0, -np.inf), np.where(high <= 0, 0.0, np.inf), bend, True)
        if exponent < 0:
            return Shape(0.0, np.inf, (0.0, np.inf), False, True, low > 0)
        bend = (0.0, np.inf) if exponent >= 1 else (-np.inf, 0.0)
        return Shape(0.0, np.inf, bend, True, False, low >= 0)

    return shape


def _lgamma(low: np.ndarray, high: np.ndarray) -> Shape:
    defined, grows = low > 0, low >= _TURN_OF_LGAMMA
    least = np.where(grows, _down(gammaln(np.where(grows, np.minimum(low, 1e300), 2.0))), -0.1215)
    return Shape(least, np.inf, (0.0, np.inf), grows, (high <= 1.46) & defined, defined)


def _log_ndtr(low: np.ndarray, high: np.ndarray) -> Shape:
    return Shape(_down(log_ndtr(low)), np.minimum(_up(log_ndtr(high)), 0.0), (-1.0, 0.0), True)


def _bounded(function: Callable[..., Any], least: float, most: float, bend: float, turn: int) -> Function:
    """A sigmoid around zero; `turn` is 1 where it is convex below zero and grows, -1 where it is concave and falls."""

    def shape(low: np.ndarray, high: np.ndarray) -> Shape:
        ends = function(low), function(high)
        first = np.maximum(_down(np.minimum(*ends)), least)
        second = np.minimum(_up(np.maximum(*ends)), most)
        under, over = high <= 0, low >= 0
        convex, concave = (under, over) if turn > 0 else (over, under)
        return Shape(first, second, (np.where(convex, 0.0, -bend), np.where(concave, 0.0, bend)), turn > 0, turn < 0)

    return shape


def _erfc(x: np.ndarray) -> np.ndarray:
    return 2 * ndtr(-np.sqrt(2) * x)


def _trigonometric(low: np.ndarray, high: np.ndarray) -> Shape:
    del low, high
    return Shape(-1.0, 1.0, (-1.0, 1.0))


FUNCTIONS: dict[str, Function] = {
    "exp": _exp,
    "log": _log,
    "square": _square,
    "reciprocal": power(-1.0),
    "sqrt": power(0.5),
    "abs": lambda low, high: Shape(0.0, np.maximum(-low, high), (0.0, np.inf), low >= 0, high <= 0),
    "lgamma": _lgamma,
    "log_ndtr": _log_ndtr,
    "logistic": _bounded(expit, 0.0, 1.0, _LOGISTIC_BEND, 1),
    "erf": _bounded(lambda x: 1 - _erfc(x), -1.0, 1.0, _ERF_BEND, 1),
    "erfc": _bounded(_erfc, 0.0, 2.0, _ERF_BEND, -1),
    "sin": _trigonometric,
    "cos": _trigonometric,
}


def _down(x: np.ndarray) -> np.ndarray:
    return x - 1e-12 * np.where(np.isfinite(x), np.abs(x) + 1e-12, 0.0)


def _up(x: np.ndarray) -> np.ndarray:
    return x + 1e-12 * np.where(np.isfinite(x), np.abs(x) + 1e-12, 0.0)


def apply(atoms: Atoms, kind: str, x: Value, function: Function | None = None, logarithm: Value | None = None) -> Value:
    """The function called `kind` of each entry."""
    key = x.digest()
    found = atoms.known(kind, key, x.shape)
    if found is not None:
        return found
    low, high = atoms.bounds(x)
    shape = (function or FUNCTIONS[kind])(low, high)
    affine, convex, concave = atoms.curvature(x)
    least, most = (np.broadcast_to(end, (x.size,)) for end in shape.bend)
    good = ~x.bad & shape.defined
    is_convex = good & (least >= 0) & (affine | shape.grows & convex | shape.falls & concave)
    is_concave = good & (most <= 0) & (affine | shape.grows & concave | shape.falls & convex)
    finite = [np.isfinite(end) & affine & good for end in (least, most)]
    ridge = atoms.ridge(x, np.where(finite[0], least, 0.0), np.where(finite[1], most, 0.0))
    return atoms.new(
        kind,
        key,
        x.shape,
        shape.lower,
        shape.upper,
        ~good,
        convex=is_convex,
        concave=is_concave,
        above=~(finite[1] | is_concave),
        below=~(finite[0] | is_convex),
        ridges=[ridge] if (finite[0] | finite[1]).any() else [],
        argument=x,
        logarithm=logarithm,
    )


def opaque(atoms: Atoms, kind: str, parts: list[Value], shape: tuple[int, ...], *facts: Any) -> Value:
    """Something finite of which no curvature is known; facts: its range, and where it is bad."""
    key = (*(part.digest() for part in parts), shape)
    found = atoms.known(kind, key, shape)
    if found is not None:
        return found
    size = int(np.prod(shape))
    lower, upper, bad = facts if facts else (-np.inf, np.inf, np.zeros(size, bool))
    return atoms.new(kind, key, shape, lower, upper, np.broadcast_to(bad, (size,)))


def exponential(atoms: Atoms, x: Value) -> Value:
    """exp(x), known by its logarithm."""
    return apply(atoms, "exp", x, logarithm=x)


def logistic(atoms: Atoms, x: Value) -> Value:
    """1 / (1 + exp(-x)), whose logarithm is -softplus(-x)."""
    return apply(atoms, "logistic", x, logarithm=atoms.scale(softplus(atoms, atoms.scale(x, -1.0)), -1.0))


def softplus(atoms: Atoms, x: Value) -> Value:
    """log(1 + exp(x))."""
    both = atoms.join([x, atoms.constant(np.zeros(x.size))])  # in the order of `logarithm`, to be the same atom
    return _log_sum_exp(atoms, both, np.tile(np.arange(x.size), 2), x.size, x.shape)


def monomial(atoms: Atoms, x: Value) -> tuple[Value, np.ndarray] | None:
    """(w, sign) where every entry is sign * exp(w); None where one is not seen to be."""
    if not ((np.diff(x.rows.indptr) == 1).all() and not x.offset.any() and (x.rows.indices >= atoms.dim).all()):
        return None
    if x.size == 0 or not (np.abs(x.rows.data) > x.error[:, 1]).all():
        return None
    logs = atoms.lookup(x.rows.indices - atoms.dim, "logarithm")
    if logs is None:
        return None
    shift = atoms.constant(np.log(np.abs(x.rows.data)))
    exact = np.abs(x.rows.data) == 1.0
    shift = dataclasses.replace(shift, blur=np.where(exact, 0.0, 4 * atoms.epsilon * (1 + np.abs(shift.offset))))
    logs = dataclasses.replace(atoms.add(logs, shift), shape=x.shape)
    return dataclasses.replace(logs, bad=logs.bad | x.bad), np.sign(x.rows.data)


def logarithm(atoms: Atoms, x: Value) -> Value:
    """log(x): that of each sum of exponentials, else what is known of log on the range of x."""
    terms, positive = row_numbers(x.rows), atoms.above_zero(x).all()
    exponentials = atoms.lookup(x.rows.indices - atoms.dim, "logarithm") if x.rows.nnz and positive else None
    if exponentials is not None:
        rest = np.flatnonzero(x.offset)
        logs = atoms.add(exponentials, atoms.constant(np.log(x.rows.data)))
        both = atoms.join([logs, atoms.constant(np.log(x.offset[rest]))])
        return _log_sum_exp(atoms, both, np.concatenate([terms, rest]), x.size, x.shape)
    complement = _log_of_difference(atoms, x)
    return apply(atoms, "log", x) if complement is None else complement


def _log_of_difference(atoms: Atoms, x: Value) -> Value | None:
    """log of k (1 - logistic(u)), or of k (logistic(u) - logistic(v)) with a constant u - v > 0; else None."""
    counts = np.diff(x.rows.indptr)
    if x.bad.any() or x.size == 0 or not (counts == counts[0]).all() or (x.rows.indices < atoms.dim).any():
        return None
    columns = x.rows.indices - atoms.dim
    if counts[0] not in (1, 2) or set(atoms.names(columns)) != {"logistic"}:
        return None
    arguments = atoms.lookup(columns, "argument")
    if arguments is None:
        return None
    data = x.rows.data.reshape(-1, counts[0])
    if counts[0] == 1:
        if not (data[:, 0] == -x.offset).all() or not (x.offset > x.error[:, 1] + x.blur).all():
            return None
        found = atoms.scale(softplus(atoms, arguments), -1.0)
        factor = x.offset
    else:
        if x.offset.any() or not (data[:, 0] == -data[:, 1]).all() or not (np.abs(data[:, 0]) > x.error[:, 1]).all():
            return None
        position = np.arange(x.size) * 2
        first, second = position + (data[:, 0] < 0), position + (data[:, 0] > 0)
        u, v = (atoms.take(arguments, part, (x.size,)) for part in (first, second))
        gap = atoms.add(u, v, -1.0)
        if gap.rows.nnz or gap.bad.any() or not (gap.offset > gap.blur).all():
            return None
        sums = atoms.add(softplus(atoms, u), softplus(atoms, v))
        found = atoms.add(atoms.add(u, atoms.constant(np.log(-np.expm1(-gap.offset)))), sums, -1.0)
        factor = np.abs(data[:, 0])
    found = atoms.add(dataclasses.replace(found, shape=(x.size,)), atoms.constant(np.log(factor)))
    return dataclasses.replace(found, shape=x.shape)


def _log_sum_exp(atoms: Atoms, terms: Value, group: np.ndarray, size: int, shape: tuple[int, ...]) -> Value:
    """log sum exp of the terms of each group; every group has one."""
    order = np.argsort(group, kind="stable")
    group, terms = group[order], atoms.take(terms, order, (order.size,))
    counts = np.bincount(group, minlength=size)
    firsts = atoms.take(terms, np.cumsum(counts) - counts, (size,))
    if (counts == 1).all():
        return dataclasses.replace(firsts, shape=shape)
    spread = atoms.add(terms, atoms.take(firsts, group, (group.size,)), -1.0)
    curved = spread.rows.indices >= atoms.dim
    if not curved.any():
        # The part in atoms that the terms of a group share comes out exactly.
        keep = firsts.rows.indices >= atoms.dim
        shared = _only(firsts, keep)
        inner = atoms.add(terms, atoms.take(shared, group, (group.size,)), -1.0)
        key = (inner.digest(), group.tobytes())
        found = atoms.known("log-sum-exp", key, (size,))
        if found is None:
            found = _affine_log_sum_exp(atoms, inner, spread, group, counts, key)
        return dataclasses.replace(atoms.add(shared, found), shape=shape)
    folded = _folded(atoms, spread, group, counts)
    if folded is not None:
        return dataclasses.replace(atoms.add(firsts, folded), shape=shape)
    _, convex, _ = atoms.curvature(terms)
    is_convex = np.bincount(group, ~convex, size) == 0
    if (counts == 2).all() and not is_convex.any():
        # From the term below: log(exp a + exp b) = a + log(1 + exp(b - a)), and b - a is convex.
        seconds = atoms.take(terms, np.arange(size) * 2 + 1, (size,))
        gap = atoms.add(seconds, firsts, -1.0)
        for base, above in ((firsts, gap), (seconds, atoms.scale(gap, -1.0))):
            if atoms.curvature(above)[1].all():
                return dataclasses.replace(atoms.add(base, softplus(atoms, above)), shape=shape)
    low, high = _range_of_log_sum_exp(atoms, terms, group, size)
    key = (terms.digest(), group.tobytes())
    bad = np.bincount(group, terms.bad, size) > 0
    return atoms.known("log-sum-exp", key, shape) or atoms.new(
        "log-sum-exp", key, shape, low, high, bad, convex=is_convex, below=~is_convex
    )


def _affine_log_sum_exp(
    atoms: Atoms, inner: Value, spread: Value, group: np.ndarray, counts: np.ndarray, key: Any
) -> Value:
    """Of n affine terms: the Hessian is A'(diag p - pp')A, at most A'(I - 11'/n)A / 2, Boehning's bound."""
    size = counts.size
    average = csr_matrix((1.0 / counts[group], (group, np.arange(group.size))), shape=(size, group.size))
    means = atoms.linear(spread, average, (size,))
    centred = atoms.add(spread, atoms.take(means, group, (group.size,)), -1.0)
    low, high = _range_of_log_sum_exp(atoms, inner, group, size)
    bad = np.bincount(group, inner.bad, size) > 0
    ridge = atoms.ridge(centred, 0.0, 0.5, group)
    return atoms.new("log-sum-exp", key, (size,), low, high, bad, convex=True, above=False, below=False, ridges=[ridge])


def _range_of_log_sum_exp(atoms: Atoms, terms: Value, group: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = atoms.bounds(terms)
    least, most = np.full(size, -np.inf), np.full(size, -np.inf)
    np.maximum.at(least, group, low)
    np.maximum.at(most, group, high)
    return _down(least), _up(most + np.log(np.bincount(group, minlength=size)))


def _folded(atoms: Atoms, spread: Value, group: np.ndarray, counts: np.ndarray) -> Value | None:
    """Of two terms that differ by k |x|: log(1 + exp(k|x|)) = softplus(kx) - kx/2 + k|x|/2, whatever the sign of k."""
    if not (counts == 2).all() or spread.bad.any():
        return None
    second = atoms.take(spread, np.arange(counts.size) * 2 + 1, (counts.size,))
    single = (np.diff(second.rows.indptr) == 1).all() and not second.offset.any()
    if not single or (second.rows.indices < atoms.dim).any():
        return None
    columns = second.rows.indices - atoms.dim
    argument = atoms.lookup(columns, "argument") if set(atoms.names(columns)) == {"abs"} else None
    if argument is None:
        return None
    scaled = atoms.scale(argument, second.rows.data)
    half = atoms.add(atoms.scale(second, 0.5), atoms.scale(scaled, 0.5), -1.0)
    return atoms.add(softplus(atoms, scaled), half)


def _only(x: Value, keep: np.ndarray) -> Value:
    """The entries of the matrix that are marked, without the constants."""
    data = np.where(keep, x.rows.data, 0.0)
    rows = canonical(csr_matrix((data, x.rows.indices, x.rows.indptr), shape=x.rows.shape))
    zero = np.zeros(x.size)
    return Value(x.shape, rows, zero, x.error, zero, x.bad)


def absolute(atoms: Atoms, x: Value) -> Value:
    """|x|. An argument and its negative have the same."""
    low, high = atoms.bounds(x)
    if not x.bad.any() and ((low >= 0) | (high <= 0)).all():
        return atoms.scale(x, np.where(low >= 0, 1.0, -1.0))
    leading = np.ones(x.size)
    filled = np.diff(x.rows.indptr) > 0
    leading[filled] = np.sign(x.rows.data[x.rows.indptr[:-1][filled]])
    return apply(atoms, "abs", atoms.scale(x, leading))


def maximum(atoms: Atoms, x: Value, y: Value) -> Value:
    """max(x, y); where the two differ by an affine function, (x + y + |x - y|) / 2."""
    gap = atoms.add(x, y, -1.0)
    low, high = atoms.bounds(gap)
    first, second = low >= 0, high <= 0
    if (first | second).all() and not gap.bad.any():
        return atoms.take(atoms.join([x, y]), np.where(first, 0, x.size) + np.arange(x.size), x.shape)
    affine, _, _ = atoms.curvature(gap)
    if affine.all():
        return atoms.scale(atoms.add(atoms.add(x, y), absolute(atoms, gap)), 0.5)
    return greatest(atoms, atoms.join([x, y]), np.tile(np.arange(x.size), 2), x.shape)


def greatest(atoms: Atoms, x: Value, group: np.ndarray, shape: tuple[int, ...]) -> Value:
    """The largest entry of each group: convex where all of them are."""
    size = int(np.prod(shape))
    key = (x.digest(), group.tobytes())
    found = atoms.known("max", key, shape)
    if found is not None:
        return found
    _, convex, _ = atoms.curvature(x)
    is_convex = np.bincount(group, ~convex, size) == 0
    ends = []
    for end in atoms.bounds(x):
        most = np.full(size, -np.inf)
        np.maximum.at(most, group, end)
        ends.append(most)
    bad = np.bincount(group, x.bad, size) > 0
    return atoms.new("max", key, shape, ends[0], ends[1], bad, convex=is_convex, below=~is_convex)


def product(atoms: Atoms, x: Value, y: Value) -> Value:
    """x * y: a square, an exponential of a sum, a quadratic of two affine functions, or nothing that is known."""
    first, second = x.base or x, y.base or y
    if first.digest() == second.digest():
        factors = [np.ones(x.size) if part.factor is None else part.factor for part in (x, y)]
        square = atoms.scale(raised(atoms, first, 2.0), factors[0] * factors[1])
        return dataclasses.replace(square, shape=x.shape)
    logs = monomial(atoms, x), monomial(atoms, y)
    if logs[0] is not None and logs[1] is not None:
        return atoms.scale(exponential(atoms, atoms.add(logs[0][0], logs[1][0])), logs[0][1] * logs[1][1])
    key = (x.digest(), y.digest())
    found = atoms.known("product", key, x.shape)
    if found is not None:
        return found
    affine = atoms.curvature(x)[0] & atoms.curvature(y)[0]
    ridges: list[Ridges] = []
    if affine.any():  # uv' + vu' = ((u + v)(u + v)' - (u - v)(u - v)') / 2
        for sign in (1.0, -1.0):
            bend = np.where(affine, 0.5 * sign, 0.0)
            ridges.append(atoms.ridge(atoms.add(x, y, sign), bend, bend))
    with np.errstate(invalid="ignore"):
        corners = [a * b for a in atoms.bounds(x) for b in atoms.bounds(y)]
    corners = [np.where(np.isnan(corner), 0.0, corner) for corner in corners]  # zero times infinity is zero here
    low, high = _down(np.min(corners, axis=0)), _up(np.max(corners, axis=0))
    return atoms.new("product", key, x.shape, low, high, x.bad | y.bad, above=~affine, below=~affine, ridges=ridges)


def raised(atoms: Atoms, x: Value, exponent: float) -> Value:
    """x^exponent for a constant."""
    if exponent == 1:
        return x
    if exponent == 0:
        return dataclasses.replace(atoms.constant(np.ones(x.shape)), bad=x.bad)
    logs = monomial(atoms, x)
    whole = float(exponent).is_integer()
    if logs is not None and (whole or (logs[1] > 0).all()):
        sign = np.where((logs[1] > 0) | (exponent % 2 == 0), 1.0, -1.0)
        return atoms.scale(exponential(atoms, atoms.scale(logs[0], exponent)), sign)
    if (exponent < 0 or not whole) and atoms.above_zero(x).all():  # a sum of exponentials
        return exponential(atoms, atoms.scale(logarithm(atoms, x), exponent))
    if exponent == 2:
        return apply(atoms, "square", x)
    if exponent == -1:
        return apply(atoms, "reciprocal", x)
    return apply(atoms, f"power {exponent!r}", x, power(exponent))
