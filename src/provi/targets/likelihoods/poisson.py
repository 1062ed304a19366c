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
    curvature_decay: ClassVar[float | None] = 0.0
    second_derivative: ClassVar[str] = "exp(eta)"

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """exp(eta) - y eta + log y!, with x = eta - log y: y (e^x - 1 - x) and Stirling's remainder.

        The three terms are of the size y log y and cancel: at y = 1e12 they leave three digits of the sum.
        """
        zero, safe = y == 0, _at_least(y)
        x = eta - jnp.log(safe)
        return jnp.where(zero, jnp.exp(jnp.where(zero, eta, 0)), safe * (jnp.expm1(x) - x) + log_stirling(safe))

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
        zero, safe, rate = y == 0, _at_least(y), jnp.exp(mean + variance / 2)
        x = mean + variance / 2 - jnp.log(safe)
        excess = safe * jnp.expm1(x)
        value = excess + safe * (variance / 2 - x) + log_stirling(safe)
        return LinkMoments(jnp.where(zero, rate, value), jnp.where(zero, rate, excess), rate)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Rounding: the exponent's, times what it changes; and that of the terms of `potential`."""
        unit, safe = 8 * jnp.finfo(mean.dtype).eps, _at_least(y)
        exponent = 1 + jnp.abs(mean) + variance / 2 + jnp.log(safe)
        rate = jnp.exp(mean + variance / 2)
        x = mean + variance / 2 - jnp.log(safe)
        slope = jnp.where(y == 0, rate, safe * jnp.abs(jnp.expm1(x)))
        value = exponent * slope + y * (jnp.abs(x) + variance / 2) + jnp.log(safe) + 1
        return MomentErrors(unit * value, unit * exponent * rate + unit * slope, unit * exponent * rate)

    def value_error_given(self, y: Any) -> float:
        r"""$\epsilon\log y$ in the exponent x moves the mean by $y|e^x - 1|$ as much, and the mean is at least
        $y(e^x - 1 - x)$: $\sqrt y$ times, relatively."""
        largest = float(np.max(np.asarray(y), initial=1.0))
        return self.value_error + 64 * float(np.finfo(float).eps) * (1 + np.log1p(largest)) * float(np.sqrt(largest))

    def working_response(self, y: Batch) -> tuple[Batch, Batch]:
        """log y, with the weight y: both half a count up."""
        return jnp.log(y + 0.5), y + 0.5

    @property
    def errors_proven(self) -> bool:
        """A closed form."""
        return True

    def curvature_moments(self, mean: Batch, deviation: Batch, y: Any = None) -> tuple[Batch, Batch, Batch, Any]:
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


def _at_least(y: Batch) -> Batch:
    """y, or 1 where there is none: what is not used there must be finite."""
    return jnp.maximum(y, 1)


def log_stirling(y: Batch) -> Batch:
    """log y! - y log y + y for y >= 1: about log(2 pi y)/2; by its series from 16 on, where that is exact to 1e-14."""
    large = jnp.maximum(y, 16.0)
    inverse = 1 / large
    square = inverse**2
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
    small = jnp.minimum(y, 16.0)
    direct = gammaln(small + 1) - small * jnp.log(small) + small
    return jnp.where(y < 16, direct, 0.5 * jnp.log(2 * np.pi * large) + series)


def draw_counts(key: RandomKey, rate: Batch) -> Batch:
    """Poisson counts of these means; rounded Gaussian ones from 10^8, beyond which integers would overflow."""
    count_key, normal_key = jax.random.split(key)
    small = jnp.minimum(rate, _LARGEST_RATE)
    counts = jax.random.poisson(count_key, small).astype(rate.dtype)
    wide = jnp.round(rate + jnp.sqrt(rate) * jax.random.normal(normal_key, rate.shape, rate.dtype))
    return jnp.where(rate < _LARGEST_RATE, counts, wide)
