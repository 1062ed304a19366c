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

from provi.core.arguments import device_array

_RANGE, _NUM_NODES, _STRIDE = 12.0, 481, 4
LARGEST_DEVIATION = 1000.0
"""In widths of the link's bend: the largest spread for which the quadrature of the likelihoods states an error."""

REACH = 12.0
"""Standard deviations on both sides of the mean that the rule covers."""

NUM_NODES, FINE_NODES = 160, 480
"""128 are enough for 1e-12 at a spread of 1000 widths; the finer rule is the one whose error is proven."""

PANELS = 1536
"""Between which convexity brackets a link of which nothing else is known: the bracket falls with their square."""

_NUMBERS_AT_ONCE = 2**17

_ENDS, _ROOT_TWO_PI = 1e-27, float(np.sqrt(2 * np.pi))
"""More than what the ends of the interval and the tails beyond 12 standard deviations contribute."""


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
    """An estimate: twice the distance to the rule with twice as many nodes, rounding, and the added variance.

    Of a link of which nothing is known: what both rules step over, they cannot see. Infinite where the spread is more
    than `LARGEST_DEVIATION` widths of the bend.
    """
    width = bend[1]
    coarse, _ = _sums(link, mean, variance, bend, NUM_NODES)
    fine, sizes = _sums(link, mean, variance, bend, 2 * NUM_NODES - 1, magnitudes=True)
    epsilon = float(jnp.finfo(mean.dtype).eps)
    # The added variance is e^0.8 w^2, and its effect half of that times two more derivatives, each worth about 1/w.
    moved = 2 * epsilon**0.8 * (jnp.abs(fine[2]) + jnp.abs(fine[1]) / width)
    scales = (width**2, width, jnp.ones_like(width))
    errors = (
        2 * jnp.abs(used - better) + 64 * epsilon * (1 + size) + moved * scale
        for used, better, size, scale in zip(coarse, fine, sizes, scales, strict=True)
    )
    return _where_resolved(variance, width, errors)


def _where_resolved(variance: Any, width: Any, errors: Any) -> MomentErrors:
    resolved = variance <= (LARGEST_DEVIATION * width) ** 2
    return MomentErrors(*(jnp.where(resolved & ~jnp.isnan(error), error, jnp.inf) for error in errors))


class Strip(eqx.Module):
    r"""What is proven of a link around the real line, one number a datum; c and w are its `bend`.

    $|\ell'(z)| \le c_0 + c_1|x - c|$ at $z = x + iv$ with $|v| \le H$, and with $|v| \le \tan(1/2)(|x - c| + 2w)$.

    - `height`: H; `slope`: $c_0$; `growth`: $c_1$. - `derivatives`: bounds on the second, third and fourth derivative
      on the real line. - `size`: of the terms that do not depend on eta, for their rounding.
    """

    height: Any
    slope: Any
    growth: Any
    derivatives: tuple[Any, Any, Any]
    size: Any


