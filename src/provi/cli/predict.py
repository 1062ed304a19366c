"""`provi predict`: a saved fit and a new table in, predictions with intervals on the scale of the response out."""

import csv
import dataclasses
import enum
import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from provi.cli.errors import check_destinations
from provi.cli.options import Debug, DecimalComma, Json, Quiet, Seed
from provi.core.files import replacing

_LISTED = 20
_PARQUET = (".parquet", ".pq")


class Kind(enum.StrEnum):
    """What is predicted."""

    MEAN = "mean"
    RESPONSE = "response"


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Columns by name, one entry a row of the new table (several for several categories), None where there is none."""

    what: str
    columns: dict[str, list[Any]]
    notes: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        """Rows of predictions."""
        return len(self.columns["row"])


def predict(
    fit: Annotated[Path, typer.Argument(metavar="FIT", help="A file of provi fit --save.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="New rows: data.csv, data.tsv, data.parquet.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write predictions there: .csv, .tsv or .parquet."),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SHARE", help="Probability of the central interval.")
    ] = 0.9,
    kind: Annotated[
        Kind, typer.Option("--kind", help="mean: the expected response; response: a new one, its noise included.")
    ] = Kind.MEAN,
    decimal_comma: DecimalComma = False,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the response of new rows from a saved fit.

    The table's columns are encoded as those of the fit were: the same levels, means and scales. Columns that the fit
    does not know are ignored; rows with missing entries get no prediction.

    \b
    Examples:
      provi fit data.csv --target died --model logistic --save fit.safetensors
      provi predict fit.safetensors new.csv --output predictions.csv
      provi predict fit.safetensors new.csv --kind response --interval 0.5 --json

    \b
    Exit code 0: predicted. 2: bad input; one line says what.
    """
    check_destinations(str(table), {"--output": output})
    if not fit.is_file():
        raise FileNotFoundError(f"There is no file {fit}.")
    if output is not None and output.suffix.lower() not in (".csv", ".tsv", *_PARQUET):
        raise ValueError(f"--output: {output} must end in .csv, .tsv or .parquet.")
    if not 0 < interval < 1:
        raise ValueError(f"--interval must lie between 0 and 1, not {interval}.")
    found = _predict(fit, table, interval, kind.value, decimal_comma, seed)
    if output is not None:
        _write(output, found.columns)
    if as_json:
        _print_json(found, kind.value, interval, output)
    elif not quiet:
        _print(found, interval, output)


def _predict(fit: Path, table: Path, interval: float, kind: str, decimal_comma: bool, seed: int) -> Predictions:
    from provi.data.tables import read_table
    from provi.result.storage import load_model

    model = load_model(fit)
    if isinstance(model, dict) and "mixed model" in model:
        return _of_formula(fit, read_table(table, decimal_comma=decimal_comma), interval, kind, seed)
    from provi.result.storage import load

    found = load(fit)
    encoding = found.encoding
    if found.target is None:
        raise ValueError(
            f"{fit} does not hold its target, so that nothing can be predicted from it: save it again, or in Python "
            f"provi.load(path, target=target).predict(X_new)."
        )
    comma = decimal_comma or (encoding is not None and encoding.decimal_comma)
    columns: Any = read_table(table, decimal_comma=comma)
    values = found.predict(columns, interval, kind=kind, seed=seed)
    return _of_table(values, encoding, kind)


def _of_table(values: Any, encoding: Any, kind: str) -> Predictions:
    """Of a linear model or a Gaussian process."""
    labels, row = values.labels, {"row": list(range(1, len(values) + 1))}
    response = "the response" if encoding is None else repr(encoding.response)
    if values.mean.ndim == 2:
        return Predictions(f"Probability of each class of {response}", {**row, **_of_classes(values)}, values.notes)
    name = "mean" if labels is None else "probability"
    numbers = {name: values.mean, "sd": values.sd, "lower": values.lower, "upper": values.upper}
    columns: dict[str, list[Any]] = row | {head: [_plain(x) for x in column] for head, column in numbers.items()}
    what = f"{'Expected' if kind == 'mean' else 'New'} values of {response}"
    if labels is not None:
        what = f"Probability that {response} is {labels[1]!r}"
        columns["label"] = [None if p is None else labels[p >= 0.5] for p in columns["probability"]]
        if kind == "response":
            for end in ("lower", "upper"):
                columns[end] = [None if y is None else labels[y >= 0.5] for y in columns[end]]
    return Predictions(what, columns, values.notes)


