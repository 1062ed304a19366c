"""Bayesian Poisson regression with the log link."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.precision import double_precision
from provi.targets.data import read_design
from provi.targets.likelihoods.poisson import Poisson
from provi.targets.linear_models import AbstractLinearModel
from provi.targets.priors import GaussianPrior, gaussian_prior


class PoissonRegression(AbstractLinearModel):
    """y_n ~ Poisson(exp(x_n' z)) with z ~ N(m, S). Strongly convex by its prior; not smooth."""

    design: Float[Array, "terms dim"]
    response: Float[Array, " terms"]
    prior: GaussianPrior
    names: tuple[str, ...] | None = eqx.field(static=True)
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
        self.likelihood = Poisson()
        self.response = jnp.asarray(self.likelihood.read_response(y, self.design.shape[0]), self.design.dtype)
        self.prior = gaussian_prior(self.dim, prior_scale, prior_covariance, prior_mean, self.design.dtype)
