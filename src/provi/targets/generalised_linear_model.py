"""A linear model with any log-concave likelihood."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.precision import double_precision
from provi.targets.data import read_design
from provi.targets.likelihoods.base import AbstractLikelihood
from provi.targets.linear_models import AbstractLinearModel
from provi.targets.priors import GaussianPrior, gaussian_prior


class GeneralisedLinearModel(AbstractLinearModel):
    """y_n ~ p(y | eta = x_n' z) with z ~ N(m, S), for a log-concave likelihood.

    Strongly convex by its prior; smooth where the likelihood's second derivative is bounded for these responses.
    """

    design: Float[Array, "terms dim"]
    response: Float[Array, " terms"]
    prior: GaussianPrior
    names: tuple[str, ...] | None = eqx.field(static=True)
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
        - `prior_scale`: a standard deviation for all coefficients, or one for each.
        - `prior_covariance`: instead of `prior_scale`, variances or a covariance matrix.
        - `prior_mean`: the prior mean; zero if not given.
        - `intercept`: put a column of ones first.
        - `names`: a name for each column of `X`.
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
        self.response = jnp.asarray(likelihood.read_response(y, self.design.shape[0]), self.design.dtype)
        self.prior = gaussian_prior(self.dim, prior_scale, prior_covariance, prior_mean, self.design.dtype)