def _of_classes(values: Any) -> dict[str, list[Any]]:
    """The probability of each class with its interval, and the class that is most probable."""
    labels = values.labels or tuple(map(str, range(values.mean.shape[1])))
    columns: dict[str, list[Any]] = {}
    for place, label in enumerate(labels):
        for head, table in (("P", values.mean), ("lower", values.lower), ("upper", values.upper)):
            columns[f"{head}({label})"] = [_plain(x) for x in table[:, place]]
    best = [None if math.isnan(shares[0]) else labels[int(shares.argmax())] for shares in values.mean]
    return {**columns, "label": best}


def _of_formula(fit: Path, table: Any, interval: float, kind: str, seed: int) -> Predictions:
    """Of a mixed model."""
    import numpy as np

    from provi.data.tables import is_missing
    from provi.models import MixedModel

    model = MixedModel.load(fit)
    design = model.assembly_.design
    right = {*design.parsed.columns, *design.parsed.arguments}
    total = len(next(iter(table.values())))
    gone = np.any([np.zeros(total, bool), *(is_missing(table[name]) for name in right if name in table)], axis=0)
    if gone.all():
        raise ValueError("Every row of the new table has missing entries: there is nothing to predict.")
    kept = {name: column[~gone] for name, column in table.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        frame = model.predict(kept, kind=kind, interval=interval, seed=seed)
    notes = [" ".join(str(warning.message).split()) for warning in caught]
    rows = np.flatnonzero(~gone)[np.asarray(frame.index, int)] + 1
    columns: dict[str, list[Any]] = {"row": rows.tolist()}
    columns |= {str(head): [_plain(value) for value in frame[head]] for head in frame}
    if gone.any():
        notes.append(f"No predictions for {int(gone.sum())} of {total} rows, which have missing entries.")
        columns = _with_empty_rows(columns, (np.flatnonzero(gone) + 1).tolist())
    what = f"{'Expected' if kind == 'mean' else 'New'} values of {design.response.name!r}"
    return Predictions(what, columns, tuple(notes))


def _with_empty_rows(columns: dict[str, list[Any]], empty: list[int]) -> dict[str, list[Any]]:
    whole = {name: [*column, *(empty if name == "row" else [None] * len(empty))] for name, column in columns.items()}
    order = sorted(range(len(whole["row"])), key=lambda place: whole["row"][place])
    return {name: [column[place] for place in order] for name, column in whole.items()}


def _plain(value: Any) -> Any:
    """A number, None for NaN; texts as they are."""
    if isinstance(value, str):
        return value
    number = float(value)
    return None if math.isnan(number) else number


def _write(output: Path, columns: dict[str, list[Any]]) -> None:
    if output.suffix.lower() in _PARQUET:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise ImportError(f"{output} needs pyarrow to be written: pip install 'provi[streaming]'.") from None
        with replacing(output) as draft:
            parquet.write_table(pyarrow.table(columns), draft)
        return
    with replacing(output) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter="\t" if output.suffix.lower() == ".tsv" else ",", lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _print_json(found: Predictions, kind: str, interval: float, output: Path | None) -> None:
    import json

    heads = list(found.columns)
    rows = [dict(zip(heads, row, strict=True)) for row in zip(*found.columns.values(), strict=True)]
    document = {
        "what": found.what,
        "kind": kind,
        "interval": interval,
        "rows": found.num_rows,
        "notes": list(found.notes),
        "predictions": rows,
        "files": {} if output is None else {"output": str(output)},
    }
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def _print(found: Predictions, interval: float, output: Path | None) -> None:
    typer.echo(f"{found.what}, with central {100 * interval:g}% intervals.\n")
    heads = list(found.columns)
    typer.echo("".join(f"{head:>13}" for head in heads))
    for place in range(min(found.num_rows, _LISTED)):
        typer.echo("".join(f"{_shown(found.columns[head][place]):>13}" for head in heads))
    if found.num_rows > _LISTED:
        more = "--output writes all" if output is None else "the file has all"
        typer.echo(f"... {found.num_rows - _LISTED} more rows: {more}.")
    for note in found.notes:
        typer.echo(f"Note: {note}")
    if output is not None:
        typer.echo(f"Wrote {output}.")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.5g}"
