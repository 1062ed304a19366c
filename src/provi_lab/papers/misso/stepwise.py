r"""One training at a time of a large network: the gradient is compiled once and shared by all methods and rates.

A step is two programs: the mean of a block's gradients over the draws, which takes long to compile and is the same for
all methods, and the method's own `step` on a surrogate that is handed that mean, which compiles fast. Blocks, keys and
draws are those of `provi.runtime.minimise_sum` with the same seed. The number of draws is $M_k = k$, k the
epoch from 1 on: the paper's k is the iteration, whose thousandth would take a thousand gradients.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.incremental.misso import average_draws
from provi.algorithms.incremental.network_surrogate import NetworkPoint, NetworkSurrogate
from provi.algorithms.incremental.quadratic_surrogate import Expansion
from provi.algorithms.incremental.surrogate_table import block_size
from provi.core.types import Count, RandomKey
from provi.families.base import AnyParameters
from provi.schedules.sampling import ReshuffledSampling
from provi_lab.papers.misso.lanes import START_SD, Trace
from provi_lab.papers.misso.networks import Method

_EVALUATION_SEED = 1_000_003
_ORDER = ReshuffledSampling(1)


class Handed(NetworkSurrogate):
    """A surrogate whose draw is there already."""

    summary: Expansion

    def draw(self, key, parameters, rows, prepared, chains):
        del key, parameters, rows, prepared
        return self.summary, chains


def handed(surrogate: NetworkSurrogate, summary: Expansion) -> Handed:
    """The surrogate with this summary in the place of its draws."""
    names = NetworkSurrogate.__dataclass_fields__
    return Handed(summary=summary, **{name: getattr(surrogate, name) for name in names})


@eqx.filter_jit
def _gradient(surrogate: NetworkSurrogate, key: RandomKey, point: NetworkPoint, step: Count, num_draws: Count) -> Any:
    """The mean over the draws of visit number `step`, as the algorithms would make it."""
    _, order, draws = jax.random.split(key, 3)
    own = jax.random.split(jax.random.fold_in(draws, step))[1]
    rows = _ORDER.indices(order, step, surrogate.num_terms)
    return average_draws(surrogate, own, point, rows, None, None, num_draws)[0]


@eqx.filter_jit
def _first_gradient(surrogate: NetworkSurrogate, key: RandomKey, point: NetworkPoint, row: Count, group: Count) -> Any:
    """That of a row when the table is filled before the first visit, with one draw."""
    start = jax.random.split(key, 3)[0]
    own = jax.random.split(jax.random.fold_in(start, group))[1]
    return average_draws(surrogate, own, point, row[None], None, None, jnp.asarray(1))[0]


@functools.partial(eqx.filter_jit, donate="all-except-first")
def _moved(given: tuple[Any, ...], state: Any) -> Any:
    """The method's step number `step`; a table is there already, so methods that have one make the visit alone."""
    make, surrogate, summary, key, rate, step = given
    algorithm = _algorithm(make, surrogate, summary, rate)
    if not _has_table(state):
        return algorithm.step(key, state, None, None, jnp.ones(()))[0]
    rows = _ORDER.indices(jax.random.split(key, 3)[1], step, surrogate.num_terms)
    return algorithm.visit(key, algorithm.surrogate, state, rows, 1)


@functools.partial(eqx.filter_jit, donate="all-except-first")
def _filled(given: tuple[Any, ...], state: Any) -> Any:
    """A row of the table more, the parameters and the count as they were."""
    make, surrogate, summary, key, rate, row, start = given
    algorithm = _algorithm(make, surrogate, summary, rate)
    new = algorithm.visit(key, algorithm.surrogate, state, row[None], 1)
    return eqx.tree_at(lambda s: (s.parameters, s.step), new, (jax.tree.map(jnp.copy, start), jnp.zeros_like(new.step)))


def _algorithm(make: Any, surrogate: NetworkSurrogate, summary: Expansion, rate: Any) -> Any:
    curvature = (1 / rate).astype(surrogate.curvature.dtype)
    own = eqx.tree_at(lambda s: s.curvature, handed(surrogate, summary), curvature)
    return make(rate).resolve(own, AnyParameters())


