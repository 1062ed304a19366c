"""Bayesian logistic regression."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.functions import softplus
from provi.core.logistic_normal import DENSITY_ERROR, SIGMOID_ERROR, VALUE_ERROR, density_moments, softplus_moments
from provi.core.precision import double_precision
from provi.targets.data import read_binary, read_design
from provi.targets.linear_models import AbstractLinearModel, Batch
from provi.targets.link_moments import LinkMoments, MomentErrors
from provi.targets.priors import GaussianPrior, gaussian_prior


class LogisticRegression(AbstractLinearModel):
    """y_n ~ Bernoulli(sigmoid(x_n' z)) with z ~ N(m, S).

    Strongly convex by its prior (t0 = 0), smooth with t1 = 1/4.
    """

    design: Float[Array, "terms dim"]
    response: Float[Array, " terms"]
    prior: GaussianPrior
    names: tuple[str, ...] | None = eqx.field(static=True)
    second_derivative: ClassVar[str] = "sigmoid(eta) sigmoid(-eta)"

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
        self.response = jnp.asarray(read_binary(y, self.design.shape[0]), self.design.dtype)
        self.prior = gaussian_prior(self.dim, prior_scale, prior_covariance, prior_mean, self.design.dtype)

    def link_potential(self, eta: Batch, y: Batch) -> Batch:
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

    def gaussian_moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """By the eight-probit closed form, at every mean and variance."""
        sign = 1 - 2 * y
        moments = softplus_moments(sign * mean, variance)
        return LinkMoments(moments.value, sign * moments.slope, moments.weight)

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Uniform: those of the mixture of probits."""
        return MomentErrors(*(jnp.full_like(mean, e) for e in (VALUE_ERROR, SIGMOID_ERROR, DENSITY_ERROR)))

    def curvature_moments(self, mean: Batch, deviation: Batch) -> tuple[Batch, Batch, Batch, float]:
        """The same closed form."""
        return *density_moments(mean, deviation), DENSITY_ERROR
