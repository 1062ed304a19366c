"""Times until an event, some of them cut short: right-censored.

A response is a signed time: y > 0 is an event at the time y, y < 0 a row that was seen without an event up to the time
|y|. A censored row contributes the probability of no event up to |y|, an event the density there.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from provi.core.arguments import check_positive, device_array, double_precision, floating_dtype
from provi.core.normal_cdf import negative_log_normal_cdf, normal_curvature
from provi.core.types import RandomKey, Scalar
from provi.targets.data import read_times
from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.bernoulli import BernoulliProbit
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors

_FARTHEST = 1e8
"""Deviations at which the probit's curvature is 0 or 1 to all digits."""


class Weibull(AbstractLikelihood):
    r"""Proportional hazards: $h(t) = k\,t^{k-1}e^\eta$ with the `shape` k, so $P(T > t) = e^{-t^ke^\eta}$: log-concave.

    With $x = \eta + k\log|y|$ and d = 1 for an event, else 0: $t = e^x - d\,(x + \log k - \log|y|)$ and $t'' = e^x$:
    but for a constant a Poisson likelihood with the count d, and so are its means. `Weibull()` is the exponential
    distribution.
    """

    shape: Scalar
    name: ClassVar[str] = "Weibull, log hazard"
    curvature_decay: ClassVar[float | None] = 0.0
    second_derivative: ClassVar[str] = "|y|^shape exp(eta)"

    @double_precision
    def __init__(self, shape: Any = 1.0):
        """`shape`: k; the hazard grows with time above 1, falls below it and is constant at 1."""
        self.shape = device_array(np.asarray(check_positive("shape", shape)), floating_dtype(shape))

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """Minus the log density of an event, or the cumulative hazard of a censored time."""
        event, offset, constant = self._terms(y)
        x = eta + offset
        return jnp.exp(x) - jnp.where(event, x, 0) + constant

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, infinity)."""
        return 0.0, np.inf

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the lower end."""
        return rounded(jnp.exp(self._moved(low, y, -1)), -1)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the upper end."""
        return rounded(jnp.exp(self._moved(high, y, 1)), 1)

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Times of events, and censored times with a minus sign."""
        return read_times(y, length)

    def bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Where the cumulative hazard is 1."""
        return -self._terms(y)[1], jnp.ones_like(y)

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """The density of an event peaks there with the width 1; the probability of none is a step just before it."""
        centre, width = self.bend(y)
        return centre + jnp.where(y > 0, 0.4, -0.7), jnp.where(y > 0, 0.7, 1.0) * width

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """E exp(x) = exp(E x + variance/2)."""
        event, offset, constant = self._terms(y)
        x = mean + offset
        rate = jnp.exp(x + variance / 2)
        slope = jnp.where(event, jnp.expm1(x + variance / 2), rate)
        return LinkMoments(rate - jnp.where(event, x, 0) + constant, slope, rate)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Rounding: the exponent's, times what it changes; and that of the other terms."""
        unit = 8 * float(jnp.finfo(mean.dtype).eps)
        event, offset, constant = self._terms(y)
        exponent = 1 + jnp.abs(mean) + jnp.abs(offset) + variance / 2
        rate = unit * exponent * jnp.exp(mean + offset + variance / 2)
        # The constant is a difference of two logarithms.
        logs = jnp.abs(constant) + 2 * jnp.abs(jnp.log(self.shape.astype(mean.dtype)))
        others = unit * jnp.where(event, exponent + logs, 1)
        return MomentErrors(rate + others, rate + unit, rate)

    @property
    def errors_proven(self) -> bool:
        """A closed form."""
        return True

    def value_error_given(self, y: Any) -> float:
        """And the rounding of the logarithms of times, which may cancel."""
        logs = np.abs(np.log(np.abs(np.asarray(y, np.float64))))
        shape = float(self.shape)
        size = 1 + (1 + shape) * float(np.max(logs, initial=0.0)) + abs(math.log(shape))
        return self.value_error + 64 * float(np.finfo(float).eps) * size**2

    def working_response(self, y: Batch) -> tuple[Batch, Batch]:
        """Poisson's for the count d, moved by k log |y|: from the prior mean a Newton step may overflow."""
        count = jnp.where(y > 0, 1.5, 0.5).astype(y.dtype)
        return jnp.log(count) - self._terms(y)[1], count

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        r"""The mean time until the event, $E\,e^{-\eta/k}\,\Gamma(1 + 1/k)$."""
        power = 1 / self.shape.astype(mean.dtype)
        return jnp.exp(gammaln(1 + power) - power * mean + 0.5 * power**2 * variance)

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        r"""Times of events, none censored: $(e^{-\eta}E)^{1/k}$, E of the exponential distribution."""
        hazard = jax.random.exponential(key, eta.shape, eta.dtype)
        time = jnp.exp((jnp.log(hazard) - eta) / self.shape.astype(eta.dtype))
        return jnp.maximum(time, float(jnp.finfo(eta.dtype).tiny))

    def _terms(self, y: Batch) -> tuple[Any, Batch, Batch]:
        """Whether y is an event; k log |y|; and what does not depend on eta."""
        shape, log_time = self.shape.astype(y.dtype), jnp.log(jnp.abs(y))
        return y > 0, shape * log_time, jnp.where(y > 0, log_time - jnp.log(shape), 0)

    def _moved(self, eta: Batch, y: Batch, sign: int) -> Batch:
        """x, moved on by its rounding."""
        offset = self._terms(y)[1]
        return eta + offset + sign * 4 * float(jnp.finfo(eta.dtype).eps) * (jnp.abs(eta) + jnp.abs(offset))


