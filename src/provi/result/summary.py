"""A table of marginals by name; in the model's own space: what is a free coordinate exactly, the rest from draws."""

import dataclasses
import difflib
import io
import itertools
import math
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from provi.certificates.distance.bound import Deferred
from provi.core.notebook import as_html
from provi.targets.parameters import element_names

if TYPE_CHECKING:
    from provi.result.posterior import Posterior

_DRAWS, _FEWEST_DRAWS, _SEED = 10_000, 100, 0
_NUMBERS = 2**25  # draws of all parameters together, 256 MiB; fewer draws of many parameters
_AT_ONCE = 1000
_LISTED = 4
_FOLDED, _HEAD = 12, 5  # values of a deterministic from which one line stands for them; rows of a long vector
_FROM_DRAWS = "From draws: intervals of a fixed seed, means and deviations where the family has no formula."
_KINDS = ("all", "parameters", "deterministics")
_LARGEST_CHECK = 10**6  # numbers in the target up to which a summary computes k-hat without being asked
_FIRST_CHECK, _SECOND_CHECK, _PROVEN_ERROR = 1000, 10_000, 0.2


@dataclasses.dataclass(frozen=True)
class Variable:
    """Consecutive rows of a summary that are one variable of the model; `deterministic`: computed of the parameters."""

    name: str
    size: int
    deterministic: bool = False


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of marginals; prints itself, `to_dict()` for code. `notes`: lines that stand under the table.

    - `variables`: which rows are one variable, in their order; empty where that is not known.
    - `complete`: whether every row is printed, as of rows that were asked for by name.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    standard_deviation: np.ndarray
    interval: np.ndarray
    probability: float
    notes: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()
    complete: bool = False

    def to_dict(self) -> dict[str, dict[str, float]]:
        """name -> {"mean", "sd", "low", "high"}."""
        columns = zip(self.names, self.mean, self.standard_deviation, self.interval, strict=True)
        return {
            name: {"mean": float(mean), "sd": float(sd), "low": float(low), "high": float(high)}
            for name, mean, sd, (low, high) in columns
        }

    def select(self, var_names: str | Sequence[str] | None = None, kind: str = "all") -> "Summary":
        """The rows of these variables or with these names, parameters before deterministics.

        **Arguments:**

        - `var_names`: a name or several, of variables or of single rows; `"~mu"` is all but mu, as in ArviZ.
        - `kind`: `"all"`, `"parameters"`, or `"deterministics"`, which the model computes of its parameters.
        """
        if kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}, not {kind!r}.")
        owners = [variable for variable in self._groups() for _ in range(variable.size)]
        wanted = _wanted(self.names, [owner.name for owner in owners], var_names)
        computed = [owner.deterministic for owner in owners]
        rows = [row for row in wanted if not computed[row] and kind != "deterministics"]
        rows += [row for row in wanted if computed[row] and kind != "parameters"]
        runs = itertools.groupby(owners[row] for row in rows)
        return dataclasses.replace(
            self,
            names=tuple(self.names[row] for row in rows),
            mean=self.mean[rows],
            standard_deviation=self.standard_deviation[rows],
            interval=self.interval[rows],
            variables=tuple(dataclasses.replace(owner, size=len(list(run))) for owner, run in runs),
            complete=var_names is not None,
        )

    def _groups(self) -> tuple[Variable, ...]:
        """The variables; where they are not known, rows whose names are the same up to a bracket."""
        if self.variables:
            return self.variables
        runs = itertools.groupby(name.partition("[")[0] if name.endswith("]") else name for name in self.names)
        return tuple(Variable(stem, len(list(run))) for stem, run in runs)

    def table(self, largest: int = 40) -> Table:
        """A rich table of about `largest` rows at most; `select` and `to_dict` have all of them.

        A deterministic of many values is one line, and of a long vector among other variables the first rows stand.
        """
        tail = 50 * (1 - self.probability)
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("parameter")
        for name in ("mean", "sd", f"{tail:g}%", f"{100 - tail:g}%"):
            table.add_column(name, justify="right")
        numbers = np.column_stack([self.mean, self.standard_deviation, self.interval])
        for row in self._shown(len(self.names) if self.complete else largest):
            # A `Text`, so that brackets in a name are no markup, whatever console prints the table.
            if isinstance(row, str):
                table.add_row(Text(row), "", "", "", "")
            else:
                table.add_row(Text(self.names[row]), *(f"{value:.3f}" for value in numbers[row]))
        return table

    def _shown(self, largest: int) -> Iterator[int | str]:
        """The places of the rows to print, and lines that stand for several."""
        groups, start, left = self._groups(), 0, largest
        alone = len(groups) == 1
        for group in groups:
            rows, start = range(start, start + group.size), start + group.size
            asked = f"see var_names={group.name!r}"
            if group.deterministic and group.size > _FOLDED and not self.complete:
                yield f"{group.name}: {group.size} values, {asked}"
                continue
            long = group.size > largest and not alone
            listed = rows[: min(_HEAD if long else group.size, left)]
            yield from listed
            left -= len(listed)
            if long and left:
                yield f"... {group.size - len(listed)} more of {group.name}, {asked}"
            elif len(listed) < group.size:
                yield f"... {len(self.names) - listed.start - len(listed)} more"
                return

    def _repr_html_(self) -> str:
        return as_html(self.table(), *self.notes)

    def __str__(self) -> str:
        console = Console(width=100, file=io.StringIO())
        console.print(self.table())
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def _wanted(names: Sequence[str], owners: Sequence[str], var_names: str | Sequence[str] | None) -> list[int]:
    """The rows that `var_names` asks for, in their order in the table; a `ValueError` for a name that is none."""
    asked = [var_names] if isinstance(var_names, str) else list(var_names or ())
    left_out = [name[1:] for name in asked if name.startswith("~") and name not in names]
    kept = [name for name in asked if name.removeprefix("~") not in left_out]
    for name in (*kept, *left_out):
        if name not in names and name not in owners:
            known = list(dict.fromkeys([*owners, *names]))
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {_listed(known)}."
            raise ValueError(f"var_names has {name!r}, which is no variable of this fit: {hint}")
    rows = []
    for row, pair in enumerate(zip(names, owners, strict=True)):
        if (not kept or not set(kept).isdisjoint(pair)) and set(left_out).isdisjoint(pair):
            rows.append(row)
    return rows


