r"""Means of a link potential under $\eta \sim N(\mu, s^2)$: what a Gaussian approximation of a linear model needs.

By Bonnet's and Price's theorems, with $\psi(\mu, s^2) = E\ell(\eta)$: $\partial_\mu\psi = E\ell'$ and
$2\,\partial_{s^2}\psi = E\ell'' = E[\ell'(\mu + st)\,t]/s$.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

_RANGE, _NUM_NODES, _STRIDE = 12.0, 481, 4
LARGEST_DEVIATION = 1000.0
"""In widths of the link's bend: the largest spread for which the quadrature of the likelihoods states an error."""


class LinkMoments(eqx.Module):
    """E l, E l' and E l'' (`weight`), one a data term."""

    value: Any
    slope: Any
    weight: Any


class MomentErrors(eqx.Module):
    """How far the three numbers of a `LinkMoments` can be from the truth, one number a data term."""

    value: Any
    slope: Any
    weight: Any


def trapezoid_rule(stride: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for N(0, 1): equal steps on [-12, 12]; every `stride`-th node of 481.

    For a function analytic in a strip the error falls exponentially in the number of nodes.
    """
    nodes = np.linspace(-_RANGE, _RANGE, _NUM_NODES)[::stride]
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def quadrature_moments(link: Callable, mean: Any, deviation: Any, rule: tuple[Any, Any] | None = None) -> LinkMoments:
    """The moments of any link by quadrature; `link(eta)` acts entry by entry.

    `rule` holds nodes and weights of the law of t in eta = mean + deviation t; by default N(0, 1). The weight is
    E[l' t]/s, from the same nodes as the slope: a fixed point is then off by the slope's error only.
    """
    nodes, weights = (jnp.asarray(x, mean.dtype) for x in (trapezoid_rule(_STRIDE) if rule is None else rule))
    safe = jnp.where(deviation > 0, deviation, 1)

    def add(sums, node):
        t, share = node
        values, pull = jax.vjp(link, mean + deviation * t)
        slopes = pull(jnp.ones_like(values))[0]
        return jax.tree.map(jnp.add, sums, (share * values, share * slopes, share * t / safe * slopes)), None

    zero = jnp.zeros_like(mean)
    (value, slope, weight), _ = jax.lax.scan(add, (zero, zero, zero), (nodes, weights))
    return LinkMoments(value, slope, jnp.where(deviation > 0, weight, jnp.zeros_like(weight)))
