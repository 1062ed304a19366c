"""JAX's primitives on NumPy arrays: what `core.interpreter` makes a program of.

Each entry of `PRIMITIVES` takes the parameters of an equation and returns a function of its operands. They follow XLA
where NumPy differs: integers are divided towards zero, a matrix that is not positive definite has a factor of NaN.
What is not here is left to JAX.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special
from scipy.linalg import blas

from provi.core.host_indexing import INDEXING
from provi.core.randomness import RANDOM

Function = Callable[..., Any]


def _same(function: Function) -> Callable[[dict[str, Any]], Function]:
    """A primitive whose parameters change nothing here."""
    return lambda params: function


def fills(function: Function) -> Function:
    """Mark a function that returns an array of its own, or fills the one given as `out`, as ufuncs do."""
    function.fills = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _convert(params: dict[str, Any]) -> Function:
    dtype = np.dtype(params["new_dtype"])
    if dtype.kind == "b":
        return lambda x: x != 0
    if np.issubdtype(dtype, np.integer):
        return lambda x: np.trunc(x).astype(dtype) if np.issubdtype(x.dtype, np.floating) else x.astype(dtype)
    return lambda x: x if x.dtype == dtype else x.astype(dtype)


def _quotient(x: Any, y: Any) -> Any:
    """Of integers, towards zero."""
    quotient = np.floor_divide(x, y)
    return quotient + ((np.fmod(x, y) != 0) & ((x < 0) != (y < 0))).astype(quotient.dtype)


@fills
def _divide(x: Any, y: Any, out: Any = None) -> Any:
    if x.dtype.kind not in "iu":
        return np.true_divide(x, y, out=out)
    found = _quotient(x, y)
    if out is not None:
        out[...] = found
    return found


@fills
def _reciprocal_root(x: Any, out: Any = None) -> Any:
    if x.ndim == 0:
        return 1 / np.sqrt(x)
    result = np.sqrt(x, out=out)
    return np.reciprocal(result, out=result)


def _integer_power(params: dict[str, Any]) -> Function:
    power = int(params["y"])
    match power:
        case 1:
            return lambda x: x
        case 2:
            return np.square
        case 3:
            return lambda x: x * x * x
        case 4:
            return lambda x: np.square(np.square(x))
        case -1:
            return lambda x: 1 / x
        case -2:
            return lambda x: 1 / np.square(x)
    return lambda x: np.power(x, x.dtype.type(power))


def _rounded(params: dict[str, Any]) -> Function:
    away = int(params["rounding_method"]) == 0
    return (lambda x: np.trunc(x + np.copysign(0.5, x)).astype(x.dtype)) if away else np.rint


def _select(which: Any, *cases: Any) -> Any:
    if len(cases) == 1:
        return cases[0]
    if which.dtype != bool:
        return np.choose(which, cases)
    # Most masks are guards that hold everywhere or nowhere, and counting is ten times as fast as choosing.
    count = np.count_nonzero(which)
    if count in (0, which.size):
        return cases[bool(count)]
    return np.where(which, cases[1], cases[0])


@fills
def _logistic(x: Any, out: Any = None) -> Any:
    """Several times as fast as SciPy's; exp(-x) may overflow, to a result of zero."""
    if x.ndim == 0:
        return 1 / (1 + np.exp(-x))
    result = np.negative(x, out=out)
    np.exp(result, out=result)
    result += 1
    return np.reciprocal(result, out=result)


def _broadcast(params: dict[str, Any]) -> Function:
    shape, places = tuple(params["shape"]), tuple(params["broadcast_dimensions"])

    def broadcast(x: Any, *_: Any) -> Any:
        middle = [1] * len(shape)
        for place, size in zip(places, x.shape, strict=True):
            middle[place] = size
        reshaped = x.reshape(middle)
        return reshaped if reshaped.shape == shape else np.broadcast_to(reshaped, shape)

    return broadcast


def _split(params: dict[str, Any]) -> Function:
    places, axis = np.cumsum(params["sizes"])[:-1], params["axis"]
    return lambda x: np.split(x, places, axis)


