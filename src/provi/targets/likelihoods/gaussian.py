"""Real responses with Gaussian noise."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import check_positive, device_array, double_precision, floating_dtype
from provi.core.types import RandomKey, Scalar
from provi.targets.data import read_real
from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors


class GaussianNoise(AbstractLikelihood):
    """y ~ N(eta, scale^2): everything is exact."""

    scale: Scalar
    name: ClassVar[str] = "Gaussian"
    curvature_decay: ClassVar[float | None] = 0.0
    second_derivative: ClassVar[str] = "1/scale^2"

    @double_precision
    def __init__(self, scale: Any = 1.0):
        """`scale`: the standard deviation of the noise."""
        self.scale = device_array(np.asarray(check_positive("scale", scale)), floating_dtype(scale))

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """-log N(y; eta, scale^2)."""
        scale = self.scale.astype(eta.dtype)
        return 0.5 * ((y - eta) / scale) ** 2 + jnp.log(scale) + 0.5 * math.log(2 * math.pi)

    @property
    def curvature(self) -> tuple[float, float]:
        """(1/scale^2, 1/scale^2)."""
        value = float(self.scale) ** -2.0
        return value, value

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """1/scale^2."""
        return rounded(jnp.ones_like(low) * self.scale.astype(low.dtype) ** -2.0, -1)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """1/scale^2."""
        return rounded(jnp.ones_like(low) * self.scale.astype(low.dtype) ** -2.0, 1)

    @property
    def log_concave(self) -> bool:
        """At every scale."""
        return True

    @property
    def self_concordance(self) -> float:
        """The second derivative is constant."""
        return 0.0

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Real numbers."""
        return read_real(y, length)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """E (y - eta)^2 = (y - mean)^2 + variance."""
        weight = self.scale.astype(mean.dtype) ** -2.0
        value = self.potential(mean, y) + 0.5 * weight * variance
        return LinkMoments(value, weight * (mean - y), jnp.full_like(mean, 1.0) * weight)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Rounding."""
        unit, scale = 8 * float(jnp.finfo(mean.dtype).eps), self.scale.astype(mean.dtype)
        relative = unit * scale**-2.0
        slope = relative * (jnp.abs(mean) + jnp.abs(y))
        value = relative * (mean**2 + y**2 + variance) + unit * (1 + jnp.abs(jnp.log(scale)))
        return MomentErrors(value, slope, jnp.full_like(mean, 1.0) * relative)

    @property
    def errors_proven(self) -> bool:
        """A closed form."""
        return True

    def curvature_moments(self, mean: Batch, deviation: Batch, y: Any = None) -> tuple[Batch, Batch, Batch, Any]:
        """(1, 0, 1) / scale^2."""
        weight = jnp.full_like(mean, 1.0) * self.scale.astype(mean.dtype) ** -2.0
        return weight, jnp.zeros_like(weight), weight, 0.0

    def log_predictive(self, mean: Batch, variance: Batch, y: Batch) -> Batch:
        """log N(y; mean, variance + scale^2)."""
        total = variance + self.scale.astype(mean.dtype) ** 2
        return -0.5 * ((y - mean) ** 2 / total + jnp.log(total) + math.log(2 * math.pi))

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """The mean."""
        return mean

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        """eta + scale * e, e ~ N(0, 1)."""
        return eta + self.scale.astype(eta.dtype) * jax.random.normal(key, eta.shape, eta.dtype)
