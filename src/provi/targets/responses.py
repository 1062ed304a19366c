"""Log-likelihoods and replicated data of models whose data see the parameters through one number each."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.checks import check_count
from provi.core.precision import double_precision
from provi.core.types import Draws, RandomKey
from provi.targets.base import read_points
from provi.targets.row_blocks import block_size

_STREAM = 2**31 - 3  # of the seed: not the one that drew the parameters


@double_precision
def pointwise_log_likelihood(target: Any, z: Any) -> dict[str, np.ndarray]:
    """log p(y_n | z) of each row of `target.row_data()`, for one point or for draws (n, dim)."""
    return {"y": _over_rows(target, z, lambda part, points, _: _log_likelihood(target, part, points))}


@double_precision
def replicated_responses(target: Any, z: Any, seed: int) -> dict[str, np.ndarray]:
    """y_n ~ p(y | eta_n) for each row, one replicate for each row of z; empty where the likelihood cannot draw."""
    key = jax.random.fold_in(jax.random.key(check_count("seed", seed, minimum=0)), _STREAM)
    if jax.eval_shape(lambda: target.likelihood.draw(key, jnp.zeros(1, target.dtype))) is None:
        return {}

    def draw(part: Any, points: Draws, block: int) -> Any:
        return _responses(target, part, points, jax.random.split(jax.random.fold_in(key, block), points.shape[0]))

    return {"y": _over_rows(target, z, draw)}


def _over_rows(target: Any, z: Any, function: Callable[[Any, Draws, int], Any]) -> np.ndarray:
    """`function` of a block of rows at a time, so that features that are not stored need not be all at once."""
    points = read_points(z, target.dim)
    rows, data = jnp.asarray(np.atleast_2d(points), target.dtype), target.row_data()
    size, parts = block_size(target), []
    for block, start in enumerate(range(0, target.num_terms, size)):
        # An index, so that it means a run of rows without a copy.
        part = jax.tree.map(lambda x, start=start: x[start : start + size], data)
        parts.append(np.asarray(function(part, rows, block)))
    values = np.concatenate(parts, axis=1)
    return values if points.ndim == 2 else values[0]


@eqx.filter_jit
def _log_likelihood(target: Any, part: Any, points: Draws) -> Any:
    rows = target.rows(part)

    def at(point: Any) -> Any:
        eta = target.predictor(rows, point)
        if rows.variance_offset is None:
            return -target.likelihood.potential(eta, rows.response)
        return target.likelihood.log_predictive(eta, rows.variance_offset, rows.response)

    return jax.vmap(at)(points)


@eqx.filter_jit
def _responses(target: Any, part: Any, points: Draws, keys: Any) -> Any:
    rows = target.rows(part)

    def at(point: Any, key: RandomKey) -> Any:
        noise_key, response_key = jax.random.split(key)
        eta = target.predictor(rows, point)
        if rows.variance_offset is not None:
            eta = eta + jnp.sqrt(rows.variance_offset) * jax.random.normal(noise_key, eta.shape, eta.dtype)
        return target.likelihood.draw(response_key, eta)

    return jax.vmap(at)(points, keys)
