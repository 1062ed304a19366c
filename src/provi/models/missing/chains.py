r"""Draws of the linear predictor of a row given its label: Metropolis-Hastings chains, and an exact sampler.

Given the observed entries $\eta = \mu + su$ with $u \sim N(0, 1)$; the label turns this into the law with density
proportional to $\phi(u)\sigma(y(\mu + su))$. Everything here is in $u$: a chain that keeps the *standardised* residual
$u$ has a sensible state after $\theta$, and with it $\mu$ and $s$, has moved.

Rows without missing entries have $s = 0$: their draws change nothing, and are not counted.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float, Int

from provi.core.arguments import device_array
from provi.core.types import RandomKey
from provi.targets.likelihoods.bernoulli import SLOPES, WEIGHTS

_ROOT_TWO = float(np.sqrt(2))


class Chains(eqx.Module):
    """One Markov chain a row: the residual, and how many proposals were made and accepted (rows with s > 0)."""

    residual: Float[Array, " b"]
    accepted: Int[Array, " b"]
    proposed: Int[Array, " b"]

    @property
    def acceptance(self) -> float:
        """The share of proposals accepted, over all rows; NaN where there were none."""
        proposed = int(np.sum(self.proposed))
        return int(np.sum(self.accepted)) / proposed if proposed else float("nan")


def start_chains(key: RandomKey, like: Float[Array, " b"]) -> Chains:
    """Chains that start from the conditional Gaussian, the proposal."""
    none = jnp.zeros(like.shape, jnp.int32)
    return Chains(_normals(jax.random.bits(key, like.shape, "uint32"), like.dtype), none, none)


def metropolis_draws(
    key: RandomKey,
    chains: Chains,
    centre: Float[Array, " b"],
    deviation: Float[Array, " b"],
    label: Float[Array, " b"],
    num_draws: int,
) -> tuple[Chains, Float[Array, "m b"]]:
    r"""`num_draws` further states of each chain, and the chains that have gone so far.

    Independence Metropolis-Hastings: propose $u' \sim N(0, 1)$ (the missing entries from their conditional Gaussian),
    accept with probability $\min(1, \sigma(y\eta')/\sigma(y\eta))$.
    """
    bits = jax.random.bits(key, (2, num_draws, *centre.shape), "uint32")
    proposals = _normals(bits[0], centre.dtype)
    thresholds = jnp.log(_uniforms(bits[1]).astype(centre.dtype))

    def log_likelihood(residual: Float[Array, "*m b"]) -> Float[Array, "*m b"]:
        shape = (1,) * (residual.ndim - 1) + centre.shape
        return -_softplus(-label.reshape(shape) * (centre.reshape(shape) + deviation.reshape(shape) * residual))

    proposed = log_likelihood(proposals)
    residual, present, accepted, path = chains.residual, log_likelihood(chains.residual), chains.accepted, []
    random = deviation > 0
    for i in range(num_draws):  # unrolled: a handful of selects, fused into one kernel
        accept = thresholds[i] < proposed[i] - present
        residual = jnp.where(accept, proposals[i], residual)
        present = jnp.where(accept, proposed[i], present)
        accepted = accepted + (accept & random)
        path.append(residual)
    return Chains(residual, accepted, chains.proposed + num_draws * random.astype(jnp.int32)), jnp.stack(path)


def exact_draws(
    key: RandomKey,
    centre: Float[Array, " b"],
    deviation: Float[Array, " b"],
    label: Float[Array, " b"],
    num_draws: int,
) -> Float[Array, "m b"]:
    r"""Independent draws of u from the density proportional to $\phi(u)\sigma(y(\mu + su))$.

    With $\sigma(z) = \sum_kw_k\Phi(c_kz)$ (eight probits, error 5e-9) and $a_k = (1 + c_k^2s^2)^{-1/2}$: choose k with
    probability proportional to $w_k\Phi(c_ky\mu a_k)$. Given k the law is that of u under the event
    $e < c_ky(\mu + su)$ of an independent $e \sim N(0, 1)$, that is $\xi > -c_ky\mu a_k$ for the standard normal
    $\xi = a_k(c_kysu - e)$. Draw the truncated $\xi$ by inversion of the upper tail, then
    $u = a_kc_kys\xi + a_k\varepsilon$, $\varepsilon \sim N(0, 1)$.

    Where $y\mu < -s^2/2$ the mixture's tail would be wrong in relative terms. There
    $\sigma(y\eta) = e^{y\eta}\sigma(-y\eta)$ shifts the Gaussian's mean to $\mu + ys^2$ and turns the label, exactly.
    """
    shifted = label * centre < -0.5 * deviation**2
    centre = jnp.where(shifted, centre + label * deviation**2, centre)
    shift = jnp.where(shifted, label * deviation, 0)
    label = jnp.where(shifted, -label, label)
    weights, slopes = (device_array(np.reshape(x, (1, 8)), centre.dtype) for x in (WEIGHTS, SLOPES))
    shrink = jax.lax.rsqrt(1 + (slopes * deviation[:, None]) ** 2)
    limit = slopes * (label * centre)[:, None] * shrink
    ends = jnp.cumsum(weights * ndtr(limit), axis=1)
    choose, cut, gauss = jax.random.split(key, 3)
    shape = (num_draws, *centre.shape)
    level = jax.random.uniform(choose, shape, centre.dtype) * ends[None, :, -1]
    piece = jnp.minimum(jnp.sum(level[..., None] > ends[None], axis=-1), 7)
    places = jnp.arange(centre.shape[0])[None]
    shrink, limit, slope = shrink[places, piece], limit[places, piece], slopes[0][piece]
    lowest = jnp.finfo(centre.dtype).tiny
    tail = jax.random.uniform(cut, shape, centre.dtype, lowest, 1.0) * ndtr(limit)
    truncated = -ndtri(jnp.maximum(tail, lowest))
    noise = jax.random.normal(gauss, shape, centre.dtype)
    return shrink * (slope * (label * deviation)[None] * truncated + noise) + shift[None]


def _uniforms(bits: Array) -> Float[Array, "..."]:
    """Numbers in (0, 1), 23 random bits each: far finer than what any mean of draws can see.

    With 24 the largest, 1 - 2^-25, would round to 1, and its normal be infinite.
    """
    return ((bits >> 9).astype(jnp.float32) + 0.5) * np.float32(2**-23)


def _normals(bits: Array, dtype) -> Float[Array, "..."]:
    # Half the work of double precision. 23 bits end at 5.3 standard deviations, where 1e-7 of the mass is cut off.
    return (_ROOT_TWO * jax.lax.erf_inv(2 * _uniforms(bits) - 1)).astype(dtype)


def _softplus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))
