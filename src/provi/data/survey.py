"""The first pass over a table larger than memory: rows counted and checked, levels, means and scales learnt."""

import dataclasses
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from provi.core.limits import STREAM_MEMORY
from provi.data.blocks import Chunk, StreamError, column_of, is_number, numbers
from provi.data.encoded_rows import EncodedRows, row_tables
from provi.data.encoding import EncodedColumn
from provi.data.tables import MISSING, printable

_MOST_LEVELS, _MOST_DISTINCT, _NUMBERS = 1000, 64, 2**22


class Codes:
    """The levels of a category, sorted, and which of them each raw value is: learnt in the first pass."""

    def __init__(self, name: str) -> None:
        self.name, self.seen, self.counts = name, {}, {}
        self.levels: tuple[str, ...] = ()

    def learn(self, raw: Any, chunk: Chunk) -> None:
        """From some more rows."""
        for value, count in _counted(raw):
            text = _as_text(value)
            if text is None:
                row = int(np.argmax([_as_text(entry) is None for entry in _as_list(raw)]))
                raise StreamError(
                    f"{chunk.at(row)}: column {self.name!r} has no entry. Leave such rows or the column out."
                )
            self.seen[value], self.counts[text] = text, self.counts.get(text, 0) + count
        if len(self.seen) > _MOST_LEVELS:
            raise StreamError(
                f"{chunk.place}: column {self.name!r} has more than {_MOST_LEVELS} levels (such as "
                f"{next(iter(self.seen.values()))!r}): leave it out with columns=, or make numbers of it."
            )

    def settle(self) -> None:
        """Order the levels: as numbers where they are, else as texts."""
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.seen)
        texts = {text: value if numeric else text for value, text in self.seen.items()}
        self.levels = tuple(sorted(texts, key=lambda text: texts[text]))
        level = {text: place for place, text in enumerate(self.levels)}
        self._raw = list(self.seen)
        self._place = np.array([level[self.seen[value]] for value in self._raw])

    def places(self, raw: Any) -> np.ndarray:
        """The level of every row, from 0; what the first pass has not seen is an error."""
        if isinstance(raw, np.ndarray):
            order = np.argsort(self._raw)
            known = np.asarray(self._raw)[order]
            at = np.minimum(np.searchsorted(known, raw), len(known) - 1)
            if not np.array_equal(known[at], raw):
                raise StreamError(f"column {self.name!r} has a level that the first pass did not have.")
            return self._place[order][at]
        import pyarrow
        from pyarrow import compute

        plain = raw.dictionary_decode() if pyarrow.types.is_dictionary(raw.type) else raw
        options = compute.SetLookupOptions(pyarrow.array(self._raw, plain.type))
        found = compute.call_function("index_in", [plain], options)
        if found.null_count:
            raise StreamError(f"column {self.name!r} has a level that the first pass did not have.")
        return self._place[found.to_numpy(zero_copy_only=False)]


def _counted(raw: Any) -> list[tuple[Any, int]]:
    """The distinct values, and how often there is each."""
    if isinstance(raw, np.ndarray):
        values, counts = np.unique(raw, return_counts=True)
        return list(zip(values.tolist(), counts.tolist(), strict=True))
    found = raw.value_counts()
    return list(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))


def _as_list(raw: Any) -> list[Any]:
    return raw.tolist() if isinstance(raw, np.ndarray) else raw.to_pylist()


def _as_text(value: Any) -> str | None:
    """A level as a table's file would have it; None where the entry is missing."""
    if value is None or value != value:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.12g}"
    text = printable(str(value))
    return None if text in MISSING else text


class Moments:
    """Count, mean, sum of squares about the mean, and range of a column, from chunk after chunk in float64."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares, self.low, self.high = 0, 0.0, 0.0, np.inf, -np.inf

    def learn(self, values: np.ndarray) -> bool:
        """From some more numbers; False, and nothing learnt, where one is not finite."""
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):  # a NaN is both
            return False
        mean, count = float(values.mean(dtype=np.float64)), len(values)
        away = values - mean  # of float32 a number in between: rounding of the mean is put right below
        rest = float(away.mean(dtype=np.float64))
        squares = float(np.dot(away, away)) - count * rest**2
        apart, total = mean + rest - self.mean, self.count + count
        self.squares += squares + apart**2 * self.count * count / total
        self.mean, self.count = self.mean + apart * count / total, total
        self.low, self.high = min(self.low, low), max(self.high, high)
        return True

    @property
    def deviation(self) -> float:
        """The standard deviation, as NumPy's."""
        return float(np.sqrt(max(self.squares, 0.0) / self.count))


