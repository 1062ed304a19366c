"""Fitting a conditionally conjugate model: `runtime`'s loop with the algorithms of `conjugate_svi`."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.mirror.conjugate_svi import (
    FIRST_MEMORY,
    PATIENCE,
    AbstractConjugateModel,
    ConjugateSplit,
    StochasticMirrorDescent,
    Visits,
    batch_shapes,
    draw_batches,
    forgetting_rate,
)
from provi.algorithms.mirror.proximal_gradient import ProximalGradient
from provi.core.arguments import device_array
from provi.families.base import AnyParameters
from provi.geometry.divergences import KL
from provi.runtime.record import Outcome
from provi.runtime.run import run


class Ascent(NamedTuple):
    """Natural parameter, ELBO at the start and after each pass (the last is that of `natural`), how it ended."""

    natural: Any
    elbo: np.ndarray
    converged: bool


def coordinate_ascent(
    model: AbstractConjugateModel, natural: Any, strata: tuple, max_passes: int, tolerance: float
) -> Ascent:
    """Full-batch steps with r = 0 until a pass gains no more than `tolerance` nats: the ELBO never falls.

    **Returns:** an `Ascent` with one ELBO more than there were updates.
    """
    smallest = np.asarray(tolerance, jax.tree.leaves(natural)[0].dtype)
    algorithm = ProximalGradient(divergence=KL(), step_size=np.inf)

    def finished(state: Any) -> bool:
        return not np.asarray(state.gain) > smallest

    return _ascend(algorithm, ConjugateSplit(model=model, strata=strata), natural, max_passes, finished)


def stochastic_ascent(
    model: AbstractConjugateModel,
    natural: Any,
    strata: tuple,
    sizes: tuple[int, ...],
    generator: Any,
    batch_size: int,
    max_passes: int,
    tolerance: float,
    forgetting: tuple[float, float] | None = None,
) -> Ascent:
    r"""Mini-batch steps; the ELBO over all rows is measured after each pass.

    **Arguments:**

    - `sizes`: number of rows of each stratum; what lies beyond in `strata` is padding and is never drawn.
    - `generator`: NumPy random state, for the order of the rows.
    - `tolerance`: ends after three passes in a row with no more gain than this, in nats.
    - `forgetting`: $(k_0, \kappa)$ of `forgetting_rate`. If None the step is automatic: it starts with the memory of a
      fifth of a pass, and a pass that brings no gain is undone and the rate halved, so that the ELBO never falls.
    """
    dtype = jax.tree.leaves(natural)[0].dtype
    automatic, smallest = np.asarray(forgetting is None), np.asarray(tolerance, dtype)
    algorithm = StochasticMirrorDescent(tolerance=jnp.asarray(smallest), automatic=jnp.asarray(automatic))
    feed = _Feed(generator, sizes, batch_size, forgetting, dtype)
    split = ConjugateSplit(model=model, strata=strata)
    return _ascend(algorithm, split, natural, max_passes, lambda state: int(state.idle) >= PATIENCE, feed)


class _Feed:
    """The batches and rates of each pass. NumPy draws them, in the order of the passes: a function of the step."""

    def __init__(self, generator, sizes, batch_size, forgetting, dtype) -> None:
        self.generator, self.sizes, self.batch_size = generator, sizes, batch_size
        self.forgetting, self.dtype, self.drawn = forgetting, dtype, 0
        shapes = batch_shapes(sizes, batch_size)
        self.batches = tuple(np.zeros(shape, np.int32) for shape in shapes)
        self.scales = tuple(self._number(size / shape[1]) for size, shape in zip(sizes, shapes, strict=True))

    def __call__(self, split: ConjugateSplit, step: int) -> ConjugateSplit:
        while self.drawn < step:  # a resumed run draws again what the first one drew
            self.batches, self.drawn = draw_batches(self.generator, self.sizes, self.batch_size), self.drawn + 1
        indices = tuple(jnp.asarray(batch) for batch in self.batches)
        return dataclasses.replace(split, visits=Visits(indices, self.scales, self._number(self._rates(step))))

    def _rates(self, step):
        count = len(self.batches[0])
        if self.forgetting is None:
            return np.full(count, min(0.5, 1 / (FIRST_MEMORY * count)))
        return forgetting_rate(max(step - 1, 0) * count + 1 + np.arange(count), *self.forgetting)

    def _number(self, value):
        return device_array(np.asarray(value, self.dtype))


def _ascend(
    algorithm: Any,
    split: ConjugateSplit,
    natural: Any,
    max_passes: int,
    finished: Callable[[Any], bool],
    feed: Callable[[Any, int], Any] | None = None,
) -> Ascent:
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(natural)):
        return Ascent(natural, np.full(1, np.nan), False)
    # One step more than there are passes: the first measures the start. Every one is recorded.
    steps = max_passes + 1
    result = run(
        algorithm,
        split,
        AnyParameters(),
        natural,
        seed=0,
        num_steps=steps,
        num_records=2 * steps,
        progress=False,
        stop=finished,
        feed=feed,
    )
    elbo = result.history["elbo"] if len(result.history) else np.full(1, np.nan)
    return Ascent(result.last, elbo, result.outcome is Outcome.TOLERANCE)
