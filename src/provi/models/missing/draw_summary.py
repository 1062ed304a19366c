r"""What is kept of the draws of a row's linear predictor, and the noise that can be taken off it for nothing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Summary(eqx.Module):
    r"""For each row the means over the draws of $u, u^2, w, wu, wu^2, \sigma(\eta)$ and $\sigma(\eta)u$."""

    first: Float[Array, " b"]
    second: Float[Array, " b"]
    weight: Float[Array, " b"]
    weight_first: Float[Array, " b"]
    weight_second: Float[Array, " b"]
    sigmoid: Float[Array, " b"]
    sigmoid_first: Float[Array, " b"]


class Prepared(eqx.Module):
    r"""For each row $m$, $C$, $d = C\delta/s$ (zero where $s = 0$), $\mu$, $s$ and the label."""

    filled: Float[Array, "b p"]
    covariance: Float[Array, "b p p"]
    direction: Float[Array, "b p"]
    centre: Float[Array, " b"]
    deviation: Float[Array, " b"]
    label: Float[Array, " b"]


def control_variates(prepared: Prepared, summary: Summary, constant: float = 1.0) -> Summary:
    r"""The summary less its own noise, where that is known: zero-variance control variates (Mira and others, 2013).

    Under the density proportional to $\phi(u)\sigma(y(\mu + su))$, by Stein's identity, both of

    $$c_1 = s(y_{01} - \sigma(\eta)) - u,\qquad c_2 = 1 + uc_1$$

    have mean zero. With $\sigma(\eta) \approx \sigma_0 + \sigma_1u + \sigma_2u^2$, $a = s(y_{01} - \sigma_0)$,
    $\lambda = 1 + s\sigma_1$, $\kappa = s\sigma_2$ and $p = 1/(\lambda + a\kappa/\lambda)$ (which is positive, at
    most $2/\lambda$) the linear and quadratic parts cancel in $u + \Delta_1$, $u^2 + \Delta_2$, in
    $\sigma + \sigma_1\Delta_1 + \sigma_2\Delta_2$ and $\sigma u + \sigma_0\Delta_1 + \sigma_1\Delta_2$, where
    $\Delta_1 = p(c_1 - \kappa c_2/\lambda)$ and $\Delta_2 = p(c_2 + ac_1/\lambda)$. Exact means stay as they are,
    whatever the expansion; the expansion here is that of $\sigma$ smoothed by the Gaussian, as one logistic curve.

    `constant=0` gives the linear part, for errors of summaries.
    """
    s, positive = prepared.deviation, (prepared.label + 1) / 2
    shrink = jax.lax.rsqrt(1 + np.pi / 8 * s**2)
    zeroth, slope = sigmoid_and_weight(shrink * prepared.centre, "newton")
    first = s * shrink * slope
    second = 0.5 * (s * shrink) ** 2 * slope * (1 - 2 * zeroth)
    a, stiffness, bend = s * (positive - zeroth), 1 + s * first, s * second
    one = s * (constant * positive - summary.sigmoid) - summary.first
    two = constant + s * (positive * summary.first - summary.sigmoid_first) - summary.second
    scale = 1 / (stiffness + a * bend / stiffness)
    of_first = scale * (one - bend / stiffness * two)
    of_second = scale * (two + a / stiffness * one)
    return Summary(
        summary.first + of_first,
        summary.second + of_second,
        summary.weight,
        summary.weight_first,
        summary.weight_second,
        summary.sigmoid + first * of_first + second * of_second,
        summary.sigmoid_first + zeroth * of_first + first * of_second,
    )


def coefficient_scores(prepared: Prepared, summary: Summary) -> Float[Array, "b q"]:
    r"""Per row $E[(y_{01} - \sigma(\eta))\tilde z]$: by Fisher's identity its score in the coefficients."""
    positive = (prepared.label + 1) / 2
    along = positive - summary.sigmoid
    across = positive * summary.first - summary.sigmoid_first
    rest = along[:, None] * prepared.filled + across[:, None] * prepared.direction
    return jnp.concatenate([along[:, None], rest], axis=1)


def sigmoid_and_weight(eta: Float[Array, "..."], curvature: str) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """sigma(eta) and the curvature w(eta), from one exponential."""
    small = jnp.exp(-jnp.abs(eta))
    larger = 1 / (1 + small)
    sigmoid = jnp.where(eta >= 0, larger, small * larger)
    if curvature == "boehning":
        return sigmoid, jnp.full_like(eta, 0.25)
    if curvature == "newton":
        return sigmoid, small * larger**2
    near_zero = jnp.abs(eta) < 1e-3  # there the next term of the series is below 1e-14
    size = jnp.where(near_zero, 1, jnp.abs(eta))
    return sigmoid, jnp.where(near_zero, 0.25 - eta**2 / 48, (1 - small) * larger / (2 * size))
