r"""Columns of a table made into a matrix of features, and one of them into a response.

A column of numbers becomes $(x - c)/s$, c and s its mean and standard deviation; a category with the levels
$l_0 < l_1 < \dots$ becomes indicators $1\{x = l_1\}, 1\{x = l_2\}, \dots$, with $l_0$ as the reference.

A response is labels of two classes, counts, or real numbers.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from provi.core.frames import repeated_names
from provi.core.limits import check_memory
from provi.data.kinds import percent_numbers
from provi.data.tables import Column, Columns, as_number, is_missing, is_numeric

_FEW_LEVELS = 10
"""A text column with more levels than this, and than half of its rows, is taken for names or dates."""

_LISTED = 6
_MOST_CLASSES = 30


@dataclasses.dataclass(frozen=True)
class EncodedColumn:
    """How a column enters: `levels`, the reference first, for a category; else (x - centre) / scale.

    `percent`: whether its entries are written as percentages, "12%" for 12.
    """

    name: str
    levels: tuple[str, ...] | None = None
    centre: float = 0.0
    scale: float = 1.0
    percent: bool = False

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
        unit = "; x in percent, 12% is 12" if self.percent else ""
        if (self.centre, self.scale) == (0.0, 1.0):
            return f"as it is{unit}"
        return f"(x - {self.centre:.6g}) / {self.scale:.6g}".replace("- -", "+ ") + unit

    def encode(self, column: Column) -> np.ndarray:
        """The features of entries of this column in another table, (rows, features); NaN where one is missing."""
        if self.levels is not None:
            return self._indicators(column)
        if not is_numeric(column):
            numbers = percent_numbers(column)
            if numbers is None or not self.percent:
                text = next(text for text in column if text is not None and as_number(text) is None)
                raise ValueError(f"Column {self.name!r} must hold numbers, as in the fit, not {text!r}.")
            column = numbers
        if np.isinf(column).any():
            raise ValueError(f"Column {self.name!r} has infinite entries: leave them empty if they are missing.")
        return ((column - self.centre) / self.scale)[:, None]

    def _indicators(self, column: Column) -> np.ndarray:
        assert self.levels is not None
        known, place = {level: k for k, level in enumerate(self.levels)}, np.full(len(column), -1)
        for row, (text, number) in enumerate(_as_levels(column)):
            if text is None:
                continue
            text = text if text in known else number
            if text not in known:
                raise ValueError(
                    f"Column {self.name!r} has the level {text!r} in row {row + 1}, which the fit has not seen: its "
                    f"levels are {_listed(self.levels)}."
                )
            place[row] = known[text]
        found = (place[:, None] == np.arange(1, len(self.levels))[None, :]).astype(float)
        found[place < 0] = np.nan
        return found


def _as_levels(column: Column) -> list[tuple[str | None, str | None]]:
    """Each entry as a text, and as that of the number it writes, if it does: 2 and 2.0 are one level."""
    if is_numeric(column):
        texts = [None if np.isnan(value) else f"{value:.12g}" for value in column]
        return list(zip(texts, texts, strict=True))
    numbers = [None if text is None else as_number(text) for text in column]
    return [(text, text if number is None else f"{number:.12g}") for text, number in zip(column, numbers, strict=True)]


def _listed(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words[:_LISTED])) + (", ..." if len(words) > _LISTED else "")


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
        percent = None if name in categorical else percent_numbers(column)
        if name in categorical or (not is_numeric(column) and percent is None):
            if name not in categorical:
                check_category(name, column)
            _check_levels(name, column)
            values, encoded = _encode_category(name, column)
        else:
            values, encoded = _encode_numbers(name, column if percent is None else percent, standardise)
            if encoded is not None and percent is not None:
                encoded = dataclasses.replace(encoded, percent=True)
        if encoded is None:
            constant.append(name)
        else:
            parts.append(values)
            columns.append(encoded)
    if not parts:
        raise ValueError("No column is left that varies: features are needed beside the response.")
    made = tuple(feature for column in columns for feature in column.feature_names)
    repeated = repeated_names(made)
    if repeated:
        raise ValueError(
            f"Two features are called {repeated[0]!r}, a category's level and a column: rename the column."
        )
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


def _check_levels(name: str, column: Column) -> None:
    """An indicator for each level must fit into memory: a matrix of comparisons, its floats, and a copy of these."""
    count = len(set(column.tolist()))
    remedy = "leave the column out (--drop), or make a number of it"
    check_memory(f"Column {name!r} as a category of {count} levels", 17.0 * len(column) * count, remedy)


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
    """The numbers that a model takes, and what they mean, in words.

    - `labels`: what 0 and 1 stand for, where they are classes. - `centre`, `scale`: of y = centre + scale * value.
    """

    values: np.ndarray
    words: str
    labels: tuple[str, str] | None = None
    centre: float = 0.0
    scale: float = 1.0


def binary_response(name: str, column: Column, positive: str | None = None) -> Response:
    """1 where the label is `positive`, 0 elsewhere.

    Without `positive` there must be two labels, and the later one in order (of numbers, or of the alphabet) is 1. With
    more labels `positive` stands against all the others.
    """
    if is_numeric(column):
        _check_finite(name, column)
    levels, membership = _levels_of(column)
    listed = _listed(levels)
    if len(levels) == 1:
        raise ValueError(f"Column {name!r} has one class only, {listed}: rows of two classes are needed.")
    if positive is None and len(levels) > 2:
        raise ValueError(
            f"Column {name!r} has {len(levels)} classes ({listed}): two are needed. Set one against the others "
            f"(--positive LABEL), or take --model multinomial; counts are for poisson, measurements for --model gp."
        )
    place = len(levels) - 1 if positive is None else _place(name, levels, positive, is_numeric(column), listed)
    values = (membership == place).astype(float)
    other = repr(levels[1 - place]) if len(levels) == 2 else f"the other {len(levels) - 1} labels"
    ones = int(values.sum())
    words = f"1 for {levels[place]!r} ({ones} rows), 0 for {other} ({len(values) - ones} rows)"
    negative = levels[1 - place] if len(levels) == 2 else f"not {levels[place]}"
    return Response(values, words, (negative, levels[place]))


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
    words = f"(y - {centre:.6g}) / {scale:.6g}".replace("- -", "+ ")
    return Response((values - centre) / scale, words, None, centre, scale)


@dataclasses.dataclass(frozen=True)
class TableEncoding:
    """How the columns of a table became features, and a column its response: kept with a fit, applied to new tables.

    - `columns`: of the features, in order. - `response`, `labels`, `centre`, `scale`: the response's name, and what its
      numbers mean (`Response`). - `left_out`: columns that the fit did not use. - `decimal_comma`: whether 1,5 was read
      as a number. - `offset`, `exposure`: columns that are added to the predictor, the latter as its logarithm.
    - `shift`, `slopes`: the target's rows are (1, x - shift), or x - shift where there are as many slopes as features,
      and have the offset of their product with the slopes; None for both where they are the features.
    """

    columns: tuple[EncodedColumn, ...]
    response: str
    labels: tuple[str, ...] | None = None
    centre: float = 0.0
    scale: float = 1.0
    left_out: tuple[str, ...] = ()
    decimal_comma: bool = False
    offset: str | None = None
    exposure: str | None = None
    shift: tuple[float, ...] | None = None
    slopes: tuple[float, ...] | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """A name for each feature."""
        return tuple(feature for column in self.columns for feature in column.feature_names)

    def encode(self, table: Mapping[str, Column]) -> np.ndarray:
        """The features of a new table, (rows, features), NaN where an entry is missing; other columns do not count."""
        absent = [column.name for column in self.columns if column.name not in table]
        if absent:
            raise ValueError(
                f"The new table has no column {', '.join(map(repr, absent))}, which the fit needs: its columns are "
                f"{_listed(list(table))}."
            )
        return np.concatenate([column.encode(table[column.name]) for column in self.columns], axis=1)

    @property
    def moves(self) -> bool:
        """Whether rows have offsets."""
        return not (self.offset is self.exposure is self.slopes is None)

    def rows(self, table: Mapping[str, Column]) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the target that a new table has, and their offsets; NaN where an entry is missing."""
        features = self.encode(table)
        offset = np.zeros(len(features))
        for name, is_log in ((self.offset, False), (self.exposure, True)):
            if name is not None:
                if name not in table:
                    raise ValueError(f"The new table has no column {name!r}, the {'exposure' if is_log else 'offset'}.")
                numbers = EncodedColumn(name).encode(table[name])[:, 0]
                if is_log and (numbers <= 0).any():
                    raise ValueError(f"Column {name!r} is the exposure, and must be positive.")
                offset = offset + (np.log(numbers) if is_log else numbers)
        if self.shift is not None and self.slopes is not None:
            features = features - np.array(self.shift)
            if len(self.slopes) > features.shape[1]:
                features = np.concatenate([np.ones((len(features), 1)), features], axis=1)
            offset = offset + features @ np.array(self.slopes)
        return features, offset

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TableEncoding":
        """The inverse of `to_dict`, also after JSON has made lists of tuples."""
        columns = [
            EncodedColumn(**{**column, "levels": None if column["levels"] is None else tuple(column["levels"])})
            for column in data["columns"]
        ]
        lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list | tuple)}
        return cls(**{**data, **lists, "columns": tuple(columns)})


