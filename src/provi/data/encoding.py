r"""Columns of a table made into a matrix of features, and one of them into a response.

A column of numbers becomes $(x - c)/s$, c and s its mean and standard deviation; a category with the levels
$l_0 < l_1 < \dots$ becomes indicators $1\{x = l_1\}, 1\{x = l_2\}, \dots$, with $l_0$ as the reference.

A response is labels of two classes, counts, or real numbers.
"""

import dataclasses
import re
from collections.abc import Collection, Sequence

import numpy as np

from provi.data.tables import Column, Columns, as_number, is_missing, is_numeric

_FEW_LEVELS = 10
"""A text column with more levels than this, and than half of its rows, is taken for names or dates."""

_LISTED = 6


@dataclasses.dataclass(frozen=True)
class EncodedColumn:
    """How a column enters: `levels`, the reference first, for a category; else (x - centre) / scale."""

    name: str
    levels: tuple[str, ...] | None = None
    centre: float = 0.0
    scale: float = 1.0

    @property
    def feature_names(self) -> tuple[str, ...]:
        """`name`, or `name=level` for each level but the first."""
        return (self.name,) if self.levels is None else tuple(f"{self.name}={level}" for level in self.levels[1:])

    @property
    def words(self) -> str:
        """The encoding, for people."""
        if self.levels is not None:
            listed = ", ".join(map(repr, self.levels[1:]))
            return f"0/1 for {listed}; reference {self.levels[0]!r}"
        if (self.centre, self.scale) == (0.0, 1.0):
            return "as it is"
        return f"(x - {self.centre:.6g}) / {self.scale:.6g}".replace("- -", "+ ")


@dataclasses.dataclass(frozen=True)
class Features:
    """A matrix of features (rows, d) with a name for each; NaN where an entry is missing.

    - `columns`: how each column of the table entered. - `constant`: columns left out because they do not vary.
    """

    values: np.ndarray
    names: tuple[str, ...]
    columns: tuple[EncodedColumn, ...]
    constant: tuple[str, ...]


def encode_features(
    table: Columns, names: Sequence[str], *, categorical: Collection[str] = (), standardise: bool = True
) -> Features:
    """The features made of the columns `names` of a table.

    **Arguments:**

    - `categorical`: columns to encode as categories whatever they hold, such as codes written as numbers.
    - `standardise`: whether numbers are brought to mean 0 and standard deviation 1; indicators never are.
    """
    parts, columns, constant = [], [], []
    for name in names:
        column = table[name]
        if is_missing(column).all():
            raise ValueError(f"Column {name!r} has no entries: leave it out (--drop).")
        if name in categorical or not is_numeric(column):
            if name not in categorical:
                check_category(name, column)
            values, encoded = _encode_category(name, column)
        else:
            values, encoded = _encode_numbers(name, column, standardise)
        if encoded is None:
            constant.append(name)
        else:
            parts.append(values)
            columns.append(encoded)
    if not parts:
        raise ValueError("No column is left that varies: features are needed beside the response.")
    made = tuple(feature for column in columns for feature in column.feature_names)
    repeated = next((feature for feature in made if made.count(feature) > 1), None)
    if repeated is not None:
        raise ValueError(f"Two features are called {repeated!r}, a category's level and a column: rename the column.")
    return Features(np.concatenate(parts, axis=1), made, tuple(columns), tuple(constant))


def check_category(name: str, column: Column) -> None:
    """Refuse texts that are no levels: numbers mixed with texts, decimal commas, names and dates."""
    texts = [(row, text) for row, text in enumerate(column, start=1) if text is not None]
    numbers = [text for _, text in texts if as_number(text) is not None]
    if numbers:
        row, text = next(pair for pair in texts if as_number(pair[1]) is None)
        raise ValueError(
            f"Column {name!r} mixes numbers ({numbers[0]!r}) with texts ({text!r} in row {row}): mend the entry, leave "
            f"it empty where the value is missing, or make the column a category (--categorical)."
        )
    comma = next(((row, text) for row, text in texts if re.fullmatch(r"[+-]?\d+(,\d+)+", text)), None)
    if comma is not None:
        raise ValueError(
            f"Column {name!r} has {comma[1]!r} in row {comma[0]}: if that is a decimal comma say so (--decimal-comma), "
            f"if it separates thousands leave it out of the file."
        )
    count = len({text for _, text in texts})
    if count > _FEW_LEVELS and count > len(texts) / 2:
        raise ValueError(
            f"Column {name!r} has {count} different texts in {len(texts)} rows (the first {texts[0][1]!r}): names, "
            f"dates or numbers with units, not a category. Write bare numbers, leave the column out (--drop), or make "
            f"it a category all the same (--categorical)."
        )


def _levels_of(column: Column) -> tuple[list[str], np.ndarray]:
    """The sorted levels as texts, and for each row the place of its own, -1 where it is missing."""
    present = ~is_missing(column)
    unique, places = np.unique(column[present].astype(float if is_numeric(column) else str), return_inverse=True)
    membership = np.full(len(column), -1)
    membership[present] = places
    return [f"{level:.12g}" if is_numeric(column) else str(level) for level in unique], membership


