"""Bayesian probit regression."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.precision import double_precision
from provi.targets.data import read_design
from provi.targets.likelihoods.bernoulli import BernoulliProbit
from provi.targets.linear_models import AbstractLinearModel
from provi.targets.priors import GaussianPrior, gaussian_prior


class ProbitRegression(AbstractLinearModel):
    """y_n ~ Bernoulli(Phi(x_n' z)) with z ~ N(m, S), Phi the standard normal distribution function.

    Strongly convex by its prior (t0 = 0), smooth with t1 = 1. The second derivative of -log Phi at t is
    1 - Var(Z | Z < t) for a standard normal Z. The variance is positive; and it is below 1, because a density
    proportional to exp(-z^2/2) on a half-line is 1-strongly log-concave (Brascamp-Lieb).
    """

    design: Float[Array, "terms dim"]
    response: Float[Array, " terms"]
    prior: GaussianPrior
    names: tuple[str, ...] | None = eqx.field(static=True)
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
        self.likelihood = BernoulliProbit()
        self.response = jnp.asarray(self.likelihood.read_response(y, self.design.shape[0]), self.design.dtype)
        self.prior = gaussian_prior(self.dim, prior_scale, prior_covariance, prior_mean, self.design.dtype)
