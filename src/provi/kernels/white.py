"""White noise."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import Scalar
from provi.kernels.base import AbstractKernel
from provi.kernels.distances import Gram, as_hyperparameter, as_point_pair, as_points, check_hyperparameter


class White(AbstractKernel):
    r"""White noise of variance $a^2$, $a$ = `amplitude`: $a^2 I$ for one table of points, 0 between two tables.

    Rows of one table are different observations also where their inputs are equal, so noise is never shared.
    """

    amplitude: Scalar = eqx.field(converter=as_hyperparameter, default=1.0)

    def __check_init__(self) -> None:
        check_hyperparameter("amplitude", self.amplitude)

    def matrix(self, X: Any, Z: Any = None) -> Gram:
        left, right = as_point_pair(X, Z)
        if Z is not None:
            return jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
        return self.amplitude.astype(left.dtype) ** 2 * jnp.eye(left.shape[0], dtype=left.dtype)

    def diagonal(self, X: Any) -> Float[Array, " points"]:
        points = as_points("X", X)
        return jnp.broadcast_to(self.amplitude.astype(points.dtype) ** 2, (points.shape[0],))
