"""Minimising a plain sum through its surrogates, in one call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.incremental.surrogates import AbstractSurrogate
from provi.core.arguments import double_precision, floating_dtype
from provi.families.base import AnyParameters
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
    start = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), floating_dtype(x)), start)
    return run(algorithm, surrogate, AnyParameters(), start, seed=seed, num_steps=num_steps, **options)