def strip_errors(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any], strip: Strip) -> MomentErrors:
    r"""Bounds on the errors of `wide_moments`: the distance to a finer rule, whose own error is proven.

    The finer rule has the n midpoints $x_k = \alpha + (k + 1/2)h$ of an interval $[\alpha, \beta]$ that t maps onto
    [-12, 12]. For F analytic on $[\alpha, \beta] \times [-ia, ia]$ the residues of $F(z)/(1 + e^{2\pi i(z -
    \alpha)/h})$ give

    $$\Big|h\sum_kF(x_k) - \int_\alpha^\beta F\Big| \le \frac{2M}{e^{2\pi a/h} - 1}
    + \frac h\pi\sum_{x = \alpha, \beta}\sup_{|v| \le a}|F(x + iv)|, \qquad M = \int|F(x + ia)|dx.$$

    On $\Im x = a$, with $A = e^{x - X}$ and $B = e^{-x - X}$: $|1 + Ae^{ia}|$ lies between $(1 + A)\cos(a/2)$ and $1 +
    A$, so $|t'|$ is at most $1/\cos(a/2)$ times, and $\Re t$ within $\delta = -\log\cos(a/2)$ of, what they are at the
    real x. $\Im t = \arg(1 + Ae^{ia}) + \arg(1 + Be^{ia}) \le a$, since the product of the two has the argument a at X
    = 0; and by $d\log(1 + Ae^{ia})/dA \propto \cos a + A + i\sin a$ it is at most $\tan a\,(|\Re t - b| + 2e^{-X})$,
    so that $|\Im\eta| \le \tan a\,(|\Re\eta - c| + 2w)$. That is what `Strip` speaks of for a = 1/2; a larger a serves
    where $as \le H$. The normal density is at most $e^{a^2/2 + \delta|t|}$ times that at the real t. With $\kappa =
    e^{a^2/2}/\cos(a/2)$, $D = |\mu - c| + s$, $G = c_0 + c_1D$ and the moments of $e^{\delta|t|}\varphi$ (at most 1.2,
    1.1, 1.4 for $a \le 1.2$): $M \le 2.3\kappa G$ for the slope, $5.6\kappa G/s$ for the weight, $7.3\kappa(|\ell(c)| +
    (D + w + H)G)$ for the value. A bend more than 13 standard deviations away is put there: the interval ends before
    it, so it is nearer than the true one. The ends and what lies beyond are below $e^{-69}$ times the same sizes.
    """
    (centre, width), epsilon = bend, float(jnp.finfo(mean.dtype).eps)
    spread = spread_of(variance, width)
    coarse, _ = _sums(link, mean, variance, bend, NUM_NODES)
    place = jnp.clip((centre - mean) / spread, -REACH - 1, REACH + 1)
    node, step = _midpoints(place, spread / width, FINE_NODES)
    sums, _ = _node_sums(link, mean, spread, node, FINE_NODES, magnitudes=True)
    fine, sizes = sums[:3], sums[3:]
    height = jnp.clip(strip.height / spread, 0.5, 1.2)
    factor = jnp.exp(height**2 / 2) / jnp.cos(height / 2) * (2 / jnp.expm1(2 * jnp.pi * height / step) + _ENDS)
    far = jnp.abs(mean - centre) + spread
    slope = strip.slope + strip.growth * far
    value = jnp.abs(link(centre)) + (far + width + strip.height) * slope
    second, third, fourth = strip.derivatives
    # Half the variance that `spread_of` adds.
    added, unit = 0.5 * epsilon**0.8 * width**2, 4 * FINE_NODES * epsilon
    argument = jnp.abs(mean) + spread
    # The sum of n terms, each with its rounding and that of its eta.
    turned = slope + argument * second
    bounds = (
        7.3 * factor * value + added * second + unit * (sizes[0] + argument * sizes[1] + strip.size),
        2.3 * factor * slope + added * third + unit * turned,
        5.6 * factor * slope / spread + added * fourth + 2 * unit * turned / spread,
    )
    errors = (jnp.abs(used - better) + bound for used, better, bound in zip(coarse, fine, bounds, strict=True))
    return _where_resolved(variance, width, errors)


def _midpoints(bend: Any, ratio: Any, count: int) -> tuple[Callable[[Any], tuple[Any, Any]], Any]:
    """k -> (t, dt): the midpoints, and the step h in x."""
    stretch, (low, high) = _ends(bend, ratio)
    step = (high - low) / count

    def node(k):
        t, rate = _stretched(low + (k + 0.5) * step, bend, stretch)
        return t, step * rate

    return node, step


def _stretched(x: Any, bend: Any, stretch: Any) -> tuple[Any, Any]:
    """t and dt/dx."""
    right, left = jnp.exp(x - stretch), jnp.exp(-x - stretch)
    return bend + jnp.log1p(right) - jnp.log1p(left), right / (1 + right) + left / (1 + left)


def _ends(bend: Any, ratio: Any) -> tuple[Any, tuple[Any, Any]]:
    """X, and the x at which t is -12 and 12: $e^x$ solves a quadratic equation."""
    stretch = jnp.log1p(ratio)

    def inverse(t):
        power, excess = jnp.exp(t), jnp.expm1(t)
        small = power * jnp.exp(-2 * stretch)
        root = jnp.sqrt(excess**2 + 4 * small)
        return stretch + jnp.log(jnp.where(excess > 0, 0.5 * (excess + root), 2 * small / (root - excess)))

    return stretch, (inverse(-REACH - bend), inverse(REACH - bend))


def _sums(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any], count: int, magnitudes: bool = False) -> Any:
    """E l, E l' and E[l' t]/s, and, if asked, E|l|, E|l'| and E|l' t|/s: what rounding is proportional to."""
    centre, width = bend
    spread = spread_of(variance, width)
    place = jnp.clip((centre - mean) / spread, -REACH, REACH)
    node = graded_nodes(-REACH, REACH, place, spread / width, count)
    sums, total = _node_sums(link, mean, spread, node, count, magnitudes)
    means = tuple(term / total for term in sums)
    return means[:3], means[3:]


