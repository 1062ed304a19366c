"""The batches of mini-batch PG-SVI: which data, their moments, and the sums that a step needs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.algorithms.drawn_moments import drawn_moments
from provi.algorithms.pgsvi_spaces import AbstractSpace
from provi.core.checks import check_count
from provi.core.types import Count, RandomKey, Scalar
from provi.schedules.noise_batch import NoiseBatch
from provi.schedules.sampling import AbstractSampling, ReshuffledSampling, UniformSampling

SAMPLINGS = {"reshuffled": ReshuffledSampling, "uniform": UniformSampling}
_CHUNK = 64
"""Data looked at together when the batch size may change."""


class FixedBatch(eqx.Module):
    """The same number of data in every step: a size, so another one compiles again."""

    size: int = eqx.field(static=True)


def as_batch(value: Any) -> Any:
    """A rule, or a whole number taken as a fixed size."""
    if isinstance(value, NoiseBatch | FixedBatch):
        return value
    return FixedBatch(check_count("batch_size", value))


class BatchSums(eqx.Module):
    r"""$\hat\alpha$ and $\hat\gamma$ as their space keeps them, $\sum_B(E\ell_n')^2v_n$, and what was clipped."""

    slope: Any
    weight: Any
    squares: Scalar
    clipped: Count


class BatchPlan(eqx.Module):
    """How a step reads its batch; the arguments are those of `PGSVI`."""

    rule: NoiseBatch | FixedBatch
    sampling: str = eqx.field(static=True)
    num_samples: int | None = eqx.field(static=True)
    estimator: str = eqx.field(static=True)

    def sums(self, key: RandomKey, state: Any, space: AbstractSpace, scale: Scalar) -> BatchSums:
        """Those of the next batch after `state`, times `scale` = N/M; of changing size, in chunks."""
        rule = self.rule
        if isinstance(rule, FixedBatch):
            return self._chunk(key, state, space, scale, jnp.zeros((), int), rule.size)
        chunk = min(_CHUNK, space.target.num_terms)

        def more(carry: Any) -> Any:
            start, sums = carry
            return start + chunk, jax.tree.map(jnp.add, sums, self._chunk(key, state, space, scale, start, chunk))

        start = jnp.zeros((), int)
        shapes = jax.eval_shape(lambda start: self._chunk(key, state, space, scale, start, chunk), start)
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.while_loop(lambda carry: carry[0] < state.batch, more, (start, zero))[1]

    def _chunk(
        self, key: RandomKey, state: Any, space: AbstractSpace, scale: Scalar, start: Count, chunk: int
    ) -> BatchSums:
        target = space.target
        order, noise = jax.random.split(key)
        places = start + jnp.arange(chunk)
        real = places < state.batch
        one: AbstractSampling = SAMPLINGS[self.sampling](1)
        indices = jax.vmap(lambda place: one.indices(order, place, target.num_terms)[0])(state.place + places)
        mean, variance, response = space.marginals(state.point, state.cache, indices)
        if self.num_samples is None:
            moments = target.likelihood.moments(mean, variance, response)
        else:
            noise = jax.random.fold_in(jax.random.fold_in(noise, state.step), start)
            moments = drawn_moments(
                noise, target.likelihood, mean, variance, response, self.num_samples, self.estimator
            )
        slopes, weights = (jnp.where(real, x, jnp.zeros_like(x)) for x in (moments.slope, moments.weight))
        slope, weight, clipped = space.gather(indices, scale * slopes, scale * weights)
        return BatchSums(slope, weight, jnp.sum(slopes**2 * variance), clipped)