def _encode_category(name: str, column: Column) -> tuple[np.ndarray, EncodedColumn | None]:
    levels, membership = _levels_of(column)
    if len(levels) < 2:
        return np.zeros((len(column), 0)), None
    indicators = (membership[:, None] == np.arange(1, len(levels))[None, :]).astype(float)
    indicators[membership < 0] = np.nan
    return indicators, EncodedColumn(name, tuple(levels))


def _encode_numbers(name: str, column: Column, standardise: bool) -> tuple[np.ndarray, EncodedColumn | None]:
    if np.isinf(column).any():
        raise ValueError(f"Column {name!r} has infinite entries: leave them empty if they are missing.")
    if np.nanmax(column) == np.nanmin(column):
        return np.zeros((len(column), 0)), None
    if not standardise:
        return column[:, None], EncodedColumn(name)
    with np.errstate(all="ignore"):
        encoded = EncodedColumn(name, None, float(np.nanmean(column)), float(np.nanstd(column)))
    if not 0 < encoded.scale < np.inf:
        raise ValueError(
            f"Column {name!r} has entries from {np.nanmin(column):g} to {np.nanmax(column):g}: their standard "
            f"deviation is beyond floating point. Change the unit of the column."
        )
    return ((column - encoded.centre) / encoded.scale)[:, None], encoded


@dataclasses.dataclass(frozen=True)
class Response:
    """The numbers that a model takes, and what they mean, in words."""

    values: np.ndarray
    words: str


def binary_response(name: str, column: Column, positive: str | None = None) -> Response:
    """1 where the label is `positive`, 0 elsewhere.

    Without `positive` there must be two labels, and the later one in order (of numbers, or of the alphabet) is 1. With
    more labels `positive` stands against all the others.
    """
    if is_numeric(column):
        _check_finite(name, column)
    levels, membership = _levels_of(column)
    listed = ", ".join(map(repr, levels[:_LISTED])) + (", ..." if len(levels) > _LISTED else "")
    if len(levels) == 1:
        raise ValueError(f"Column {name!r} has one class only, {listed}: rows of two classes are needed.")
    if positive is None and len(levels) > 2:
        raise ValueError(
            f"Column {name!r} has {len(levels)} classes ({listed}): two are needed. Set one against the others "
            f"(--positive LABEL); for counts take --model poisson, for measurements --model gp."
        )
    place = len(levels) - 1 if positive is None else _place(name, levels, positive, is_numeric(column), listed)
    values = (membership == place).astype(float)
    other = repr(levels[1 - place]) if len(levels) == 2 else f"the other {len(levels) - 1} labels"
    ones = int(values.sum())
    return Response(values, f"1 for {levels[place]!r} ({ones} rows), 0 for {other} ({len(values) - ones} rows)")


def _place(name: str, levels: list[str], positive: str, numeric: bool, listed: str) -> int:
    number = as_number(positive) if numeric else None
    wanted = positive if number is None else f"{number:.12g}"
    if wanted not in levels:
        raise ValueError(f"Column {name!r} has no label {positive!r} to be positive: its labels are {listed}.")
    return levels.index(wanted)


def count_response(name: str, column: Column) -> Response:
    """Counts 0, 1, 2, ..."""
    values = real_response(name, column).values
    wrong = values[(values < 0) | (values != np.round(values))]
    if wrong.size:
        raise ValueError(f"Column {name!r} must hold counts 0, 1, 2, ..., not {wrong[0]:g}.")
    return Response(values, f"counts, mean {values.mean():.4g}, largest {values.max():g}")


def real_response(name: str, column: Column) -> Response:
    """Finite numbers, as they are."""
    if not is_numeric(column):
        text = next(text for text in column if text is not None and as_number(text) is None)
        raise ValueError(f"Column {name!r} must hold numbers, not texts such as {text!r}.")
    _check_finite(name, column)
    return Response(column, f"numbers from {column.min():.4g} to {column.max():.4g}")


def standardised_response(name: str, column: Column) -> Response:
    """Numbers brought to mean 0 and standard deviation 1."""
    values = real_response(name, column).values
    if values.max() == values.min():
        raise ValueError(f"Column {name!r} has one value only, {values[0]:g}: there is nothing to explain.")
    with np.errstate(all="ignore"):
        centre, scale = float(values.mean()), float(values.std())
    if not 0 < scale < np.inf:
        raise ValueError(f"Column {name!r} has a standard deviation beyond floating point: change its unit.")
    return Response((values - centre) / scale, f"(y - {centre:.6g}) / {scale:.6g}".replace("- -", "+ "))


def _check_finite(name: str, column: Column) -> None:
    if np.isinf(column).any():
        raise ValueError(f"Column {name!r} has infinite entries: leave them empty if they are missing.")