def _node_sums(link: Callable, mean: Any, spread: Any, node: Callable, count: int, magnitudes: bool = False) -> Any:
    """The sums over the nodes, and that of the weights, which is 1 but for the rule's error."""

    def terms(k):
        t, step = node(k)
        share = step * jnp.exp(-0.5 * t * t) / _ROOT_TWO_PI
        values, pull = jax.vjp(link, mean + spread * t)
        slopes = pull(jnp.ones_like(values))[0]
        found = (share * values, share * slopes, share * t / spread * slopes)
        return (*found, *(tuple(jnp.abs(term) for term in found) if magnitudes else ()), share)

    *sums, total = over_nodes(terms, np.arange(count), mean)
    return tuple(sums), total


def over_nodes(terms: Callable[[Any], Any], nodes: np.ndarray, like: Any, join: Any = jnp.add) -> Any:
    """`terms(k)` for each k of `nodes`, pytrees of arrays of the shape and type of `like`, added or joined otherwise.

    All nodes at once where rows are few: a loop over short vectors costs more by its turns than by its arithmetic.
    """
    every = device_array(nodes, like.dtype)
    if like.size * len(nodes) <= _NUMBERS_AT_ONCE:
        return jax.tree.map(lambda x: join.reduce(x, axis=0), jax.vmap(terms)(every))

    def add(sums, k):
        return jax.tree.map(join, sums, terms(k)), None

    return jax.lax.scan(add, terms(every[0]), every[1:])[0]


def convex_errors(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any], most: Any) -> MomentErrors:
    r"""Bounds on the errors of `wide_moments` for a convex link whose second derivative is at most `most`.

    Between two nodes l lies below its chord C, and above its tangents at both; so $0 \le C - \ell \le G$, a triangle of
    height at most $\Delta\eta\,(\ell'_b - \ell'_a)/4$. With $\kappa = 1$, $t/s$, $(t^2 - 1)/s^2$ the three means are
    $E[\kappa\ell]$, by parts, and $E[\kappa C]$ is a sum of closed forms, $\sigma_k$ the slope of a chord in t:

    $$EC = \sum_k[(\ell_a - \sigma_kt_a)\Delta\Phi - \sigma_k\Delta\varphi], \quad
    E[\tfrac tsC] = \tfrac1s\sum_k\sigma_k\Delta\Phi, \quad
    E[\tfrac{t^2 - 1}{s^2}C] = -\tfrac1{s^2}\sum_k\sigma_k\Delta\varphi.$$

    What remains, $E[\kappa(C - \ell)]$, lies between minus the mean of $\kappa_-G$ and that of $\kappa_+G$. Beyond 12
    standard deviations l is within $\tfrac12t_1d^2$ of its tangent. With `most` infinite nothing is known there: the
    errors are estimates, and infinite where what the last panels contribute grows outwards.
    """
    (_, width), epsilon = bend, float(jnp.finfo(mean.dtype).eps)
    spread = spread_of(variance, width)
    used, _ = _sums(link, mean, variance, bend, NUM_NODES)
    node = panel_ends(mean, variance, bend)

    def end(k):
        t = node(k)
        values, pull = jax.vjp(link, mean + spread * t)
        tail = jnp.sign(-t) * 0.5 * jax.scipy.special.erfc(jnp.abs(t) / float(np.sqrt(2)))
        return t, values, spread * pull(jnp.ones_like(values))[0], jnp.exp(-0.5 * t * t) / _ROOT_TWO_PI, tail

    def add(carry, k):
        (t, value, slope, density, tail), sums = carry
        right = end(k + 1)
        gap, inside = right[0] - t, (t < 0) & (right[0] >= 0)
        chord, drop = (right[1] - value) / gap, density - right[3]
        mass = right[4] - tail + jnp.where(inside, 1, 0)
        top = jnp.where(inside, 1 / _ROOT_TWO_PI, jnp.maximum(density, right[3]))
        area = 0.125 * gap**2 * jnp.maximum(right[2] - slope, 0) * top
        farther = jnp.maximum(jnp.abs(t), jnp.abs(right[0]))
        nearer = jnp.where(inside, 0, jnp.minimum(jnp.abs(t), jnp.abs(right[0])))
        # The rounding of the values and of their arguments, of mass and of drop.
        size = jnp.abs(value) + jnp.abs(right[1]) + (1 + farther) * jnp.abs(chord)
        size = top * (size + jnp.abs(mean) / spread * (jnp.abs(slope) + jnp.abs(right[2])))
        parts = (
            (value - chord * t) * mass + chord * drop,
            chord * mass,
            chord * drop,
            area,
            jnp.where(right[0] > 0, farther * area, 0),
            jnp.where(t < 0, farther * area, 0),
            jnp.maximum(farther**2 - 1, 0) * area,
            jnp.maximum(1 - nearer**2, 0) * area,
            size,
            (1 + farther) * size,
        )
        return (right, jax.tree.map(jnp.add, sums, parts)), None

    left = end(jnp.zeros((), mean.dtype))
    start = (left, (jnp.zeros_like(mean),) * 10)
    (right, sums), _ = jax.lax.scan(add, start, device_array(np.arange(PANELS), mean.dtype))
    value, slope, weight, area, ahead, behind, outer, inner, size, far_size = sums
    known = jnp.isfinite(most)
    bent = jnp.where(known, most, jnp.abs(used[2]))
    tail = _ENDS * (sum(jnp.abs(x) for x in (*left[1:3], *right[1:3])) + bent * spread**2)
    # What the variance that `spread_of` adds can change: E l'' is anything up to `most` below it.
    added = epsilon**0.8 * width**2
    moved = (0.5 * added * bent, added * bent / spread, bent * jnp.minimum(1, added / jnp.maximum(variance, added)))
    brackets = ((value - area, value), (slope - ahead, slope + behind), (weight - outer, weight + inner))
    errors = []
    for order, (low, high) in enumerate(brackets):
        unit = spread**order
        rounding = 64 * epsilon * (size if order < 2 else far_size) + tail
        error = jnp.maximum(used[order] - low / unit, high / unit - used[order]) + rounding / unit + moved[order]
        errors.append(jnp.where(known | ~_grows(link, mean, spread), error, jnp.inf))
    return _where_resolved(variance, width, errors)


