"""Bayesian Poisson regression with the log link."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from provi.core.precision import double_precision
from provi.targets.data import read_counts, read_design
from provi.targets.linear_models import AbstractLinearModel, Batch
from provi.targets.link_moments import LinkMoments, MomentErrors
from provi.targets.priors import GaussianPrior, gaussian_prior


class PoissonRegression(AbstractLinearModel):
    """y_n ~ Poisson(exp(x_n' z)) with z ~ N(m, S). Strongly convex by its prior; not smooth."""

    design: Float[Array, "terms dim"]
    response: Float[Array, " terms"]
    prior: GaussianPrior
    names: tuple[str, ...] | None = eqx.field(static=True)
    second_derivative: ClassVar[str] = "exp(eta)"

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
    ):
        """**Arguments:**

        - `X`: (N, d) covariates, an array or a data frame.
        - `y`: (N,) counts 0, 1, 2, ...
        - `prior_scale`: a standard deviation for all coefficients, or one for each.
        - `prior_covariance`: instead of `prior_scale`, variances or a covariance matrix.
        - `prior_mean`: the prior mean; zero if not given.
        - `intercept`: put a column of ones first.
        - `names`: a name for each column of `X`.
        """
        self.design, self.names = read_design(X, names, intercept)
        self.response = jnp.asarray(read_counts(y, self.design.shape[0]), self.design.dtype)
        self.prior = gaussian_prior(self.dim, prior_scale, prior_covariance, prior_mean, self.design.dtype)

    def link_potential(self, eta: Batch, y: Batch) -> Batch:
        """exp(eta) - y eta + log y!."""
        return jnp.exp(eta) - y * eta + gammaln(y + 1)

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, infinity)."""
        return 0.0, np.inf

    @property
    def self_concordance(self) -> float:
        """Every derivative of exp is exp."""
        return 1.0

    def gaussian_moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """E exp(eta) = exp(mean + variance/2)."""
        rate = jnp.exp(mean + variance / 2)
        return LinkMoments(rate - y * mean + gammaln(y + 1), rate - y, rate)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Rounding: the exponent's, times the rate."""
        exponent = mean + variance / 2
        error = 8 * jnp.finfo(mean.dtype).eps * (1 + jnp.abs(exponent)) * jnp.exp(exponent)
        rounding = 8 * jnp.finfo(mean.dtype).eps * (jnp.abs(y * mean) + gammaln(y + 1))
        return MomentErrors(error + rounding, error, error)

    def curvature_moments(self, mean: Batch, deviation: Batch) -> tuple[Batch, Batch, Batch, float]:
        """E[u^j exp(mean + s u)] = rate, s rate, (1 + s^2) rate."""
        rate = jnp.exp(mean + deviation**2 / 2)
        return rate, deviation * rate, (1 + deviation**2) * rate, 0.0
