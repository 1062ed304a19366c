r"""$P = E\,\sigma(y\eta)$, $\eta \sim N(\mu, s^2)$, and its derivatives in $\mu$ over $P$, accurate relative to $P$.

By symmetry, $P(v) = 1 - P(-v)$, only $v = y\mu \le 0$ is computed, in one of three ways:

* $s^2 \le 0.3$: Gauss-Hermite with 16 nodes, on $e^{-v}\sigma$. Exact at $s^2 = 0$.
* $-s^2/2 \le v \le 0$: the eight probits of `logistic_normal`, $D_k = \sum_jw_j(d/dv)^k\Phi(c_ja_jv)$,
  $a_j = (1 + c_j^2s^2)^{-1/2}$: Hermite polynomials times the normal density.
* $v < -s^2/2$: the same after a tilt, $P = e^{v + s^2/2}G(v + s^2)$, $G(m) = E_{N(m, s^2)}\sigma(-\eta)$ (the factor
  $e^\eta$ of $\sigma(\eta) = e^\eta\sigma(-\eta)$ moves the mean by $s^2$), differentiated by the product rule.

Error of $P$ relative to $P$, and of its $k$-th derivative relative to $E|\sigma^{(k)}|$, $k \le 4$, the largest found
on $|\mu| \le 60$: 1e-9 for $s^2 \le 0.3$; 8e-9 ($k \le 2$) and 7e-8 for $s^2 \le 10$; 2e-5 for $s^2 \le 100$, at
$v = -s^2/2$, where $P = O(e^{-s^2/8})$ is small. The absolute error of $P$ is below 5e-9 throughout.
"""

from functools import partial
from math import comb

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from provi.core.logistic_normal import SLOPES, WEIGHTS

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
