r"""The variational Gaussian mixture as a conditionally conjugate model.

$\pi\sim Dir(c_0)$; for each component $\Lambda_k\sim$ Wishart$(\nu_0, A_0)$ and
$\mu_k\mid\Lambda_k\sim N(m_0, (\kappa_0\Lambda_k)^{-1})$; $z_n\sim\pi$ and
$x_n\mid z_n=k\sim N(\mu_k, \Lambda_k^{-1})$. With diagonal covariance the precision of each coordinate has its own
one-dimensional Wishart (Normal-Gamma). Rows are measured from $m_0$, so the prior mean is zero: second moments about a
far point would lose their digits.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Array, Float

from provi.algorithms.mirror.conjugate_svi import AbstractConjugateModel, LocalAnswer
from provi.models.conjugate import expectations


class MixtureNatural(NamedTuple):
    r"""The natural parameter, in coordinates in which data add: $c, \kappa, \kappa m, \nu, A + \kappa mm'$.

    The last is (k, d, d), or for diagonal covariances its diagonal (k, d).
    """

    concentration: Any
    mean_precision: Any
    weighted_mean: Any
    degrees: Any
    second_moment: Any


class Rows(NamedTuple):
    """Data measured from the prior mean, and 1 for a row, 0 for padding."""

    values: Any
    weights: Any


class Components(NamedTuple):
    """Means m, inverse scales A, their Cholesky factors (full) or square roots (diagonal), and log|A|.

    For diagonal covariances log|A| is kept by coordinate, (k, d): each has its own Wishart.
    """

    means: Array
    inverse_scales: Array
    roots: Array
    log_dets: Array


def components(natural: MixtureNatural) -> Components:
    """The usual parameters of the natural ones."""
    means = natural.weighted_mean / natural.mean_precision[:, None]
    if natural.second_moment.ndim == 2:
        scales = natural.second_moment - natural.weighted_mean * means
        return Components(means, scales, jnp.sqrt(scales), jnp.log(scales))
    scales = natural.second_moment - natural.weighted_mean[:, :, None] * means[:, None, :]
    roots = jnp.linalg.cholesky(scales)
    return Components(means, scales, roots, 2 * jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1))


def _squares(values, means, roots):
    """(x - m)'A^-1(x - m) for each row and component, (n, k); one component at a time, to hold (n, d) only."""

    def of_one(component):
        mean, root = component
        centred = values - mean[None, :]
        if root.ndim == 1:
            return jnp.sum((centred / root[None, :]) ** 2, axis=1)
        whitener = solve_triangular(root, jnp.eye(root.shape[0], dtype=root.dtype), lower=True)
        return jnp.sum((centred @ whitener.T) ** 2, axis=1)

    return jax.lax.map(of_one, (means, roots)).T


def log_responsibilities(natural: MixtureNatural, values: Float[Array, "n d"]) -> tuple[Array, Array]:
    r"""$E\log\pi_k + E\log N(x_n\mid\mu_k,\Lambda_k^{-1})$, normalised over k, and the log normalisers.

    $E\log N = \tfrac12[E\log|\Lambda_k| - d\log2\pi - d/\kappa_k - \nu_k(x-m_k)'A_k^{-1}(x-m_k)]$.
    """
    dim = values.shape[1]
    parts = components(natural)
    if parts.log_dets.ndim == 2:
        log_det = jnp.sum(expectations.wishart_expected_log_det(natural.degrees[:, None], parts.log_dets, 1), axis=1)
    else:
        log_det = expectations.wishart_expected_log_det(natural.degrees, parts.log_dets, dim)
    constant = log_det - dim * math.log(2 * math.pi) - dim / natural.mean_precision
    squares = natural.degrees[None, :] * _squares(values, parts.means, parts.roots)
    joint = expectations.dirichlet_expected_log(natural.concentration)[None, :] + (constant[None, :] - squares) / 2
    normaliser = logsumexp(joint, axis=1)
    return joint - normaliser[:, None], normaliser


def row_statistics(responsibilities: Float[Array, "n k"], values: Float[Array, "n d"], full: bool) -> MixtureNatural:
    r"""$\sum_nr_{nk}$ for $c, \kappa, \nu$; $\sum_nr_{nk}x_n$; $\sum_nr_{nk}x_nx_n'$ or its diagonal."""
    counts = jnp.sum(responsibilities, axis=0)
    if full:
        second = jax.lax.map(lambda weights: (weights[:, None] * values).T @ values, responsibilities.T)
    else:
        second = responsibilities.T @ values**2
    return MixtureNatural(counts, counts, responsibilities.T @ values, counts, second)


