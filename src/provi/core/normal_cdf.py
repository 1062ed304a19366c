r"""-log Phi, its slope and its curvature, accurate in both tails; and Gaussian means of the sigmoid in theirs.

Phi is the standard normal distribution function, h = Phi' / Phi. The derivatives of t -> -log Phi(t) are -h(t) and
h(t) (t + h(t)), which lies in (0, 1). For t = -x far below zero h is near x, so t + h cancels; there Laplace's
continued fraction

    h(-x) = x + K,  K = 1 / (x + 2 / (x + 3 / (x + ...)))

gives the small difference K itself. JAX differentiates an asymptotic series of three terms instead: its second
derivative is off by 2e-6 at t = -20 in float64, and leaves (0, 1) in float32.

`sigmoid_mean_ratios`: $P = E\,\sigma(y\eta)$, $\eta \sim N(\mu, s^2)$, and its derivatives in $\mu$ over $P$, accurate
relative to $P$. By symmetry, $P(v) = 1 - P(-v)$, only $v = y\mu \le 0$ is computed, in one of three ways:

* $s^2 \le 0.3$: Gauss-Hermite with 16 nodes, on $e^{-v}\sigma$. Exact at $s^2 = 0$.
* $-s^2/2 \le v \le 0$: the eight probits, $D_k = \sum_jw_j(d/dv)^k\Phi(c_ja_jv)$, $a_j = (1 + c_j^2s^2)^{-1/2}$:
  Hermite polynomials times the normal density.
* $v < -s^2/2$: the same after a tilt, $P = e^{v + s^2/2}G(v + s^2)$, $G(m) = E_{N(m, s^2)}\sigma(-\eta)$ (the factor
  $e^\eta$ of $\sigma(\eta) = e^\eta\sigma(-\eta)$ moves the mean by $s^2$), differentiated by the product rule.

Error of $P$ relative to $P$, and of its $k$-th derivative relative to $E|\sigma^{(k)}|$, $k \le 4$, the largest found
on $|\mu| \le 60$: 1e-9 for $s^2 \le 0.3$; 8e-9 ($k \le 2$) and 7e-8 for $s^2 \le 10$; 2e-5 for $s^2 \le 100$, at $v =
-s^2/2$, where $P = O(e^{-s^2/8})$ is small. The absolute error of $P$ is below 5e-9 throughout.
"""

import math
from functools import partial
from math import comb

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
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


WEIGHTS = (
    0.0019910098865151605,
    0.034120099303589294,
    0.14551361884286543,
    0.28289777621779844,
    0.3073884446915315,
    0.18026186749848336,
    0.04513862069931175,
    0.002688562859905008,
)
SLOPES = (
    0.2429562396916397,
    0.3161503723856067,
    0.40617175241881687,
    0.5203638617982549,
    0.6647430603763784,
    0.8459467599468774,
    1.0752206032510854,
    1.3809172875863707,
)
"""Of eight probits that are a sigmoid, see `targets.likelihoods.bernoulli`."""

SMALL_VARIANCE = 0.3
"""Up to this variance the Gauss-Hermite rule is used: its error there is 1e-9 in the fourth derivative."""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()


class SigmoidMeanRatios(eqx.Module):
    r"""$\log P$ and $r_k = P^{(k)}/P$, entry by entry; `third` and `fourth` are None for `order=2`."""

    log_mean: Float[Array, "*shape"]
    first: Float[Array, "*shape"]
    second: Float[Array, "*shape"]
    third: Float[Array, "*shape"] | None
    fourth: Float[Array, "*shape"] | None