class LogNormalSurvival(AbstractLikelihood):
    r"""An accelerated failure time model: $\log T \sim N(\eta, \sigma^2)$ with the `scale` $\sigma$: log-concave.

    $\tau = \log|y|$. An event is a Gaussian response $\tau$, with the density of T and not of its logarithm; a
    censored time is the probit $-\log\Phi((\eta - \tau)/\sigma)$. Its means are those of `BernoulliProbit` at
    $(\mu - \tau)/\sigma$ and $s^2/\sigma^2$, with their proven errors; each derivative divides by $\sigma$.
    """

    scale: Scalar
    name: ClassVar[str] = "log-normal survival"
    second_derivative: ClassVar[str] = "1/scale^2 for an event; h(z) (z + h(z)) / scale^2, z = (eta - log |y|)/scale"

    @double_precision
    def __init__(self, scale: Any = 1.0):
        """`scale`: the standard deviation of the logarithm of the time."""
        self.scale = device_array(np.asarray(check_positive("scale", scale)), floating_dtype(scale))

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """Minus the log density of an event, or minus the log probability of a later one."""
        z, constant = self._deviations(eta, y), self._constant(y)
        return jnp.where(y > 0, 0.5 * z**2 + constant, negative_log_normal_cdf(z))

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, 1/scale^2)."""
        return 0.0, float(self.scale) ** -2.0

    def curvature_given(self, y: Any) -> tuple[float, float]:
        """Both 1/scale^2 if nothing is censored."""
        largest = self.curvature[1]
        return (largest if bool(np.all(np.asarray(y) > 0)) else 0.0), largest

    @property
    def log_concave(self) -> bool:
        """At every scale."""
        return True

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """1/scale^2, or the probit's at the upper end: it falls in eta."""
        return rounded(self._bent(high, y, 1), -1)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """1/scale^2, or the probit's at the lower end."""
        return rounded(self._bent(low, y, -1), 1)

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Times of events, and censored times with a minus sign."""
        return read_times(y, length)

    def bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Around the logarithm of the time."""
        return jnp.log(jnp.abs(y)), self.scale.astype(y.dtype) * jnp.ones_like(y)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """In closed form for an event; the probit's quadrature, rescaled, for a censored time."""
        z, spread, one = self._deviations(mean, y), variance / self._scale(mean) ** 2, jnp.ones_like(mean)
        censored = BernoulliProbit().moments(z, spread, one)
        event = LinkMoments(0.5 * (z**2 + spread) + self._constant(y), z, one)
        return self._by_kind(LinkMoments, event, censored, y)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        r"""Those of the probit, and what rounding does to its arguments.

        z is off by $\delta$, which moves $-\log\Phi$ by $\delta$ times its slope, the slope by $\delta$, and the
        curvature by $6.5\delta$ (`BernoulliProbit.strip`). The variance v is off by a share $\epsilon$, which moves
        the three means by at most $\epsilon v$, $\epsilon\sqrt v$ and $\epsilon$: $Et''' = E[t''u]/\sqrt v$ and
        $Et'''' = E[t''(u^2 - 1)]/v$.
        """
        unit, scale = 8 * float(jnp.finfo(mean.dtype).eps), self._scale(mean)
        log_time, one = jnp.log(jnp.abs(y)), jnp.ones_like(mean)
        z, spread = self._deviations(mean, y), variance / scale**2
        moved = unit * (jnp.abs(mean) + jnp.abs(log_time)) / scale
        probit = BernoulliProbit().moment_errors(z, spread, one)
        # |h(z)| <= 1 + |z|.
        steepest = 1 + jnp.abs(z) + jnp.sqrt(spread) + moved
        censored = MomentErrors(
            probit.value + moved * steepest + unit * spread,
            probit.slope + moved + unit * jnp.sqrt(spread),
            probit.weight + 6.5 * moved + unit,
        )
        logs = 1 + jnp.abs(jnp.log(scale)) + jnp.abs(log_time)
        event = MomentErrors(
            (moved + unit * jnp.abs(z)) * (jnp.abs(z) + moved) + unit * (spread + logs),
            moved + unit * jnp.abs(z),
            unit * one,
        )
        # Dividing by the scale rounds once more, which `unit` times the sizes above covers.
        return self._by_kind(MomentErrors, event, censored, y)

    @property
    def errors_proven(self) -> bool:
        """By the probit's."""
        return True

    def value_error_given(self, y: Any) -> float:
        """And the rounding of the logarithms of times."""
        logs = np.abs(np.log(np.abs(np.asarray(y, np.float64))))
        size = 1 + float(np.max(logs, initial=0.0)) * (1 + 1 / float(self.scale))
        return self.value_error + 64 * float(np.finfo(float).eps) * size**2

    def log_predictive(self, mean: Batch, variance: Batch, y: Batch) -> Batch:
        """log N(log y; mean, variance + scale^2) - log y, or the log of Phi of the same deviation: exact."""
        total = jnp.sqrt(variance + self._scale(mean) ** 2)
        log_time = jnp.log(jnp.abs(y))
        z = (mean - log_time) / total
        event = -0.5 * z**2 - jnp.log(total) - 0.5 * math.log(2 * math.pi) - log_time
        return jnp.where(y > 0, event, -negative_log_normal_cdf(z))

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """The mean time until the event, E exp(eta + scale^2/2)."""
        return jnp.exp(mean + 0.5 * (variance + self._scale(mean) ** 2))

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        """Times of events, none censored: exp(eta + scale * e), e ~ N(0, 1)."""
        return jnp.exp(eta + self._scale(eta) * jax.random.normal(key, eta.shape, eta.dtype))

    def _scale(self, like: Batch) -> Scalar:
        return self.scale.astype(like.dtype)

    def _deviations(self, eta: Batch, y: Batch) -> Batch:
        """(eta - log |y|)/scale."""
        return (eta - jnp.log(jnp.abs(y))) / self._scale(eta)

    def _constant(self, y: Batch) -> Batch:
        """Of the density of an event: log scale + log(2 pi)/2 + log y."""
        return jnp.log(self._scale(y)) + 0.5 * math.log(2 * math.pi) + jnp.log(jnp.abs(y))

    def _bent(self, eta: Batch, y: Batch, sign: int) -> Batch:
        """t'' at eta, moved on by the rounding of the deviation."""
        log_time, scale = jnp.log(jnp.abs(y)), self._scale(eta)
        z = jnp.clip(self._deviations(eta, y), -_FARTHEST, _FARTHEST)
        far = jnp.clip(jnp.abs(eta), 0, _FARTHEST * scale) + jnp.abs(log_time)
        z = z + sign * 4 * float(jnp.finfo(eta.dtype).eps) * (far / scale + jnp.abs(z))
        return jnp.where(y > 0, 1.0, jnp.minimum(normal_curvature(z), 1.0)) * scale**-2.0

    def _by_kind(self, kind: Any, event: Any, censored: Any, y: Batch) -> Any:
        """The three numbers of events and of censored rows, the derivatives divided by the scale."""
        scale = self._scale(y)
        return kind(
            jnp.where(y > 0, event.value, censored.value),
            jnp.where(y > 0, event.slope, censored.slope) / scale,
            jnp.where(y > 0, event.weight, censored.weight) / scale**2,
        )
