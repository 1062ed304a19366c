"""The segment between two draws on which a target is less convex than was claimed, once one is known to exist."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.certificates.batch_minima import times_rows
from provi.certificates.batch_sums import Frame, curvature_excess, pair_gradients
from provi.certificates.counterexample import Counterexample
from provi.core.types import Count, RandomKey, Scalar, Vector
from provi.families.bases import AbstractBase
from provi.targets.base import AbstractTarget


def refuting_segment(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    frame: Frame,
    shifts: np.ndarray,
    chunks: range,
    chunk: int,
) -> Counterexample:
    """The least convex pair of the draws of `batch_means`, made again: the certificates keep only that there is one.

    **Arguments:** as for `batch_means`; `chunks` are the numbers of the chunks.
    """
    smallest, found = np.inf, None
    for index in chunks:
        excess, *segment = _least_convex_pair(key, target, base, frame, jnp.asarray(shifts), jnp.asarray(index), chunk)
        if found is None or float(excess) < smallest:
            smallest, found = float(excess), segment
        if smallest < 0:
            break
    if found is None:
        raise ValueError("chunks is empty; give the range of chunk numbers that the draws were made from.")
    curvature, u, v = (np.asarray(x, np.float64) for x in found)
    ends = np.asarray(frame.loc)[None, :] + times_rows(np.asarray(frame.factor, np.float64), np.stack([v - u, v + u]))
    return Counterexample(ends[0], ends[1] - ends[0], float(curvature), float(frame.claimed))


@eqx.filter_jit
def _least_convex_pair(
    key: RandomKey,
    target: AbstractTarget,
    base: AbstractBase,
    frame: Frame,
    shifts: Float[Array, "batches dim"],
    index: Count,
    chunk: int,
) -> tuple[Scalar, Scalar, Vector, Vector]:
    """(excess, curvature, u, v) of one chunk."""
    u, _, plus, minus = pair_gradients(jax.random.fold_in(key, index), target, base, frame, shifts, chunk)
    excess, curvature = curvature_excess(frame, u, plus, minus)
    where = jnp.unravel_index(jnp.argmin(excess), excess.shape)
    return excess[where], curvature[where], u[where], shifts[where[0]]
