"""The left side of a formula: the response, with trials, censoring, weights, or the class that is one.

y, log(y)                                  numbers, counts or labels
y[yes]                                     the label that is 1
p(successes, trials), prop(...), successes | trials(n), cbind(successes, failures)
surv(time, event)                          event: 1 where it happened, 0 where the time is right-censored
censored(time, status)                     Bambi's: status is "none" or "right"
weighted(y, w), y | weights(w)             rows that count w times
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from provi.frontends.formula.fixed import evaluate
from provi.frontends.formula.syntax import (
    CallTerm,
    FormulaError,
    ParsedFormula,
    Token,
    Tokens,
    call_of,
    names_in,
    split_tokens,
    written,
)
from provi.frontends.formula.tables import column_names, read_rows

_TRIALS = ("p", "prop", "proportion")


@dataclasses.dataclass(frozen=True)
class Response:
    """The responses as they were given: numbers, or texts.

    - `name`: for people. - `positive`: the label that is 1, if one was named.
    - `levels`: of a pandas `Categorical` or polars `Enum`, in its order; None of other columns.
    - `trials`, `event`, `weights`: (rows,), or None. `event` is True where the time was observed.
    """

    name: str
    values: np.ndarray
    positive: str | None = None
    trials: np.ndarray | None = None
    event: np.ndarray | None = None
    weights: np.ndarray | None = None
    levels: tuple[Any, ...] | None = None


def read_response(parsed: ParsedFormula, frame: Any, namespace: Mapping[str, Any]) -> Response:
    """The response of each row of a table."""
    reader = _Reader(parsed.text, frame, namespace)
    first, *added = split_tokens(parsed.response, "|")
    found = reader.read(first)
    if len(added) > 1:
        raise FormulaError(f"The response has more than one |; join with +, y | trials(n) + weights(w): {parsed.text}")
    for part in split_tokens(added[0], "+") if added else ():
        found = reader.add(found, part)
    return found


def trials_of(parsed: ParsedFormula, data: Any, namespace: Mapping[str, Any]) -> np.ndarray | None:
    """The numbers of trials in a new table; None where the model has none, or the table is without them."""
    first, *added = split_tokens(parsed.response, "|")
    for part in (first, *(split_tokens(added[0], "+") if added else ())):
        call = call_of(parsed.text, part)
        if call is None or call.name not in (*_TRIALS, "trials", "cbind") or not call.arguments:
            continue
        arguments = call.arguments if call.name == "cbind" else call.arguments[-1:]
        names = [name for argument in arguments for group in names_in(argument) for name in group]
        if not set(names) <= set(column_names(data)):
            return None
        frame = read_rows(data, names, drop=False).frame
        reader = _Reader(parsed.text, frame, namespace)
        return np.sum([reader.numbers(argument, "the number of trials") for argument in arguments], axis=0)
    return None


@dataclasses.dataclass(frozen=True)
class _Reader:
    text: str
    frame: Any
    namespace: Mapping[str, Any]

    def read(self, tokens: Tokens) -> Response:
        """The response before any |."""
        name = written(tokens)
        if not tokens:
            raise FormulaError(f"There is no response before |: {self.text}")
        if len(tokens) == 1 and tokens[0].kind in ("name", "quoted"):
            return self.column(tokens[0].column)
        if len(tokens) == 4 and tokens[1].text == "[" and tokens[3].text == "]":
            column, label = tokens[0].column, tokens[2].text.strip("\"'`")
            return dataclasses.replace(self.column(column), positive=label)
        call = call_of(self.text, tokens)
        if call is None:
            return Response(name, self.numbers(tokens, "the response"))
        if call.name in (*_TRIALS, "cbind"):
            successes, other = (self.numbers(part, call.text) for part in self.two(call))
            return Response(written(call.arguments[0]), successes, trials=other + (call.name == "cbind") * successes)
        if call.name == "weighted":
            first, second = self.two(call)
            return dataclasses.replace(self.read(first), weights=self.numbers(second, "the weight"))
        if call.name in ("surv", "Surv", "censored"):
            first, second = self.two(call)
            event = self.event(call, second)
            return Response(written(first), self.numbers(first, "the time"), event=event)
        return Response(name, self.numbers(tokens, "the response"))

    def column(self, name: str) -> Response:
        """A column as it is."""
        values = self.frame[name]
        levels = tuple(values.cat.categories) if hasattr(values, "cat") else None
        return Response(name, np.asarray(values), levels=levels)

    def add(self, found: Response, tokens: Tokens) -> Response:
        """What stands behind |: trials(n), weights(w) or cens(c), as in brms."""
        call = call_of(self.text, tokens)
        if call is None or call.name not in ("trials", "weights", "cens") or len(call.arguments) != 1:
            raise FormulaError(f"Behind | of the response stand trials(n), weights(w) or cens(status): {self.text}")
        values = call.arguments[0]
        if call.name == "trials":
            return dataclasses.replace(found, trials=self.numbers(values, "the number of trials"))
        if call.name == "weights":
            return dataclasses.replace(found, weights=self.numbers(values, "the weight"))
        return dataclasses.replace(found, event=self.event(call, values))

    def event(self, call: CallTerm, tokens: Tokens) -> np.ndarray:
        """True where the event was observed."""
        column = self.frame[tokens[0].column] if len(tokens) == 1 and tokens[0].kind in ("name", "quoted") else None
        if call.name in ("surv", "Surv"):
            if column is not None and column.dtype != float:
                raise ValueError(f"{call.text}: the event must be 1 (it happened) or 0 (censored), not texts.")
            values = self.numbers(tokens, "the event")
            if not np.isin(values, (0, 1)).all():
                wrong = values[~np.isin(values, (0, 1))][0]
                raise ValueError(f"{call.text}: the event must be 1 (it happened) or 0 (censored), not {wrong:g}.")
            return values == 1
        if column is None or column.dtype == float:
            # 1 is "censored" to Bambi and brms, and "it happened" to R's Surv: never guessed.
            raise ValueError(
                f"{call.text}: the status must be texts, 'none' or 'right'. With numbers write surv(time, event), "
                f"where 1 says that the event happened."
            )
        status = np.asarray(column, object)
        wrong = sorted({str(value) for value in status} - {"none", "right"})
        if wrong:
            raise ValueError(f"{call.text}: the status must be 'none' or 'right', not {wrong[0]!r}.")
        return status == "none"

    def two(self, call: CallTerm) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
        """The two arguments of a call."""
        if len(call.arguments) != 2 or call.options:
            raise FormulaError(f"{call.text} must have two arguments: {self.text}")
        return call.arguments[0], call.arguments[1]

    def numbers(self, tokens: Tokens, what: str) -> np.ndarray:
        """The number of each row."""
        if len(tokens) == 1 and tokens[0].kind == "number":
            return np.full(len(self.frame), float(tokens[0].text))
        if len(tokens) == 1 and tokens[0].column in self.frame:
            column = self.frame[tokens[0].column]
            if column.dtype != float:
                raise ValueError(f"{what} must be numbers, but column {tokens[0].column!r} has texts: {self.text}")
            return np.asarray(column, float)
        return evaluate(written(tokens), self.frame, self.namespace, what)
