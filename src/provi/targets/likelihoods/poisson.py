"""Counts with mean exp(eta)."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from provi.core.types import RandomKey
from provi.targets.data import read_counts
from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors

_LARGEST_RATE = 1e8


class Poisson(AbstractLikelihood):
    """y ~ Poisson(exp(eta)): log-concave, not smooth; its means have a closed form."""

    name: ClassVar[str] = "Poisson, log link"
    second_derivative: ClassVar[str] = "exp(eta)"

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """exp(eta) - y eta + log y!."""
        return jnp.exp(eta) - y * eta + gammaln(y + 1)

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, infinity)."""
        return 0.0, np.inf

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the lower end."""
        return rounded(jnp.exp(low), -1)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the upper end."""
        return rounded(jnp.exp(high), 1)

    @property
    def self_concordance(self) -> float:
        """Every derivative of exp is exp."""
        return 1.0

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Counts 0, 1, 2, ..."""
        return read_counts(y, length)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """E exp(eta) = exp(mean + variance/2)."""
        rate = jnp.exp(mean + variance / 2)
        return LinkMoments(rate - y * mean + gammaln(y + 1), rate - y, rate)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Rounding: the exponent's, times the rate."""
        exponent = mean + variance / 2
        error = 8 * jnp.finfo(mean.dtype).eps * (1 + jnp.abs(exponent)) * jnp.exp(exponent)
        rounding = 8 * jnp.finfo(mean.dtype).eps * (jnp.abs(y * mean) + gammaln(y + 1))
        return MomentErrors(error + rounding, error, error)

    @property
    def errors_proven(self) -> bool:
        """A closed form."""
        return True

    def curvature_moments(self, mean: Batch, deviation: Batch) -> tuple[Batch, Batch, Batch, float]:
        """E[u^j exp(mean + s u)] = rate, s rate, (1 + s^2) rate."""
        rate = jnp.exp(mean + deviation**2 / 2)
        return rate, deviation * rate, (1 + deviation**2) * rate, 0.0

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """p(y | eta) peaks at log y with the width 1/sqrt(y); for y = 0 it is a step near 0."""
        return jnp.log(y + 0.5), 1 / jnp.sqrt(y + 1)

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """E exp(eta)."""
        return jnp.exp(mean + variance / 2)

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        """A count with mean exp(eta)."""
        return draw_counts(key, jnp.exp(eta))


def draw_counts(key: RandomKey, rate: Batch) -> Batch:
    """Poisson counts of these means; rounded Gaussian ones from 10^8, beyond which integers would overflow."""
    count_key, normal_key = jax.random.split(key)
    small = jnp.minimum(rate, _LARGEST_RATE)
    counts = jax.random.poisson(count_key, small).astype(rate.dtype)
    wide = jnp.round(rate + jnp.sqrt(rate) * jax.random.normal(normal_key, rate.shape, rate.dtype))
    return jnp.where(rate < _LARGEST_RATE, counts, wide)
