r"""Labels 0 and 1, with the logistic or the normal distribution function as the probability of a one.

Gaussian means of the softplus and its derivatives are in closed form: the sigmoid is a mixture of eight probits.

$\sigma(z) \approx \sum_k w_k\Phi(c_kz)$ with $\sum_k w_k = 1$. For $z \sim N(\mu, s^2)$ each piece has a closed mean,
so $E\,\mathrm{softplus}(z)$, $E\sigma(z)$ and $E\sigma'(z)$ cost eight error functions at every mean and variance.
Gauss-Hermite rules with 20 to 100 nodes are off by percents once $s$ exceeds about 30. Where $s^2 \le 0.1$, as of most
rows of a long table, a series in $s^2$ is four times as quick and ten times as near (`logistic_means`).

The errors below hold uniformly in $\mu$ and $s$, since a mean of a bounded error is bounded by it. They are the largest
errors on a grid of spacing 1e-4 over [-60, 60] plus what a function with second derivative at most 0.3 can do between
two nodes (3.8e-10), rounded up; beyond 60 both sides agree to 1e-26. (The second derivatives of softplus, sigmoid and
density lie in [0, 0.25], [-0.1, 0.1] and [-0.13, 0.05], and so do those of their mixtures up to 1e-2.)

`logistic_means`: with $\tau = s^2/2$, $u(\tau, \mu) = Ef(\mu + st)$ solves the heat equation, so that $u = \sum_{k <
K}f^{(2k)}(\mu)\tau^k/k! + R$ with $|R| \le \sup|f^{(2K)}|\,\tau^K/K!$. For the sigmoid $\sigma$ and $p = \sigma(1 -
\sigma)$, $dp/d\mu = p(1 - 2\sigma)$: the derivatives $\sigma^{(2k+1)} = P_k$ are polynomials in p, $P_0 = p$ and
$P_{k+1} = p^2(1 - 4p)P_k'' + p(1 - 6p)P_k'$, and $\sigma^{(2k+2)} = (1 - 2\sigma)pP_k'$. For $s^2 \le$ `NARROW` the
eight terms taken leave 1.4e-10 of $E\sigma$, less of the softplus, 8e-10 of $E\sigma'$, 1.4e-9 of $sE\sigma''$ and
2.7e-9 of $s^2E\sigma^{(3)}$, at the cost of one exponential function a row.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from provi.core.normal_cdf import (
    SLOPES,
    WEIGHTS,
    negative_log_normal_cdf,
    normal_curvature,
)
from provi.core.types import RandomKey
from provi.targets.data import read_binary, read_shares
from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors, Strip

VALUE_ERROR, SIGMOID_ERROR, DENSITY_ERROR = 2e-8, 5e-9, 1e-8
"""Largest errors of the mixture for the softplus, for the sigmoid and for its derivative."""

_FARTHEST = 1e8
"""Here the probit's curvature is 0 or 1 to all digits, and infinite arguments would be 0 times infinity."""

_ROOT_TWO, _ROOT_TWO_PI = math.sqrt(2), math.sqrt(2 * math.pi)

NARROW, _ORDER = 0.1, 8
"""The largest variance for `logistic_means`, and its terms."""


def _heat_tables() -> np.ndarray:
    """Coefficients of tau^k p^(j+1), k and j in the last two axes, of the five sums of `logistic_means`."""
    p = np.polynomial.Polynomial([0.0, 1.0])
    terms, tables = [p], np.zeros((5, _ORDER, _ORDER + 1))
    for k in range(_ORDER):
        term, slope = terms[k], p * terms[k].deriv()
        terms.append(p**2 * (1 - 4 * p) * term.deriv(2) + p * (1 - 6 * p) * term.deriv())
        here, later = 1 / math.factorial(k), 1 / math.factorial(k + 1)
        rows = (term, later), (slope, later), (term, here), (slope, here), (terms[k + 1], here)
        for row, (polynomial, factor) in enumerate(rows):
            tables[row, k, : len(polynomial.coef) - 1] = factor * np.asarray(polynomial.coef, float)[1:]
    return tables