class GaussianMixtureModel(AbstractConjugateModel):
    """Prior natural parameter, one block a component; the shape of its second moment says full or diagonal."""

    prior: MixtureNatural

    def local_step(self, natural, rows):
        log_resp, normaliser = log_responsibilities(natural, rows.values)
        responsibilities = rows.weights[:, None] * jnp.exp(log_resp)
        full = natural.second_moment.ndim == 3
        return LocalAnswer(row_statistics(responsibilities, rows.values, full), jnp.sum(rows.weights * normaliser))

    def divergence(self, natural):
        """KL of the Dirichlet, and of each component's Normal-Wishart (its Normal-Gammas), from the prior's."""
        new, old = components(natural), components(self.prior)
        dim = new.means.shape[1]
        weights = expectations.dirichlet_kl(natural.concentration, self.prior.concentration)
        shift = new.means - old.means
        degrees, prior_degrees = natural.degrees, self.prior.degrees
        if new.log_dets.ndim == 2:
            trace = old.inverse_scales / new.inverse_scales
            square = degrees * jnp.sum(shift**2 / new.inverse_scales, axis=1)
            degrees, prior_degrees, block = degrees[:, None], prior_degrees[:, None], 1
        else:
            trace = jax.vmap(lambda root, a: jnp.trace(cho_solve((root, True), a)))(new.roots, old.inverse_scales)
            solved = jax.vmap(lambda root, x: cho_solve((root, True), x))(new.roots, shift)
            square, block = degrees * jnp.sum(shift * solved, axis=1), dim
        wishart = expectations.wishart_kl(degrees, new.log_dets, prior_degrees, old.log_dets, trace, block)
        means = expectations.mean_given_precision_kl(natural.mean_precision, self.prior.mean_precision, square, dim)
        return weights + jnp.sum(wishart) + jnp.sum(means)


@eqx.filter_jit
def responsibilities(natural: MixtureNatural, values: Float[Array, "n d"]) -> Array:
    """q(z_n = k) for each row."""
    return jnp.exp(log_responsibilities(natural, values)[0])


@eqx.filter_jit
def usual_parameters(natural: MixtureNatural) -> Components:
    """`components`, compiled: means, inverse scales, their roots and log determinants."""
    return components(natural)


@eqx.filter_jit
def initial_natural(model: GaussianMixtureModel, responsibilities: Array, values: Array) -> MixtureNatural:
    """The prior plus the statistics under the given responsibilities: the first update of the components."""
    sums = row_statistics(responsibilities, values, model.prior.second_moment.ndim == 3)
    return jax.tree.map(jnp.add, model.prior, sums)


@eqx.filter_jit
def log_predictive(natural: MixtureNatural, values: Float[Array, "n d"]) -> Float[Array, " n"]:
    r"""The log posterior predictive density under q: a mixture of Student t with weights $E\pi_k$.

    Full: $\nu_k-d+1$ degrees of freedom, scale matrix $A_k(\kappa_k+1)/(\kappa_k(\nu_k-d+1))$. Diagonal: a product
    over coordinates of the same with d = 1.
    """
    parts, dim = components(natural), values.shape[1]
    stretch = (natural.mean_precision + 1) / natural.mean_precision
    if parts.log_dets.ndim == 2:
        block, degrees = 1, natural.degrees
        squares = (values[:, None, :] - parts.means[None]) ** 2 / parts.inverse_scales[None]
        log_det = jnp.sum(parts.log_dets, axis=1)
    else:
        block, degrees = dim, natural.degrees - dim + 1
        squares, log_det = _squares(values, parts.means, parts.roots)[:, :, None], parts.log_dets
    # With s the square in A, the square in the scale matrix over the degrees of freedom is s / stretch.
    tails = jnp.sum(jnp.log1p(squares / stretch[None, :, None]), axis=2) * ((degrees + block) / 2)[None, :]
    gammas = gammaln((degrees + block) / 2) - gammaln(degrees / 2)
    constant = (dim // block) * gammas - (dim * jnp.log(math.pi * stretch) + log_det) / 2
    weights = jnp.log(natural.concentration / jnp.sum(natural.concentration))
    return logsumexp(weights[None, :] + constant[None, :] - tails, axis=1)
