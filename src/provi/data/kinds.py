"""What a column holds that is neither a quantity nor a category: identifiers, dates, percentages.

A number of a row, a patient's number or a date enters a model without a word if nobody looks, and means nothing there.
What is recognised here is refused, with what to do, unless the user has asked for the column by name.
"""

import re
from typing import Any

import numpy as np

from provi.data.tables import Column, as_number, is_missing, is_numeric

_FEWEST = 20
"""Rows below which a run of numbers 1, 2, 3, ... is not taken for row numbers."""

_IDENTIFIER = re.compile(
    r"(?:.*[ _.-])?(?:id|ids|uid|uuid|guid|rownames?|row[ _.-]?(?:id|number|nr)|unnamed: \d+)", re.I
)
_CAMEL = re.compile(r".*[a-z0-9](?:ID|Id)")
_TIME = re.compile(
    r"(?:.*[ _.-])?(?:t|x|time|step|day|days|week|month|quarter|year|period|trend|age|dose|rank)s?", re.I
)
_EPOCH = re.compile(r"(?:.*[ _.-])?(?:ts|timestamp|epoch|unixtime|time|date|datetime|at)", re.I)

_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?"
_DAY = "|".join(
    (
        r"\d{4}([-/.])\d{1,2}\1\d{1,2}",  # 2026-11-16
        r"\d{1,2}([-/.])\d{1,2}\2(?:\d{4}|\d{2})",  # 16/11/2026, 16.11.26
        r"\d{4}-\d{2}",  # 2026-11
        r"\d{1,2}[ -](?:[A-Za-z]{3,9})\.?[ -]\d{2,4}",  # 16 Nov 2026
        r"[A-Za-z]{3,9}\.? \d{1,2},? \d{4}",  # Nov 16, 2026
    )
)
_DATE = re.compile(rf"(?:{_DAY})(?:[T ]+{_CLOCK}(?: ?(?:Z|UTC|[+-]\d{{2}}:?\d{{2}}))?)?|{_CLOCK}")
_PERCENT = re.compile(r"[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)? ?%")


def check_quantity(name: str, column: Column, alone: bool = False) -> None:
    """Refuse dates and identifiers; for columns that were not asked for by name.

    `alone`: whether it is the only column, which is then no row number.
    """
    first = _first_date(name, column)
    if first is not None:
        raise ValueError(
            f"Column {name!r} holds dates or times (the first {first}): write a number instead that may explain the "
            f"response, such as days since the first date, the month or the hour; leave the column out (--drop), or "
            f"make each date a category (--categorical)."
        )
    why = _identifier(name, column, alone)
    if why:
        raise ValueError(
            f"Column {name!r} {why}, an identifier and no quantity: leave it out (--drop), make it a category "
            f"(--categorical), or list it in --columns if it is a quantity after all."
        )


def is_date(column: Column, name: str = "") -> bool:
    """Whether every entry is a date or a time."""
    return _first_date(name, column) is not None


def _first_date(name: str, column: Column) -> Any:
    present = column[~is_missing(column)]
    if not len(present):
        return None
    if not is_numeric(column):
        return repr(present[0]) if all(_DATE.fullmatch(text) for text in present) else None
    whole = bool(np.all(present == np.round(present)))
    if whole and len(np.unique(present)) > 2 and _are_days(present):
        return f"{present[0]:.0f}"
    # Seconds or milliseconds since 1970, of the years 1989 to 2096, in a column whose name speaks of time.
    seconds = present / 1e3 if np.min(present) > 6e11 else present
    if _EPOCH.fullmatch(name) and np.min(seconds) > 6e8 and np.max(seconds) < 4e9 and len(np.unique(present)) > 2:
        return f"{present[0]:.0f}, seconds since 1970"
    return None


def _are_days(values: np.ndarray) -> bool:
    """Whether all are days written as 20261116."""
    year, month, day = values // 10_000, values // 100 % 100, values % 100
    inside = (year >= 1900) & (year < 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    return bool(inside.all())


def _identifier(name: str, column: Column, alone: bool) -> str:
    """Why a column is one; empty where it is none."""
    if not is_numeric(column):
        return ""  # texts that are all different are no category: `provi.data.encoding.check_category`
    present = column[~is_missing(column)]
    different = len(np.unique(present))
    if not np.all(present == np.round(present)) or different <= 2:
        return ""
    if _IDENTIFIER.fullmatch(name) or _CAMEL.fullmatch(name):
        return "is called an id and holds whole numbers"
    first, last = present.min(), present.max()
    run = different == len(present) >= _FEWEST and first in (0, 1) and last - first == different - 1
    return f"numbers the rows from {first:.0f} to {last:.0f}" if run and not (alone or _TIME.fullmatch(name)) else ""


def percent_numbers(column: Column) -> Column | None:
    """The numbers of a column of percentages, 12 for "12%"; None for any other column."""
    if is_numeric(column):
        return None
    texts = [None if text is None else str(text) for text in column]
    if not any(texts) or not all(text is None or _PERCENT.fullmatch(text) for text in texts):
        return None
    numbers = [np.nan if text is None else as_number(text.rstrip("% ").replace(",", ".")) for text in texts]
    return None if any(number is None for number in numbers) else np.array(numbers, np.float64)
