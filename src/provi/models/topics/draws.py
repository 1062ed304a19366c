"""Standardised draws for expectations under the documents' Gaussian posteriors, and blocks of these at the same time.

The draws are made on the host and handed to the compiled programs: JAX's generators would be compiled into each of
these, for each width of documents anew, which took longer than all the rest.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from provi.core.arguments import device_array, double_precision
from provi.core.limits import available_cores
from provi.models.topics.corpus import CHUNK


class BaseDraws(NamedTuple):
    """Standardised points (CHUNK, draws, topics), a set of its own for each document of a chunk; chances (draws,)."""

    points: Any
    chances: Any


def base_draws(
    generator: np.random.Generator, num_draws: int, num_topics: int, dtype: Any = np.float64, *, shared: bool = False
) -> BaseDraws:
    r"""Zero with the chance $2/(K+2)$, and `num_draws` points $\pm\sqrt{K+2}$ times orthonormal vectors.

    The radii have the second and fourth moment of a standard normal's. The vectors are the columns of random
    rotations, one for each 2K points: in full blocks polynomials of degree three have their exact mean.

    With `shared` all documents of a chunk have the same points, and a posterior does not depend on where its document
    stands. Without, the errors of different documents average out in sums.
    """
    blocks = -(-num_draws // (2 * num_topics))
    rotations, _ = np.linalg.qr(generator.standard_normal((1 if shared else CHUNK, blocks, num_topics, num_topics)))
    columns = np.sqrt(num_topics + 2) * rotations.reshape(len(rotations), blocks * num_topics, num_topics)
    points = np.stack([columns, -columns], axis=2).reshape(len(columns), -1, num_topics)[:, :num_draws]
    points = np.pad(np.broadcast_to(points, (CHUNK, *points.shape[1:])), ((0, 0), (1, 0), (0, 0)))
    centre = 2 / (num_topics + 2)
    chances = np.concatenate([[centre], np.full(num_draws, (1 - centre) / num_draws)])
    return BaseDraws(jnp.asarray(points.astype(dtype)), jnp.asarray(chances.astype(dtype)))


def no_draws(num_topics: int, dtype: Any) -> BaseDraws:
    """The mean of q alone."""
    return BaseDraws(device_array(np.zeros((CHUNK, 1, num_topics), dtype)), device_array(np.ones(1, dtype)))


def normal_pairs(generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Normal numbers of the shape (..., draws, topics): the second half of the draws is minus the first."""
    half = generator.standard_normal((*shape[:-2], shape[-2] // 2, shape[-1])).astype(dtype)
    return device_array(np.concatenate([half, -half], axis=-2))


def draws_from(mean: Any, root: Any, points: Any) -> Any:
    r"""$z_s = m + L\epsilon_s$ for one document: points (draws, topics), `root` as in `LocalPosterior`."""
    return mean[None, :] + (points * root[None, :] if root.ndim == 1 else points @ root.T)


def worker_pool() -> ThreadPoolExecutor:
    """A thread for each processor: on the CPU, JAX runs a program in the thread that calls it, on one processor."""
    return ThreadPoolExecutor(available_cores())


def few_at_a_time(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """function(item) of each item, in order; what is ahead of the reader are as many as there are processors."""
    with worker_pool() as pool:
        waiting = collections.deque()
        for item in items:
            waiting.append(pool.submit(double_precision(function), item))
            if len(waiting) > available_cores():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