def _iota(params: dict[str, Any]) -> Function:
    shape, place = tuple(params["shape"]), params["dimension"]
    middle = [1] * len(shape)
    middle[place] = shape[place]
    values = np.broadcast_to(np.arange(shape[place], dtype=params["dtype"]).reshape(middle), shape)
    return lambda: values


def _reduction(function: Function, keeps_type: bool = False) -> Callable[[dict[str, Any]], Function]:
    def make(params: dict[str, Any]) -> Function:
        axes = tuple(params["axes"])
        if keeps_type:
            return lambda x: function(x, axis=axes, dtype=x.dtype)
        return lambda x: function(x, axis=axes)

    return make


def _extreme_index(function: Function) -> Callable[[dict[str, Any]], Function]:
    def make(params: dict[str, Any]) -> Function:
        (axis,), dtype = params["axes"], params["index_dtype"]
        return lambda x: np.asarray(function(x, axis=axis)).astype(dtype)

    return make


def _cumulative(function: Any) -> Callable[[dict[str, Any]], Function]:
    def make(params: dict[str, Any]) -> Function:
        axis = params["axis"]
        if params["reverse"]:
            return lambda x: np.flip(function(np.flip(x, axis), axis=axis, dtype=x.dtype), axis)
        return lambda x: function(x, axis=axis, dtype=x.dtype)

    return make


def _sort(params: dict[str, Any]) -> Function:
    axis, keys = params["dimension"], params["num_keys"]

    def sort(*arrays: Any) -> Any:
        if len(arrays) == 1:
            return [np.sort(arrays[0], axis=axis, kind="stable")]
        places = np.lexsort(arrays[keys - 1 :: -1] if keys > 1 else arrays[:1], axis=axis)
        return [np.take_along_axis(x, places, axis) for x in arrays]

    return sort


def _product(params: dict[str, Any]) -> Function:
    """`dot_general`: batches, then what is kept of the left, then of the right."""
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    wanted = params["preferred_element_type"]
    dtype = None if wanted is None else np.dtype(wanted)
    simple = not left_batch and len(left_sum) == 1

    @fills
    def multiply(x: Any, y: Any, out: Any = None) -> Any:
        if simple and x.ndim <= 2 and y.ndim <= 2 and x.dtype == y.dtype == (dtype or x.dtype):
            return np.matmul(x.T if left_sum[0] < x.ndim - 1 else x, y.T if right_sum[0] else y, out=out)
        left_kept = [k for k in range(x.ndim) if k not in left_sum and k not in left_batch]
        right_kept = [k for k in range(y.ndim) if k not in right_sum and k not in right_batch]
        shape = [x.shape[k] for k in (*left_batch, *left_kept)] + [y.shape[k] for k in right_kept]
        batch = shape[: len(left_batch)]
        inner = math.prod(x.shape[k] for k in left_sum)
        left = x.transpose(*left_batch, *left_kept, *left_sum).reshape(*batch, -1 if x.size else 0, inner)
        right = y.transpose(*right_batch, *right_sum, *right_kept).reshape(*batch, inner, -1 if y.size else 0)
        if x.size == 0 or y.size == 0:
            return np.zeros(shape, x.dtype if dtype is None else dtype)
        result = np.matmul(left, right).reshape(shape)
        return result if dtype is None or result.dtype == dtype else result.astype(dtype)

    return multiply


def _cholesky(params: dict[str, Any]) -> Function:
    del params

    def factor(x: Any) -> Any:
        try:
            return np.linalg.cholesky(x)
        except np.linalg.LinAlgError:
            if x.ndim == 2:
                return np.full_like(x, np.nan)
            flat = x.reshape(-1, *x.shape[-2:])
            return np.stack([factor(matrix) for matrix in flat]).reshape(x.shape)

    return factor


_SOLVERS: dict[str, Any] = {kind: getattr(blas, name) for kind, name in (("f", "strsm"), ("d", "dtrsm"))}


