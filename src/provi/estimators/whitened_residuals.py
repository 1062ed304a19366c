r"""Moments of the sticking-the-landing residual in the coordinates in which q is the standard normal.

For $z = m + Cu$, $u \sim N(0, I)$, the residual is $s(u) = C'\nabla\varphi(z) - u$. Its mean $g = E s$ is the gradient
of the negative ELBO in $v$, and $G = \mathrm{sym}\,E[s u']$ its gradient in $B$, over the competitors
$(m + Cv, CB)$ at $(0, I)$; by Stein's identity $I + G = C'E[\nabla^2\varphi]C$, without a second derivative.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.devices import over_draws
from provi.core.types import Count, RandomKey, Scalar
from provi.families.location_scale import LocationScale, Point
from provi.families.scales import Symmetric, Triangular
from provi.targets.base import AbstractTarget, autodiff

PAIRS_AT_ONCE = 32
"""Antithetic pairs that are in memory together."""

DRAWS_AT_ONCE = 4 * PAIRS_AT_ONCE
"""The number of draws is a multiple of this: pairs, for each of two estimates."""


class ResidualMoments(eqx.Module):
    """Two independent estimates of g and of G, stacked; mean and variance over pairs of log q(z) - log p(z)."""

    estimates: tuple[Float[Array, "two dim"], Float[Array, "two dim dim"]]
    loss: Scalar
    loss_variance: Scalar


def whole_draws(num_draws: Count) -> Count:
    """`num_draws` rounded up to a multiple of `DRAWS_AT_ONCE`."""
    return DRAWS_AT_ONCE * ((num_draws + DRAWS_AT_ONCE - 1) // DRAWS_AT_ONCE)


def residual_moments(
    key: RandomKey,
    target: AbstractTarget,
    family: LocationScale,
    point: Point,
    num_draws: Count,
) -> ResidualMoments:
    r"""Means over `whole_draws(num_draws)` antithetic draws; half of the pairs give the first estimate.

    A pair $\pm u$ gives $g$ from the even part of $s$ and $G$ from the odd part, so the third derivatives of the
    potential do not disturb $G$, nor the linear part of $s$ the estimate of $g$. The noise of the loss vanishes with
    that of $s$. The sum runs over chunks of a fixed size with a dynamic trip count: another number of draws does not
    recompile.
    """
    num_chunks = whole_draws(num_draws) // DRAWS_AT_ONCE
    loc, scale, dim, dtype = point.loc, point.scale, family.dim, point.loc.dtype
    assert isinstance(scale, Triangular | Symmetric)
    value_and_gradient = partial(over_draws, target.division, partial(autodiff, target))

    def add_chunk(index: Count, sums: tuple) -> tuple:
        u = family.sample_base(jax.random.fold_in(key, index), point, PAIRS_AT_ONCE)
        move = u @ scale.matrix.T
        values, slopes = value_and_gradient(jnp.concatenate([loc[None] + move, loc[None] - move]))
        values, slopes = values.astype(dtype), slopes.astype(dtype)
        plus, minus = slopes[:PAIRS_AT_ONCE], slopes[PAIRS_AT_ONCE:]
        odd = (plus - minus) @ scale.matrix / 2 - u
        ratio = (values[:PAIRS_AT_ONCE] + values[PAIRS_AT_ONCE:] - jnp.sum(u * u, axis=1)) / 2
        return (
            sums[0] + jnp.sum(slopes, axis=0),
            sums[1] + odd.T @ u,
            sums[2] + jnp.sum(ratio),
            # Around the chunk's own mean: in float32 a difference of large squares would lose the variance.
            sums[3] + jnp.sum((ratio - jnp.mean(ratio)) ** 2),
        )

    def one_estimate(which: Count) -> tuple:
        zero = jnp.zeros((), dtype)
        start = (jnp.zeros_like(loc), jnp.zeros((dim, dim), dtype), zero, zero)
        return jax.lax.fori_loop(which * num_chunks, (which + 1) * num_chunks, add_chunk, start)

    slopes, products, ratios, squares = jax.lax.map(one_estimate, jnp.arange(2))
    pairs = (num_chunks * PAIRS_AT_ONCE).astype(dtype)
    return ResidualMoments(
        (slopes @ scale.matrix / (2 * pairs), (products + jnp.swapaxes(products, 1, 2)) / (2 * pairs)),
        jnp.sum(ratios) / (2 * pairs) - scale.log_det() - 0.5 * dim * jnp.log(2 * jnp.pi).astype(dtype),
        jnp.sum(squares) / (2 * pairs * (1 - 1 / PAIRS_AT_ONCE)),
    )
