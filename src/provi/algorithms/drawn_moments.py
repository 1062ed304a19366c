r"""E t, E t' and E t'' of a data term by Monte Carlo, t = -log p(y | eta), eta = mean + sd e, e ~ N(0, 1): three ways.

| estimator | E t' | E t'' | |
| --- | --- | --- | --- |
| score | $E[te]/\sigma$ | $E[t(e^2 - 1)]/\sigma^2$ | papers 000 and 002: values of t only; the noisiest |
| price | $E t'$ | $E t''$ | Bonnet and Price; bad where t' bends over much less than $\sigma$ |
| reparameterised | $E t'$ | $E[t'e]/\sigma$ | in between |

All are unbiased. Those of E t'' but price's may be negative for a convex t.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import RandomKey
from provi.targets.likelihoods.base import AbstractLikelihood
from provi.targets.link_moments import LinkMoments

ESTIMATORS = ("score", "price", "reparameterised")

Batch = Float[Array, " batch"]


def drawn_moments(
    key: RandomKey, likelihood: AbstractLikelihood, mean: Batch, variance: Batch, y: Batch, num: int, estimator: str
) -> LinkMoments:
    """Means over `num` draws, fresh ones for each datum; `estimator` is one of `ESTIMATORS`."""
    noise = jax.random.normal(key, (num, *mean.shape), mean.dtype)
    spread = jnp.sqrt(variance)
    eta = mean[None, :] + spread[None, :] * noise
    responses = jnp.tile(y, num)

    def potential(flat: Any) -> Any:
        return likelihood.potential(flat, responses)

    def slope(flat: Any) -> Any:
        values, pull = jax.vjp(potential, flat)
        return pull(jnp.ones_like(values))[0]

    def average(flat: Any, weights: Any = None) -> Any:
        table = flat.reshape(noise.shape)
        return jnp.mean(table if weights is None else table * weights, axis=0)

    flat = eta.reshape(-1)
    # Where the variance is zero there is no noise to divide by.
    safe = jnp.where(spread > 0, spread, jnp.ones_like(spread))
    values = potential(flat)
    if estimator == "score":
        return LinkMoments(average(values), average(values, noise) / safe, average(values, noise**2 - 1) / safe**2)
    if estimator == "reparameterised":
        slopes = slope(flat)
        return LinkMoments(average(values), average(slopes), average(slopes, noise) / safe)
    slopes, bends = jax.jvp(slope, (flat,), (jnp.ones_like(flat),))
    return LinkMoments(average(values), average(slopes), average(bends))
