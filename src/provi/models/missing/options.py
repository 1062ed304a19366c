"""The arguments of `MissingLogisticRegression`, checked before any work."""

import dataclasses
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from provi.core.checks import check_count, check_positive
from provi.schedules.batch_sizes import AbstractBatchSize

_CHOICES = {
    "solver": ("exact", "misso", "mcem", "saem"),
    "surrogate": ("newton", "boehning", "jaakkola"),
    "sampler": ("metropolis", "exact"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments with their final types; `seed` is drawn from `random_state`."""

    solver: str
    batch: int | float
    surrogate: str
    sampler: str
    num_draws: Any
    C: float
    rank: int | None
    missing_indicators: bool
    tol: float
    max_iter: int
    progress: bool
    seed: int


def read_options(model: Any) -> Options:
    """The arguments of an estimator, or a `ValueError` that names the wrong one."""
    for name, choices in _CHOICES.items():
        given = getattr(model, name)
        if not isinstance(given, str) or given not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {given!r}.")
    if isinstance(model.num_draws, str):
        if model.num_draws != "auto":
            raise ValueError(f"num_draws must be 'auto', a number or a schedule, not {model.num_draws!r}.")
    elif not isinstance(model.num_draws, AbstractBatchSize):
        check_count("num_draws", model.num_draws)
    if not model.C > 0:
        raise ValueError(f"C must be positive (np.inf: no penalty), not {model.C}.")
    if not isinstance(model.missing_indicators, bool | np.bool_):
        raise ValueError(f"missing_indicators must be True or False, not {model.missing_indicators!r}.")
    if model.missing_indicators and model.rank is not None:
        raise ValueError(
            f"missing_indicators=True needs rank=None, not {model.rank}: indicators are outside the model of the "
            f"columns. Drop rank, or append the indicators to X as columns."
        )
    return Options(
        model.solver,
        read_batch(model.batch),
        model.surrogate,
        model.sampler,
        model.num_draws,
        float(model.C),
        None if model.rank is None else check_count("rank", model.rank),
        bool(model.missing_indicators),
        check_positive("tol", model.tol),
        check_count("max_iter", model.max_iter),
        bool(model.progress),
        int(check_random_state(model.random_state).randint(2**31 - 1)),
    )


def read_batch(batch: Any) -> int | float:
    """A number of rows (int), or a share of them (float in (0, 1])."""
    if isinstance(batch, int | np.integer) and not isinstance(batch, bool):
        return check_count("batch", batch)
    if isinstance(batch, float | np.floating) and 0 < batch <= 1:
        return float(batch)
    raise ValueError(
        f"batch must be a share of the rows, a float in (0, 1], or a number of rows, an int from 1, not {batch!r}."
    )
