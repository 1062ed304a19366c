"""Bayesian linear regression: the model whose posterior is known exactly."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import cho_factor, cho_solve

from provi.core.checks import check_positive
from provi.core.precision import double_precision
from provi.core.types import Scalar
from provi.targets.data import read_design, read_real
from provi.targets.linear_models import AbstractLinearModel, Batch
from provi.targets.link_moments import LinkMoments, MomentErrors
from provi.targets.priors import GaussianPrior, gaussian_prior


class LinearRegression(AbstractLinearModel):
    """y_n ~ N(x_n' z, noise_scale^2) with z ~ N(m, S).

    Strongly convex and smooth: t0 = t1 = 1/noise_scale^2, so both constants are tight.
    """

    design: Float[Array, "terms dim"]
    response: Float[Array, " terms"]
    prior: GaussianPrior
    noise_scale: Scalar
    names: tuple[str, ...] | None = eqx.field(static=True)
    second_derivative: ClassVar[str] = "1/noise_scale^2"

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        noise_scale: Any = 1.0,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
    ):
        """**Arguments:**

        - `X`: (N, d) covariates, an array or a data frame.
        - `y`: (N,) real responses.
        - `noise_scale`: the standard deviation of the noise.
        - `prior_scale`: a standard deviation for all coefficients, or one for each.
        - `prior_covariance`: instead of `prior_scale`, variances or a covariance matrix.
        - `prior_mean`: the prior mean; zero if not given.
        - `intercept`: put a column of ones first.
        - `names`: a name for each column of `X`.
        """
        self.design, self.names = read_design(X, names, intercept)
        self.response = jnp.asarray(read_real(y, self.design.shape[0]), self.design.dtype)
        self.noise_scale = jnp.asarray(check_positive("noise_scale", noise_scale), self.design.dtype)
        self.prior = gaussian_prior(self.dim, prior_scale, prior_covariance, prior_mean, self.design.dtype)

    def link_potential(self, eta: Batch, y: Batch) -> Batch:
        """-log N(y; eta, noise_scale^2)."""
        return 0.5 * ((y - eta) / self.noise_scale) ** 2 + jnp.log(self.noise_scale) + 0.5 * math.log(2 * math.pi)

    @property
    def curvature(self) -> tuple[float, float]:
        """(1/noise_scale^2, 1/noise_scale^2)."""
        value = float(self.noise_scale) ** -2.0
        return value, value

    @property
    def self_concordance(self) -> float:
        """The second derivative is constant."""
        return 0.0

    def gaussian_moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """E (y - eta)^2 = (y - mean)^2 + variance."""
        weight = self.noise_scale**-2.0
        value = self.link_potential(mean, y) + 0.5 * weight * variance
        return LinkMoments(value, weight * (mean - y), jnp.full_like(mean, 1.0) * weight)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Rounding."""
        relative = 8 * jnp.finfo(mean.dtype).eps * self.noise_scale**-2.0
        slope = relative * (jnp.abs(mean) + jnp.abs(y))
        value = relative * (mean**2 + y**2 + variance) + 8 * jnp.finfo(mean.dtype).eps * (
            1 + jnp.abs(jnp.log(self.noise_scale))
        )
        return MomentErrors(value, slope, jnp.full_like(mean, 1.0) * relative)

    def curvature_moments(self, mean: Batch, deviation: Batch) -> tuple[Batch, Batch, Batch, float]:
        """(1, 0, 1) / noise_scale^2."""
        weight = jnp.full_like(mean, 1.0) * self.noise_scale**-2.0
        return weight, jnp.zeros_like(weight), weight, 0.0

    def exact_posterior(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the covariance of the Gaussian posterior, on the host in float64."""
        mean, factor = self._solve()
        return mean, cho_solve(factor, np.eye(self.dim))

    def log_evidence(self) -> float:
        """log p(y | X): the largest value an ELBO can take.

        log p(y) = log p(y, z) - log p(z | y) at any z; the posterior mean is the best conditioned.
        """
        mean, factor = self._solve()
        design, response = np.asarray(self.design, np.float64), np.asarray(self.response, np.float64)
        noise, prior_factor = float(self.noise_scale), self.prior.covariance_factor()
        residual = (response - design @ mean) / noise
        white = np.linalg.solve(prior_factor, mean - np.asarray(self.prior.mean, np.float64))
        log_det = np.log(np.diagonal(factor[0])).sum() + np.log(np.diagonal(prior_factor)).sum()
        constant = self.num_terms * (np.log(noise) + 0.5 * math.log(2 * math.pi))
        return float(-0.5 * residual @ residual - 0.5 * white @ white - log_det - constant)

    def _solve(self) -> tuple[np.ndarray, Any]:
        design, response = np.asarray(self.design, np.float64), np.asarray(self.response, np.float64)
        weight, prior_precision = float(self.noise_scale) ** -2.0, self.prior.precision_matrix()
        factor = cho_factor(prior_precision + weight * design.T @ design)
        prior_mean = np.asarray(self.prior.mean, np.float64)
        return cho_solve(factor, prior_precision @ prior_mean + weight * design.T @ response), factor
