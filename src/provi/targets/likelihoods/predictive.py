r"""$\log E\,p(y \mid \eta)$ for $\eta \sim N(\mu, s^2)$, to all digits also where the probability is $10^{-1000}$.

The integrand is $e^{-\ell(\eta) - (\eta - \mu)^2/2s^2}$. For a convex $\ell$ it has one peak $\eta_*$, and falls off it
at least as fast as $e^{-(\eta - \eta_*)^2/2s^2}$: nodes within nine s of the peak see all but $10^{-18}$ of it,
wherever the peak is.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.targets.likelihoods.quadrature import graded_nodes, spread_of

REACH, LARGEST_SHIFT, NUM_NODES = 9.0, 60.0, 512
_DOUBLINGS, _HALVINGS = 50, 50


def log_gaussian_mean(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any], convex: bool) -> Any:
    """log E exp(-link(eta)); `bend` says where exp(-link) bends and over which width.

    Where the link is not convex there may be two peaks, between the mean and the bend: both ends are covered, up to 60
    standard deviations away.
    """
    centre, width = bend
    spread = spread_of(variance, width)
    peak = jax.lax.stop_gradient(_peak(link, mean, spread))
    shift = (centre - mean) / spread
    low, high = peak, peak
    if not convex:
        low = jnp.clip(jnp.minimum(shift, 0), peak - LARGEST_SHIFT, peak)
        high = jnp.clip(jnp.maximum(shift, 0), peak, peak + LARGEST_SHIFT)
    low, high = low - REACH, high + REACH
    node = graded_nodes(low, high, jnp.clip(shift, low, high), spread / width, NUM_NODES)

    def exponent(t):
        return -link(mean + spread * t) - 0.5 * t * t

    def highest(top, k):
        return jnp.maximum(top, exponent(node(k)[0])), None

    # The sum is taken relative to about its largest term: the logarithm itself may be -1e6.
    every = jnp.asarray(np.arange(NUM_NODES), mean.dtype)
    top = jax.lax.stop_gradient(jax.lax.scan(highest, exponent(peak), every[::8])[0])

    def add(total, k):
        t, step = node(k)
        return total + step * jnp.exp(exponent(t) - top), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(mean), every)
    return jnp.log(total) + top - 0.5 * float(np.log(2 * np.pi))


def _peak(link: Callable, mean: Any, spread: Any) -> Any:
    r"""A root u of $u + s\,\ell'(\mu + su)$, the peak in standard deviations from the mean: bracketed, then halved."""

    def slope(u):
        values, pull = jax.vjp(link, mean + spread * u)
        return u + spread * pull(jnp.ones_like(values))[0]

    side = -jnp.sign(slope(jnp.zeros_like(mean)))

    def double(_, size):
        return jnp.where(side * slope(side * size) < 0, 2 * size, size)

    def halve(_, ends):
        near, far = ends
        middle = 0.5 * (near + far)
        before = side * slope(side * middle) < 0
        return jnp.where(before, middle, near), jnp.where(before, far, middle)

    far = jax.lax.fori_loop(0, _DOUBLINGS, double, jnp.ones_like(mean))
    near, far = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(mean), far))
    return side * 0.5 * (near + far)
