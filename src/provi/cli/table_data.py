"""A table from a file made ready for a model: which columns, which rows, how they are encoded, and that in words."""

import dataclasses
import difflib
import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from provi.data.encoding import (
    Features,
    Response,
    binary_response,
    check_category,
    count_response,
    encode_features,
    standardised_response,
)
from provi.data.tables import Columns, as_number, is_missing, is_numeric, read_table

_LISTED, _LARGEST_TABLE = 12, 40


class Model(enum.StrEnum):
    """The models of `provi fit TABLE`."""

    LOGISTIC = "logistic"
    POISSON = "poisson"
    GP = "gp"
    MISSING_LOGISTIC = "missing-logistic"


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """What the options about tables say; each as it stands when it is not given."""

    target: str | None = None
    model: Model | None = None
    columns: Sequence[str] = ()
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    positive: str | None = None
    decimal_comma: bool = False
    complete_rows: bool = False
    standardise: bool = True
    prior_scale: float | None = None


@dataclasses.dataclass(frozen=True)
class TableData:
    """Features and response of the rows that are used, and what was done to get there.

    - `missing`: missing entries by column, before rows were left out. - `left_out`: rows, by the reason.
    """

    source: str
    response_name: str
    features: Features
    response: Response
    missing: dict[str, int]
    left_out: dict[str, int]

    def description(self) -> list[str | Table]:
        """What people are told about the data: rows, response, encoding, missing entries."""
        table = Table(show_edge=False, pad_edge=False)
        for head in ("column", "encoding"):
            table.add_column(head)
        for column in self.features.columns[:_LARGEST_TABLE]:
            table.add_row(column.name, column.words)
        if len(self.features.columns) > _LARGEST_TABLE:
            table.add_row(f"... {len(self.features.columns) - _LARGEST_TABLE} more", "--json lists all")
        rows, width = self.features.values.shape
        said: list[str | Table] = [
            f"{self.source}: {rows} rows, {len(self.features.columns)} columns as {width} features.",
            f"Response {self.response_name!r}: {self.response.words}.",
        ]
        said += [f"Rows left out, {reason}: {count}." for reason, count in self.left_out.items()]
        if self.missing:
            said.append(f"Missing entries: {listed_counts(self.missing)}.")
        if self.features.constant:
            said.append(f"Columns left out, since they do not vary: {', '.join(map(repr, self.features.constant))}.")
        return [*said, "", table, ""]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        encoding = [
            {"column": column.name, "centre": column.centre, "scale": column.scale}
            if column.levels is None
            else {"column": column.name, "reference": column.levels[0], "levels": column.levels}
            for column in self.features.columns
        ]
        return {
            "rows": len(self.features.values),
            "response": {"column": self.response_name, "meaning": self.response.words},
            "encoding": encoding,
            "constant_columns": self.features.constant,
            "missing_entries": self.missing,
            "rows_left_out": self.left_out,
        }


def read_data(source: str, options: TableOptions) -> TableData:
    """Read the table, choose its columns and rows, encode them. Errors name the column and what to do."""
    table = read_table(Path(source), decimal_comma=options.decimal_comma)
    if options.target is None or options.model is None:
        absent = "--target COLUMN" if options.target is None else "--model"
        models = ", ".join(model.value for model in Model)
        raise ValueError(f"{absent} is needed for a table; models: {models}; columns: {_listed(list(table))}.")
    if options.positive is not None and options.model is Model.POISSON:
        raise ValueError("--positive is for labels; --model poisson takes counts.")
    (response_name,) = _find("--target", [options.target], table, split=False)
    categorical = _find("--categorical", options.categorical, table)
    names = _chosen(table, response_name, options)
    for name in names:
        if not is_numeric(table[name]) and name not in categorical:
            check_category(name, table[name])
    table, missing, left_out = _rows(table, response_name, names, options)
    features = encode_features(table, names, categorical=categorical, standardise=options.standardise)
    response = _response(table, response_name, options)
    return TableData(source, response_name, features, response, missing, left_out)