_HEAT = _heat_tables()


def logistic_means(
    parts: tuple[Float[Array, "*shape"], ...], variance: Float[Array, "*shape"], curvature: bool = False
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"], Float[Array, "*shape"]]:
    r"""$E\,\mathrm{softplus}$, $E\sigma$ and $E\sigma'$; of the `curvature` $E\sigma'$ and its two derivatives.

    **Arguments:** `parts`: `logistic_parts` of the means. `variance`: at most `NARROW`.
    """
    (sigmoid, complement, value), tau = parts, 0.5 * variance
    p, odd = sigmoid * complement, complement - sigmoid
    powers, taus = [p], [jnp.ones_like(tau)]
    for k in range(1, _ORDER + 1):
        powers.append(powers[(k - 1) // 2] * powers[k // 2])
    for _ in range(_ORDER - 1):
        taus.append(taus[-1] * tau)
    table = jnp.asarray(_HEAT[2:] if curvature else _HEAT[:3], value.dtype).reshape(3 * _ORDER, _ORDER + 1)
    inner = jnp.tensordot(table, jnp.stack(powers), 1, precision=jax.lax.Precision.HIGHEST)
    first, second, third = jnp.sum(inner.reshape(3, _ORDER, *value.shape) * jnp.stack(taus)[None], axis=1)
    if curvature:
        return first, odd * second, third
    return value + tau * first, sigmoid + tau * odd * second, third


@jax.custom_jvp
def logistic_parts(x: Float[Array, "*shape"]) -> tuple[Any, Any, Any]:
    """s(x), s(-x) and softplus(x) with one exponential function, none of which cancels in its tail.

    Their derivatives are said, as those of the pieces are wrong where two of them meet, at 0.
    """
    tail = jnp.exp(-jnp.abs(x))
    large = 1 / (1 + tail)
    small, right = tail * large, x > 0
    return jnp.where(right, large, small), jnp.where(right, small, large), jnp.maximum(x, 0) - jnp.log(large)


@logistic_parts.defjvp
def _logistic_parts_jvp(primals, tangents):
    (x,), (tangent,) = primals, tangents
    sigmoid, complement, value = logistic_parts(x)
    slope = sigmoid * complement * tangent
    return (sigmoid, complement, value), (slope, -slope, sigmoid * tangent)


class SoftplusMoments(eqx.Module):
    """E softplus(z), E sigmoid(z) and E sigmoid'(z), entry by entry."""

    value: Float[Array, "*shape"]
    slope: Float[Array, "*shape"]
    weight: Float[Array, "*shape"]


def softplus_moments(mean: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> SoftplusMoments:
    r"""The three means for $z \sim N(\mu, s^2)$: with $a_k = (1 + c_k^2s^2)^{-1/2}$ and $t_k = c_k\mu a_k$,

    $E\,\mathrm{softplus} = \sum_k w_k[\mu\Phi(t_k) + \phi(t_k)/(c_ka_k)]$, $E\sigma = \sum_k w_k\Phi(t_k)$,
    $E\sigma' = \sum_k w_kc_ka_k\phi(t_k)$. The second is the derivative of the first in $\mu$, the third twice that in
    $s^2$. Rows up to `NARROW` by `logistic_means`, but beside an accelerator, where the mixture is one kernel.
    """
    if jax.default_backend() != "cpu":
        return SoftplusMoments(*_mixture_moments(mean, variance))
    small = variance <= NARROW
    narrow = logistic_means(logistic_parts(mean), jnp.where(small, variance, 0))
    wide = jax.lax.cond(jnp.all(small), _nothing, _mixture_moments, mean, variance)
    return SoftplusMoments(*map(partial(jnp.where, small), narrow, wide))


def density_moments(mean: Float[Array, "*shape"], deviation: Float[Array, "*shape"]) -> tuple:
    r"""$E[t^j\sigma'(\mu + st)]$ for $j = 0, 1, 2$ and $t \sim N(0, 1)$, each within `DENSITY_ERROR`.

    $\phi(c(\mu + st))\phi(t)$ is a Gaussian in $t$ with variance $a^2 = 1/(1 + c^2s^2)$ and mean $-c^2\mu sa^2$.
    Up to `NARROW` they are $E\sigma'$, $s$ times its derivative in $\mu$, and $E\sigma'$ with $s^2$ times its second.
    """
    if jax.default_backend() != "cpu":
        return _mixture_density(mean, deviation)
    small = deviation**2 <= NARROW
    s = jnp.where(small, deviation, 0)
    zeroth, first, second = logistic_means(logistic_parts(mean), s**2, curvature=True)
    wide = jax.lax.cond(jnp.all(small), _nothing, _mixture_density, mean, deviation)
    return tuple(map(partial(jnp.where, small), (zeroth, s * first, zeroth + s**2 * second), wide))


def _nothing(mean: Any, spread: Any) -> tuple:
    del spread
    return (jnp.zeros_like(mean),) * 3


def _mixture_moments(mean: Any, variance: Any) -> tuple:
    share, steepness = jnp.asarray(WEIGHTS, mean.dtype), np.reshape(SLOPES, (-1,) + (1,) * mean.ndim)
    steepness = jnp.asarray(steepness, mean.dtype)  # the pieces are the first axis
    shrunk = steepness * jax.lax.rsqrt(1 + steepness**2 * variance[None])
    t = shrunk * mean[None]
    density = jnp.exp(-0.5 * t * t)
    # One erfc is accurate in both tails and compiles several times faster than jax.scipy.special.ndtr.
    slope = jnp.tensordot(0.5 * share, erfc(t * (-1 / _ROOT_TWO)), 1)
    flat = share / _ROOT_TWO_PI
    return mean * slope + jnp.tensordot(flat, density / shrunk, 1), slope, jnp.tensordot(flat, density * shrunk, 1)


def _mixture_density(mean: Any, deviation: Any) -> tuple:
    share, steepness = jnp.asarray(WEIGHTS, mean.dtype), np.reshape(SLOPES, (-1,) + (1,) * mean.ndim)
    steepness = jnp.asarray(steepness, mean.dtype)
    variance = 1 / (1 + (steepness * deviation[None]) ** 2)
    shrunk = steepness * jnp.sqrt(variance)
    t = shrunk * mean[None]
    mass = shrunk * jnp.exp(-0.5 * t * t)
    centre = -(steepness**2) * (mean * deviation)[None] * variance
    flat = share / _ROOT_TWO_PI
    second = jnp.tensordot(flat, mass * (variance + centre**2), 1)
    return jnp.tensordot(flat, mass, 1), jnp.tensordot(flat, mass * centre, 1), second


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

    Its means are those of a mixture of eight probits, in closed form at every mean and variance; of narrow Gaussians,
    those of a series (`logistic_means`), which is nearer.

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
        """That of the eight probits; the series for narrow Gaussians has a smaller one."""
        return VALUE_ERROR

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Zeros and ones, or booleans; any share from 0 to 1 if `fractional`."""
        return read_shares(y, length) if self.fractional else read_binary(y, length)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """By `softplus_moments`, at every mean and variance."""
        sign, share = _majority(y)
        moments = softplus_moments(sign * mean, variance)
        value = moments.value - share * (sign * mean)
        return LinkMoments(value, sign * (moments.slope - share), moments.weight)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        r"""Those of the mixture of probits, smaller where the variance is large; those of the series are below them.

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
        """By the same two forms."""
        return *density_moments(mean, deviation), DENSITY_ERROR

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Around 0; the poles of the sigmoid are at +-i pi.

        `log_predictive` is left to quadrature: the mixture of probits has an absolute error of 5e-9, and its tails
        are too light. At eta = -40 its logarithm is -56.6 in place of -40.
        """
        return jnp.zeros_like(y), jnp.full_like(y, np.pi / 2)

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """P(y = 1) = E sigmoid(eta), as in `moments`."""
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
