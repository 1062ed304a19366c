"""What a gradient estimator is, and its average over a number of draws that may change at run time."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractClassVar

from provi.core.devices import over_draws
from provi.core.tree import add_scaled, zeros_like
from provi.core.types import Count, RandomKey
from provi.families.location_scale import LocationScale, Point

CHUNKS = (50, 10, 3, 1)
"""Numbers of draws computed at once. A minibatch of any size is a sum of these, without waste and without
recompilation: 7 = 2*3 + 1, 45 = 4*10 + 3 + 2*1."""


class AbstractEstimator(eqx.Module):
    """An unbiased estimator of grad l, or of grad f = grad l + grad h when `includes_entropy`."""

    includes_entropy: AbstractClassVar[bool]
    name: AbstractClassVar[str]

    @abstractmethod
    def check(self, family: LocationScale) -> None:
        """Raise `ValueError` when the estimator would be biased for this family."""

    @abstractmethod
    def prepare(self, family: LocationScale, point: Point) -> Any:
        """What the draws of one step share (a factorisation, say)."""

    @abstractmethod
    def mean_over_draws(
        self,
        key: RandomKey,
        potential: Callable,
        family: LocationScale,
        point: Point,
        prepared: Any,
        num: int,
    ) -> Point:
        """The random part, averaged over `num` independent draws."""

    @abstractmethod
    def constant_part(self, point: Point) -> Point | None:
        """The part that does not depend on the draws, or None."""


def potential_gradients(potential: Callable, draws: Any) -> Any:
    """grad potential at each row; on several devices if the potential says so (`StepPotential`)."""
    return over_draws(getattr(potential, "division", None), jax.grad(potential), draws)


def path_gradient(key: RandomKey, potential: Callable, family: LocationScale, point: Point, num: int) -> Point:
    """(mean pi, P(mean pi u')) over `num` draws u, with pi = grad potential(m + C u)."""
    u = family.sample_base(key, point, num)
    pi = potential_gradients(potential, family.transform(point, u))
    return Point(pi.mean(axis=0), point.scale.pull_back(pi, u))


def minibatch_gradient(
    key: RandomKey,
    estimator: AbstractEstimator,
    potential: Callable,
    family: LocationScale,
    point: Point,
    num_draws: Count,
) -> Point:
    """The estimator averaged over `num_draws` independent draws; `num_draws` is a run-time number.

    The sum runs over chunks of fixed sizes with dynamic trip counts, so a growing minibatch neither
    recompiles nor computes draws that are thrown away.
    """
    prepared = estimator.prepare(family, point)
    dtype = point.loc.dtype
    total, remaining = zeros_like(point), num_draws
    for size in CHUNKS:
        size_key = jax.random.fold_in(key, size)

        def add_chunk(index, total, size=size, size_key=size_key):
            chunk_key = jax.random.fold_in(size_key, index)
            mean = estimator.mean_over_draws(chunk_key, potential, family, point, prepared, size)
            return add_scaled(total, size / num_draws.astype(dtype), mean)

        total = jax.lax.fori_loop(0, remaining // size, add_chunk, total)
        remaining = remaining % size
    constant = estimator.constant_part(point)
    return total if constant is None else add_scaled(total, jnp.asarray(1, dtype), constant)