def _triangular_solve(params: dict[str, Any]) -> Function:
    side, lower = 0 if params["left_side"] else 1, int(params["lower"])
    trans, unit = int(params["transpose_a"]), int(params["unit_diagonal"])

    def one(a: Any, b: Any) -> Any:
        if b.size == 0:
            return b
        solve = _SOLVERS[b.dtype.char]
        return np.ascontiguousarray(solve(1.0, a, b, side=side, lower=lower, trans_a=trans, diag=unit))

    def solve(a: Any, b: Any) -> Any:
        if b.ndim == 2:
            return one(a, b)
        batch = b.shape[:-2]
        pairs = zip(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), strict=True)
        return np.stack([one(*pair) for pair in pairs]).reshape(*batch, *b.shape[-2:]) if b.size else b

    return solve


def _eigh(params: dict[str, Any]) -> Function:
    triangle = "L" if params["lower"] else "U"

    def eigh(x: Any) -> Any:
        try:
            values, vectors = np.linalg.eigh(x, triangle)
        except np.linalg.LinAlgError:
            if x.ndim > 2:  # those of a batch that have one keep theirs
                found = [eigh(matrix) for matrix in x.reshape(-1, *x.shape[-2:])]
                vectors, values = (np.stack(part) for part in zip(*found, strict=True))
                return [vectors.reshape(x.shape), values.reshape(x.shape[:-1])]
            values, vectors = np.full(x.shape[:-1], np.nan, x.dtype), np.full_like(x, np.nan)
        return [vectors, values]

    return eigh


def _polygamma(n: Any, x: Any) -> Any:
    """SciPy's formula; its own function makes doubles of everything."""
    order = n + x.dtype.type(1)
    sign = 1 - 2 * np.fmod(order, 2)  # (-1)^(n + 1)
    return np.where(n == 0, special.digamma(x), sign * special.gamma(order) * special.zeta(order, x)).astype(x.dtype)


def _shift_right_arithmetic(x: Any, y: Any) -> Any:
    signed = x.dtype.str.replace("u", "i")
    return (x.view(signed) >> y.view(signed)).view(x.dtype)


def _shift_right_logical(x: Any, y: Any) -> Any:
    unsigned = x.dtype.str.replace("i", "u")
    return (x.view(unsigned) >> y.astype(unsigned)).view(x.dtype)


def _platform_index(params: dict[str, Any]) -> Function:
    places = [k for k, names in enumerate(params["platforms"]) if names is None or "cpu" in names]
    first = np.asarray(places[0], np.int32)
    return lambda: first


def _same_bits(params: dict[str, Any]) -> Function:
    """Words of a number are an axis of their own, the last."""
    new = np.dtype(params["new_dtype"])

    def view(x: Any) -> Any:
        if x.dtype.itemsize == new.itemsize:
            return x.view(new)
        x = np.ascontiguousarray(x)
        return x[..., None].view(new) if x.dtype.itemsize > new.itemsize else x.view(new)[..., 0]

    return view


def _callback(params: dict[str, Any]) -> Function:
    """A function of the host: called as it is, without a way through a compiled program."""
    function, results = params["callback"], params["result_avals"]
    return lambda *operands: [np.asarray(x, a.dtype) for x, a in zip(function(*operands), results, strict=True)]


_quiet_identity = _same(lambda x: x)

