"""Structured terms: rw1(t), rw2(t), ar1(t), seasonal(t, period=12), besag(region), bym2(region), gp(x).

Each becomes a block of `provi.targets.latent`. A term in time has a level for every step of its grid, also for those
without a row: years 2001, 2002 and 2004 are four levels. One on a graph has a level for every vertex.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from provi.core.arguments import check_count
from provi.frontends.formula.groups import level_text
from provi.frontends.formula.syntax import CallTerm, FormulaError, nearest, written

_IN_TIME, _ON_GRAPH = ("rw1", "rw2", "ar1", "seasonal"), ("besag", "bym2")
_OPTIONS = {
    "rw1": ("bins", "until"), "rw2": ("bins", "until"), "ar1": ("bins", "until"), "seasonal": ("period", "until"),
    "besag": (), "bym2": (), "gp": ("kernel",),
}  # fmt: skip
_MOST_LEVELS = 100_000


@dataclasses.dataclass(frozen=True)
class Structured:
    """A structured term with the data of its rows.

    - `kind`: "rw1", ... - `name`: its text, `rw1(year)`. - `columns`: what it is a function of.
    - `index`: (rows,) the level of each row. - `levels`: numbers in time, labels on a graph; for `gp` the inputs.
    - `edges`: (E, 2) pairs of places, on a graph. - `options`: `period`, `kernel`. - `step`: of the grid, in time.
    """

    kind: str
    name: str
    columns: tuple[str, ...]
    index: np.ndarray
    levels: Any
    edges: np.ndarray | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    step: float = 1.0

    @property
    def labels(self) -> tuple[str, ...]:
        """The levels as texts."""
        if self.kind == "gp":
            return tuple(", ".join(f"{value:.6g}" for value in row) for row in self.levels)
        return tuple(level_text(level) for level in self.levels)

    @property
    def words(self) -> str:
        """`rw1(year): 14 levels from 2001 to 2014`."""
        if self.kind in _ON_GRAPH and self.edges is not None:
            return f"{self.name}: {len(self.levels)} levels, {len(self.edges)} edges"
        if self.kind == "gp":
            return f"{self.name}: {len(self.levels)} different inputs"
        return f"{self.name}: {len(self.levels)} levels from {self.labels[0]} to {self.labels[-1]}"

    def block(self, scale: Any = None, **priors: Any) -> Any:
        """The block of `provi.targets.latent`; `scale`: the prior of its standard deviation."""
        from provi import kernels
        from provi.targets import latent

        if self.kind == "gp":
            kernel = getattr(kernels, self.options["kernel"])(1.0, 1.0)
            inputs = np.asarray(self.levels)[self.index]
            return latent.GaussianProcess(inputs, kernel, name=self.name, **priors)
        shared = {"size": len(self.levels), "scale": scale, "name": self.name, "levels": self.labels, **priors}
        match self.kind:
            case "rw1" | "rw2":
                return latent.RandomWalk(self.index, int(self.kind[-1]), **shared)
            case "ar1":
                return latent.AR1(self.index, **shared)
            case "seasonal":
                return latent.Seasonal(self.index, self.options["period"], **shared)
            case "besag":
                return latent.Besag(self.index, self.edges, **shared)
            case _:
                return latent.BYM2(self.index, self.edges, **shared)

    def encode(self, frame: Any) -> np.ndarray:
        """The level of each row of a new table, -1 where there is none; of `gp`, the inputs (rows, d) themselves."""
        if self.kind == "gp":
            return _inputs(self.name, self.columns, frame)
        column = frame[self.columns[0]]
        if self.kind in _ON_GRAPH:
            where = {label: place for place, label in enumerate(self.labels)}
            return np.array([where.get(level_text(value), -1) for value in column], np.int64)
        place = np.rint((_numbers(self.name, column) - self.levels[0]) / self.step).astype(np.int64)
        outside = (place < 0) | (place >= len(self.levels))
        if not self.options.get("bins"):
            outside |= np.abs(self.levels[np.clip(place, 0, len(self.levels) - 1)] - column) > 1e-6 * self.step
        return np.where(outside, -1, place)


def read_structured(
    term: CallTerm, frame: Any, graphs: Mapping[str, Any], namespace: Mapping[str, Any], formula: str
) -> Structured:
    """A structured term with its data; `graphs`: by column, edges, a dictionary of neighbours or an adjacency frame."""
    options = _options(term, namespace, formula)
    columns = []
    for argument in term.arguments:
        if len(argument) != 1 or argument[0].kind not in ("name", "quoted"):
            raise FormulaError(f"{term.text}: {written(argument)!r} is no column: {formula}")
        columns.append(argument[0].column)
    if not columns or (len(columns) > 1 and term.name != "gp"):
        raise FormulaError(f"{term.text} must name one column: {formula}")
    name = f"{term.name}({', '.join(columns)})"
    if term.name == "gp":
        inputs = _inputs(name, columns, frame)
        levels, index = np.unique(inputs, axis=0, return_inverse=True)
        return Structured("gp", name, tuple(columns), index.reshape(-1), levels, options=options)
    if term.name in _ON_GRAPH:
        return _on_graph(term.name, name, columns[0], frame, graphs)
    return _in_time(term.name, name, columns[0], frame, options)


def _number(key: str, text: str, namespace: Mapping[str, Any]) -> float:
    try:
        return float(namespace.get(text, text))
    except (TypeError, ValueError):
        raise ValueError(f"{key} must be a number, not {text}.") from None


def _options(term: CallTerm, namespace: Mapping[str, Any], formula: str) -> dict[str, Any]:
    known, found = _OPTIONS[term.name], {}
    for key, value in term.options.items():
        if key not in known:
            have = f"its options are {', '.join(known)}" if known else "it has no options"
            raise FormulaError(f"{term.text} has no option {key!r}; {have}: {formula}")
        if key == "kernel":
            found[key] = _kernel(written(value).strip("\"'"))
        else:
            number = _number(key, written(value), namespace)
            found[key] = check_count(key, number, 2) if key in ("bins", "period") else number
    if term.name == "seasonal" and "period" not in found:
        raise FormulaError(f"{term.text} needs a period, seasonal(month, period=12): {formula}")
    if term.name == "gp":
        found.setdefault("kernel", "SquaredExponential")
    return found


def _kernel(name: str) -> str:
    known = ("SquaredExponential", "Matern12", "Matern32", "Matern52")
    if name not in known:
        raise ValueError(f"gp: kernel must be one of {', '.join(known)}, not {name!r}.{nearest(name, known)}")
    return name


def _numbers(name: str, column: Any) -> np.ndarray:
    if column.dtype != float:
        raise ValueError(f"{name}: column {column.name!r} must hold numbers, not texts.")
    return np.asarray(column, float)


def _inputs(name: str, columns: Any, frame: Any) -> np.ndarray:
    return np.stack([_numbers(name, frame[column]) for column in columns], axis=1)


def _in_time(kind: str, name: str, column: str, frame: Any, options: dict[str, Any]) -> Structured:
    values = _numbers(name, frame[column])
    unique = np.unique(values)
    if len(unique) < 3:
        raise ValueError(f"{name} needs three different values at least; column {column!r} has {len(unique)}.")
    last = max(float(options.get("until", unique[-1])), unique[-1])
    if "bins" in options:
        step = (unique[-1] - unique[0]) / (options["bins"] - 1)
    else:
        step = float(np.diff(unique).min())
        off = np.abs((unique - unique[0]) / step - np.rint((unique - unique[0]) / step)).max()
        if off > 1e-6 or (last - unique[0]) / step > max(20 * len(unique), 100):
            raise ValueError(
                f"{name}: the values of {column!r} are on no even grid (the least step is {step:.4g} in a range of "
                f"{unique[-1] - unique[0]:.4g}): round them, or write {kind}({column}, bins=50)."
            )
    count = int(np.rint((last - unique[0]) / step)) + 1
    if count > _MOST_LEVELS:
        raise ValueError(f"{name} has {count} levels, more than {_MOST_LEVELS}: round the values of {column!r}.")
    levels = unique[0] + step * np.arange(count)
    index = np.rint((values - unique[0]) / step).astype(np.int64)
    return Structured(kind, name, (column,), index, levels, options=options, step=step)


def _on_graph(kind: str, name: str, column: str, frame: Any, graphs: Mapping[str, Any]) -> Structured:
    if column not in graphs:
        raise ValueError(
            f"{name} needs its graph: MixedModel(..., graphs={{{column!r}: edges}}).{nearest(column, graphs)}"
        )
    given = [level_text(value) for value in frame[column]]
    pairs = _pairs(column, graphs[column])
    vertices = {label for pair in pairs for label in pair}
    if isinstance(graphs[column], Mapping):
        vertices |= {_label(label) for label in graphs[column]}
    absent = sorted(set(given) - vertices)
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise ValueError(
            f"{name}: {absent[0]!r}{more} of column {column!r} is not in its graph.{nearest(absent[0], vertices)}"
        )
    numeric = all(_is_number(label) for label in vertices)
    labels = sorted(vertices, key=float if numeric else str)
    where = {label: place for place, label in enumerate(labels)}
    edges = np.array([[where[first], where[second]] for first, second in pairs if first != second]).reshape(-1, 2)
    index = np.array([where[label] for label in given], np.int64)
    return Structured(kind, name, (column,), index, tuple(labels), edges=np.unique(np.sort(edges, axis=1), axis=0))


def _pairs(column: str, graph: Any) -> list[tuple[str, str]]:
    """Edges as pairs of labels: from pairs, from a dictionary of neighbours, or from a frame with labels."""
    if isinstance(graph, Mapping):
        return [(_label(first), _label(second)) for first, near in graph.items() for second in near]
    if hasattr(graph, "index") and hasattr(graph, "columns") and list(graph.index) == list(graph.columns):
        rows, columns = np.nonzero(np.asarray(graph))
        return [(_label(graph.index[i]), _label(graph.index[j])) for i, j in zip(rows, columns, strict=True)]
    pairs = [tuple(pair) for pair in (graph.edges if hasattr(graph, "edges") else np.asarray(graph, object))]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"graphs[{column!r}] must be pairs of neighbours, a dictionary of neighbours, or an adjacency frame with "
            f"labels."
        )
    return [(_label(first), _label(second)) for first, second in pairs]


def _label(value: Any) -> str:
    return level_text(value if isinstance(value, str) else value.item() if hasattr(value, "item") else value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
