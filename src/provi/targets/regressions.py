"""Bayesian regressions: y_n ~ p(y | x_n' z) with z ~ N(m, S), for one likelihood each or for any log-concave one."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import cho_factor, cho_solve

from provi.core.arguments import check_positive, double_precision
from provi.core.types import Scalar
from provi.targets.data import read_design
from provi.targets.likelihoods.base import AbstractLikelihood
from provi.targets.likelihoods.bernoulli import BernoulliLogit, BernoulliProbit
from provi.targets.likelihoods.gaussian import GaussianNoise
from provi.targets.likelihoods.poisson import Poisson
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import GaussianPrior, gaussian_prior


class AbstractRegression(AbstractLinearModel):
    """A linear model of a table: its data and prior. A regression adds the `likelihood`, the last leaf.

    Strongly convex by its prior; smooth where the likelihood's second derivative is bounded for these responses.
    """

    design: Float[Array, "terms dim"]
    response: Float[Array, " terms"]
    prior: GaussianPrior
    names: tuple[str, ...] | None = eqx.field(static=True)


class LogisticRegression(AbstractRegression):
    """y_n ~ Bernoulli(sigmoid(x_n' z)) with z ~ N(m, S).

    Strongly convex by its prior (t0 = 0), smooth with t1 = 1/4.
    """

    likelihood: BernoulliLogit

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
        - `y`: (N,) labels 0 and 1, or booleans.
        - `prior_scale`: a standard deviation for all coefficients, or one for each.
        - `prior_covariance`: instead of `prior_scale`, variances or a covariance matrix.
        - `prior_mean`: the prior mean; zero if not given.
        - `intercept`: put a column of ones first.
        - `names`: a name for each column of `X`.
        """
        self.design, self.names = read_design(X, names, intercept)
        self.likelihood = BernoulliLogit()
        self.response, self.prior = _read_rest(self, y, prior_scale, prior_covariance, prior_mean)


class ProbitRegression(AbstractRegression):
    """y_n ~ Bernoulli(Phi(x_n' z)) with z ~ N(m, S), Phi the standard normal distribution function.

    Strongly convex by its prior (t0 = 0), smooth with t1 = 1. The second derivative of -log Phi at t is
    1 - Var(Z | Z < t) for a standard normal Z. The variance is positive; and it is below 1, because a density
    proportional to exp(-z^2/2) on a half-line is 1-strongly log-concave (Brascamp-Lieb).
    """

    likelihood: BernoulliProbit

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
        """**Arguments:** as for `LogisticRegression`."""
        self.design, self.names = read_design(X, names, intercept)
        self.likelihood = BernoulliProbit()
        self.response, self.prior = _read_rest(self, y, prior_scale, prior_covariance, prior_mean)


class PoissonRegression(AbstractRegression):
    """y_n ~ Poisson(exp(x_n' z)) with z ~ N(m, S). Strongly convex by its prior; not smooth."""

    likelihood: Poisson

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
        """**Arguments:** as for `LogisticRegression`, but `y` are counts 0, 1, 2, ..."""
        self.design, self.names = read_design(X, names, intercept)
        self.likelihood = Poisson()
        self.response, self.prior = _read_rest(self, y, prior_scale, prior_covariance, prior_mean)


class GeneralisedLinearModel(AbstractRegression):
    """y_n ~ p(y | eta = x_n' z) with z ~ N(m, S), for a log-concave likelihood.

    Strongly convex by its prior; smooth where the likelihood's second derivative is bounded for these responses.
    """

    likelihood: AbstractLikelihood

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        likelihood: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
    ):
        """**Arguments:**

        - `X`: (N, d) covariates, an array or a data frame.
        - `y`: (N,) responses of the kind that the likelihood is for.
        - `likelihood`: one of `provi.targets.likelihoods`, for instance `NegativeBinomial(2.0)`.
        - `prior_scale`, `prior_covariance`, `prior_mean`, `intercept`, `names`: as for `LogisticRegression`.
        """
        if not isinstance(likelihood, AbstractLikelihood):
            raise ValueError(f"likelihood must be one of provi.targets.likelihoods, not {likelihood!r}.")
        if not likelihood.log_concave:
            raise ValueError(
                f"likelihood {type(likelihood).__name__} is not log-concave, and what is proven about linear models "
                f"rests on convexity. Use a LogDensity target; or, for a UserLikelihood whose log_prob is concave in "
                f"eta, say so with log_concave=True."
            )
        self.design, self.names = read_design(X, names, intercept)
        self.likelihood = likelihood
        self.response, self.prior = _read_rest(self, y, prior_scale, prior_covariance, prior_mean)


class LinearRegression(AbstractRegression):
    """y_n ~ N(x_n' z, noise_scale^2) with z ~ N(m, S): the model whose posterior is known exactly.

    Strongly convex and smooth: t0 = t1 = 1/noise_scale^2, so both constants are tight.
    """

    likelihood: GaussianNoise

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
        - `prior_scale`, `prior_covariance`, `prior_mean`, `intercept`, `names`: as for `LogisticRegression`.
        """
        self.design, self.names = read_design(X, names, intercept)
        self.likelihood = GaussianNoise(np.asarray(check_positive("noise_scale", noise_scale), self.design.dtype))
        self.response, self.prior = _read_rest(self, y, prior_scale, prior_covariance, prior_mean)

    @property
    def noise_scale(self) -> Scalar:
        """The standard deviation of the noise."""
        return self.likelihood.scale

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


def _read_rest(
    model: AbstractRegression, y: Any, scale: Any, covariance: Any, mean: Any
) -> tuple[Float[Array, " terms"], GaussianPrior]:
    """Response and prior, once the design and the likelihood are there."""
    response = model.likelihood.read_response(y, model.num_terms)
    prior = gaussian_prior(model.dim, scale, covariance, mean, model.dtype)
    return jnp.asarray(response, model.dtype), prior
