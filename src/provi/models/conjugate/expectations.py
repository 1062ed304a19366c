r"""Expectations and divergences of the conjugate priors: Dirichlet, Wishart, Normal-Wishart.

A Wishart distribution of a precision $\Lambda$ is held by its degrees of freedom $\nu$ and its *inverse* scale $A$,
with density $\propto|\Lambda|^{(\nu-d-1)/2}e^{-\mathrm{tr}(A\Lambda)/2}$, so $E\Lambda = \nu A^{-1}$. With d = 1 it is
the Gamma distribution with shape $\nu/2$ and rate $A/2$. Data enter $\nu$ and A by addition.

The options of the conjugate models that say how they are fitted.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Float

from provi.core.arguments import check_positive


def dirichlet_expected_log(concentration: Float[Array, "*rows k"]) -> Float[Array, "*rows k"]:
    r"""$E\log\theta_k = \psi(c_k) - \psi(\sum_jc_j)$, along the last axis."""
    return digamma(concentration) - digamma(jnp.sum(concentration, axis=-1, keepdims=True))


def dirichlet_kl(concentration: Float[Array, "*rows k"], prior: Float[Array, "*rows k"]) -> Float[Array, "*rows"]:
    r"""$KL(Dir(c)\,\|\,Dir(c_0)) = \log B(c_0) - \log B(c) + \sum_k(c_k - c_{0k})E_c\log\theta_k$, row by row."""
    expected = dirichlet_expected_log(concentration)
    return _log_beta(prior) - _log_beta(concentration) + jnp.sum((concentration - prior) * expected, axis=-1)


def _log_beta(concentration):
    """The log of the multivariate beta function: the Dirichlet's log-partition."""
    return jnp.sum(gammaln(concentration), axis=-1) - gammaln(jnp.sum(concentration, axis=-1))


def wishart_expected_log_det(degrees: Array, log_det_inverse_scale: Array, dim: int) -> Array:
    r"""$E\log|\Lambda| = \sum_{i<d}\psi((\nu-i)/2) + d\log2 - \log|A|$."""
    return jnp.sum(digamma(_halves(degrees, dim)), axis=-1) + dim * math.log(2) - log_det_inverse_scale


def _halves(degrees, dim):
    """(nu - i)/2 for i < d along a new last axis: one special function of an array compiles faster than d of them."""
    return (jnp.expand_dims(degrees, -1) - np.arange(dim).reshape((1,) * degrees.ndim + (dim,))) / 2


def wishart_kl(
    degrees: Array, log_det: Array, prior_degrees: Array, prior_log_det: Array, trace: Array, dim: int
) -> Array:
    r"""KL between Wisharts with inverse scales $A, A_0$; `trace` is $\mathrm{tr}(A_0A^{-1})$.

    $$KL = \tfrac{\nu-\nu_0}2(E\log|\Lambda| - d\log2) + \tfrac\nu2(\mathrm{tr}(A_0A^{-1}) - d)
      + \tfrac\nu2\log|A| - \tfrac{\nu_0}2\log|A_0| - \log\Gamma_d(\tfrac\nu2) + \log\Gamma_d(\tfrac{\nu_0}2).$$
    """
    expected = wishart_expected_log_det(degrees, log_det, dim) - dim * math.log(2)
    gammas = jnp.sum(gammaln(_halves(prior_degrees, dim)) - gammaln(_halves(degrees, dim)), axis=-1)
    return (
        (degrees - prior_degrees) / 2 * expected
        + degrees / 2 * (trace - dim + log_det)
        - prior_degrees / 2 * prior_log_det
        + gammas
    )


def mean_given_precision_kl(mean_precision: Array, prior_mean_precision: Array, square: Array, dim: int) -> Array:
    r"""The expected KL of $N(m, (\kappa\Lambda)^{-1})$ from $N(m_0, (\kappa_0\Lambda)^{-1})$ under the Wishart.

    $\tfrac12[d(\kappa_0/\kappa - 1 - \log(\kappa_0/\kappa)) + \kappa_0s]$ with `square`
    $s = \nu(m-m_0)'A^{-1}(m-m_0)$.
    """
    ratio = prior_mean_precision / mean_precision
    return (dim * (ratio - 1 - jnp.log(ratio)) + prior_mean_precision * square) / 2


def forgetting_option(model: Any) -> tuple[float, float] | None:
    """Check `solver`, `learning_rate`, `learning_offset`, `learning_decay`, `tol`, `total_samples` of an estimator.

    **Returns:** (offset, decay) for a decaying rate, None for the automatic one.
    """
    if model.solver not in ("coordinate", "stochastic"):
        raise ValueError(f"solver must be 'coordinate' or 'stochastic', not {model.solver!r}.")
    if model.learning_rate not in ("automatic", "decay"):
        raise ValueError(f"learning_rate must be 'automatic' or 'decay', not {model.learning_rate!r}.")
    if not model.learning_offset >= 0:
        raise ValueError(f"learning_offset must not be negative, but is {model.learning_offset}.")
    if not 0 < model.learning_decay <= 1:
        raise ValueError(f"learning_decay must be in (0, 1], not {model.learning_decay}; 0.5 < decay <= 1 converges.")
    if not model.tol >= 0:
        raise ValueError(f"tol must not be negative, but is {model.tol}.")
    if model.total_samples is not None:
        check_positive("total_samples", model.total_samples)
    return None if model.learning_rate == "automatic" else (float(model.learning_offset), float(model.learning_decay))