def summarise_model_space(
    posterior: "Posterior",
    free: Summary,
    known: Summary | None = None,
    var_names: str | Sequence[str] | None = None,
    kind: str = "all",
) -> Summary:
    """The summary in the space of `posterior.target.constrain`; `free` is that of the free coordinates.

    A parameter counts as a free coordinate where both have the same name and every draw is the same: a name alone may
    be the user's word for something else. `known`: rows in the model's own space that need no draws. The other
    arguments are those of `Summary.select`.
    """
    target, dim = posterior.target, len(free.names)
    names = target.constrained_names
    trial = posterior.sample(3, _SEED)
    example = target.constrain(trial)
    variables = _variables(example, target.parameter_variables)
    if names == free.names and _same(_columns(example), trial):
        notes = () if posterior.exact_moments else (_FROM_DRAWS,)
        return dataclasses.replace(free, variables=variables, notes=notes).select(var_names, kind)
    num_draws = int(np.clip(_NUMBERS // max(len(names), dim), _FEWEST_DRAWS, _DRAWS))
    z = posterior.sample(num_draws, _SEED)
    parts = [_columns(target.constrain(z[i : i + _AT_ONCE])) for i in range(0, num_draws, _AT_ONCE)]
    values = np.concatenate(parts)
    tail = (1 - free.probability) / 2
    with np.errstate(all="ignore"):  # a value that is not finite makes its own row NaN, no other
        mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
        interval = np.quantile(values, [tail, 1 - tail], axis=0).T
    place = {name: index for index, name in enumerate(free.names)}
    given = {} if known is None else {name: index for index, name in enumerate(known.names)}
    # A form of the model that was recognised calls its entries by number, whatever labels the model has.
    numbered = element_names(jax.tree.map(lambda leaf: leaf[0], example))
    drawn = set()
    for index, name in enumerate(names):
        own, other = (next((n for n in (name, numbered[index]) if n in found), None) for found in (given, place))
        if known is not None and own is not None:
            mean[index], deviation[index] = known.mean[given[own]], known.standard_deviation[given[own]]
            interval[index] = known.interval[given[own]]
        elif other is not None and posterior.exact_moments and _same(values[:, index], z[:, place[other]]):
            mean[index], deviation[index] = free.mean[place[other]], free.standard_deviation[place[other]]
            interval[index] = free.interval[place[other]]
        else:
            drawn.add(name)
    found = Summary(names, mean, deviation, interval, free.probability, variables=variables).select(var_names, kind)
    return dataclasses.replace(found, notes=_draw_notes(found, drawn, num_draws))


def _draw_notes(found: Summary, drawn: Container[str], num_draws: int) -> tuple[str, ...]:
    """Which of the rows are from draws, and which are not finite in some of them."""
    inexact = [name for name in found.names if name in drawn]
    notes = []
    if inexact:
        which = f": {_listed(inexact)}. The other rows are exact." if len(inexact) < len(found.names) else "."
        notes.append(f"From {num_draws:,} draws{which}")
    broken = [name for name, value in zip(found.names, found.mean, strict=True) if not math.isfinite(value)]
    if broken:
        notes.append(f"Not finite in some draws: {_listed(broken)}.")
    return tuple(notes)


def parameter_values(target: Any, z: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Names, and a column for each value of the parameters in the model's own space; no deterministics."""
    found = target.constrain(z)
    kept = [
        i
        for i, owner in enumerate(
            [owner for owner in _variables(found, target.parameter_variables) for _ in range(owner.size)]
        )
        if not owner.deterministic
    ]
    names = target.constrained_names
    return [names[i] for i in kept], _columns(found)[:, kept]


def _variables(example: Any, parameters: Container[str] | None) -> tuple[Variable, ...]:
    """The leaves of draws in the model's own space, as variables."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(example):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "z"
        found.append(Variable(name, int(np.prod(leaf.shape[1:])), parameters is not None and name not in parameters))
    return tuple(found)


def content_note(posterior: "Posterior", probability: float) -> tuple[str, ...]:
    """A line on what the intervals hold of the posterior, where the bound says something; computed where cheap."""
    distance = posterior.distance
    large = _size(posterior) > _LARGEST_CHECK
    if isinstance(distance, Deferred) and (distance.slow or (large and not distance.known)):
        return ()
    found = posterior.bound
    if found is None or not found.informative:
        return ()
    return (f"{found.content_words(probability)} ({found.status}, confidence {found.confidence:g}).",)


def _size(posterior: "Posterior") -> int:
    if getattr(posterior.target, "stream", None) is not None:  # every draw reads all rows
        return int(np.prod(posterior.target.stream.shape))
    return sum(np.size(leaf) for leaf in jax.tree.leaves(posterior.target))


def tail_warning(posterior: "Posterior") -> tuple[str, ...]:
    """A line where k-hat is bad. It is computed here where that is cheap, else only used where it is known.

    Where a bound proves that no probability is off by much there is nothing to warn of, and no draws are spent.

    The standard error of k-hat is about (1 + k)/sqrt(3 sqrt(S)), 0.17 at S = 1000: what looks bad with few draws is
    looked at again with ten times as many.
    """
    found, distance = posterior.latest_diagnosis, posterior.distance
    ready = distance is not None and (not isinstance(distance, Deferred) or distance.known)
    bound = posterior.bound if ready and found is None else None
    if bound is not None and bound.status == "proven" and bound.total_variation <= _PROVEN_ERROR:
        return ()
    if _size(posterior) <= _LARGEST_CHECK and (found is None or found.num_draws < _SECOND_CHECK):
        try:
            found = posterior.diagnose(_FIRST_CHECK)
            found = posterior.diagnose(_SECOND_CHECK) if not found.adequate else found
        except ValueError as error:
            return (f"Warning: k-hat could not be computed: {error}",)
    return (f"Warning: {found.advice}",) if found is not None and not found.adequate else ()


def _columns(values: Any) -> np.ndarray:
    """Draws of a pytree as one row a draw, leaves in their order."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(values)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _same(values: np.ndarray, others: np.ndarray) -> bool:
    return values.shape == others.shape and np.allclose(values, others, rtol=1e-6, atol=0)


def _listed(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
