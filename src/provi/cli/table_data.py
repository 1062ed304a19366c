"""A table from a file made ready for a model: which columns, which rows, how they are encoded, and that in words."""

import dataclasses
import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from provi.cli.options import Model
from provi.core.limits import host_bytes
from provi.data.blocks import table_files, table_schema
from provi.data.encoding import (
    Features,
    Response,
    TableEncoding,
    binary_response,
    check_category,
    class_response,
    count_response,
    encode_features,
    real_response,
    standardised_response,
    time_response,
)
from provi.data.kinds import check_quantity, is_date, percent_numbers
from provi.data.tables import BYTES_OF_ENTRY, Column, Columns, as_number, is_missing, is_numeric, read_table
from provi.runtime.distributed import this_share

_LISTED, _LARGEST_TABLE = 12, 40


COUNTS = (Model.POISSON, Model.NEGATIVE_BINOMIAL)
TIMES = (Model.WEIBULL, Model.EXPONENTIAL, Model.LOG_NORMAL)
REGRESSIONS = (Model.LOGISTIC, *COUNTS, Model.LINEAR, Model.STUDENT_T, Model.MULTINOMIAL, Model.ORDINAL, *TIMES)
STREAMED = (Model.LOGISTIC, Model.POISSON)
"""Models without a number that is integrated or learnt: those of tables that are read in blocks."""
ROW_COLUMNS = ("offset", "exposure", "weights", "censored")
"""Options that name a column with a number for each row that is no feature."""


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
    prior: Sequence[str] = ()
    offset: str | None = None
    exposure: str | None = None
    weights: str | None = None
    censored: str | None = None
    stream: bool | None = None


