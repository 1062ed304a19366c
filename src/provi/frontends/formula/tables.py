"""Tables as the user has them, pandas, polars, Arrow or a dictionary of arrays, made into the columns of a formula.

A column is a pandas `Series`: numbers, or a category whose levels are in the order of a pandas `Categorical` or a
polars `Enum` (the first is the reference) and else sorted.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from provi.frontends.formula.syntax import nearest

_LISTED = 12


@dataclasses.dataclass(frozen=True)
class Rows:
    """The columns that a formula uses, of its complete rows.

    - `kept`: True for the rows that are used, of all that were given. - `missing`: rows without an entry, by column.
    """

    frame: Any
    kept: np.ndarray
    missing: dict[str, int]

    @property
    def num_dropped(self) -> int:
        """How many rows were left out."""
        return int((~self.kept).sum())

    @property
    def words(self) -> str:
        """How many rows there are and which were left out, for people."""
        count = f"{int(self.kept.sum())} rows"
        if not self.num_dropped:
            return count
        where = ", ".join(f"{name!r} {number}" for name, number in self.missing.items())
        return f"{count}; {self.num_dropped} rows with missing entries were left out ({where})"


def pandas_module(what: str = "A formula") -> Any:
    """pandas, or an error that names the extra."""
    try:
        import pandas
    except ImportError:
        raise ImportError(f"{what} needs pandas and formulae: pip install 'provi[formula]'.") from None
    return pandas


def column_names(data: Any) -> list[str]:
    """The names of all columns of a table."""
    if data is None:
        raise ValueError("There are no data: pass a table, MixedModel(formula, data) or fit(data).")
    if isinstance(data, Mapping):
        return [str(name) for name in data]
    columns = getattr(data, "column_names", None)  # Arrow's `columns` are the values
    columns = getattr(data, "columns", None) if columns is None else columns
    if columns is None or isinstance(data, np.ndarray):
        raise TypeError(
            f"data must be a pandas or polars frame, an Arrow table or a dictionary of columns, not "
            f"{type(data).__name__}: a formula needs names."
        )
    return [str(name) for name in columns]


def check_columns(names: Sequence[str], known: Sequence[str], what: str = "The formula names") -> None:
    """Every name is that of one column; an error suggests what may have been meant."""
    for name in names:
        if name not in known:
            more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
            listed = ", ".join(map(repr, known[:_LISTED])) + more
            raise ValueError(f"{what} {name!r}, but the columns are {listed}.{nearest(name, known)}")
        if list(known).count(name) > 1:
            raise ValueError(f"More than one column is called {name!r}: rename one.")


def read_rows(data: Any, names: Sequence[str], *, drop: bool = True) -> Rows:
    """The columns `names` of a table, without the rows in which one of them has no entry.

    **Arguments:**

    - `drop`: whether such rows are left out; else they are an error, as for predictions.
    """
    pandas = pandas_module()
    columns = {name: _series(name, data[name]) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise ValueError(f"The columns have different lengths: {listed}.")
    size = next(iter(lengths.values()), _length(data))
    if size == 0:
        raise ValueError("The data have no rows.")
    gone = {name: np.asarray(column.isna()) for name, column in columns.items()}
    missing = {name: int(found.sum()) for name, found in gone.items() if found.any()}
    kept = ~np.any([*gone.values(), np.zeros(size, bool)], axis=0)
    if missing and not drop:
        listed = ", ".join(f"{name!r} {number}" for name, number in missing.items())
        raise ValueError(f"Entries are missing in the new data ({listed}): fill them in, or leave these rows out.")
    if not kept.any():
        empty = [name for name, found in gone.items() if found.all()]
        why = f"column {empty[0]!r} has no entries" if empty else "each has a missing entry"
        raise ValueError(f"No row is complete: {why}.")
    frame = pandas.DataFrame({name: column[kept] for name, column in columns.items()}, index=np.flatnonzero(kept))
    frame = frame.reset_index(drop=True)
    for name in frame:
        if isinstance(frame[name].dtype, pandas.CategoricalDtype):
            frame[name] = frame[name].cat.remove_unused_categories()
    return Rows(frame, kept, missing)


def _length(data: Any) -> int:
    """Rows of a table of which no column is used, for 'y ~ 1'-like prediction."""
    if isinstance(data, Mapping):
        return max((len(column) for column in data.values()), default=0)
    return len(data)


def _series(name: str, column: Any) -> Any:
    """A column as numbers or as an ordered category; what is neither is an error that names it."""
    pandas = pandas_module()
    values = _ordered(column)
    if values is None:
        values = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise ValueError(f"Column {name!r} must have one number a row; its shape is {values.shape}.")
    series = pandas.Series(values)
    if series.dtype == object:
        series = series.infer_objects()
    if series.dtype == object:
        series = _texts(name, series)
    kind = series.dtype
    if isinstance(kind, pandas.CategoricalDtype):
        # formulae sorts the levels of a category that is not ordered, and would lose the reference that was chosen.
        return series.cat.as_ordered()
    if pandas.api.types.is_bool_dtype(kind) or pandas.api.types.is_numeric_dtype(kind):
        if pandas.api.types.is_complex_dtype(kind):
            raise ValueError(f"Column {name!r} must hold real numbers, not complex ones.")
        numbers = pandas.Series(series.to_numpy(dtype=float, na_value=np.nan))
        if np.isinf(numbers).any():
            raise ValueError(f"Column {name!r} has infinite entries: leave them empty if they are missing.")
        return numbers
    if pandas.api.types.is_string_dtype(kind):
        return series.astype(object).where(series.notna(), None)
    if pandas.api.types.is_datetime64_any_dtype(kind) or pandas.api.types.is_timedelta64_dtype(kind):
        raise ValueError(f"Column {name!r} holds dates: make a number of them, such as days since the first.")
    raise ValueError(f"Column {name!r} must hold numbers or texts, not {kind}.")


def _ordered(column: Any) -> Any:
    """A pandas `Categorical` where the column has an order of levels of its own; else None."""
    pandas = pandas_module()
    if isinstance(column, pandas.Categorical):
        return column
    kind = getattr(column, "dtype", None)
    if isinstance(kind, pandas.CategoricalDtype):
        return column.array
    if type(kind).__module__.startswith("polars") and type(kind).__name__ == "Enum":
        return pandas.Categorical(column.to_list(), categories=list(kind.categories))  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    return None


def _texts(name: str, series: Any) -> Any:
    """Objects that are all texts, or missing."""
    present = series[series.notna()]
    kinds = {"text" if isinstance(value, str) else type(value).__name__ for value in present}
    if len(kinds) > 1:
        text = next(value for value in present if isinstance(value, str)) if "text" in kinds else present.iloc[0]
        raise ValueError(f"Column {name!r} mixes {', '.join(sorted(kinds))} (such as {text!r}): mend the entries.")
    if kinds and kinds != {"text"}:
        raise ValueError(f"Column {name!r} must hold numbers or texts, not {kinds.pop()}.")
    return series.astype("str") if len(present) else series.astype(float)
