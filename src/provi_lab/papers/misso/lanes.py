r"""Trainings of one network by one method, side by side: rates and seeds are lanes of one compiled program.

A lane is a rate, a seed and the initial weights that belong to the seed; its state has a place along a leading axis of
every array, over which the algorithm's own `step` is mapped. Blocks, draws and results are those of a run by itself
with `provi.runtime.minimise_sum` and the same seed. Only the number of steps made is one number for all lanes: loops
inside a step have bounds that depend on it, and with bounds of their own the lanes would copy their tables.
"""

import dataclasses
import functools
import time
from collections.abc import Collection, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.incremental.network_surrogate import NetworkPoint, NetworkSurrogate
from provi.algorithms.incremental.paced_misso import PacedState
from provi.core.types import Count, RandomKey
from provi.families.base import AnyParameters
from provi_lab.papers.misso.networks import Method

START_SD = 0.05
"""Of all weights, before the first step; the paper does not say what it takes."""

_EVALUATION_SEED = 1_000_003


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """What the lanes passed through.

    - `epochs` (t,): when they were looked at. - `values` (t, lanes, 3): -ELBO, its likelihood part and its KL part, in
      nats per datum. - `points`: where they ended. - `seconds`: compilation included.
    """

    epochs: np.ndarray
    values: np.ndarray
    points: NetworkPoint
    seconds: float


class Lanes(eqx.Module):
    """A method on the blocks of a surrogate, with a key and a rate for each lane."""

    method: Method = eqx.field(static=True)
    surrogate: NetworkSurrogate
    keys: Array
    rates: Float[Array, "*lanes"]

    def algorithm(self, rate: Any) -> Any:
        """The method with this rate; for `MISSO` the rate is 1/L of the surrogates."""
        curvature = (1 / rate).astype(self.surrogate.target.dtype)
        surrogate = eqx.tree_at(lambda s: s.curvature, self.surrogate, curvature)
        algorithm: AbstractAlgorithm = self.method.make(rate)
        return algorithm.resolve(surrogate, AnyParameters())

    def each(self, function: Any, *trees: Any) -> Any:
        """`function` on each lane; a run by itself has no axis of lanes, which would make it slower."""
        return jax.vmap(function)(*trees) if self.rates.ndim else function(*trees)


def follow(
    method: Method,
    surrogate: NetworkSurrogate,
    means: Float[Any, "lanes dim"],
    rates: Sequence[float],
    seeds: Sequence[int],
    epochs: int,
    records: Collection[int],
) -> Trace:
    """Train all lanes for some epochs and look at those of `records`; the last one is always looked at."""
    began = time.monotonic()
    keys = jnp.stack([jax.random.split(jax.random.key(seed))[0] for seed in seeds])  # as `provi.runtime.run` makes them
    alone = len(seeds) == 1
    given = (keys, jnp.asarray(rates, float), jnp.asarray(means, surrogate.target.dtype))
    # Mapped convolutions are grouped ones, and slow, and a table with an axis of length 1 is copied in each step.
    keys, numbers, means = jax.tree.map(lambda x: x[0], given) if alone else given
    lanes = Lanes(method, surrogate, keys, numbers)
    state = _start(lanes, means)
    seen, values, points = [], [], None
    for epoch in range(1, epochs + 1):
        state = _advance((lanes, jnp.asarray(epoch - 1)), state)
        if epoch in records or epoch == epochs:
            key = jax.random.fold_in(jax.random.key(_EVALUATION_SEED), epoch)
            points = _outputs(lanes, state)
            found = _evaluate(surrogate, key, points)
            seen.append(epoch)
            values.append(np.stack([np.atleast_1d(part) for part in found], axis=-1))
    points = jax.tree.map(lambda x: np.asarray(x)[None] if alone else np.asarray(x), points)
    return Trace(np.array(seen), np.stack(values), points, time.monotonic() - began)


def _start(lanes: Lanes, means: Any) -> Any:
    """The first state of every lane: that of the first one with the others' weights. A rule's begins at zero."""
    point = lanes.surrogate.start(START_SD)
    state = lanes.algorithm(lanes.rates.reshape(-1)[0]).init(point)
    if lanes.rates.ndim:
        state, point = _repeated((state, point), means.shape[0])
    return eqx.tree_at(_place_of_point, state, eqx.tree_at(lambda p: p.mean, point, means))


@eqx.filter_jit
def _repeated(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


@functools.partial(eqx.filter_jit, donate="all-except-first")
def _advance(given: tuple[Lanes, Count], state: Any) -> Any:
    """One pass over the blocks."""
    lanes, epoch = given
    count = lanes.surrogate.num_terms

    def turn(k: Count, state: Any) -> Any:
        # Of a definite type, as in the first state: a state of another type would compile the program again.
        number = jax.lax.convert_element_type(epoch * count + k, int)

        def one(state: Any, key: RandomKey, rate: Any) -> Any:
            counted = eqx.tree_at(_place_of_step, state, number)
            return lanes.algorithm(rate).step(key, counted, None, None, jnp.ones(()))[0]

        return lanes.each(one, state, lanes.keys, lanes.rates)

    return jax.lax.fori_loop(0, count, turn, state)


@eqx.filter_jit
def _outputs(lanes: Lanes, state: Any) -> NetworkPoint:
    """The points that the lanes would return."""
    return lanes.each(lambda state, rate: lanes.algorithm(rate).output(state), state, lanes.rates)


@eqx.filter_jit
def _evaluate(surrogate: NetworkSurrogate, key: RandomKey, points: NetworkPoint) -> Any:
    """-ELBO and its parts by one pass with one draw a block, the same for all: one program for all methods."""

    def one(point: NetworkPoint) -> Any:
        return surrogate.negative_elbo(key, point, 1)

    return jax.vmap(one)(points) if points.mean.ndim > 1 else one(points)


def _walk(state: Any) -> Any:
    return state.lead if isinstance(state, PacedState) else state


def _place_of_step(state: Any) -> Any:
    return _walk(state).step


def _place_of_point(state: Any) -> Any:
    walk = _walk(state)
    return walk.parameters if hasattr(walk, "parameters") else walk.point
