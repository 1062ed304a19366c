"""Independent repetitions of one run, all in one compiled function: what a mean error is measured from."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from provi.algorithms.base import AbstractAlgorithm, without_guarantee
from provi.core.checks import as_array, check_count
from provi.core.precision import double_precision
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