def _chosen(table: Columns, response_name: str, options: TableOptions) -> list[str]:
    chosen = _find("--columns", options.columns, table) or [name for name in table if name != response_name]
    dropped = _find("--drop", options.drop, table)
    if response_name in chosen:
        raise ValueError(f"--columns: {response_name!r} is the response, and cannot explain itself.")
    names = [name for name in chosen if name not in dropped]
    if not names:
        raise ValueError(f"No columns are left beside the response {response_name!r}.")
    return names


def _find(option: str, given: Sequence[str], table: Columns, split: bool = True) -> list[str]:
    """Names as they were given, or several with commas between them; each must be a column."""
    whole = [[name] if name in table or not split else name.split(",") for name in given]
    names = [name if name in table else name.strip() for group in whole for name in group]
    for name in names:
        if name not in table:
            raise ValueError(
                f"{option}: there is no column {name!r}; the columns are {_listed(list(table))}.{_meant(name, table)}"
            )
    return list(dict.fromkeys(names))


def _meant(name: str, table: Columns) -> str:
    """A guess at what was meant: a name that is near, or a file without a line of names."""
    folded = {known.casefold(): known for known in table}
    near = difflib.get_close_matches(name.casefold(), folded, 1)
    if near:
        return f" Did you mean {folded[near[0]]!r}?"
    return " Is the first line a line of names?" if any(as_number(known) is not None for known in table) else ""


def _rows(
    table: Columns, response_name: str, names: Sequence[str], options: TableOptions
) -> tuple[Columns, dict[str, int], dict[str, int]]:
    """The rows to use, the missing entries by column, and how many rows were left out for which reason."""
    absent = {name: is_missing(table[name]) for name in names}
    missing = {name: int(gone.sum()) for name, gone in absent.items() if gone.any()}
    empty = [name for name, gone in absent.items() if gone.all()]
    if empty:
        raise ValueError(f"No entries at all in {_listed(empty)}: leave such columns out (--drop).")
    labelled = ~is_missing(table[response_name])
    if not labelled.any():
        raise ValueError(f"Column {response_name!r} has no entries.")
    left_out = {f"without an entry in {response_name!r}": int((~labelled).sum())}
    incomplete = np.any([absent[name] for name in names], axis=0) & labelled
    kept = labelled
    if incomplete.any() and options.complete_rows:
        left_out["with missing entries"] = int(incomplete.sum())
        kept = labelled & ~incomplete
    elif incomplete.any() and options.model is not Model.MISSING_LOGISTIC:
        raise ValueError(
            f"Entries are missing in {int(incomplete.sum())} of {int(labelled.sum())} rows: {listed_counts(missing)}. "
            f"--model missing-logistic integrates them out; --complete-rows leaves these rows out; --drop a column."
        )
    if not kept.any():
        raise ValueError("No row is complete: --model missing-logistic takes incomplete ones, or --drop columns.")
    used = {name: table[name][kept] for name in (*names, response_name)}
    return used, missing, {reason: count for reason, count in left_out.items() if count}


def _response(table: Columns, name: str, options: TableOptions) -> Response:
    column = table[name]
    if options.model is Model.POISSON:
        return count_response(name, column)
    # Two values, or texts, are classes to a Gaussian process; other numbers are measurements.
    classes = options.positive is not None or not is_numeric(column) or len(np.unique(column)) == 2
    if options.model is Model.GP and not classes:
        return standardised_response(name, column)
    return binary_response(name, column, options.positive)


def listed_counts(counts: dict[str, int]) -> str:
    """'a' 3, 'b' 12, ..."""
    words = [f"{name!r} {count}" for name, count in counts.items()]
    return ", ".join(words[:_LISTED]) + (f" and {len(words) - _LISTED} more columns" if len(words) > _LISTED else "")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more
