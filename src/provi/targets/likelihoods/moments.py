r"""Means of a link potential under $\eta \sim N(\mu, s^2)$: what a Gaussian approximation of a linear model needs.

By Bonnet's and Price's theorems, with $\psi(\mu, s^2) = E\ell(\eta)$: $\partial_\mu\psi = E\ell'$ and
$2\,\partial_{s^2}\psi = E\ell'' = E[\ell'(\mu + st)\,t]/s$.

`wide_moments` and `wide_errors` use one rule that is good for every spread. The potential $\ell$ bends around a centre
c over a width w, and is smooth on the scale $|\eta - c|$ away from it; the Gaussian $N(\mu, s^2)$ has the scale s.
Equal steps in $t = (\eta - \mu)/s$ miss the bend once s is many times w. So the steps are equal in another variable x,
with

$$t = b + \log(1 + e^{x - X}) - \log(1 + e^{-x - X}), \qquad b = (c - \mu)/s, \quad X = \log(1 + s/w).$$

Near the bend ($|x| < X$) this is $\eta = c + 2w\sinh x$, about: steps of the width at the centre, growing with the
distance. Beyond it is linear, with steps of s. For s far below w it is t = b + x everywhere. The map is analytic for
$|\Im x| < \pi$, and a singularity of the potential at $c \pm ia$, $a \ge 2w$, lies at $\Im x = \pi/2$ or higher, so the
trapezoid rule converges like $e^{-2\pi(\pi/2)/h}$ in its step h (the probit's zeros lie along the rays at 45 degrees:
$\pi/4$). The length in x is $24 + 2X$: it grows with the logarithm of s/w only, and a fixed number of nodes does.
Measured errors: tests/targets/test_likelihoods.py.
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

REACH = 12.0
"""Standard deviations on both sides of the mean that the rule covers."""

NUM_NODES = 160
"""128 are enough for 1e-12 at a spread of 1000 widths."""


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


def spread_of(variance: Any, width: Any) -> Any:
    r"""$\sqrt{s^2 + \epsilon^{0.8}w^2}$, $\epsilon$ the rounding unit.

    The slope of the mean in $s^2$ is $E[\ell't]/(2s)$, which rounding swamps as s falls to 0. The added variance moves
    the means by $10^{-13}$ of their scale in float64 and keeps everything, derivatives included, finite at s = 0.
    """
    floor = float(jnp.finfo(variance.dtype).eps) ** 0.4
    # Not `maximum`, whose derivative at a tie is one half.
    return jnp.sqrt(jnp.where(variance < 0, 0, variance) + (floor * width) ** 2)


def graded_nodes(low: Any, high: Any, bend: Any, ratio: Any, count: int) -> Callable[[Any], tuple[Any, Any]]:
    """k -> (t, dt) for k = 0, ..., count - 1: nodes over at least [low, high], dense around `bend`, and their steps.

    `bend` lies in [low, high]; `ratio` is s/w. The nodes are constants to automatic differentiation: the derivatives
    of a sum over them are then the sums of derivatives.
    """
    low, high, bend, ratio = jax.lax.stop_gradient((low, high, bend, ratio))
    stretch = jnp.log1p(ratio)
    start, step = low - bend - stretch, (high - low + 2 * stretch) / (count - 1)
    product = jnp.exp(-2 * stretch)

    def node(k):
        right = jnp.exp(start - stretch + step * k)
        left = product / right
        a, b = 1 + right, 1 + left
        return bend + jnp.log(a / b), step * (right + left + 2 * product) / (a * b)

    return node


def wide_moments(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any]) -> LinkMoments:
    """The moments of any link, `link(eta)` entry by entry; `bend` holds where it bends and over which width."""
    value, slope, weight = _sums(link, mean, variance, bend, NUM_NODES)[0]
    return LinkMoments(value, slope, weight)


def wide_errors(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any]) -> MomentErrors:
    """The guard: twice the distance to the rule with twice as many nodes, rounding, and the added variance.

    With exponential convergence the finer rule's own error is the square of the coarser one's, so this distance is the
    error up to a vanishing part. Infinite where the spread is more than `LARGEST_DEVIATION` widths of the bend.
    """
    width = bend[1]
    coarse, _ = _sums(link, mean, variance, bend, NUM_NODES)
    fine, sizes = _sums(link, mean, variance, bend, 2 * NUM_NODES - 1, magnitudes=True)
    epsilon = float(jnp.finfo(mean.dtype).eps)
    # The added variance is e^0.8 w^2, and its effect half of that times two more derivatives, each worth about 1/w.
    moved = 2 * epsilon**0.8 * (jnp.abs(fine[2]) + jnp.abs(fine[1]) / width)
    resolved = variance <= (LARGEST_DEVIATION * width) ** 2
    scales = (width**2, width, jnp.ones_like(width))
    return MomentErrors(
        *(
            jnp.where(resolved, 2 * jnp.abs(used - better) + 64 * epsilon * (1 + size) + moved * scale, jnp.inf)
            for used, better, size, scale in zip(coarse, fine, sizes, scales, strict=True)
        )
    )


def _sums(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any], count: int, magnitudes: bool = False) -> Any:
    """E l, E l' and E[l' t]/s, and, if asked, E|l|, E|l'| and E|l' t|/s: what rounding is proportional to."""
    centre, width = bend
    spread = spread_of(variance, width)
    place = jnp.clip((centre - mean) / spread, -REACH, REACH)
    node = graded_nodes(-REACH, REACH, place, spread / width, count)

    def add(sums, k):
        t, step = node(k)
        share = step * jnp.exp(-0.5 * t * t)
        values, pull = jax.vjp(link, mean + spread * t)
        slopes = pull(jnp.ones_like(values))[0]
        terms = (share * values, share * slopes, share * t / spread * slopes)
        terms += tuple(jnp.abs(term) for term in terms) if magnitudes else ()
        return jax.tree.map(jnp.add, sums, (*terms, share)), None

    start = (jnp.zeros_like(mean),) * (7 if magnitudes else 4)
    (*sums, total), _ = jax.lax.scan(add, start, jnp.asarray(np.arange(count), mean.dtype))
    means = tuple(term / total for term in sums)
    return means[:3], means[3:]