def sigmoid_mean_ratios(
    mean: Float[Array, "*shape"], variance: Float[Array, "*shape"], label: Float[Array, "*shape"], order: int = 2
) -> SigmoidMeanRatios:
    r"""$\log P$, $P = E_{N(\mu, s^2)}\sigma(y\eta)$, and $r_k = (d/d\mu)^kP/P$ for $k$ up to `order`, 2 or 4.

    The results can be differentiated, by $\partial_\mu P^{(k)} = P^{(k+1)}$ and $\partial_{s^2}P^{(k)} = P^{(k+2)}/2$:
    in particular $d\log P = r_1\,d\mu + \frac12r_2\,ds^2$. Beyond 37 deviations on the wrong side (12 in float32)
    with $s^2 > 2|\mu|$, $P$ is held at its smallest value there.

    **Arguments:**

    - `mean`, `variance`: $\mu$ and $s^2 \ge 0$.
    - `label`: -1 or 1.
    """
    if order not in (2, 4):
        raise ValueError(f"order must be 2 or 4, got {order}")
    log_mean, *ratios = _signed_ratios(order, label * mean, variance)
    # The k-th derivative in mu is y^k times that in v = y mu.
    first, second = ratios[0] * label, ratios[1]
    third, fourth = (ratios[2] * label, ratios[3]) if order == 4 else (None, None)
    return SigmoidMeanRatios(log_mean, first, second, third, fourth)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _signed_ratios(order: int, v: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> tuple:
    r"""$(\log P, r_1, ..., r_{order})$ for $P(v) = E_{N(v, s^2)}\sigma(\eta)$."""
    left = -jnp.abs(v)
    small = variance <= SMALL_VARIANCE
    scaled_rule = _by_quadrature(order, left, jnp.where(small, variance, 0))
    scaled_mixture, shift = _by_probits(order, left, jnp.where(small, 1, variance))
    scaled = [jnp.where(small, a, b) for a, b in zip(scaled_rule, scaled_mixture, strict=True)]
    log_left = jnp.where(small, left, shift) + jnp.log(scaled[0])
    mass = jnp.exp(log_left)
    log_mean = jnp.where(v > 0, jnp.log1p(-mass), log_left)
    odds = mass / (1 - mass)
    ratios = []
    for k in range(1, order + 1):
        ratio = scaled[k] / scaled[0]
        # P(v) = 1 - P(-v): the k-th derivative on the right is (-1)^(k+1) times that on the left.
        ratios.append(jnp.where(v > 0, (-1) ** (k + 1) * odds * ratio, ratio))
    return (log_mean, *ratios)


@_signed_ratios.defjvp
def _signed_ratios_jvp(order, primals, tangents):
    (v, variance), (v_dot, variance_dot) = primals, tangents
    log_mean, *r = _signed_ratios(order + 2, v, variance)
    out = [log_mean, *r[:order]]
    out_dot = [r[0] * v_dot + 0.5 * r[1] * variance_dot]
    for k in range(order):
        along_mean = r[k + 1] - r[k] * r[0]
        along_variance = 0.5 * (r[k + 2] - r[k] * r[1])
        out_dot.append(along_mean * v_dot + along_variance * variance_dot)
    return tuple(out), tuple(out_dot)


def _by_quadrature(order: int, v: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> list:
    r"""$e^{-v}E\sigma^{(k)}(\eta)$: $\sigma^{(k)} = \sigma q_k(\sigma)$, $q_{k+1} = (1-\sigma)(q_k+\sigma q_k')$."""
    weights = jnp.asarray(_NODE_WEIGHTS, v.dtype)
    step = jnp.sqrt(variance)[..., None] * jnp.asarray(_NODES.reshape((1,) * v.ndim + (-1,)), v.dtype)
    probability = jax.nn.sigmoid(v[..., None] + step)
    scaled = jnp.exp(step) * jax.nn.sigmoid(-v[..., None] - step)
    means = []
    polynomial = np.polynomial.Polynomial([1.0])
    for _ in range(order + 1):
        factor = jnp.zeros_like(probability)
        for coefficient in polynomial.coef[::-1]:
            factor = factor * probability + float(coefficient)
        means.append((scaled * factor) @ weights)
        identity = np.polynomial.Polynomial([0.0, 1.0])
        polynomial = (1 - identity) * (polynomial + identity * polynomial.deriv())
    return means


def _by_probits(order: int, v: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> tuple:
    r"""$e^{-\mathrm{shift}}P^{(k)}$ and the shift: $v + s^2/2$ where the tilt is used, else 0."""
    tilted = v < -0.5 * variance
    derivatives = _mixture_derivatives(order, jnp.where(tilted, -(v + variance), v), variance)
    values = []
    for k in range(order + 1):
        product = sum(comb(k, j) * (-1) ** j * derivatives[j] for j in range(k + 1))
        values.append(jnp.where(tilted, product, derivatives[k]))
    return values, jnp.where(tilted, v + 0.5 * variance, 0)


def _mixture_derivatives(order: int, m: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> list:
    r"""$(d/dm)^k\sum_jw_j\Phi(c_ja_jm)$; for $k \ge 1$, $(-1)^{k-1}He_{k-1}(t)\phi(t)(c_ja_j)^k$ at $t = c_ja_jm$."""
    weights = jnp.asarray(WEIGHTS, m.dtype)
    slopes = jnp.asarray(np.reshape(SLOPES, (1,) * m.ndim + (-1,)), m.dtype)
    steepness = slopes * jax.lax.rsqrt(1 + slopes**2 * variance[..., None])
    # Beyond, the density underflows and the ratios would be 0/0.
    farthest = float(np.sqrt(-2 * np.log(jnp.finfo(m.dtype).tiny))) - 1
    t = jnp.maximum(steepness * m[..., None], -farthest)
    means = [0.5 * erfc(-t / float(np.sqrt(2))) @ weights]
    term = steepness * jnp.exp(-0.5 * t * t) / float(np.sqrt(2 * np.pi))
    previous, hermite = jnp.zeros_like(t), jnp.ones_like(t)
    for k in range(order):
        means.append((term * hermite) @ weights)
        previous, hermite = hermite, t * hermite - k * previous
        term = -term * steepness
    return means
