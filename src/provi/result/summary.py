"""A table of marginals by name; in the model's own space: what is a free coordinate exactly, the rest from draws."""

import dataclasses
import io
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from provi.certificates.distance.bound import Deferred
from provi.diagnostics.importance import ImportanceDiagnostics

if TYPE_CHECKING:
    from provi.result.posterior import Posterior

_DRAWS, _FEWEST_DRAWS, _SEED = 10_000, 100, 0
_NUMBERS = 2**25  # draws of all parameters together, 256 MiB; fewer draws of many parameters
_AT_ONCE = 1000
_LISTED = 4
_LARGEST_CHECK = 10**6  # numbers in the target up to which a summary computes k-hat without being asked
_FIRST_CHECK, _SECOND_CHECK = 1000, 10_000


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of marginals; prints itself, `to_dict()` for code. `notes`: lines that stand under the table."""

    names: tuple[str, ...]
    mean: np.ndarray
    standard_deviation: np.ndarray
    interval: np.ndarray
    probability: float
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, dict[str, float]]:
        """name -> {"mean", "sd", "low", "high"}."""
        columns = zip(self.names, self.mean, self.standard_deviation, self.interval, strict=True)
        return {
            name: {"mean": float(mean), "sd": float(sd), "low": float(low), "high": float(high)}
            for name, mean, sd, (low, high) in columns
        }

    def table(self, largest: int = 40) -> Table:
        """A rich table of at most `largest` rows."""
        tail = 50 * (1 - self.probability)
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("parameter")
        for name in ("mean", "sd", f"{tail:g}%", f"{100 - tail:g}%"):
            table.add_column(name, justify="right")
        numbers = np.column_stack([self.mean, self.standard_deviation, self.interval])
        for name, row in zip(self.names[:largest], numbers[:largest], strict=True):
            # A `Text`, so that brackets in a name are no markup, whatever console prints the table.
            table.add_row(Text(name), *(f"{value:.3f}" for value in row))
        if len(self.names) > largest:
            table.add_row(f"... {len(self.names) - largest} more", "", "", "", "")
        return table

    def __str__(self) -> str:
        console = Console(width=100, file=io.StringIO())
        console.print(self.table())
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


_NO_TARGET = (
    "In free coordinates, as the target is not known: provi.load(path, target=target) has the model's own space."
)


def summarise_model_space(posterior: "Posterior", free: Summary, known: Summary | None = None) -> Summary:
    """The summary in the space of `posterior.target.constrain`; `free` is that of the free coordinates.

    A parameter counts as a free coordinate where both have the same name and every draw is the same: a name alone may
    be the user's word for something else. `known`: rows in the model's own space that need no draws.
    """
    target, dim = posterior.target, len(free.names)
    names = target.constrained_names
    trial = posterior.sample(3, _SEED)
    if names == free.names and _same(_columns(target.constrain(trial)), trial):
        return free
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
    drawn = []
    for index, name in enumerate(names):
        if known is not None and name in given:
            mean[index], deviation[index] = known.mean[given[name]], known.standard_deviation[given[name]]
            interval[index] = known.interval[given[name]]
        elif name in place and _same(values[:, index], z[:, place[name]]):
            mean[index], deviation[index] = free.mean[place[name]], free.standard_deviation[place[name]]
            interval[index] = free.interval[place[name]]
        else:
            drawn.append(name)
    notes = [f"From {num_draws:,} draws: {_listed(drawn)}. The other rows are exact."]
    if len(drawn) == len(names):
        notes = [f"From {num_draws:,} draws."]
    broken = [name for name, value in zip(names, mean, strict=True) if not math.isfinite(value)]
    if broken:
        notes.append(f"Not finite in some draws: {_listed(broken)}.")
    return dataclasses.replace(
        free, names=names, mean=mean, standard_deviation=deviation, interval=interval, notes=tuple(notes)
    )


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
    return sum(np.size(leaf) for leaf in jax.tree.leaves(posterior.target))


def tail_warning(posterior: "Posterior") -> tuple[str, ...]:
    """A line where k-hat is bad. It is computed here where that is cheap, else only used where it is known.

    The standard error of k-hat is about (1 + k)/sqrt(3 sqrt(S)), 0.17 at S = 1000: what looks bad with few draws is
    looked at again with ten times as many.
    """
    found = posterior.latest_diagnosis
    if _size(posterior) <= _LARGEST_CHECK and (found is None or found.num_draws < _SECOND_CHECK):
        try:
            found = posterior.diagnose(_FIRST_CHECK)
            found = posterior.diagnose(_SECOND_CHECK) if _is_bad(found) else found
        except ValueError as error:
            return (f"Warning: k-hat could not be computed: {error}",)
    return (f"Warning: {found.advice}",) if found is not None and _is_bad(found) else ()


def _is_bad(found: ImportanceDiagnostics) -> bool:
    return found.pareto_k is not None and not found.adequate


def _columns(values: Any) -> np.ndarray:
    """Draws of a pytree as one row a draw, leaves in their order."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(values)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _same(values: np.ndarray, others: np.ndarray) -> bool:
    return values.shape == others.shape and np.allclose(values, others, rtol=1e-6, atol=0)


def _listed(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
