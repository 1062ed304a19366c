"""Slopes of mean errors, with intervals from resampling the replicates."""

import dataclasses
from typing import Any

import numpy as np

_RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Slope:
    """A least-squares slope and its 95 % bootstrap interval over replicates."""

    value: float
    low: float
    high: float

    def contains(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def log_slope(across: Any, errors: Any, seed: int, paired: bool = True) -> Slope:
    r"""The slope of $\log$ of the mean error against `across`.

    **Arguments:**

    - `across`: (records,); the logarithm of the number of steps for a power law, the number for a linear rate.
    - `errors`: (replicates, records), positive.
    - `paired`: the records of a replicate belong to one run and are resampled together; False when each
      record is a run of its own.
    """
    across, errors = np.asarray(across, float), np.asarray(errors, float)
    if errors.ndim != 2 or errors.shape[1] != len(across) or len(across) < 2:
        raise ValueError(f"errors must be (replicates, {len(across)}) with two records or more; it is {errors.shape}.")
    generator = np.random.default_rng(seed)
    count, records = errors.shape
    rows = generator.integers(0, count, (_RESAMPLES, count, 1 if paired else records))
    means = np.take_along_axis(errors[None], np.broadcast_to(rows, (_RESAMPLES, count, records)), axis=1).mean(axis=1)
    centred = across - across.mean()
    weights = centred / np.sum(centred**2)
    low, high = np.quantile(np.log(means) @ weights, (0.025, 0.975))
    return Slope(float(np.log(errors.mean(axis=0)) @ weights), float(low), float(high))


def mean_interval(errors: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % bootstrap interval of the mean over replicates, one a record."""
    errors = np.asarray(errors, float)
    rows = np.random.default_rng(seed).integers(0, len(errors), (_RESAMPLES, len(errors)))
    low, high = np.quantile(errors[rows].mean(axis=1), (0.025, 0.975), axis=0)
    return low, high
