"""Minimising what is no target, in one call: a plain sum through its surrogates, a split f + h over a family."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.incremental.surrogates import AbstractSurrogate
from provi.algorithms.mirror.proximal_gradient import ProximalGradient
from provi.algorithms.mirror.split import Split
from provi.core.arguments import as_array, check_count, device_array, double_precision, floating_dtype
from provi.families.base import AnyParameters
from provi.families.exponential import Coordinates
from provi.runtime.record import History, Outcome
from provi.runtime.run import Run, run


@double_precision
def minimise_sum(
    surrogate: AbstractSurrogate,
    start: Any,
    algorithm: AbstractAlgorithm,
    *,
    seed: int,
    num_steps: int,
    **options: Any,
) -> Run:
    r"""Minimise $n^{-1}\sum_iL_i(\theta)$ from `start`, any pytree of floating arrays.

    `algorithm` is `MISO`, `MISSO`, `PacedMISSO`, `SAG` or a `BlockRule`.

    `num_steps` visits of a batch each; the first also builds all n surrogates. `options` are those of
    `provi.runtime.run`: `budget`, `progress`, `checkpoint`, `resume`, `stop`, ...

    **Returns:** a `Run`: `point` are the parameters, `history["elbo"]` is minus the mean surrogate where it is known.

    ```python
    run = provi.runtime.minimise_sum(surrogate, theta, MISSO(128, num_draws=10), seed=0, num_steps=1000)
    ```
    """
    start = jax.tree.map(lambda x: device_array(np.asarray(x), floating_dtype(x)), start)
    return run(algorithm, surrogate, AnyParameters(), start, seed=seed, num_steps=num_steps, **options)


@dataclasses.dataclass(frozen=True)
class ProximalRun:
    r"""What a run of the proximal-gradient iteration did: the fields of `ProximalTrace`, and how it ended.

    - `last`: the last iterate. - `path`: all iterates, one a row, the start first, or None.
    - `objective`: f + h at all iterates; None where f is not given.
    - `step_sizes`, `step_lengths` $|G_k|$, `measured_alpha`, `solved`, `gap_bounds`: one a step.
    - `measured_smoothness`: exact gradients only, else None.
    - `history`, `outcome`, `message`: as of every run.
    """

    last: Array
    path: Array | None
    objective: Array | None
    step_sizes: Array
    step_lengths: Array
    measured_alpha: Array
    measured_smoothness: Array | None
    solved: Array
    gap_bounds: Array
    history: History
    outcome: Outcome
    message: str


@double_precision
def minimise_split(
    split: Split,
    coordinates: Coordinates,
    start: Any,
    algorithm: ProximalGradient,
    *,
    num_steps: int,
    seed: int | None = None,
    keep_path: bool = False,
    **options: Any,
) -> ProximalRun:
    r"""Minimise f + h from the vector `start`, by `num_steps` steps of `ProximalGradient`.

    **Arguments:**

    - `split`: f and h. - `coordinates`: the family and the coordinates in which `start` and both parts are given.
    - `seed`: needed where the split has its own `gradient`. - `keep_path`: return all iterates.
    - `options`: those of `provi.runtime.run`: `budget`, `progress`, `checkpoint`, `resume`, ... A run is resumed with
      the `num_steps` that it began with.

    ```python
    method = ProximalGradient(KL(), step_size=0.1)
    run = provi.runtime.minimise_split(Split(energy), Coordinates(Gamma()), mean, method, num_steps=100)
    ```
    """
    num_steps = check_count("num_steps", num_steps)
    point = jnp.asarray(as_array("w0", start, ndim=1), floating_dtype(start))
    sizes = algorithm.step_size
    if isinstance(sizes, np.ndarray) and sizes.shape not in ((), (num_steps,)):
        raise ValueError(f"step_size has {sizes.size} entries: give one, or num_steps = {num_steps}.")
    if seed is None and split.gradient is not None:
        raise ValueError("seed is missing: this split has a stochastic gradient. Pass seed=0, say.")
    algorithm = dataclasses.replace(algorithm, trace_length=num_steps, keep_path=keep_path)
    # The start decides the precision: prior, data and step sizes follow it.
    algorithm, split = jax.tree.map(lambda x: _cast(x, point.dtype), (algorithm, split))
    options = {"progress": False, **options}
    # One step more than asked for: the first measures the start.
    result = run(algorithm, split, coordinates, point, seed=seed or 0, num_steps=num_steps + 1, **options)
    trace = result.point.trace
    fields = {field.name: getattr(trace, field.name) for field in dataclasses.fields(trace)}
    fields["objective"] = trace.objective if split.knows_objective else None
    fields["measured_smoothness"] = trace.measured_smoothness if split.gradient is None else None
    return ProximalRun(
        last=result.point.point,
        history=result.history,
        outcome=result.outcome,
        message=result.message,
        **fields,
    )


def _cast(leaf, dtype):
    inexact = eqx.is_inexact_array(leaf) or (isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.inexact))
    return leaf.astype(dtype) if inexact else leaf