def _has_table(state: Any) -> bool:
    """Whether the method's first step would fill a table, as those of MISSO and SAG do."""
    return hasattr(state, "chains")


@eqx.filter_jit
def evaluate(surrogate: NetworkSurrogate, key: RandomKey, point: NetworkPoint) -> Any:
    """(-ELBO, its likelihood part, its KL part), one draw a block."""
    return surrogate.negative_elbo(key, point, 1)


def train(
    method: Method,
    surrogate: NetworkSurrogate,
    mean: Any,
    rate: float | Callable[[int], float],
    seed: int,
    epochs: int,
    *,
    most_draws: int | None = None,
    each_epoch: Callable[[int, NetworkSurrogate], NetworkSurrogate] | None = None,
    start_sd: float | np.ndarray = START_SD,
    quiet: bool = False,
) -> Trace:
    """One run from the weights `mean`; -ELBO after each epoch.

    **Arguments:** `rate`: a number, or a function of the number of the step. - `most_draws`: where M_k = k ends.
    - `each_epoch(epoch, surrogate)`: another surrogate of the same form, with another weight of the KL say.
    """
    began = time.monotonic()
    key = jax.random.split(jax.random.key(seed))[0]
    point = surrogate.start(START_SD)
    log_sd = jnp.broadcast_to(jnp.log(jnp.asarray(start_sd, surrogate.target.dtype)), point.log_sd.shape)
    point = NetworkPoint(jnp.asarray(mean, surrogate.target.dtype), jnp.array(log_sd))
    rates = rate if callable(rate) else (lambda step: rate)
    state = _begin(method, surrogate, key, point, rates(0))
    values, output = [], point
    for epoch in range(epochs):
        used = surrogate if each_epoch is None else each_epoch(epoch, surrogate)
        draws = jnp.asarray(epoch + 1 if most_draws is None else min(epoch + 1, most_draws))
        for step in range(epoch * surrogate.num_terms, (epoch + 1) * surrogate.num_terms):
            number = jnp.asarray(step)
            summary = _gradient(used, key, _walk(state).point, number, draws)
            state = _moved((method.make, used, summary, key, jnp.asarray(float(rates(step))), number), state)
        output = _output(method, used, state)
        found = evaluate(surrogate, jax.random.fold_in(jax.random.key(_EVALUATION_SEED), epoch + 1), output)
        values.append([float(part) for part in found])
        if not quiet:
            text = "  epoch {}, {:.1f} s: -ELBO {:.5g} = {:.5g} + KL {:.5g}"
            print(text.format(epoch + 1, time.monotonic() - began, *values[-1]), flush=True)
        if not np.isfinite(values[-1][0]):
            values += [values[-1]] * (epochs - epoch - 1)
            break
    output = jax.tree.map(lambda x: np.asarray(x)[None], output)
    return Trace(np.arange(1, epochs + 1), np.array(values)[:, None], output, time.monotonic() - began)


def _begin(method: Method, surrogate: NetworkSurrogate, key: Any, point: NetworkPoint, rate: float) -> Any:
    """The first state, its table filled where the method's first step would fill it."""
    zero = Expansion(jnp.zeros(1, point.mean.dtype), jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), point))
    number = jnp.asarray(float(rate))
    algorithm = _algorithm(method.make, surrogate, zero, number)
    state = algorithm.init(point)
    if _has_table(state):
        group = block_size(surrogate.num_terms, algorithm._row_shapes(algorithm.surrogate, point), 1)
        for row in range(surrogate.num_terms):
            place = jnp.asarray(row)
            summary = _first_gradient(surrogate, key, point, place, place // group)
            state = _filled((method.make, surrogate, summary, key, number, place, point), state)
    return state


@eqx.filter_jit
def _output(method: Method, surrogate: NetworkSurrogate, state: Any) -> NetworkPoint:
    none = Expansion(jnp.zeros(1), jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), _walk(state).point))
    algorithm = _algorithm(method.make, surrogate, none, jnp.ones(()))
    return jax.tree.map(jnp.copy, algorithm.output(state))


def _walk(state: Any) -> Any:
    return state.lead if hasattr(state, "lead") else state
