"""A formula and a table as arrays, and the encoder that makes the same arrays of new tables."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from provi.core.frames import repeated_names
from provi.frontends.formula.fixed import Encoding, evaluate, known_functions, make_encoding
from provi.frontends.formula.groups import Group, level_text, read_groups
from provi.frontends.formula.response import Response, read_response, trials_of
from provi.frontends.formula.structured import Structured, read_structured
from provi.frontends.formula.syntax import FormulaError, ParsedFormula, parse_formula
from provi.frontends.formula.tables import Rows, check_columns, column_names, read_rows

_LISTED = 4


@dataclasses.dataclass(frozen=True)
class NewRows:
    """A new table in the encoding of a `Design`; an index is negative where a level is new.

    - `unseen`: the levels that are new, by the name of the term. - `trials`: None without any.
    """

    fixed: np.ndarray
    groups: tuple[tuple[np.ndarray, np.ndarray | None], ...]
    structured: tuple[np.ndarray, ...]
    offset: np.ndarray
    trials: np.ndarray | None
    unseen: dict[str, tuple[str, ...]]

    @property
    def unseen_words(self) -> str:
        """The new levels, for people."""
        parts = []
        for name, levels in self.unseen.items():
            more = f" and {len(levels) - _LISTED} more" if len(levels) > _LISTED else ""
            parts.append(f"{name}: {', '.join(map(repr, levels[:_LISTED]))}{more}")
        return "; ".join(parts)


@dataclasses.dataclass(frozen=True)
class Design:
    """The arrays of a model, and how they were encoded.

    - `fixed`: (rows, columns) with `encoding.names`. - `groups`, `structured`: the terms with their data.
    - `offset`: (rows,), zero without any. - `rows`: which rows of the table are used.
    """

    parsed: ParsedFormula
    rows: Rows
    response: Response
    fixed: np.ndarray
    encoding: Encoding
    groups: tuple[Group, ...]
    structured: tuple[Structured, ...]
    offset: np.ndarray
    namespace: Mapping[str, Any]

    @property
    def has_intercept(self) -> bool:
        """Whether the fixed effects have one."""
        return "Intercept" in self.encoding.names

    def encode(self, data: Any) -> NewRows:
        """A new table, which needs the columns of the right side only, in the encoding of the old one."""
        known = column_names(data)
        used = _columns(self.parsed.columns, self.parsed.arguments, known, self.namespace, "The model needs the column")
        frame = read_rows(data, used, drop=False).frame
        groups = tuple(group.encode(frame) for group in self.groups)
        structured = tuple(term.encode(frame) for term in self.structured)
        unseen: dict[str, tuple[str, ...]] = {}
        for group, (index, _) in zip(self.groups, groups, strict=True):
            _note_unseen(unseen, group.factor.name, frame, group.factor.columns, index)
        for term, index in zip(self.structured, structured, strict=True):
            if term.kind != "gp":
                _note_unseen(unseen, term.name, frame, term.columns, index)
        offset = _offset(self.parsed, frame, self.namespace)
        trials = trials_of(self.parsed, data, self.namespace)
        return NewRows(self.encoding.encode(frame), groups, structured, offset, trials, unseen)


def read_design(
    formula: Any,
    data: Any,
    *,
    weights: Any = None,
    graphs: Mapping[str, Any] | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Design:
    """The arrays that a formula makes of a table. Every mistake is one line that names the place or the column.

    **Arguments:**

    - `formula`: see `provi.frontends.formula.syntax`. - `data`: a pandas or polars frame, or a dictionary of columns.
    - `weights`: the name of a column, or one number a row: how often a row counts.
    - `graphs`: those of `besag(region)` and `bym2(region)`, by column.
    - `namespace`: functions and variables of yours that the formula may use, such as knots.
    """
    parsed, own, known = parse_formula(formula), dict(namespace or {}), column_names(data)
    left = _columns((), parsed.response_names, known, own, "The formula names")
    right = _columns(parsed.columns, parsed.arguments, known, own, "The formula names")
    named = [weights] if isinstance(weights, str) else []
    check_columns(named, known, "weights names")
    rows = read_rows(data, tuple(dict.fromkeys([*left, *right, *named])))
    frame = rows.frame
    response = read_response(parsed, frame, own)
    if response.weights is not None and weights is not None:
        raise ValueError("Weights are in the formula and in weights=: give them once.")
    if weights is not None:
        response = dataclasses.replace(response, weights=_weights(weights, rows))
    fixed, encoding = make_encoding(parsed.fixed, frame, own)
    _check_constant(fixed, encoding)
    groups = read_groups(parsed.groups, frame, own)
    structured = tuple(read_structured(term, frame, graphs or {}, own, parsed.text) for term in parsed.structured)
    names = [part.name for part in (*groups, *structured)]
    repeated = repeated_names(names)
    if repeated:
        raise FormulaError(f"The formula has {repeated[0]} twice: leave one out: {parsed.text}")
    offset = _offset(parsed, frame, own)
    return Design(parsed, rows, response, fixed, encoding, groups, structured, offset, own)


def _columns(columns: Any, arguments: Any, known: Any, own: Mapping[str, Any], what: str) -> tuple[str, ...]:
    """Names that are columns; those inside of calls may be variables of the user, or functions, instead."""
    check_columns(columns, known, what)
    inside = [name for name in arguments if name in known or not (name in own or name in known_functions(own))]
    check_columns(inside, known, what)
    return tuple(dict.fromkeys([*columns, *inside]))


def _weights(weights: Any, rows: Rows) -> np.ndarray:
    if isinstance(weights, str):
        column = rows.frame[weights]
        if column.dtype != float:
            raise ValueError(f"weights: column {weights!r} must hold numbers, not texts.")
        return np.asarray(column, float)
    values = np.asarray(weights, float)
    if values.shape != rows.kept.shape:
        raise ValueError(f"weights has shape {values.shape}, but the data have {len(rows.kept)} rows.")
    return values[rows.kept]


def _check_constant(fixed: np.ndarray, encoding: Encoding) -> None:
    """A column that does not vary is told from the intercept by the prior alone: it is refused by name.

    Not so a combination of levels that does not occur, a:b, whose effect keeps its prior.
    """
    for place, name in enumerate(encoding.names):
        column = fixed[:, place]
        if name == "Intercept" or len(column) < 2 or np.ptp(column) > 0:
            continue
        if column[0] == 0 and ":" in name:
            continue
        if column[0] == 0 or "Intercept" in encoding.names:
            raise ValueError(f"{name!r} is constant, {column[0]:g} in all {len(column)} rows: leave it out.")


def _offset(parsed: ParsedFormula, frame: Any, namespace: Mapping[str, Any]) -> np.ndarray:
    total = np.zeros(len(frame))
    for expression in parsed.offsets:
        total = total + evaluate(expression, frame, namespace, f"offset({expression})")
    return total


def _note_unseen(unseen: dict[str, tuple[str, ...]], name: str, frame: Any, columns: Any, index: np.ndarray) -> None:
    new = frame.loc[index < 0, list(columns)].drop_duplicates()
    if len(new):
        levels = [tuple(row) if len(columns) > 1 else row[0] for row in new.itertuples(index=False, name=None)]
        unseen[name] = tuple(level_text(level) for level in levels)
