r"""Kernels of a scaled distance, $k(x, x') = a^2 \rho(r^2)$, $r^2 = \sum_j (x_j - x_j')^2 / \ell_j^2$."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import Scalar
from provi.kernels.base import AbstractKernel
from provi.kernels.distances import scaled_squared_distances
from provi.kernels.inputs import (
    Gram,
    as_columns,
    as_hyperparameter,
    as_point_pair,
    as_points,
    check_hyperparameter,
)


class AbstractStationary(AbstractKernel):
    r"""A kernel $a^2 \rho(r^2)$ with $\rho(0) = 1$.

    **Arguments:**

    - `length_scale`: $\ell$, one number for all columns or a vector with one for each.
    - `amplitude`: $a$; the variance of the process is $a^2$.
    - `columns`: the positions of the columns of X that the kernel sees; None for all.
    """

    length_scale: Float[Array, "..."] = eqx.field(converter=as_hyperparameter, default=1.0)
    amplitude: Scalar = eqx.field(converter=as_hyperparameter, default=1.0)
    columns: tuple[int, ...] | None = eqx.field(converter=as_columns, static=True, default=None)

    def __check_init__(self) -> None:
        check_hyperparameter("length_scale", self.length_scale, self.columns, per_column=True)
        check_hyperparameter("amplitude", self.amplitude)

    @abc.abstractmethod
    def correlation(self, squared_distance: Gram) -> Gram:
        r"""$\rho(r^2)$, entry by entry."""

    def matrix(self, X: Any, Z: Any = None) -> Gram:
        left, right = as_point_pair(X, Z, self.columns)
        variance = self.amplitude.astype(left.dtype) ** 2
        return variance * self.correlation(scaled_squared_distances(left, right, self.length_scale))

    def diagonal(self, X: Any) -> Float[Array, " points"]:
        points = as_points("X", X, self.columns)
        return jnp.broadcast_to(self.amplitude.astype(points.dtype) ** 2, (points.shape[0],))


class SquaredExponential(AbstractStationary):
    r"""The squared-exponential kernel $a^2 e^{-r^2/2}$, $r^2 = \sum_j (x_j - x_j')^2/\ell_j^2$: analytic functions."""

    def correlation(self, squared_distance: Gram) -> Gram:
        return jnp.exp(-0.5 * squared_distance)
