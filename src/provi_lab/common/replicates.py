"""Independent repetitions of one run, and slopes of their mean errors with intervals from resampling them."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from provi.algorithms.base import AbstractAlgorithm, without_guarantee
from provi.core.arguments import as_array, check_count, double_precision
from provi.core.types import RandomKey
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget


class Recorded(eqx.Module):
    """What the repetitions passed through; every leaf has leading axes (replicate, record).

    - `outputs`: the points the algorithm would return; `iterates`: where it is.
    """

    outputs: Any
    iterates: Any


@double_precision
def replicate(
    algorithm: AbstractAlgorithm,
    target: AbstractTarget,
    family: LocationScale,
    start: Point,
    *,
    seed: int,
    num_replicates: int,
    record_steps: Any,
) -> Recorded:
    """Run `algorithm` from `start` with `num_replicates` independent keys, side by side.

    Schedules, data and record steps are run-time values: only the shapes and the kinds of the parts recompile.
    Everything recorded is in memory at once, so this is for moderate dimensions. Unlike in a run, a non-finite
    step is not repaired but stays to be seen.

    **Arguments:**

    - `algorithm`: with or without a guarantee.
    - `start`: the common starting point.
    - `seed`: of all keys; replicate i is the same whatever `record_steps`.
    - `record_steps`: increasing step numbers; 0 is the start.

    **Returns:** `Recorded`.
    """
    steps = as_array("record_steps", record_steps, ndim=1)
    if (steps != np.floor(steps)).any() or (steps < 0).any() or (np.diff(steps) <= 0).any():
        raise ValueError("record_steps must be increasing whole numbers of at least 0.")
    bare = without_guarantee(algorithm.resolve(target, family))
    keys = jax.random.split(jax.random.key(seed), check_count("num_replicates", num_replicates))
    return _replicate(keys, bare, target, family, start, jnp.asarray(steps, dtype=int))


@eqx.filter_jit
def _replicate(
    keys: Any,
    algorithm: AbstractAlgorithm,
    target: AbstractTarget,
    family: LocationScale,
    start: Point,
    record_steps: Int[Array, " records"],
) -> Recorded:
    def one(key: RandomKey) -> Recorded:
        # The state is made in here so that the step number is the same for all replicates: loops whose length
        # depends on it (batch sizes) stay loops.
        def advance(state: Any, until: Any) -> Any:
            def step(_: Any, state: Any) -> Any:
                return algorithm.step(key, state, target, family, jnp.ones(()))[0]

            state = jax.lax.fori_loop(state.step, until, step, state)
            return state, Recorded(algorithm.output(state), state.point)

        return jax.lax.scan(advance, algorithm.init(start), record_steps)[1]

    return jax.vmap(one)(keys)


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


@dataclasses.dataclass(frozen=True)
class MeanErrors:
    """Errors (replicates, records) after `steps` steps, and a theorem's bound of their mean where it has one."""

    steps: np.ndarray
    errors: np.ndarray
    bound: np.ndarray | None

    @property
    def mean(self) -> np.ndarray:
        """Over the replicates."""
        return self.errors.mean(axis=0)

    @property
    def ratios(self) -> np.ndarray:
        """How many times the mean the bound is."""
        if self.bound is None:
            raise ValueError("The theorem has no bound for these runs.")
        return self.bound / self.mean
