r"""Labels 0 and 1, with the logistic or the normal distribution function as the probability of a one.

Gaussian means of the softplus and its derivatives are in closed form: the sigmoid is a mixture of eight probits.

$\sigma(z) \approx \sum_k w_k\Phi(c_kz)$ with $\sum_k w_k = 1$. For $z \sim N(\mu, s^2)$ each piece has a closed mean,
so $E\,\mathrm{softplus}(z)$, $E\sigma(z)$ and $E\sigma'(z)$ cost eight error functions at every mean and variance.
Gauss-Hermite rules with 20 to 100 nodes are off by percents once $s$ exceeds about 30.

The errors below hold uniformly in $\mu$ and $s$, since a mean of a bounded error is bounded by it. They are the largest
errors on a grid of spacing 1e-4 over [-60, 60] plus what a function with second derivative at most 0.3 can do between
two nodes (3.8e-10), rounded up; beyond 60 both sides agree to 1e-26. (The second derivatives of softplus, sigmoid and
density lie in [0, 0.25], [-0.1, 0.1] and [-0.13, 0.05], and so do those of their mixtures up to 1e-2.)

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

from collections.abc import Callable
from functools import partial
from math import comb
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from provi.core.normal_cdf import negative_log_normal_cdf, normal_curvature
from provi.core.types import RandomKey
from provi.targets.data import read_binary, read_shares
from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors, Strip

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
VALUE_ERROR, SIGMOID_ERROR, DENSITY_ERROR = 2e-8, 5e-9, 1e-8
"""Largest errors of the mixture for the softplus, for the sigmoid and for its derivative."""

_FARTHEST = 1e8
"""Here the probit's curvature is 0 or 1 to all digits, and infinite arguments would be 0 times infinity."""

_ROOT_TWO, _ROOT_TWO_PI = float(np.sqrt(2)), float(np.sqrt(2 * np.pi))


SMALL_VARIANCE = 0.3
"""Up to this variance the Gauss-Hermite rule is used: its error there is 1e-9 in the fourth derivative."""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()


class SoftplusMoments(eqx.Module):
    """E softplus(z), E sigmoid(z) and E sigmoid'(z), entry by entry."""

    value: Float[Array, "*shape"]
    slope: Float[Array, "*shape"]
    weight: Float[Array, "*shape"]


def softplus_moments(mean: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> SoftplusMoments:
    r"""The three means for $z \sim N(\mu, s^2)$: with $a_k = (1 + c_k^2s^2)^{-1/2}$ and $t_k = c_k\mu a_k$,

    $E\,\mathrm{softplus} = \sum_k w_k[\mu\Phi(t_k) + \phi(t_k)/(c_ka_k)]$, $E\sigma = \sum_k w_k\Phi(t_k)$,
    $E\sigma' = \sum_k w_kc_ka_k\phi(t_k)$. The second is the derivative of the first in $\mu$, the third twice that in
    $s^2$.
    """
    share, steepness = _mixture(mean)
    shrink = jax.lax.rsqrt(1 + steepness**2 * variance[..., None])
    t = steepness * mean[..., None] * shrink
    density = jnp.exp(-0.5 * t * t) / _ROOT_TWO_PI
    # One erfc is accurate in both tails and compiles several times faster than jax.scipy.special.ndtr.
    probability = 0.5 * jax.scipy.special.erfc(-t / _ROOT_TWO)
    value = (mean[..., None] * probability + density / (steepness * shrink)) @ share
    slope = probability @ share
    weight = (density * steepness * shrink) @ share
    return SoftplusMoments(value, slope, weight)


def density_moments(mean: Float[Array, "*shape"], deviation: Float[Array, "*shape"]) -> tuple:
    r"""$E[t^j\sigma'(\mu + st)]$ for $j = 0, 1, 2$ and $t \sim N(0, 1)$.

    $\phi(c(\mu + st))\phi(t)$ is a Gaussian in $t$ with variance $a^2 = 1/(1 + c^2s^2)$ and mean $-c^2\mu sa^2$.
    Each is within `DENSITY_ERROR` times $E|t|^j \le 1$.
    """
    share, steepness = _mixture(mean)
    variance = 1 / (1 + (steepness * deviation[..., None]) ** 2)
    t = steepness * mean[..., None] * jnp.sqrt(variance)
    mass = steepness * jnp.sqrt(variance) * jnp.exp(-0.5 * t * t) / _ROOT_TWO_PI
    centre = -(steepness**2) * (mean * deviation)[..., None] * variance
    return mass @ share, (mass * centre) @ share, (mass * (variance + centre**2)) @ share


def _mixture(like: Float[Array, "*shape"]) -> tuple[Float[Array, "8"], Float[Array, "*ones 8"]]:
    """Weights, and steepnesses of the rank of what they multiply."""
    steepness = jnp.asarray(np.reshape(SLOPES, (1,) * like.ndim + (-1,)), like.dtype)
    return jnp.asarray(WEIGHTS, like.dtype), steepness


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


@jax.custom_jvp
def softplus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 + e^x), with the logistic function as its derivative: JAX's goes through the value, twice as slow."""
    return jax.nn.softplus(x)


