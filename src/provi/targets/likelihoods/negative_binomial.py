"""Counts that spread more than Poisson's."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from provi.core.arguments import check_positive, double_precision, floating_dtype
from provi.core.types import RandomKey, Scalar
from provi.targets.data import read_counts
from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.bernoulli import least_sigmoid_slope, most_sigmoid_slope, softplus
from provi.targets.likelihoods.moments import Strip
from provi.targets.likelihoods.poisson import draw_counts


class NegativeBinomial(AbstractLikelihood):
    r"""A count with mean $\mu = e^\eta$ and variance $\mu + \mu^2/r$; Poisson's as r, the `dispersion`, grows.

    $t'' = (y + r)\,s(1 - s)$ with $s = \sigma(\eta - \log r)$: log-concave, and at most (y + r)/4.
    """

    dispersion: Scalar
    name: ClassVar[str] = "negative binomial, log link"
    curvature_decay: ClassVar[float | None] = 0.5
    second_derivative: ClassVar[str] = "(y + r) r exp(eta) / (r + exp(eta))^2"

    @double_precision
    def __init__(self, dispersion: Any = 1.0):
        """`dispersion`: r, the number of successes of the negative binomial law; small r means a wide spread."""
        value = np.asarray(check_positive("dispersion", dispersion))
        self.dispersion = jnp.asarray(value, floating_dtype(dispersion))

    def potential(self, eta: Batch, y: Batch) -> Batch:
        r"""$y\,\mathrm{softplus}(-x) + r\,\mathrm{softplus}(x) - \log\binom{y + r - 1}{y}$, $x = \eta - \log r$."""
        r = self.dispersion.astype(eta.dtype)
        x = eta - jnp.log(r)
        # Two terms of one sign: (y + r) softplus(x) - y x would cancel.
        return y * softplus(-x) + r * softplus(x) - (gammaln(y + r) - gammaln(r) - gammaln(y + 1))

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, infinity): (y + r)/4 is unbounded in y; `curvature_given` knows the data."""
        return 0.0, np.inf

    def curvature_given(self, y: Any) -> tuple[float, float]:
        """(0, (max y + r)/4)."""
        return 0.0, (float(np.max(np.asarray(y))) + float(self.dispersion)) / 4

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the end farther from log r."""
        r, low, high = self._from_bend(low, high)
        return rounded((y + r) * least_sigmoid_slope(low, high), -1)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the point nearest to log r."""
        r, low, high = self._from_bend(low, high)
        return rounded((y + r) * most_sigmoid_slope(low, high), 1)

    def _from_bend(self, low: Batch, high: Batch) -> tuple[Scalar, Batch, Batch]:
        """r, and the ends less log r."""
        r = self.dispersion.astype(low.dtype)
        return r, low - jnp.log(r), high - jnp.log(r)

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Counts 0, 1, 2, ..."""
        return read_counts(y, length)

    def bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Around log r, where the softplus bends; its singularities are i pi away."""
        return jnp.log(self.dispersion.astype(y.dtype)) * jnp.ones_like(y), jnp.full_like(y, np.pi / 2)

    def strip(self, y: Batch) -> Strip:
        r"""$t' = r\sigma(x) - y\sigma(-x)$, and $|\sigma(x + iv)| = |1 + e^{-x - iv}|^{-1}$.

        It is at most $\sqrt2$ for $|v| \le \pi/2$, $1/|\sin v|$ beyond, and $1/(1 - e^{-|x|})$: with $|v| \le
        \tan(1/2)(|x| + \pi)$ at most 1.6, the last for $|x| \ge 1$. The third and fourth derivatives of the softplus
        are at most 0.097 and 0.125.
        """
        r = self.dispersion.astype(y.dtype)
        total, size = y + r, jnp.abs(gammaln(y + r)) + jnp.abs(gammaln(r)) + gammaln(y + 1)
        zero, height = jnp.zeros_like(y), jnp.full_like(y, np.pi / 2)
        return Strip(height, 1.6 * total, zero, (0.25 * total, 0.1 * total, 0.13 * total), size)

    @property
    def errors_proven(self) -> bool:
        """By `strip`."""
        return True

    def value_error_given(self, y: Any) -> float:
        """And the rounding of terms of the size (y + r) log(y + r) that cancel."""
        largest = float(np.max(np.asarray(y), initial=0.0)) + float(self.dispersion)
        return self.value_error + 64 * float(np.finfo(float).eps) * largest * (1 + float(np.log1p(largest)))

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Around log y, with the width 1/sqrt(t'') there; for y = 0 a step near 0."""
        r = self.dispersion.astype(y.dtype)
        return jnp.log(y + 0.5), 1 / jnp.sqrt(1 + y * r / (y + r))

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """E exp(eta) = exp(mean + variance/2)."""
        return jnp.exp(mean + variance / 2)

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        """Poisson's with the mean exp(eta) g/r, g of the gamma distribution with shape r."""
        gamma_key, count_key = jax.random.split(key)
        r = self.dispersion.astype(eta.dtype)
        return draw_counts(count_key, jnp.exp(eta) * jax.random.gamma(gamma_key, r, eta.shape, eta.dtype) / r)
