"""Data frames as arrays of numbers: of pandas, with nullable and Arrow-backed columns, of polars, and Arrow's tables.

None of these packages is imported: a column says what it holds through NumPy, and its type by name. Booleans and
numbers become numbers; texts, categories and dates are refused with what to do instead, missing entries by column and
row.
"""

import collections
import datetime
import decimal
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

_CATEGORIES = ("category", "categorical", "enum", "dictionary")
_NAMED = 8
_TABLES = 'provi.models.MixedModel("y ~ {0} + ...", data), which encodes it'


def is_frame(value: Any) -> bool:
    """Whether this is a table with names: a data frame of pandas or polars, or an Arrow table."""
    return not isinstance(value, np.ndarray) and (hasattr(value, "column_names") or _has_columns(value))


def _has_columns(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "shape")


def frame_names(frame: Any) -> tuple[str, ...]:
    """The names of the columns of a frame."""
    names = getattr(frame, "column_names", None)  # Arrow's `columns` are the values
    return tuple(str(name) for name in (frame.columns if names is None else names))


def frame_columns(frame: Any) -> list[Any]:
    """The columns of a frame in their order; names may be repeated."""
    if hasattr(frame, "column_names"):
        return list(frame.columns)
    if hasattr(frame, "get_columns"):
        return list(frame.get_columns())
    return [frame.iloc[:, place] for place in range(frame.shape[1])]


def frame_numbers(argument: str, frame: Any) -> np.ndarray:
    """A frame as a matrix of finite numbers; a `ValueError` names `argument`, the column, and what to do.

    float32 frames stay float32.
    """
    names = frame_names(frame)
    columns = [column_numbers(argument, column, name) for name, column in zip(names, frame_columns(frame), strict=True)]
    if not columns:
        raise ValueError(f"{argument} has no columns; at least one is needed.")
    return np.stack(columns, axis=1)


def matched_numbers(argument: str, table: Any, names: Sequence[str]) -> np.ndarray:
    """The columns `names` of a frame, or of a dictionary of columns, in this order; others do not count."""
    framed = is_frame(table)
    given = frame_names(table) if framed else tuple(map(str, table))
    absent = [name for name in names if name not in given]
    if absent:
        raise ValueError(f"{argument} has no column {listed(absent)}; the fit has the columns {listed(names)}.")
    columns = dict(zip(given, frame_columns(table) if framed else table.values(), strict=True))
    return np.stack([column_numbers(argument, columns[name], name) for name in names], axis=1)


def repeated_names(names: Sequence[str]) -> list[str]:
    """Those that occur more than once, in order, each once; in time that grows as their number does."""
    return [name for name, count in collections.Counter(names).items() if count > 1]


def listed(names: Sequence[str]) -> str:
    """The first few names, for people."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more


def check_unmasked(name: str, value: Any) -> None:
    """Refuse a masked array with masked entries: every conversion would use what lies under the mask."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            f"{name} is a masked array with {int(np.ma.getmaskarray(value).sum())} masked entries, which would be used "
            f"as if they were there. Leave their rows out, impute them, or pass {name}.filled(np.nan) to a model that "
            f"takes missing entries."
        )


def check_frame(argument: str, value: Any) -> None:
    """Refuse a frame that is no table of finite numbers, as `frame_numbers` does; anything else passes."""
    if is_frame(value):
        frame_numbers(argument, value)


def is_column(value: Any) -> bool:
    """Whether this is one column of a frame."""
    module = type(value).__module__.partition(".")[0]
    return module in ("pandas", "polars", "pyarrow") and hasattr(value, "__array__") and not is_frame(value)


def column_numbers(argument: str, column: Any, name: str | None = None) -> np.ndarray:
    """A column as finite numbers; `name`: its name, where it is one of a frame."""
    place = argument if name is None else f"column {name!r} of {argument}"
    kind = str(getattr(column, "dtype", getattr(column, "type", ""))).lower()
    if name is not None and kind.startswith(_CATEGORIES):  # a response may be a category of numbers
        raise ValueError(_no_numbers(argument, name, "is a category", None))
    values = np.asarray(column)
    if values.dtype.kind in "Mm":
        raise ValueError(_dates(argument, name))
    if values.dtype.kind in "OUST":
        values = _from_objects(argument, name, values)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{place} must hold real numbers, not dtype {values.dtype}.")
    bad = ~np.isfinite(values)
    if bad.any():
        where = f"row {int(np.argmax(bad))}" + ("" if name is None else f" of column {name!r}")
        raise ValueError(
            f"{argument} has entries that are missing, NaN or infinite, {int(bad.sum())} of them in {place}, the first "
            f"in {where} (rows count from 0). Remove or impute them."
        )
    return values


def _from_objects(argument: str, name: str | None, values: np.ndarray) -> np.ndarray:
    """Numbers kept as Python objects, with NaN for what is missing."""
    found = np.empty(values.shape, np.float64)
    for row, value in enumerate(values.tolist()):
        if value is None or type(value).__name__ in ("NAType", "NaTType"):
            found[row] = np.nan
        elif isinstance(value, bool | np.bool_ | numbers.Real | decimal.Decimal):
            found[row] = float(value)
        elif isinstance(value, datetime.date | datetime.time | datetime.timedelta):
            raise ValueError(_dates(argument, name))
        else:
            raise ValueError(_no_numbers(argument, name, "holds texts", value))
    return found


def _no_numbers(argument: str, name: str | None, what: str, value: Any) -> str:
    place = argument if name is None else f"column {name!r} of {argument}"
    first = "" if value is None else f" such as {value!r}"
    if name is None:
        return f"{place} {what}{first}, and numbers are needed: encode it as numbers first."
    if isinstance(value, str) and _is_number(value):
        return f"{place} {what}{first}: make them numbers, {argument}[{name!r}].astype(float)."
    return (
        f"{place} {what}{first}, and numbers are needed: encode it, pandas.get_dummies({argument}, columns=[{name!r}], "
        f"drop_first=True), or take {_TABLES.format(name)}."
    )


def _dates(argument: str, name: str | None) -> str:
    place = argument if name is None else f"column {name!r} of {argument}"
    series = argument if name is None else f"{argument}[{name!r}]"
    return (
        f"{place} holds dates or times, and numbers are needed: make a number of them, such as the days since the "
        f"first, ({series} - {series}.min()).dt.days."
    )


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
