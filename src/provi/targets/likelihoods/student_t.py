"""Real responses with heavy-tailed noise: robust to outliers, and not log-concave."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from provi.core.arguments import check_positive, device_array, double_precision, floating_dtype
from provi.core.types import RandomKey, Scalar
from provi.targets.data import read_real
from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.moments import Strip

_SERIES = 15.0


class StudentT(AbstractLikelihood):
    r"""(y - eta)/scale has Student's t distribution with `df` degrees of freedom.

    With $z = (\eta - y)/\sigma$: $t'' = \frac{\nu + 1}{\sigma^2}\frac{\nu - z^2}{(\nu + z^2)^2}$. It is largest at
    z = 0 and smallest at $z^2 = 3\nu$, where it is $-(\nu + 1)/(8\nu\sigma^2)$.
    """

    df: Scalar
    scale: Scalar
    name: ClassVar[str] = "Student-t"
    second_derivative: ClassVar[str] = "(df + 1) (df - z^2) / (scale (df + z^2))^2 with z = (eta - y)/scale"

    @double_precision
    def __init__(self, df: Any = 4.0, scale: Any = 1.0):
        """**Arguments:**

        - `df`: degrees of freedom.
        - `scale`: of the noise; its standard deviation is scale * sqrt(df/(df - 2)) for df above 2.
        """
        self.df = device_array(np.asarray(check_positive("df", df)), floating_dtype(df))
        self.scale = device_array(np.asarray(check_positive("scale", scale)), floating_dtype(scale))

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """(df + 1)/2 log(1 + z^2/df) and the normaliser."""
        df, scale = self.df.astype(eta.dtype), self.scale.astype(eta.dtype)
        return 0.5 * (df + 1) * jnp.log1p(((eta - y) / scale) ** 2 / df) + jnp.log(scale) + log_normaliser(df)

    @property
    def curvature(self) -> tuple[float, float]:
        """(-1/8, 1) (df + 1)/(df scale^2): both are attained."""
        largest = (float(self.df) + 1) / (float(self.df) * float(self.scale) ** 2)
        return -largest / 8, largest

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """The least of all, which is negative."""
        return -self.most_curvature(low, high, y) / 8

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """The largest of all."""
        df, scale = self.df.astype(low.dtype), self.scale.astype(low.dtype)
        return rounded(jnp.ones_like(low) * (df + 1) / (df * scale**2), 1)

    @property
    def log_concave(self) -> bool:
        """At no `df`."""
        return False

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Real numbers."""
        return read_real(y, length)

    def bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Around y; t has its singularities at y +- i scale sqrt(df), and exp(-t) is scale wide."""
        df, scale = self.df.astype(y.dtype), self.scale.astype(y.dtype)
        return y, scale * jnp.minimum(1.0, jnp.sqrt(df) / 2) * jnp.ones_like(y)

    def strip(self, y: Batch) -> Strip:
        r"""$t'(z) = (\nu + 1)z/((z - iA)(z + iA))$ in $z = \eta - y$, $A = \sigma\sqrt\nu$.

        The factor farther from z is at least |z|, the nearer at least A/2 for $|v| \le A/2$, and the distance 0.398A of
        iA from the line $v = \tan(1/2)(x + A)$. Derivatives are Cauchy's on discs of radius A/2.
        """
        df, scale = self.df.astype(y.dtype) * jnp.ones_like(y), self.scale.astype(y.dtype)
        pole = scale * jnp.sqrt(df)
        slope = 2.6 * (df + 1) / pole
        size = jnp.abs(gammaln(df / 2)) + jnp.abs(gammaln((df + 1) / 2)) + jnp.abs(jnp.log(math.pi * df))
        size += jnp.abs(jnp.log(scale)) + (jnp.abs(y) + 1) * slope
        derivatives = ((df + 1) / pole**2, 8 * slope / pole**2, 48 * slope / pole**3)
        return Strip(pole / 2, slope, jnp.zeros_like(y), derivatives, size)

    @property
    def errors_proven(self) -> bool:
        """By `strip`."""
        return True

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """The mean; NaN for df of at most 1, where y has none."""
        return jnp.where(self.df > 1, mean, jnp.nan)

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        """eta + scale * e, e of Student's t distribution."""
        noise = jax.random.t(key, self.df.astype(eta.dtype), eta.shape, eta.dtype)
        return eta + self.scale.astype(eta.dtype) * noise


def log_normaliser(df: Any) -> Any:
    r"""$\log\int(1 + z^2/\nu)^{-(\nu + 1)/2}dz = \tfrac12\log\pi\nu + \log\Gamma(\nu/2) - \log\Gamma((\nu + 1)/2)$.

    From $h = \nu/2 \ge 15$ on by the series of $\log\Gamma(h + \tfrac12) - \log\Gamma(h) - \tfrac12\log h$, to 5e-14:
    the two grow without bound while what is left of them tends to $\tfrac12\log 2\pi$.
    """
    half, below = df / 2, df / 2 < _SERIES
    small, large = jnp.where(below, half, _SERIES), jnp.where(below, _SERIES, half)
    exact = gammaln(small) - gammaln(small + 0.5) + 0.5 * jnp.log(2 * math.pi * small)
    x = 1 / large
    series = x * (1 / 8 - x**2 * (1 / 192 - x**2 * (1 / 640 - x**2 * (17 / 14336))))
    return jnp.where(below, exact, 0.5 * math.log(2 * math.pi) + series)
