r"""Matern kernels of smoothness 1/2, 3/2 and 5/2."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.kernels.inputs import Gram
from provi.kernels.stationary import AbstractStationary


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