def panel_ends(mean: Any, variance: Any, bend: tuple[Any, Any]) -> Callable[[Any], Any]:
    """k -> t for k = 0, ..., `PANELS`: from -12 to 12, dense around the bend."""
    centre, width = bend
    spread = spread_of(variance, width)
    place = jnp.clip((centre - mean) / spread, -REACH - 1, REACH + 1)
    stretch, (low, high) = _ends(place, spread / width)
    return lambda k: _stretched(low + k / PANELS * (high - low), place, stretch)[0]


def _grows(link: Callable, mean: Any, spread: Any) -> Any:
    """Whether the rise of l' times the normal density grows outwards at 12 standard deviations."""

    def slope(t):
        values, pull = jax.vjp(link, mean + spread * t)
        return pull(jnp.ones_like(values))[0]

    grows = jnp.zeros(mean.shape, bool)
    for sign in (-1.0, 1.0):
        near, middle, far = (slope(sign * t) for t in (REACH - 1, REACH - 0.5, REACH))
        rise = jnp.abs(far - middle)
        seen = rise > 1e-9 * (jnp.abs(middle) + jnp.abs(far))
        grows = grows | (seen & ~(rise * jnp.exp(-0.5 * (REACH - 0.25)) < 0.5 * jnp.abs(middle - near)))
    return grows


def least_rise(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any]) -> tuple[Any, Any]:
    """Where l' rises least from one node to the next: the eta, and the average second derivative there.

    Negative only beyond rounding, 1e-7 of the slopes: a convex link has none such.
    """
    spread, node = spread_of(variance, bend[1]), panel_ends(mean, variance, bend)

    def end(k):
        eta = mean + spread * node(k)
        values, pull = jax.vjp(link, eta)
        return eta, pull(jnp.ones_like(values))[0]

    def add(carry, k):
        (eta, slope), (place, least) = carry
        right = end(k + 1)
        rise, slack = right[1] - slope, 1e-7 * (jnp.abs(slope) + jnp.abs(right[1]))
        found = jnp.minimum(rise + slack, 0) / (right[0] - eta)
        lower = found < least
        place = jnp.where(lower, 0.5 * (eta + right[0]), place)
        return (right, (place, jnp.where(lower, found, least))), None

    start = (end(jnp.zeros((), mean.dtype)), (mean, jnp.zeros_like(mean)))
    return jax.lax.scan(add, start, device_array(np.arange(PANELS), mean.dtype))[0][1]
