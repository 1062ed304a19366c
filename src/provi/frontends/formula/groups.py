"""Terms that vary by group, (1 + x | g): for each row the place of its level and the covariates of its effects."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from provi.frontends.formula.fixed import Encoding, make_encoding
from provi.frontends.formula.syntax import GroupTerm
from provi.frontends.formula.tables import pandas_module


@dataclasses.dataclass(frozen=True)
class Factor:
    """The levels of a grouping factor: one or more columns; `levels` are sorted, tuples where columns are crossed."""

    columns: tuple[str, ...]
    levels: tuple[Any, ...]

    @property
    def name(self) -> str:
        """`a:b` for crossed columns."""
        return ":".join(self.columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """The levels as texts, `u:v` for crossed columns."""
        return tuple(level_text(level) for level in self.levels)

    def index(self, frame: Any) -> np.ndarray:
        """For each row of a table the place of its level; -1 for the first level that is new, -2 for the second, ..."""
        known, codes = self._coded
        found = np.zeros(len(frame), np.int64)
        new = np.zeros(len(frame), bool)
        for column, levels in zip(self.columns, known, strict=True):
            place = _places(frame[column], levels)
            new |= place < 0
            found = found * len(levels) + place
        place = np.clip(np.searchsorted(codes, found), 0, len(codes) - 1)
        new |= codes[place] != found
        place[new] = -1 - frame.loc[new, list(self.columns)].groupby(list(self.columns), sort=False).ngroup()
        return place

    @property
    def _coded(self) -> tuple[list[list[Any]], np.ndarray]:
        """The levels of each column, and the number of each level of the factor in mixed radix, ascending."""
        parts = [level if len(self.columns) > 1 else (level,) for level in self.levels]
        known = [list(dict.fromkeys(sorted({part[k] for part in parts}))) for k in range(len(self.columns))]
        codes = np.zeros(len(parts), np.int64)
        for k, levels in enumerate(known):
            where = {level: place for place, level in enumerate(levels)}
            codes = codes * len(levels) + np.array([where[part[k]] for part in parts])
        return known, codes


@dataclasses.dataclass(frozen=True)
class Group:
    """A term that varies by the levels of a factor, with the data of its rows.

    - `name`: that of the factor; the second block of a factor is `g.1`, as lme4 has it.
    - `index`: (rows,). - `covariates`: (rows, effects), None for an intercept alone. - `effects`: their names.
    - `correlated`: whether the effects of a level are correlated, (1 + x | g), or not, (1 + x || g).
    """

    name: str
    factor: Factor
    index: np.ndarray
    covariates: np.ndarray | None
    effects: tuple[str, ...]
    correlated: bool
    encodings: tuple[Encoding, ...]

    def encode(self, frame: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """`index`, with -1 for new levels, and `covariates` of a new table."""
        index = self.factor.index(frame)
        if self.covariates is None:
            return index, None
        return index, np.concatenate([encoding.encode(frame) for encoding in self.encodings], axis=1)

    @property
    def words(self) -> str:
        """`g (12 levels): Intercept, x`."""
        return f"{self.factor.name} ({len(self.factor.levels)} levels): {', '.join(self.effects)}"


def read_groups(terms: Sequence[GroupTerm], frame: Any, namespace: Mapping[str, Any]) -> tuple[Group, ...]:
    """The group terms with their data; uncorrelated terms of one factor become one, (1 | g) + (0 + x | g)."""
    factors = {columns: _factor(columns, frame) for columns in dict.fromkeys(term.columns for term in terms)}
    found: list[Group] = []
    for term in terms:
        factor = factors[term.columns]
        covariates, encoding = make_encoding(term.effects, frame, namespace)
        if not encoding.names:
            raise ValueError(f"{term.text} has no effect: write (1 | {factor.name}).")
        alone = encoding.names == ("Intercept",)
        _check_varying(term, covariates, encoding)
        correlated = term.correlated and len(encoding.names) > 1
        found.append(
            Group(
                factor.name, factor, factor.index(frame), None if alone else covariates, encoding.names, correlated,
                (encoding,),
            )
        )  # fmt: skip
    return _named(_merged(found))


def level_text(level: Any) -> str:
    """A level for people: 3 and not 3.0, u:v for a pair."""
    if isinstance(level, tuple):
        return ":".join(level_text(part) for part in level)
    return f"{level:.12g}" if isinstance(level, float) else str(level)


def _factor(columns: tuple[str, ...], frame: Any) -> Factor:
    repeated = len(set(columns)) < len(columns)
    if repeated:
        raise ValueError(f"The grouping factor {':'.join(columns)} names a column twice.")
    known = [_levels(frame[column]) for column in columns]
    for column, levels in zip(columns, known, strict=True):
        if len(levels) < 2:
            raise ValueError(
                f"The grouping factor {column!r} has one level only, {level_text(levels[0])!r}: how much levels differ "
                f"cannot be learnt from it. Leave the term out."
            )
    if len(columns) == 1:
        return Factor(columns, tuple(known[0]))
    codes = np.zeros(len(frame), np.int64)
    for column, levels in zip(columns, known, strict=True):
        codes = codes * len(levels) + _places(frame[column], levels)
    pairs = []
    for code in np.unique(codes):
        parts = []
        for levels in reversed(known):
            code, place = divmod(code, len(levels))
            parts.append(levels[place])
        pairs.append(tuple(reversed(parts)))
    return Factor(columns, tuple(pairs))


def _levels(column: Any) -> list[Any]:
    """The levels of a column, sorted."""
    return sorted(column.unique().tolist())


def _places(column: Any, levels: Sequence[Any]) -> np.ndarray:
    """The place of each entry among the levels, -1 where it is none of them; the text "1" is not the number 1."""
    values = column.astype(object) if hasattr(column, "cat") else column
    return np.asarray(pandas_module().Index(levels).get_indexer(values), np.int64)


def _check_varying(term: GroupTerm, covariates: np.ndarray, encoding: Encoding) -> None:
    if "Intercept" not in encoding.names:
        return
    for name, column in zip(encoding.names, covariates.T, strict=True):
        if name != "Intercept" and np.ptp(column) == 0:
            raise ValueError(f"In {term.text}, {name!r} is constant ({column[0]:g}): leave it out.")


def _merged(groups: Sequence[Group]) -> list[Group]:
    """(1 | g) + (0 + x | g) as (1 + x || g): one block a factor keeps the system of the levels small."""
    found: list[Group] = []
    for group in groups:
        place = next(
            (i for i, other in enumerate(found) if other.factor is group.factor and not other.correlated), None
        )
        if place is None or group.correlated:
            found.append(group)
            continue
        other = found[place]
        twice = set(other.effects) & set(group.effects)
        if twice:
            raise ValueError(f"{sorted(twice)[0]} varies by {group.factor.name} twice: leave one of the terms out.")
        both = np.concatenate([_columns(other), _columns(group)], axis=1)
        found[place] = dataclasses.replace(
            other, covariates=both, effects=other.effects + group.effects, encodings=other.encodings + group.encodings
        )
    return found


def _columns(group: Group) -> np.ndarray:
    return np.ones((len(group.index), 1)) if group.covariates is None else group.covariates


def _named(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Names of their own: `g`, and `g.1` for a second block of the same factor."""
    found: list[Group] = []
    for group in groups:
        same = [other for other in found if other.factor is group.factor]
        repeated = [effect for other in same for effect in other.effects if effect in group.effects]
        if repeated:
            raise ValueError(f"{repeated[0]} varies by {group.factor.name} twice: leave one of the terms out.")
        found.append(dataclasses.replace(group, name=f"{group.name}.{len(same)}" if same else group.name))
    return tuple(found)
