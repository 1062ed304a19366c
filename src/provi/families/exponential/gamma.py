r"""The gamma distribution.

The log-gamma function and its derivatives, differentiable to any order, by recurrence and asymptotic series.

$\psi^{(k)}$ is moved from x to $y = x + 12$, where eight terms of its asymptotic series leave less than 1e-16 of the
leading term. JAX's own (through the Hurwitz zeta function) are as accurate, but take seconds to compile.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Scalar
from provi.families.exponential.base import AbstractExponentialFamily, all_finite, as_floating

_SHIFT = 12
_BERNOULLI_NUMBERS = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


@jax.custom_jvp
def log_gamma(x: Any) -> Any:
    r"""$\log\Gamma(x)$, x > 0."""
    return jax.lax.lgamma(x)


@log_gamma.defjvp
def _(primals, tangents):
    return log_gamma(primals[0]), polygamma(0, primals[0]) * tangents[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def polygamma(order: int, x: Any) -> Any:
    r"""$\psi^{(k)}(x)$, x > 0, with k = `order`: the digamma function for 0, the trigamma function for 1.

    $\psi^{(k)}(x) = (-1)^{k+1}\bigl[\frac{(k-1)!}{y^k} + \frac{k!}{2y^{k+1}} +
    \sum_jB_{2j}\frac{(2j+k-1)!}{(2j)!\,y^{2j+k}} + k!\sum_{i<12}(x+i)^{-k-1}\bigr]$; for k = 0 the first term is
    $-\log y$.
    """
    y = x + _SHIFT
    inverse_square = 1 / (y * y)
    series = jnp.zeros_like(y)
    for j in range(len(_BERNOULLI_NUMBERS), 0, -1):
        weight = _BERNOULLI_NUMBERS[j - 1] * math.factorial(2 * j + order - 1) / math.factorial(2 * j)
        series = (series + weight) * inverse_square
    shifts = np.arange(_SHIFT, dtype=y.dtype).reshape((1,) * x.ndim + (-1,))
    terms = math.factorial(order) * jnp.sum((x[..., None] + shifts) ** (-order - 1), axis=-1)
    if order == 0:
        return jnp.log(y) - 0.5 / y - series - terms
    lead = math.factorial(order - 1) + math.factorial(order) / (2 * y) + series
    return (-1) ** (order + 1) * (lead * y**-order + terms)


@polygamma.defjvp
def _(order, primals, tangents):
    return polygamma(order, primals[0]), polygamma(order + 1, primals[0]) * tangents[0]


def digamma(x: Any) -> Any:
    r"""$\psi(x)$."""
    return polygamma(0, x)


_SERIES_FROM, _NEWTON_STEPS = 30.0, 6


class Gamma(AbstractExponentialFamily):
    r"""The gamma distribution with shape $a$ and rate $b$, x > 0.

    Natural parameter: $(a, -b)$, with the base measure $1/x$ ($a - 1$ would lose the digits of a small shape);
    $T(x) = (\log x, x)$; mean parameter: $(\psi(a) - \log b, a/b)$; $A = \log\Gamma(a) - a\log b$.
    """

    @property
    def size(self) -> int:
        return 2

    def shape_and_rate(self, natural):
        """(a, b)."""
        return natural[0], -natural[1]

    def natural(self, shape, rate):
        """The natural parameter of Gamma(shape, rate)."""
        return jnp.stack([jnp.asarray(shape, jnp.result_type(float)), -jnp.asarray(rate, jnp.result_type(float))])

    def statistic(self, x):
        value = as_floating(x)
        return jnp.stack([jnp.log(value), value])

    def log_base(self, x):
        return -jnp.log(x)

    def mean_log_base(self, mean):
        return -mean[0]

    def log_partition(self, natural):
        shape, rate = self.shape_and_rate(natural)
        return log_gamma(shape) - shape * jnp.log(rate)

    def mean_from_natural(self, natural):
        shape, rate = self.shape_and_rate(natural)
        return jnp.stack([digamma(shape) - jnp.log(rate), shape / rate])

    def natural_from_mean(self, mean):
        # E x and E log x differ by Jensen's gap, log a - psi(a), which fixes the shape.
        shape = shape_from_jensen_gap(jnp.log(mean[1]) - mean[0])
        return jnp.stack([shape, -shape / mean[1]])

    def valid(self, natural):
        shape, rate = self.shape_and_rate(natural)
        return all_finite(natural) & (shape > 0) & (rate > 0)

    def sample(self, key, natural, count):
        shape, rate = self.shape_and_rate(natural)
        return jax.random.gamma(key, shape, (count,), natural.dtype) / rate

    def to_unconstrained(self, natural):
        return jnp.log(jnp.stack(self.shape_and_rate(natural)))

    def from_unconstrained(self, free):
        return jnp.exp(free) * jnp.asarray([1.0, -1.0], free.dtype)


@jax.custom_jvp
def shape_from_jensen_gap(gap: Scalar) -> Scalar:
    r"""The $a > 0$ with $\log a - \psi(a) =$ `gap`; NaN for a gap that is not positive.

    Newton on the logarithms of both sides, nearly a straight line of slope -1 (the left side is $1/a$ for small and
    $1/(2a)$ for large $a$), from Minka's start, which is within 1.5%: six steps reach rounding.
    """
    safe = jnp.where(gap > 0, gap, 1.0)
    start = (3 - safe + jnp.sqrt((safe - 3) ** 2 + 24 * safe)) / (12 * safe)

    def newton(_, log_shape):
        value, slope = _jensen_gap(jnp.exp(log_shape))
        return log_shape - (jnp.log(value) - jnp.log(safe)) * value / slope

    return jnp.where(gap > 0, jnp.exp(jax.lax.fori_loop(0, _NEWTON_STEPS, newton, jnp.log(start))), jnp.nan)


@shape_from_jensen_gap.defjvp
def _(primals, tangents):
    shape = shape_from_jensen_gap(primals[0])
    return shape, tangents[0] / (1 / shape - polygamma(1, shape))


def _jensen_gap(shape):
    """g(a) = log a - psi(a) and a g'(a); from a = 30 by their asymptotic series, where the differences cancel."""
    large = jnp.maximum(shape, _SERIES_FROM)
    inverse = 1 / large
    square = inverse * inverse
    value = inverse / 2 + square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    slope = -(inverse / 2 + square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30))))
    small = jnp.minimum(shape, _SERIES_FROM)
    series = shape > _SERIES_FROM
    return (
        jnp.where(series, value, jnp.log(small) - digamma(small)),
        jnp.where(series, slope, 1 - small * polygamma(1, small)),
    )
