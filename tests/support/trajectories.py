"""Recorded trajectories of an algorithm, step by step, and the draws behind them."""

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.base import without_guarantee
from provi.estimators.base import CHUNKS
from support.members import quick_jit


@quick_jit
def step(key, algorithm, state, target, family, shrink):
    return algorithm.step(key, state, target, family, shrink)


def trajectory(algorithm, target, family, start, key, num_steps):
    """States 0..num_steps and the information of each step."""
    algorithm = without_guarantee(algorithm.resolve(target, family))
    states, infos = [algorithm.init(start)], []
    for _ in range(num_steps):
        state, info = step(key, algorithm, states[-1], target, family, jnp.ones((), start.loc.dtype))
        states.append(state)
        infos.append(info)
    return states, infos


def normal_draws(key, step_number, num, dim):
    """The standard normal draws of one step, from the documented scheme of keys: chunks of fixed sizes."""
    key = jax.random.fold_in(jax.random.fold_in(key, 0), step_number)
    rows = []
    for size in CHUNKS:
        for index in range(num // size):
            chunk = jax.random.fold_in(jax.random.fold_in(key, size), index)
            rows.append(np.asarray(jax.random.normal(chunk, (size, dim))))
        num %= size
    return np.concatenate(rows)