@dataclasses.dataclass(frozen=True)
class TableData:
    """Features and response of the rows that are used, and what was done to get there.

    - `missing`: missing entries by column, before rows were left out. - `left_out`: rows, by the reason.
    - `unused`: columns that were not taken. - `decimal_comma`: as in `TableOptions`.
    """

    source: str
    response_name: str
    features: Features
    response: Response
    missing: dict[str, int]
    left_out: dict[str, int]
    unused: tuple[str, ...] = ()
    decimal_comma: bool = False
    rows: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Numbers of the rows by option: those of `ROW_COLUMNS` that were given."""
    row_columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """The columns that hold them."""
    classes: tuple[str, ...] = ()
    """What the codes 0, 1, ... of the response stand for, where there are several."""
    stream: Any = None
    """The `RowStream` of a table that is never in memory; then the values of features and response are not there."""

    @property
    def encoding(self) -> TableEncoding:
        """What predictions for new tables need."""
        response, given = self.response, self.row_columns
        return TableEncoding(
            self.features.columns, self.response_name, response.labels or self.classes or None, response.centre,
            response.scale, (*self.unused, *self.features.constant), self.decimal_comma, given.get("offset"),
            given.get("exposure"),
        )  # fmt: skip

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
            {"column": column.name, "centre": column.centre, "scale": column.scale, "percent": column.percent}
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
    share = this_share()
    if any(share.exchange(_streams(source, options))):  # alike in all processes, whatever memory each has
        return _read_stream(source, options)
    table = read_table(Path(source), decimal_comma=options.decimal_comma, share=share)
    _check_asked(options, table)
    assert options.target is not None and options.model is not None
    if options.positive is not None and options.model in REGRESSIONS[1:]:
        raise ValueError(f"--positive is for two labels; --model {options.model.value} has none.")
    (response_name,) = _find("--target", [options.target], table, split=False)
    categorical = _find("--categorical", options.categorical, table)
    special = _row_columns(table, options)
    names = [name for name in _chosen(table, response_name, options) if name not in special.values()]
    if not names:
        raise ValueError(f"No columns are left beside the response {response_name!r}.")
    asked = set(_find("--columns", options.columns, table))
    for name in names:
        if name not in categorical:
            _check_column(name, table[name], name in asked, len(names) == 1)
    used = {*names, *special.values(), response_name}  # a set: there may be thousands of columns
    unused = tuple(name for name in table if name not in used)
    numbers = percent_numbers(table[response_name])
    if numbers is not None:
        table[response_name] = numbers
    table, missing, left_out = _rows(table, response_name, [*names, *special.values()], options)
    features = encode_features(table, names, categorical=categorical, standardise=options.standardise)
    rows = {option: real_response(name, table[name]).values for option, name in special.items()}
    classes: tuple[str, ...] = ()
    if options.model in (Model.MULTINOMIAL, Model.ORDINAL):
        response, classes = class_response(response_name, table[response_name], options.model is Model.ORDINAL)
    elif options.model in TIMES:
        response = time_response(response_name, table[response_name], rows.get("censored"))
    else:
        response = _response(table, response_name, options)
    if numbers is not None:
        response = dataclasses.replace(response, words=f"{response.words}; in percent, 12% is 12")
    return TableData(
        source, response_name, features, response, missing, left_out, unused, options.decimal_comma, rows, special,
        classes,
    )  # fmt: skip


def _check_asked(options: TableOptions, names: Collection[str]) -> None:
    if options.target is None or options.model is None:
        absent = "--target COLUMN" if options.target is None else "--model"
        models = ", ".join(model.value for model in Model)
        raise ValueError(f"{absent} is needed for a table; models: {models}; columns: {_listed(list(names))}.")


def _streams(source: str, options: TableOptions) -> bool:
    """Whether to read the table in blocks: where that is asked for, or it would take over half of the free memory."""
    if options.stream is not None:
        return options.stream
    path = Path(source)
    if path.is_dir() or not path.exists() or path.suffix.lower() not in (".parquet", ".pq"):
        return False
    try:
        schema, rows, _ = table_schema(path)
    except (ValueError, ImportError):  # the reader of whole files says it better
        return False
    return options.model in STREAMED and BYTES_OF_ENTRY * rows * len(schema.names) > host_bytes() // 2


def _read_stream(source: str, options: TableOptions) -> TableData:
    """The first pass over a table that is read in blocks; what the options ask for beyond that is refused."""
    from provi.targets.likelihoods import BernoulliLogit, Poisson
    from provi.targets.streaming import parquet_stream

    names = table_schema(table_files(source)[0])[0].names
    _check_asked(options, names)
    if options.model not in STREAMED:
        listed = ", ".join(model.value for model in STREAMED)
        raise ValueError(f"--stream is for --model {listed}, not {options.model.value if options.model else 'none'}.")
    if options.complete_rows:
        raise ValueError("--complete-rows is for tables in memory, and this one is read in blocks.")
    (response_name,) = _find("--target", [options.target or ""], names, split=False)
    special = _row_columns(names, options)
    chosen = [name for name in _chosen(names, response_name, options) if name not in special.values()]
    if not chosen:
        raise ValueError(f"No columns are left beside the response {response_name!r}.")
    counts = options.model is Model.POISSON
    stream = parquet_stream(
        source, response_name, chosen, Poisson() if counts else BernoulliLogit(), special,
        categorical=[name for name in _find("--categorical", options.categorical, names) if name in chosen],
        standardise=options.standardise, intercept=True, classes=not counts, positive=options.positive,
        drop_constant=True,
    )  # fmt: skip
    rows = stream.rows
    words = f"counts, mean {rows.response_mean:.4g}, largest {rows.responses.max():g}"
    if rows.labels is not None:
        ones = round(rows.response_mean * rows.num_rows)
        words = f"1 for {rows.labels[1]!r} ({ones} rows), 0 for {rows.labels[0]!r} ({rows.num_rows - ones} rows)"
    entered = {column.name for column in rows.features}
    features = Features(
        np.broadcast_to(np.zeros(()), (rows.num_rows, rows.shape[1] - 1)),  # of this shape, and of no memory
        rows.names[1:], rows.features, tuple(name for name in chosen if name not in entered),
    )  # fmt: skip
    labels = None if rows.labels is None else (rows.labels[0], rows.labels[1])
    response = Response(np.zeros(0), words, labels)
    used = {*chosen, *special.values(), response_name}
    unused = tuple(name for name in names if name not in used)
    return TableData(source, response_name, features, response, {}, {}, unused, row_columns=special, stream=stream)


def _check_column(name: str, column: Column, asked: bool, alone: bool) -> None:
    """That a column is a quantity or a category; numbers that were asked for by name may be anything."""
    if not asked or (not is_numeric(column) and is_date(column)):
        check_quantity(name, column, alone)
    if not is_numeric(column) and percent_numbers(column) is None:
        check_category(name, column)


def _row_columns(table: Collection[str], options: TableOptions) -> dict[str, str]:
    """Columns with a number for each row, by the option that names them; each must be of use to the model."""
    given = {name: getattr(options, name) for name in ROW_COLUMNS if getattr(options, name) is not None}
    for option in given:
        model = options.model
        allowed = {"exposure": COUNTS, "censored": TIMES, "offset": tuple(m for m in REGRESSIONS if m != "multinomial")}
        if model not in allowed.get(option, REGRESSIONS):
            models = ", ".join(m.value for m in allowed.get(option, REGRESSIONS))
            raise ValueError(f"--{option} is for --model {models}, not {model.value if model else 'none'}.")
    return {option: _find(f"--{option}", [name], table, split=False)[0] for option, name in given.items()}


def _chosen(table: Collection[str], response_name: str, options: TableOptions) -> list[str]:
    chosen = _find("--columns", options.columns, table) or [name for name in table if name != response_name]
    dropped = set(_find("--drop", options.drop, table))
    if response_name in chosen:
        raise ValueError(f"--columns: {response_name!r} is the response, and cannot explain itself.")
    names = [name for name in chosen if name not in dropped]
    if not names:
        raise ValueError(f"No columns are left beside the response {response_name!r}.")
    return names


def _find(option: str, given: Sequence[str], table: Collection[str], split: bool = True) -> list[str]:
    """Names as they were given, or several with commas between them; each must be a column."""
    whole = [[name] if name in table or not split else name.split(",") for name in given]
    names = [name if name in table else name.strip() for group in whole for name in group]
    for name in names:
        if name not in table:
            raise ValueError(
                f"{option}: there is no column {name!r}; the columns are {_listed(list(table))}.{_meant(name, table)}"
            )
    return list(dict.fromkeys(names))


def _meant(name: str, table: Collection[str]) -> str:
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
    if options.model in COUNTS:
        return count_response(name, column)
    if options.model in (Model.LINEAR, Model.STUDENT_T):
        return real_response(name, column)
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
