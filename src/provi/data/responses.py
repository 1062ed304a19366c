"""A column of a table as the response of a model: labels of two classes, counts, real numbers."""

import dataclasses

import numpy as np

from provi.data.encoding import levels_of
from provi.data.tables import Column, as_number, is_numeric

_LISTED = 6


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
    levels, membership = levels_of(column)
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
