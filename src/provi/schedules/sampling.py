"""Which data terms a step looks at. Both rules cost O(batch), whatever the number of terms."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.core.arguments import check_count
from provi.core.types import Count, Indices, RandomKey


def _batch(value: int) -> int:
    return check_count("batch", value)


class AbstractSampling(eqx.Module):
    """A rule for the indices of the data terms of step t."""

    @abstractmethod
    def indices(self, key: RandomKey, step: Count, num_terms: int) -> Indices:
        """Indices in [0, num_terms). `key` is the run's key, the same at every step."""


class UniformSampling(AbstractSampling):
    """Independent uniform indices, with replacement: the gradient is unbiased given the past."""

    batch: int = eqx.field(static=True, converter=_batch)

    def indices(self, key, step, num_terms):
        return jax.random.randint(jax.random.fold_in(key, step), (self.batch,), 0, num_terms)


class ReshuffledSampling(AbstractSampling):
    """A fresh random order each epoch, every term exactly once per epoch, batches running on across epochs.

    The order is a keyed Feistel permutation evaluated only at the positions asked for, so nothing of
    size `num_terms` is stored or shuffled. Lower noise over an epoch than uniform sampling, but the
    gradients are not unbiased given the past, so the theorems do not cover it.
    """

    batch: int = eqx.field(static=True, converter=_batch)

    def indices(self, key, step, num_terms):
        # 64-bit positions (ProVI's loop runs with x64 on): step * batch passes 2^31 on long runs.
        positions = jnp.asarray(step, dtype=int) * self.batch + jnp.arange(self.batch, dtype=int)
        return jax.vmap(lambda epoch, offset: _permute(jax.random.fold_in(key, epoch), offset, num_terms))(
            positions // num_terms, positions % num_terms
        )


def _permute(key: RandomKey, offset: Count, num_terms: int) -> Count:
    """The image of `offset` under a random permutation of [0, num_terms).

    A six-round Feistel network permutes [0, 4^half_bits); values outside are walked on along their cycle
    until they fall inside, which is a permutation of the smaller set.
    """
    half_bits = max(1, -(-(num_terms - 1).bit_length() // 2))
    mask = jnp.uint32((1 << half_bits) - 1)
    rounds = jax.random.bits(key, (6,), jnp.uint32)

    def scramble(value):
        left, right = value >> half_bits, value & mask
        for round_key in rounds:
            mixed = (right ^ round_key) * jnp.uint32(0x9E3779B1)
            mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA77)
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
        return (left << half_bits) | right

    start = scramble(offset.astype(jnp.uint32))
    return jax.lax.while_loop(lambda value: value >= num_terms, scramble, start).astype(jnp.int32)
