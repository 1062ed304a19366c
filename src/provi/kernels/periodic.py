"""The periodic kernel, as a squared-exponential kernel on circles."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import Scalar
from provi.kernels.base import AbstractKernel
from provi.kernels.distances import (
    Gram,
    Points,
    as_columns,
    as_hyperparameter,
    as_point_pair,
    as_points,
    check_hyperparameter,
    per_column,
    scaled_squared_distances,
)


class Periodic(AbstractKernel):
    r"""The periodic kernel $a^2 \exp(-2 \sum_j \sin^2(\pi (x_j - x_j')/p_j) / \ell_j^2)$.

    **Arguments:**

    - `length_scale`: $\ell$, one number for all columns or a vector with one for each.
    - `period`: $p$, one number for all columns or a vector with one for each.
    - `amplitude`: $a$; the variance of the process is $a^2$.
    - `columns`: the positions of the columns of X that the kernel sees; None for all.
    """

    length_scale: Float[Array, "..."] = eqx.field(converter=as_hyperparameter, default=1.0)
    period: Float[Array, "..."] = eqx.field(converter=as_hyperparameter, default=1.0)
    amplitude: Scalar = eqx.field(converter=as_hyperparameter, default=1.0)
    columns: tuple[int, ...] | None = eqx.field(converter=as_columns, static=True, default=None)

    def __check_init__(self) -> None:
        check_hyperparameter("length_scale", self.length_scale, self.columns, per_column=True)
        check_hyperparameter("period", self.period, self.columns, per_column=True)
        check_hyperparameter("amplitude", self.amplitude)

    def matrix(self, X: Any, Z: Any = None) -> Gram:
        left, right = as_point_pair(X, Z, self.columns)
        # (2 sin(pi t))^2 is the squared chord between two points of the unit circle, 2 pi t apart along the arc.
        squares = scaled_squared_distances(self._on_circles(left), self._on_circles(right), self._scales(left))
        return self.amplitude.astype(left.dtype) ** 2 * jnp.exp(-0.5 * squares)

    def diagonal(self, X: Any) -> Float[Array, " points"]:
        points = as_points("X", X, self.columns)
        return jnp.broadcast_to(self.amplitude.astype(points.dtype) ** 2, (points.shape[0],))

    def _on_circles(self, points: Points) -> Float[Array, "_ coordinates"]:
        period = per_column("period", self.period, points)[None, :]
        # The remainder is exact, so that a large number of periods does not cost digits of the phase.
        angle = 2 * math.pi * (jnp.remainder(points, period) / period)
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1)

    def _scales(self, points: Points) -> Float[Array, "..."]:
        """The length scale of each circle's two coordinates."""
        if self.length_scale.ndim == 0:
            return self.length_scale
        return jnp.tile(per_column("length_scale", self.length_scale, points), 2)
