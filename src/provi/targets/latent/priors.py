r"""Priors of hyperparameters: scales, correlations, shapes.

Each is a normalised density on a line, a half-line or an interval, with the coordinate t on the real line in which it
is explored: $x = t$, $x = e^t$ or $x = a + (b - a)\sigma(t)$. `log_density_free` is that of t, Jacobian included.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, gammaln

from provi.core.arguments import check_positive


class AbstractHyperprior(eqx.Module):
    """A density of one hyperparameter, on (`low`, `high`)."""

    @property
    def support(self) -> tuple[float, float]:
        """(0, infinity), for scales; others say otherwise."""
        return 0.0, math.inf

    @abc.abstractmethod
    def log_density(self, x: Any) -> Any:
        """log p(x), normalised."""

    @property
    @abc.abstractmethod
    def typical(self) -> float:
        """A value in the bulk, where the search begins."""

    def constrain(self, t: Any) -> Any:
        """x at the free coordinate t."""
        low, high = self.support
        if math.isinf(low):
            return t
        return jnp.exp(t) if math.isinf(high) else low + (high - low) * jax.nn.sigmoid(t)

    def unconstrain(self, x: float) -> float:
        """The free coordinate of x."""
        low, high = self.support
        if math.isinf(low):
            return float(x)
        return math.log(x) if math.isinf(high) else math.log((x - low) / (high - x))

    def log_density_free(self, t: Any) -> Any:
        """The log density of t: that of x, and the logarithm of dx/dt."""
        low, high = self.support
        x = self.constrain(t)
        if math.isinf(low):
            return self.log_density(x)
        if math.isinf(high):
            return self.log_density(x) + t
        slope = math.log(high - low) - jax.nn.softplus(t) - jax.nn.softplus(-t)
        return self.log_density(x) + slope


def _leaf(value: float) -> np.ndarray:
    """A number as an array: changing it compiles nothing again."""
    return np.asarray(float(value))


class HalfNormal(AbstractHyperprior):
    """|N(0, scale^2)|."""

    scale: Any

    def __init__(self, scale: float = 2.5):
        """`scale`: of the normal law; 95% lie below 1.96 times it."""
        self.scale = _leaf(check_positive("scale", scale))

    def log_density(self, x: Any) -> Any:
        """2 N(x; 0, scale^2)."""
        return -0.5 * (x / self.scale) ** 2 + 0.5 * math.log(2 / math.pi) - jnp.log(self.scale)

    @property
    def typical(self) -> float:
        """A third of the scale."""
        return float(self.scale) / 3


class HalfT(AbstractHyperprior):
    """The absolute value of a Student-t variable; with one degree of freedom the half-Cauchy law."""

    scale: Any
    degrees_of_freedom: Any

    def __init__(self, scale: float = 2.5, degrees_of_freedom: float = 3.0):
        """`scale`: of the Student-t law. `degrees_of_freedom`: of it; 3 as brms has it."""
        self.scale = _leaf(check_positive("scale", scale))
        self.degrees_of_freedom = _leaf(check_positive("degrees_of_freedom", degrees_of_freedom))

    def log_density(self, x: Any) -> Any:
        """Twice the Student-t density."""
        nu = self.degrees_of_freedom
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * jnp.log(nu * math.pi) + math.log(2)
        return constant - jnp.log(self.scale) - (nu + 1) / 2 * jnp.log1p((x / self.scale) ** 2 / nu)

    @property
    def typical(self) -> float:
        """A third of the scale."""
        return float(self.scale) / 3


class Gamma(AbstractHyperprior):
    """x^(shape - 1) e^(-rate x), normalised."""

    shape: Any
    rate: Any

    def __init__(self, shape: float, rate: float):
        """`shape` and `rate`: the mean is shape / rate."""
        self.shape, self.rate = _leaf(check_positive("shape", shape)), _leaf(check_positive("rate", rate))

    def log_density(self, x: Any) -> Any:
        """(shape - 1) log x - rate x + shape log rate - log Gamma(shape)."""
        constant = self.shape * jnp.log(self.rate) - gammaln(self.shape)
        return (self.shape - 1) * jnp.log(x) - self.rate * x + constant

    @property
    def typical(self) -> float:
        """The mean."""
        return float(self.shape / self.rate)


class Exponential(Gamma):
    """rate e^(-rate x)."""

    def __init__(self, rate: float = 1.0):
        """`rate`: the mean is 1 / rate."""
        super().__init__(1.0, rate)


class PenalisedComplexity(Exponential):
    r"""Of a scale: exponential in the distance from the simpler model without the effect (Simpson et al. 2017).

    $P(x > u) = \alpha$ fixes its rate, $-\log(\alpha)/u$.
    """

    def __init__(self, upper: float = 1.0, probability: float = 0.05):
        """`upper` and `probability`: u and alpha above."""
        upper = check_positive("upper", upper)
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
        super().__init__(-math.log(probability) / upper)


class LogNormal(AbstractHyperprior):
    """log x ~ N(mean, sd^2)."""

    mean: Any
    sd: Any

    def __init__(self, mean: float = 0.0, sd: float = 1.0):
        """`mean`, `sd`: of log x."""
        self.mean, self.sd = _leaf(mean), _leaf(check_positive("sd", sd))

    def log_density(self, x: Any) -> Any:
        """N(log x; mean, sd^2) / x."""
        u = jnp.log(x)
        return -0.5 * ((u - self.mean) / self.sd) ** 2 - u - jnp.log(self.sd) - 0.5 * math.log(2 * math.pi)

    @property
    def typical(self) -> float:
        """The median."""
        return math.exp(float(self.mean))


class InverseGamma(AbstractHyperprior):
    """1/x has a gamma law: for length-scales, which it keeps away from zero."""

    shape: Any
    scale: Any

    def __init__(self, shape: float = 3.0, scale: float = 1.0):
        """`shape` and `scale`: the mean is scale / (shape - 1)."""
        self.shape, self.scale = _leaf(check_positive("shape", shape)), _leaf(check_positive("scale", scale))

    def log_density(self, x: Any) -> Any:
        """shape log scale - log Gamma(shape) - (shape + 1) log x - scale / x."""
        constant = self.shape * jnp.log(self.scale) - gammaln(self.shape)
        return constant - (self.shape + 1) * jnp.log(x) - self.scale / x

    @property
    def typical(self) -> float:
        """The mode."""
        return float(self.scale / (self.shape + 1))


class Normal(AbstractHyperprior):
    """N(mean, sd^2) on the real line."""

    mean: Any
    sd: Any

    def __init__(self, mean: float = 0.0, sd: float = 1.0):
        """`mean`, `sd`: of x."""
        self.mean, self.sd = _leaf(mean), _leaf(check_positive("sd", sd))

    @property
    def support(self) -> tuple[float, float]:
        """The real line."""
        return -math.inf, math.inf

    def log_density(self, x: Any) -> Any:
        """The normal density."""
        return -0.5 * ((x - self.mean) / self.sd) ** 2 - jnp.log(self.sd) - 0.5 * math.log(2 * math.pi)

    @property
    def typical(self) -> float:
        """The mean."""
        return float(self.mean)


class Beta(AbstractHyperprior):
    """A beta law stretched to (`low`, `high`): for mixing shares and correlations."""

    first: Any
    second: Any
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    def __init__(self, first: float = 1.0, second: float = 1.0, low: float = 0.0, high: float = 1.0):
        """`first`, `second`: the exponents plus one, at the lower and the upper end."""
        self.first, self.second = _leaf(check_positive("first", first)), _leaf(check_positive("second", second))
        self.low, self.high = float(low), float(high)
        if not self.low < self.high:
            raise ValueError(f"low must be below high, not {low} and {high}.")

    @property
    def support(self) -> tuple[float, float]:
        """(low, high)."""
        return self.low, self.high

    def log_density(self, x: Any) -> Any:
        """(first - 1) log u + (second - 1) log(1 - u), u the place in the interval, normalised."""
        return self._log_density(jnp.log(x - self.low), jnp.log(self.high - x))

    def _log_density(self, below: Any, above: Any) -> Any:
        width = math.log(self.high - self.low)
        constant = -betaln(self.first, self.second) - width
        return (self.first - 1) * (below - width) + (self.second - 1) * (above - width) + constant

    def log_density_free(self, t: Any) -> Any:
        """Accurate also where x is next to an end of the interval."""
        width = math.log(self.high - self.low)
        below, above = width - jax.nn.softplus(-t), width - jax.nn.softplus(t)
        return self._log_density(below, above) + below + above - width

    @property
    def typical(self) -> float:
        """The mean."""
        return self.low + (self.high - self.low) * float(self.first / (self.first + self.second))


class Uniform(Beta):
    """Flat on (`low`, `high`)."""

    def __init__(self, low: float = 0.0, high: float = 1.0):
        """`low`, `high`: the ends."""
        super().__init__(1.0, 1.0, low, high)


class LKJ(eqx.Module):
    r"""Of a correlation matrix R of b effects: density proportional to $\det(R)^{\eta - 1}$.

    With the canonical partial correlations, each is $2B - 1$, $B \sim \mathrm{Beta}(\alpha_k, \alpha_k)$, $\alpha_k =
    \eta + (b - k - 1)/2$ for those of the k-th effect with later ones, k = 1, ..., b - 1, independently (Lewandowski,
    Kurowicka and Joe 2009).
    """

    # No leaf: the priors of the partial correlations are made of it while a program is traced.
    shape: float = eqx.field(static=True)

    def __init__(self, shape: float = 2.0):
        """`shape`: eta; 1 is flat, larger ones favour small correlations."""
        self.shape = check_positive("shape", shape)

    def partial(self, effects: int) -> tuple[Beta, ...]:
        """The priors of the partial correlations (1, 2), (1, 3), ..., (2, 3), ... of so many effects."""
        found = []
        for k in range(1, effects):
            alpha = self.shape + (effects - k - 1) / 2
            found += [Beta(alpha, alpha, -1.0, 1.0)] * (effects - k)
        return tuple(found)


def correlation_factor(partial: Any, effects: int) -> Any:
    """The lower Cholesky factor of the correlation matrix with these partial correlations, in `LKJ`'s order."""
    rows: list[list[Any]] = [[jnp.asarray(0.0)] * effects for _ in range(effects)]
    table, position = {}, 0
    for k in range(effects):
        for j in range(k + 1, effects):
            table[j, k], position = partial[position], position + 1
    for j in range(effects):
        left = jnp.asarray(1.0)
        for k in range(j):
            rows[j][k] = table[j, k] * jnp.sqrt(left)
            left = left * (1 - table[j, k] ** 2)
        rows[j][j] = jnp.sqrt(left)
    return jnp.stack([jnp.stack(row) for row in rows])
