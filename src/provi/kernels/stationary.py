r"""Stationary kernels: of a scaled distance, $k(x, x') = a^2 \rho(r^2)$, $r^2 = \sum_j (x_j - x_j')^2 / \ell_j^2$, and
the periodic one, a squared-exponential kernel on circles, and white noise.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
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


class Matern12(AbstractStationary):
    r"""The exponential kernel $a^2 e^{-r}$: continuous functions, differentiable nowhere (Ornstein-Uhlenbeck)."""

    def correlation(self, squared_distance: Gram) -> Gram:
        return jnp.exp(-_root(squared_distance))


class Matern32(AbstractStationary):
    r"""The kernel $a^2 (1 + \sqrt3 r) e^{-\sqrt3 r}$: functions once differentiable."""

    def correlation(self, squared_distance: Gram) -> Gram:
        return _matern32(3 * squared_distance)


class Matern52(AbstractStationary):
    r"""The kernel $a^2 (1 + \sqrt5 r + 5 r^2/3) e^{-\sqrt5 r}$: functions twice differentiable."""

    def correlation(self, squared_distance: Gram) -> Gram:
        return _matern52(5 * squared_distance)


def _root(square: Float[Array, "..."]) -> Float[Array, "..."]:
    """sqrt whose derivative at zero is zero, not infinite: the derivative of a distance where points coincide."""
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


# As functions of t = s^2 the two smoother profiles are differentiable at zero, which the chain rule through sqrt does
# not see: d/dt (1 + s) e^-s = -e^-s / 2 and d/dt (1 + s + s^2/3) e^-s = -(1 + s) e^-s / 6.


@jax.custom_jvp
def _matern32(t: Float[Array, "..."]) -> Float[Array, "..."]:
    s = _root(t)
    return (1 + s) * jnp.exp(-s)


@_matern32.defjvp
def _matern32_jvp(primals, tangents):
    (t,), (tangent,) = primals, tangents
    return _matern32(t), -0.5 * jnp.exp(-_root(t)) * tangent


@jax.custom_jvp
def _matern52(t: Float[Array, "..."]) -> Float[Array, "..."]:
    s = _root(t)
    return (1 + s + t / 3) * jnp.exp(-s)


@_matern52.defjvp
def _matern52_jvp(primals, tangents):
    (t,), (tangent,) = primals, tangents
    return _matern52(t), -_matern32(t) / 6 * tangent


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