@softplus.defjvp
def _softplus_jvp(primals, tangents):
    (x,), (tangent,) = primals, tangents
    return softplus(x), jax.nn.sigmoid(x) * tangent


def least_sigmoid_slope(low: Batch, high: Batch) -> Batch:
    """A lower bound on s(1 - s), s the sigmoid, over [low, high]: it is even and falls with the distance from 0."""
    farthest = jnp.maximum(jnp.abs(low), jnp.abs(high))
    return rounded(jax.nn.sigmoid(farthest) * jax.nn.sigmoid(-farthest), -1)


def most_sigmoid_slope(low: Batch, high: Batch) -> Batch:
    """An upper bound on it: the value at the point nearest to 0."""
    nearest = jnp.maximum(jnp.maximum(low, -high), 0)
    return jnp.minimum(rounded(jax.nn.sigmoid(nearest) * jax.nn.sigmoid(-nearest), 1), 0.25)


class BernoulliLogit(AbstractLikelihood):
    """y ~ Bernoulli(sigmoid(eta)): log-concave, t'' in (0, 1/4].

    Its means are those of a mixture of eight probits, in closed form at every mean and variance.

    A `fractional` y in [0, 1] is a share of successes: t = softplus(eta) - y eta, to be weighted with the trials. A row
    of n trials with weight n is then binomial, but for the logarithm of the binomial coefficient.
    """

    fractional: bool = eqx.field(static=True, default=False)
    name: ClassVar[str] = "Bernoulli, logit link"
    curvature_decay: ClassVar[float | None] = 0.5
    second_derivative: ClassVar[str] = "sigmoid(eta) sigmoid(-eta)"

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """log(1 + exp(-+eta)), less a share of at most one half of the same -+eta: nothing cancels."""
        sign, share = _majority(y)
        return softplus(sign * eta) - share * (sign * eta)

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, 1/4)."""
        return 0.0, 0.25

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the end farther from 0."""
        return least_sigmoid_slope(low, high)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the point nearest to 0."""
        return most_sigmoid_slope(low, high)

    @property
    def self_concordance(self) -> float:
        """The derivative of s(1 - s) is s(1 - s)(1 - 2s), s the sigmoid."""
        return 1.0

    @property
    def value_error(self) -> float:
        """That of the eight probits."""
        return VALUE_ERROR

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Zeros and ones, or booleans; any share from 0 to 1 if `fractional`."""
        return read_shares(y, length) if self.fractional else read_binary(y, length)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """By the eight-probit closed form, at every mean and variance."""
        sign, share = _majority(y)
        moments = softplus_moments(sign * mean, variance)
        value = moments.value - share * (sign * mean)
        return LinkMoments(value, sign * (moments.slope - share), moments.weight)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        r"""Those of the mixture of probits, smaller where the variance is large.

        If D is the error of t, at most d, then that of E t' is $E D'(\mu + su) = E[D(\mu + su)u]/s \le d\,E|u|/s$,
        $E|u| < 0.8$; and the same from t' to t''.
        """
        deviation = jnp.sqrt(variance)
        slope = jnp.minimum(SIGMOID_ERROR, 0.8 * VALUE_ERROR / deviation)
        weight = jnp.minimum(DENSITY_ERROR, 0.8 * SIGMOID_ERROR / deviation)
        rounding = 32 * float(jnp.finfo(mean.dtype).eps) * (1 + jnp.abs(mean) + deviation)
        return MomentErrors(VALUE_ERROR + rounding, slope, weight)

    @property
    def errors_proven(self) -> bool:
        """A closed form."""
        return True

    def curvature_moments(self, mean: Batch, deviation: Batch, y: Any = None) -> tuple[Batch, Batch, Batch, Any]:
        """The same closed form."""
        return *density_moments(mean, deviation), DENSITY_ERROR

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Around 0; the poles of the sigmoid are at +-i pi.

        `log_predictive` is left to quadrature: the mixture of probits has an absolute error of 5e-9, and its tails
        are too light. At eta = -40 its logarithm is -56.6 in place of -40.
        """
        return jnp.zeros_like(y), jnp.full_like(y, np.pi / 2)

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """P(y = 1) = E sigmoid(eta), by the mixture of probits."""
        return softplus_moments(mean, variance).slope

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        """1 with probability sigmoid(eta), else 0."""
        return jax.random.bernoulli(key, jax.nn.sigmoid(eta)).astype(eta.dtype)


def _majority(y: Batch) -> tuple[Batch, Batch]:
    r"""Minus the more frequent label as a sign, and the share m of the other: $t = \mathrm{softplus}(g\eta) - mg\eta$.

    $\mathrm{softplus}(\eta) - y\eta$ would leave few digits where y = 1 is nearly certain; here m is at most 1/2. For y
    in {0, 1} it is 0.
    """
    return jnp.where(y > 0.5, -1.0, 1.0).astype(y.dtype), jnp.minimum(y, 1 - y)


class BernoulliProbit(AbstractLikelihood):
    """y ~ Bernoulli(Phi(eta)), Phi the standard normal distribution function: log-concave, t'' in (0, 1).

    The second derivative of -log Phi at t is 1 - Var(Z | Z < t) for a standard normal Z. The variance is positive; and
    it is below 1, because a density proportional to exp(-z^2/2) on a half-line is 1-strongly log-concave
    (Brascamp-Lieb).

    With `fractional`, y in [0, 1] is a share of successes: t = -y log Phi(eta) - (1 - y) log Phi(-eta), to be weighted
    with the trials. It is a mean of the two potentials, and what holds of both holds of it.
    """

    fractional: bool = eqx.field(static=True, default=False)
    name: ClassVar[str] = "Bernoulli, probit link"
    second_derivative: ClassVar[str] = "h(t) (t + h(t)) with h = Phi'/Phi, t = (2y - 1) eta"

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """-log Phi((2y - 1) eta), accurate in both tails, and so are its derivatives."""
        if self.fractional:
            return y * negative_log_normal_cdf(eta) + (1 - y) * negative_log_normal_cdf(-eta)
        return negative_log_normal_cdf((2 * y - 1) * eta)

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, 1)."""
        return 0.0, 1.0

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the largest t = (2y - 1) eta: the curvature falls in t. Of a share, a mean of both."""
        if self.fractional:
            return self._shared(low, high, y, BernoulliProbit().least_curvature)
        sign = 2 * y - 1
        return rounded(normal_curvature(jnp.minimum(jnp.maximum(sign * low, sign * high), _FARTHEST)), -1)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the smallest t. Of a share, a mean of both."""
        if self.fractional:
            return self._shared(low, high, y, BernoulliProbit().most_curvature)
        sign = 2 * y - 1
        nearest = jnp.clip(jnp.minimum(sign * low, sign * high), -_FARTHEST, _FARTHEST)
        return jnp.minimum(rounded(normal_curvature(nearest), 1), 1.0)

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Zeros and ones, or booleans; any share from 0 to 1 if `fractional`."""
        return read_shares(y, length) if self.fractional else read_binary(y, length)

    def _shared(self, low: Batch, high: Batch, y: Batch, bound: Callable) -> Batch:
        """The mean of a bound for y = 1 and of one for y = 0."""
        one = jnp.ones_like(y)
        return y * bound(low, high, one) + (1 - y) * bound(low, high, 0 * one)

    def strip(self, y: Batch) -> Strip:
        r"""With h = Phi'/Phi and t = x + iv: $1/h(t) = \int_0^\infty e^{tu - u^2/2}du$.

        - $|h(t)| \le h(x)/(1 - v^2\mathrm{Var}(U)/2)$ with $U \sim N(x, 1)$ given U > 0, since $|Ee^{ivU}| \ge
          E\cos v(U - EU)$; the variance is below 1 and grows with x. So $|h| \le 2h(x) \le 2 + 2|x|$ for $|v| \le 1$.
        - For x < 0, $h(t) = -t + 1/(-t + 2/(-t + \cdots))$, a fraction of numbers with positive real part: $|h|$ is at
          most $|t| + 1/|x|$.
        - For x > 0, $|1 - \Phi(t)| \le |\varphi(t)|/x$ and so $|h| \le |\varphi|/(1 - |\varphi|/x)$.

        With $|v| \le \tan(1/2)(|x| + 2)$ the second gives $3.1 + 1.6|x|$ for $x \le -1/2$, the first at most 2.9 for
        $-1/2 \le x \le 1.05$, the third at most 7.6 beyond. The third and fourth derivatives of -log Phi are cumulants
        of Z given Z < t, a 1-Lipschitz image of a normal variable: its fourth central moment is at most $E|Z - Z'|^4$,
        12.
        """
        one = jnp.ones_like(y)
        return Strip(one, 8 * one, 2 * one, (one, 6.5 * one, 12 * one), one)

    @property
    def errors_proven(self) -> bool:
        """By `strip`."""
        return True

    def log_predictive(self, mean: Batch, variance: Batch, y: Batch) -> Batch:
        """log Phi((2y - 1) mean / sqrt(1 + variance)): exact; by quadrature if `fractional`."""
        if self.fractional:
            return super().log_predictive(mean, variance, y)
        return -negative_log_normal_cdf((2 * y - 1) * mean / jnp.sqrt(1 + variance))

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """P(y = 1) = Phi(mean / sqrt(1 + variance)): exact."""
        return 0.5 * erfc(-mean / jnp.sqrt(2 * (1 + variance)))

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        """1 where eta exceeds a standard normal number, else 0."""
        return (jax.random.normal(key, eta.shape, eta.dtype) < eta).astype(eta.dtype)