def class_response(name: str, column: Column, ordered: bool) -> tuple[Response, tuple[str, ...]]:
    """Codes 0, 1, ... of the levels, and the levels; `ordered`: they must be numbers, whose order is known."""
    if is_numeric(column):
        _check_finite(name, column)
    elif ordered:
        text = next(text for text in column if text is not None)
        raise ValueError(
            f"Column {name!r} holds texts such as {text!r}, whose order is not known: write grades as numbers, 1, 2."
        )
    levels, membership = _levels_of(column)
    if len(levels) < 2:
        raise ValueError(f"Column {name!r} has one class only, {levels[0]!r}: rows of two classes are needed.")
    if len(levels) > _MOST_CLASSES:
        raise ValueError(f"Column {name!r} has {len(levels)} classes; {_MOST_CLASSES} at most are taken.")
    joined = (" < " if ordered else ", ").join(map(repr, levels))
    return Response(membership.astype(float), f"{len(levels)} classes, {joined}"), tuple(levels)


def time_response(name: str, column: Column, censored: Column | None) -> Response:
    """Times until an event; those at which a row was censored have a minus sign."""
    values = real_response(name, column).values
    if not (values > 0).all():
        raise ValueError(f"Column {name!r} must hold positive times, not {values[values <= 0][0]:g}.")
    gone = np.zeros(len(values), bool) if censored is None else censored == 1
    if censored is not None and not np.isin(censored, (0, 1)).all():
        raise ValueError(
            "The column of --censored must hold 1 where the time was cut short, and 0 where the event was."
        )
    if gone.all():
        raise ValueError(f"Every time of {name!r} is censored: no event was seen.")
    words = f"{int((~gone).sum())} events, {int(gone.sum())} censored times"
    return Response(np.where(gone, -values, values), words)


def _check_finite(name: str, column: Column) -> None:
    if np.isinf(column).any():
        raise ValueError(f"Column {name!r} has infinite entries: leave them empty if they are missing.")
