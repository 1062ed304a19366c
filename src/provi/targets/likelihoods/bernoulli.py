"""Labels 0 and 1, with the logistic or the normal distribution function as the probability of a one."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc

from provi.core.logistic_normal import (
    DENSITY_ERROR,
    SIGMOID_ERROR,
    VALUE_ERROR,
    density_moments,
    softplus,
    softplus_moments,
)
from provi.core.normal_cdf import negative_log_normal_cdf
from provi.core.types import RandomKey
from provi.targets.data import read_binary
from provi.targets.likelihoods.base import AbstractLikelihood, Batch
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors


class BernoulliLogit(AbstractLikelihood):
    """y ~ Bernoulli(sigmoid(eta)): log-concave, t'' in (0, 1/4].

    Its means are those of a mixture of eight probits, in closed form at every mean and variance.
    """

    name: ClassVar[str] = "Bernoulli, logit link"
    second_derivative: ClassVar[str] = "sigmoid(eta) sigmoid(-eta)"

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """log(1 + exp(-+eta)): one softplus, so that nothing cancels where the label is certain."""
        return softplus((1 - 2 * y) * eta)

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, 1/4)."""
        return 0.0, 0.25

    @property
    def self_concordance(self) -> float:
        """The derivative of s(1 - s) is s(1 - s)(1 - 2s), s the sigmoid."""
        return 1.0

    @property
    def value_error(self) -> float:
        """That of the eight probits."""
        return VALUE_ERROR

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Zeros and ones, or booleans."""
        return read_binary(y, length)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """By the eight-probit closed form, at every mean and variance."""
        sign = 1 - 2 * y
        moments = softplus_moments(sign * mean, variance)
        return LinkMoments(moments.value, sign * moments.slope, moments.weight)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        r"""Those of the mixture of probits, smaller where the variance is large.

        If D is the error of t, at most d, then that of E t' is $E D'(\mu + su) = E[D(\mu + su)u]/s \le d\,E|u|/s$,
        $E|u| < 0.8$; and the same from t' to t''.
        """
        deviation = jnp.sqrt(variance)
        slope = jnp.minimum(SIGMOID_ERROR, 0.8 * VALUE_ERROR / deviation)
        weight = jnp.minimum(DENSITY_ERROR, 0.8 * SIGMOID_ERROR / deviation)
        return MomentErrors(jnp.full_like(mean, VALUE_ERROR), slope, weight)

    def curvature_moments(self, mean: Batch, deviation: Batch) -> tuple[Batch, Batch, Batch, float]:
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


class BernoulliProbit(AbstractLikelihood):
    """y ~ Bernoulli(Phi(eta)), Phi the standard normal distribution function: log-concave, t'' in (0, 1).

    The second derivative of -log Phi at t is 1 - Var(Z | Z < t) for a standard normal Z. The variance is positive; and
    it is below 1, because a density proportional to exp(-z^2/2) on a half-line is 1-strongly log-concave
    (Brascamp-Lieb).
    """

    name: ClassVar[str] = "Bernoulli, probit link"
    second_derivative: ClassVar[str] = "h(t) (t + h(t)) with h = Phi'/Phi, t = (2y - 1) eta"

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """-log Phi((2y - 1) eta), accurate in both tails, and so are its derivatives."""
        return negative_log_normal_cdf((2 * y - 1) * eta)

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, 1)."""
        return 0.0, 1.0

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Zeros and ones, or booleans."""
        return read_binary(y, length)

    def log_predictive(self, mean: Batch, variance: Batch, y: Batch) -> Batch:
        """log Phi((2y - 1) mean / sqrt(1 + variance)): exact."""
        return -negative_log_normal_cdf((2 * y - 1) * mean / jnp.sqrt(1 + variance))

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """P(y = 1) = Phi(mean / sqrt(1 + variance)): exact."""
        return 0.5 * erfc(-mean / jnp.sqrt(2 * (1 + variance)))

    def draw(self, key: RandomKey, eta: Batch) -> Batch:
        """1 where eta exceeds a standard normal number, else 0."""
        return (jax.random.normal(key, eta.shape, eta.dtype) < eta).astype(eta.dtype)