class Responses:
    """What a likelihood may ask of all responses: the distinct ones where they are few, else the extreme ones."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0
        self.distinct: set[float] | None = set()
        self.extremes: set[float] = set()

    def learn(self, values: np.ndarray) -> None:
        """From some more rows."""
        self.total, self.count = self.total + float(values.sum()), self.count + len(values)
        found = np.unique(values) if self.distinct is not None else values
        if self.distinct is not None:
            self.distinct |= set(found[: _MOST_DISTINCT + 1].tolist())
            if len(self.distinct) > _MOST_DISTINCT:
                self.distinct = None
        parts = (found, found[found > 0], found[found < 0])
        ends = {float(end) for part in parts if part.size for end in (part.min(), part.max())}
        kept = np.array(sorted(self.extremes | ends))
        parts = (kept, kept[kept > 0], kept[kept < 0])
        self.extremes = {float(end) for part in parts if part.size for end in (part.min(), part.max())}

    def values(self) -> np.ndarray:
        """In order."""
        return np.array(sorted(self.extremes if self.distinct is None else self.distinct))


def survey(
    source: Any,
    check: Callable[[np.ndarray, int], Any],
    *,
    categorical: Collection[str] = (),
    standardise: bool = False,
    intercept: bool = False,
    classes: bool = False,
    positive: str | None = None,
    dtype: Any = None,
    memory: int = STREAM_MEMORY,
    ahead: bool = True,
    drop_constant: bool = False,
) -> EncodedRows:
    """The first pass over a source: its rows counted and checked, levels, means and scales learnt.

    **Arguments:**

    - `check`: of a likelihood, `read_response(y, length)`, which raises where responses are none of its kind.
    - `categorical`: columns whose numbers are codes; texts and booleans are categories in any case.
    - `classes`: whether the responses are labels, of which `positive`, or the last of two, is 1; texts always are.
    - `drop_constant`: leave out columns that do not vary; else they are refused where they would be standardised.
    """
    stamps, absent = source.stamps(), sorted(set(categorical) - set(source.names))
    if absent:
        raise ValueError(f"categorical: there is no column {absent[0]!r} among those used.")
    about: list[Any] = []
    response: Any = None
    rows, seen, kinds, tables = 0, Responses(), set(), RowTables()
    for chunk in source.chunks(max(256, _NUMBERS // len(source.names))):
        if not about:
            about = [_about(source, chunk, k, name, categorical) for k, name in enumerate(source.names)]
            labelled = classes or positive is not None or not is_response(chunk.response)
            response = Codes(source.target) if labelled else None
        for number, (name, learnt) in enumerate(zip(source.names, about, strict=True)):
            raw = column_of(chunk, number, 0, len(chunk))
            if isinstance(learnt, Codes):
                learnt.learn(raw, chunk)
            else:
                values = numbers(raw)
                kinds.add(values.dtype)
                if not learnt.learn(values):
                    _refuse_entry(chunk, name, values)
        if response is not None:
            response.learn(chunk.response, chunk)
        else:
            _check_response(chunk, source.target, seen, check)
        tables.learn(chunk, source.extras)
        rows += len(chunk)
    if rows == 0:
        raise ValueError(f"{source.words} has no rows.")
    if tables.weights is not None and not tables.weights[1] > 0:
        raise ValueError(f"{source.words}: {_WEIGHTS}")
    kept = [k for k, learnt in enumerate(about) if not (drop_constant and _is_constant(learnt))]
    if len(kept) < len(about):
        if not kept:
            raise ValueError("No column is left that varies: features are needed beside the response.")
        names = tuple(source.names[k] for k in kept)
        source, about = dataclasses.replace(source, names=names), [about[k] for k in kept]
    features, codes, centres, spreads = [], [], [], []
    for name, learnt in zip(source.names, about, strict=True):
        features.append(_encoded(name, learnt, standardise, source.words))
        codes.append(learnt if isinstance(learnt, Codes) else None)
        if isinstance(learnt, Codes):
            shares = np.array([learnt.counts[level] / rows for level in learnt.levels[1:]])
            centres += shares.tolist()
            spreads += np.sqrt(shares * (1 - shares)).tolist()
        else:
            centres.append((learnt.mean - features[-1].centre) / features[-1].scale)
            spreads.append(learnt.deviation / features[-1].scale)
    labels = None if response is None else _labels(response, positive)
    ones = 0.0 if labels is None or response is None else response.counts[labels[1]]
    wide = dtype is None and any(kind.itemsize > 4 or kind.kind != "f" for kind in kinds)
    return EncodedRows(
        source=source,
        features=tuple(features),
        codes=tuple(codes),
        positive=response,
        labels=labels,
        intercept=intercept,
        num_rows=rows,
        dtype=np.dtype(np.float64 if wide else np.float32 if dtype is None else dtype),
        responses=np.array([0.0, 1.0]) if labels is not None else seen.values(),
        response_mean=(seen.total if labels is None else ones) / rows,
        centres=np.array(centres),
        spreads=np.array(spreads),
        memory=memory,
        ahead=ahead,
        offset=tables.offset,
        weights=tables.weights,
        table_mark=tables.mark,
        stamps=stamps,
    )


_WEIGHTS = "weights must not be negative, nor all zero: they say how often a row counts."


class RowTables:
    """The ends of the offsets and of the weights, and check sums; what they must not be is an error."""

    def __init__(self) -> None:
        self.offset: tuple[float, float] | None = None
        self.weights: tuple[float, float] | None = None
        self.mark = 0, 0

    def learn(self, chunk: Chunk, names: Mapping[str, str]) -> None:
        """From some more rows; `names`: of the columns, by kind."""
        for kind, name in names.items():
            if not is_response(chunk.extras[kind]):
                raise StreamError(f"{chunk.place}: column {name!r} is the {kind}, and must hold numbers.")
            values = numbers(chunk.extras[kind]).astype(np.float64)
            if not np.isfinite(values).all():
                _refuse_entry(chunk, name, values)
            wrong = {"exposure": values <= 0, "weights": values < 0}.get(kind, np.zeros(0, bool))
            if wrong.any():
                smallest = f"exposure must be positive; its smallest entry is {values.min():g}."
                said = _WEIGHTS if kind == "weights" else smallest
                raise StreamError(f"{chunk.at(int(np.argmax(wrong)))}, column {name!r}: {said}")
        found = row_tables(chunk, 0, len(chunk))
        self.offset, self.weights = _wider(self.offset, found[0]), _wider(self.weights, found[1])
        before, after = (
            crc if table is None else zlib.crc32(table.tobytes(), crc)
            for table, crc in zip(found, self.mark, strict=True)
        )
        self.mark = before, after


def _wider(ends: tuple[float, float] | None, values: np.ndarray | None) -> tuple[float, float] | None:
    if values is None:
        return None
    low, high = (np.inf, -np.inf) if ends is None else ends
    return min(low, float(values.min())), max(high, float(values.max()))


def is_response(raw: Any) -> bool:
    """Whether responses are numbers as they are; booleans are 0 and 1."""
    if isinstance(raw, np.ndarray):
        return raw.dtype.kind in "fiub"
    import pyarrow

    return is_number(raw) or pyarrow.types.is_boolean(raw.type)


def _about(source: Any, chunk: Chunk, number: int, name: str, categorical: Collection[str]) -> Any:
    raw = column_of(chunk, number, 0, 1)
    if name in categorical or not is_number(raw):
        if isinstance(raw, np.ndarray) and raw.dtype.kind not in "fiubUS":
            raise StreamError(f"{chunk.place}: column {name!r} must hold numbers, not dtype {raw.dtype}.")
        return Codes(name)
    return Moments()


def _check_response(chunk: Chunk, name: str, seen: Responses, check: Callable[[np.ndarray, int], Any]) -> None:
    values = numbers(chunk.response).astype(np.float64)
    if not np.isfinite(values).all():
        _refuse_entry(chunk, name, values)
    try:
        check(values, len(values))
    except ValueError as error:
        raise StreamError(f"{chunk.at(0)} to {chunk.first + len(chunk)}, column {name!r}: {error}") from None
    seen.learn(values)


def _refuse_entry(chunk: Chunk, name: str, values: np.ndarray) -> None:
    row = int(np.argmax(~np.isfinite(values)))
    raise StreamError(
        f"{chunk.at(row)}: column {name!r} is {values[row]}, missing or not finite. Leave such rows or the column out, "
        f"or fill them."
    )


def _is_constant(learnt: Any) -> bool:
    return len(learnt.seen) < 2 if isinstance(learnt, Codes) else learnt.low == learnt.high


def _encoded(name: str, learnt: Any, standardise: bool, words: str) -> EncodedColumn:
    if isinstance(learnt, Codes):
        learnt.settle()
        if len(learnt.levels) < 2:
            raise ValueError(f"{words}: column {name!r} has one level only, {''.join(learnt.levels)!r}: leave it out.")
        return EncodedColumn(name, learnt.levels)
    if not standardise:
        return EncodedColumn(name)
    if not 0 < learnt.deviation < np.inf:
        raise ValueError(
            f"{words}: column {name!r} lies between {learnt.low:g} and {learnt.high:g}, and cannot be standardised: "
            f"leave it out with columns=, or change its unit."
        )
    return EncodedColumn(name, None, learnt.mean, learnt.deviation)


def _labels(response: Codes, positive: str | None) -> tuple[str, str]:
    """What 0 and 1 stand for; the codes of the response become these."""
    response.settle()
    levels = response.levels
    listed = ", ".join(map(repr, levels[:6]))
    if len(levels) < 2:
        raise ValueError(f"Column {response.name!r} has one class only, {listed}: rows of two classes are needed.")
    if positive is None and len(levels) > 2:
        raise ValueError(
            f"Column {response.name!r} has {len(levels)} classes ({listed}): two are needed. Set one against the "
            f"others with positive=."
        )
    chosen = levels[-1] if positive is None else str(positive)
    if chosen not in levels:
        raise ValueError(f"Column {response.name!r} has no label {chosen!r} to be positive: its labels are {listed}.")
    response._place = (response._place == levels.index(chosen)).astype(int)
    other = next(level for level in levels if level != chosen) if len(levels) == 2 else f"not {chosen}"
    return other, chosen