PRIMITIVES: dict[str, Callable[[dict[str, Any]], Function]] = {
    **INDEXING,
    **RANDOM,
    "abs": _same(np.abs),
    "add": _same(np.add),
    "add_any": _same(np.add),
    "and": _same(np.bitwise_and),
    "argmax": _extreme_index(np.argmax),
    "argmin": _extreme_index(np.argmin),
    "atan2": _same(np.arctan2),
    "bitcast_convert_type": _same_bits,
    "broadcast_in_dim": _broadcast,
    "ceil": _same(np.ceil),
    "cholesky": _cholesky,
    "clamp": _same(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "concatenate": lambda params: lambda *parts: np.concatenate(parts, axis=params["dimension"]),
    "convert_element_type": _convert,
    "copy": _quiet_identity,
    "copy_p": _quiet_identity,
    "cos": _same(np.cos),
    "cosh": _same(np.cosh),
    "cummax": lambda params: _cumulative(np.maximum.accumulate)(params),
    "cumprod": _cumulative(np.cumprod),
    "cumsum": _cumulative(np.cumsum),
    "device_put": _same(lambda *x: list(x)),
    "digamma": _same(special.digamma),
    "div": _same(_divide),
    "dot_general": _product,
    "eigh": _eigh,
    "eq": _same(np.equal),
    "erf": _same(special.erf),
    "erf_inv": _same(special.erfinv),
    "erfc": _same(special.erfc),
    "exp": _same(np.exp),
    "exp2": _same(np.exp2),
    "expand_dims": lambda params: lambda x: np.expand_dims(x, tuple(params["dimensions"])),
    "expm1": _same(np.expm1),
    "floor": _same(np.floor),
    "ge": _same(np.greater_equal),
    "gt": _same(np.greater),
    "igamma": _same(special.gammainc),
    "igammac": _same(special.gammaincc),
    "integer_pow": _integer_power,
    "iota": _iota,
    "is_finite": _same(np.isfinite),
    "le": _same(np.less_equal),
    "lgamma": _same(special.gammaln),
    "log": _same(np.log),
    "log1p": _same(np.log1p),
    "logistic": _same(_logistic),
    "lt": _same(np.less),
    "max": _same(np.maximum),
    "min": _same(np.minimum),
    "mul": _same(np.multiply),
    "ne": _same(np.not_equal),
    "neg": _same(np.negative),
    "nextafter": _same(np.nextafter),
    "not": _same(np.invert),
    "optimization_barrier": _same(lambda *x: list(x)),
    "or": _same(np.bitwise_or),
    "platform_index": _platform_index,
    "polygamma": _same(_polygamma),
    "pow": _same(np.power),
    "pure_callback": _callback,
    "reduce_and": _reduction(np.logical_and.reduce),
    "reduce_max": _reduction(np.maximum.reduce),
    "reduce_min": _reduction(np.minimum.reduce),
    "reduce_or": _reduction(np.logical_or.reduce),
    "reduce_prod": _reduction(np.multiply.reduce, keeps_type=True),
    "reduce_sum": _reduction(np.add.reduce, keeps_type=True),
    "rem": _same(np.fmod),
    "reshape": lambda params: lambda x: x.reshape(params["new_sizes"]),
    "rev": lambda params: lambda x: np.flip(x, params["dimensions"]),
    "round": _rounded,
    "rsqrt": _same(_reciprocal_root),
    "select_n": _same(_select),
    "shift_left": _same(np.left_shift),
    "shift_right_arithmetic": _same(_shift_right_arithmetic),
    "shift_right_logical": _same(_shift_right_logical),
    "sign": _same(np.sign),
    "sin": _same(np.sin),
    "sinh": _same(np.sinh),
    "sort": _sort,
    "split": _split,
    "sqrt": _same(np.sqrt),
    "square": _same(np.square),
    "squeeze": lambda params: lambda x: np.squeeze(x, tuple(params["dimensions"])),
    "stack": lambda params: lambda *parts: np.stack(parts, axis=params["axis"]),
    "stop_gradient": _quiet_identity,
    "sub": _same(np.subtract),
    "tan": _same(np.tan),
    "tanh": _same(np.tanh),
    "transpose": lambda params: lambda x: x.transpose(params["permutation"]),
    "triangular_solve": _triangular_solve,
    "unstack": lambda params: lambda x: list(np.moveaxis(x, params["axis"], 0)),
    "xor": _same(np.bitwise_xor),
    "zeta": _same(special.zeta),
}

SLOW = {
    "cos", "digamma", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "igamma", "igammac", "lgamma", "log", "log1p",
    "logistic", "polygamma", "pow", "sin", "tan", "tanh", "threefry2x32", "random_bits", "sort", "zeta",
}  # fmt: skip
"""Those that take an order of magnitude longer an entry than a sum."""

VIEWS = {
    "broadcast_in_dim", "copy", "device_put", "dynamic_slice", "expand_dims", "iota", "optimization_barrier", "reshape",
    "rev", "slice", "split", "squeeze", "stop_gradient", "transpose",
}  # fmt: skip
"""Those that copy nothing."""
