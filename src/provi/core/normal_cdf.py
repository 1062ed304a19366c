"""-log Phi, its slope and its curvature, accurate in both tails.

Phi is the standard normal distribution function, h = Phi' / Phi. The derivatives of t -> -log Phi(t) are -h(t) and
h(t) (t + h(t)), which lies in (0, 1). For t = -x far below zero h is near x, so t + h cancels; there Laplace's
continued fraction

    h(-x) = x + K,  K = 1 / (x + 2 / (x + 3 / (x + ...)))

gives the small difference K itself. JAX differentiates an asymptotic series of three terms instead: its second
derivative is off by 2e-6 at t = -20 in float64, and leaves (0, 1) in float32.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import erfc
from jaxtyping import Array, Float

TAIL = -5.0
"""Below this point the continued fraction is used."""

LEVELS = 24
"""At x = 5 the fraction cut after 24 levels is off by 1.5e-15, relatively; beyond it is better."""


def _tail_polynomials(levels: int) -> tuple[list[float], list[float]]:
    """Coefficients, lowest power first, of P and Q with x K = P(y) / Q(y), y = 1/x^2.

    With r_k = 1 / (1 + k y r_{k+1}) and r_{levels+1} = 1, x K = r_2. All coefficients are positive: nothing cancels.
    """
    numerator, denominator = [1], [1]
    for k in range(levels, 1, -1):
        product = [0, *(k * c for c in numerator)]
        padded = denominator + [0] * (len(product) - len(denominator))
        product += [0] * (len(padded) - len(product))
        numerator, denominator = denominator, [a + b for a, b in zip(padded, product, strict=True)]
    return [float(c) for c in numerator], [float(c) for c in denominator]


_NUMERATOR, _DENOMINATOR = _tail_polynomials(LEVELS)


def _horner(coefficients: list[float], y: Float[Array, "..."]) -> Float[Array, "..."]:
    value = jnp.full_like(y, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * y + coefficient
    return value


def _tail(t: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    """x = -t, r = x K and y = 1/x^2 where t < TAIL; those of TAIL elsewhere, so that the unused branch is finite."""
    x = jnp.where(t < TAIL, -t, -TAIL)
    y = (1 / x) ** 2
    return x, _horner(_NUMERATOR, y) / _horner(_DENOMINATOR, y), y


@jax.custom_jvp
def negative_log_normal_cdf(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """-log Phi(t), with relative accuracy for all t."""
    x, r, _ = _tail(t)
    tail = 0.5 * x * x + jnp.log(x + r / x) + 0.5 * math.log(2 * math.pi)
    smaller = 0.5 * erfc(jnp.abs(_centre(t)) / math.sqrt(2))
    centre = jnp.where(t < 0, -jnp.log(smaller), -jnp.log1p(-smaller))
    return jnp.where(t < TAIL, tail, centre)


@negative_log_normal_cdf.defjvp
def _negative_log_normal_cdf_jvp(primals, tangents):
    (t,), (tangent,) = primals, tangents
    return negative_log_normal_cdf(t), -normal_hazard(t) * tangent


@jax.custom_jvp
def normal_hazard(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """h(t) = Phi'(t) / Phi(t): minus the derivative of -log Phi."""
    x, r, _ = _tail(t)
    return jnp.where(t < TAIL, x + r / x, _central_hazard(t))


@normal_hazard.defjvp
def _normal_hazard_jvp(primals, tangents):
    (t,), (tangent,) = primals, tangents
    return normal_hazard(t), -normal_curvature(t) * tangent


def normal_curvature(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """h(t) (t + h(t)): the second derivative of -log Phi, decreasing from 1 to 0.

    In the tail it is (x + K) K = r (1 + r y).
    """
    _, r, y = _tail(t)
    hazard = _central_hazard(t)
    return jnp.where(t < TAIL, r * (1 + r * y), hazard * (_centre(t) + hazard))


def _centre(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """t from TAIL upwards, TAIL below. Not `maximum`, whose derivative at a tie is one half."""
    return jnp.where(t < TAIL, TAIL, t)


def _central_hazard(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """exp(-t^2/2) sqrt(2/pi) / erfc(-t / sqrt 2), for t from TAIL upwards."""
    t = _centre(t)
    return jnp.exp(-0.5 * t * t) * math.sqrt(2 / math.pi) / erfc(-t / math.sqrt(2))
