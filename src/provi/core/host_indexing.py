"""Parts of arrays on NumPy, for `core.host_primitives`: slices, padding, gather and scatter as XLA means them."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Function = Callable[..., Any]


def _slice(params: dict[str, Any]) -> Function:
    strides = params["strides"] or (1,) * len(params["start_indices"])
    parts = tuple(map(slice, params["start_indices"], params["limit_indices"], strides))
    return lambda x: x[parts]


def _dynamic_slice(params: dict[str, Any]) -> Function:
    sizes = tuple(params["slice_sizes"])

    def cut(x: Any, *starts: Any) -> Any:
        return x[_inside(starts, sizes, x.shape)]

    return cut


def _dynamic_update(x: Any, update: Any, *starts: Any) -> Any:
    result = np.array(x)
    result[_inside(starts, update.shape, x.shape)] = update
    return result


def _inside(starts: Any, sizes: Any, shape: Any) -> tuple[slice, ...]:
    firsts = [min(max(int(start), 0), all_ - size) for start, size, all_ in zip(starts, sizes, shape, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _pad(params: dict[str, Any]) -> Function:
    config = params["padding_config"]

    def pad(x: Any, value: Any) -> Any:
        pairs = zip(x.shape, config, strict=True)
        shape = [max(low + high + size + max(size - 1, 0) * inner, 0) for size, (low, high, inner) in pairs]
        result = np.full(shape, value, x.dtype)
        into, out = [], []
        for size, (low, _, inner), whole in zip(x.shape, config, result.shape, strict=True):
            places = low + np.arange(size) * (inner + 1)
            real = np.flatnonzero((places >= 0) & (places < whole))
            into.append(places[real])
            out.append(real)
        if result.size and all(map(len, out)):
            result[np.ix_(*into)] = x[np.ix_(*out)]
        return result

    return pad


def _places(
    indices: Any, axes: Sequence[Any], batching: Sequence[Any], shape: Any, sizes: Any
) -> tuple[list[Any], Any]:
    """An index array for each axis of an operand: batches in front, then the axes of a slice; and which are inside.

    Each row of `indices` (its last axis) says where a slice of `sizes` begins, on these `axes`; `batching` are pairs of
    an axis of the operand and the axis of `indices` that goes with it.
    """
    batch = indices.shape[:-1]
    rank = len(batch) + len(sizes)
    firsts: list[Any] = [0] * len(sizes)
    inside = np.ones(batch, bool)
    for k, axis in enumerate(axes):
        start = indices[..., k].astype(np.int64)
        most = shape[axis] - sizes[axis]
        inside &= (start >= 0) & (start <= most)
        firsts[axis] = np.clip(start, 0, most)
    for axis, place in batching:
        firsts[axis] = np.arange(batch[place]).reshape([-1 if k == place else 1 for k in range(len(batch))])
    found = []
    for axis, first in enumerate(firsts):
        steps = np.arange(sizes[axis]).reshape([-1 if k == len(batch) + axis else 1 for k in range(rank)])
        found.append(steps if isinstance(first, int) else first.reshape(first.shape + (1,) * len(sizes)) + steps)
    return found, inside


def _fill_value(dtype: Any) -> Any:
    """What JAX reads outside of an array."""
    match dtype.kind:
        case "b":
            return True
        case "u":
            return np.iinfo(dtype).max
        case "i":
            return np.iinfo(dtype).min
    return np.nan


def _gather(params: dict[str, Any]) -> Function:
    numbers, sizes = params["dimension_numbers"], tuple(params["slice_sizes"])
    fills = "fill" in str(params["mode"]).lower()
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    batching = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))

    def gather(x: Any, indices: Any) -> Any:
        places, inside = _places(indices, numbers.start_index_map, batching, x.shape, sizes)
        count = indices.ndim - 1
        found = x[tuple(places)] if sizes else np.broadcast_to(x, indices.shape[:-1])
        if fills and not inside.all():
            value = _fill_value(x.dtype) if params["fill_value"] is None else params["fill_value"]
            found = np.where(inside.reshape(inside.shape + (1,) * len(sizes)), found, np.asarray(value, x.dtype))
        found = np.squeeze(found, tuple(count + k for k in gone))
        batch, offsets = iter(range(count)), iter(range(count, found.ndim))
        order = [next(offsets) if k in numbers.offset_dims else next(batch) for k in range(found.ndim)]
        return found.transpose(order)

    return gather


def _scatter(combine: Callable[[Any, Any, Any], None]) -> Callable[[dict[str, Any]], Function]:
    def make(params: dict[str, Any]) -> Function:
        numbers, clips = params["dimension_numbers"], "clip" in str(params["mode"]).lower()
        gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        batching = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))

        def scatter(x: Any, indices: Any, updates: Any) -> Any:
            windows = numbers.update_window_dims
            batch = [k for k in range(updates.ndim) if k not in windows]
            given = iter(windows)
            sizes = [1 if k in gone else updates.shape[next(given)] for k in range(x.ndim)]
            places, inside = _places(indices, numbers.scatter_dims_to_operand_dims, batching, x.shape, sizes)
            shape = (*indices.shape[:-1], *sizes)
            values = updates.transpose(*batch, *windows).reshape(shape)
            where = [np.broadcast_to(place, shape) for place in places]
            if not clips and not inside.all():  # what lies outside is dropped
                values, where = values[inside], [place[inside] for place in where]
            result = np.array(x)
            combine(result, tuple(where) if where else ..., values)
            return result

        return scatter

    return make


INDEXING: dict[str, Callable[[dict[str, Any]], Function]] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": lambda params: _dynamic_update,
    "gather": _gather,
    "pad": _pad,
    "scatter": _scatter(operator.setitem),
    "scatter-add": _scatter(np.add.at),
    "slice": _slice,
}
