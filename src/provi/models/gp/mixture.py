r"""Predictions of a Gaussian process whose hyperparameters were integrated: averages over the nodes of the rule.

At node k the effects at the n different inputs are $u = Lv$, $LL' = K$, with $q(v) = N(m, (I + L'SL)^{-1})$, S the
sites of the data summed over equal inputs. So the process at node k is that of `prediction` with $a = L'^{-1}m$:

$$\mu_k(x) = k(x, X)L'^{-1}m, \qquad v_k(x) = k(x, x) - |M^{-1}S^{1/2}k(X, x)|^2, \quad MM' = I + S^{1/2}KS^{1/2},$$

and what is predicted is the mixture $\sum_kw_kN(\mu_k, v_k)$, or the mean over it. K^-1 is never formed, and no factor
is kept: n numbers a node, and two factorisations of it for every block of new inputs.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from scipy.special import logsumexp

from provi.core.arguments import as_array, double_precision
from provi.families.nested import selected
from provi.families.site_solver import factorise
from provi.result.nested import NestedPosterior
from provi.result.predictors import ExactPredictor, in_blocks, largest_block
from provi.targets.latent.likelihood_numbers import LikelihoodNumbers
from provi.targets.latent.process import GaussianProcess
from provi.targets.likelihoods import AbstractLikelihood

LEFT_OUT = 1e-5
"""The share of the mass whose nodes, the lightest, take no part in predictions."""


class MixturePredictor(eqx.Module):
    """The posterior processes at K nodes: `mixture_predictor` makes it.

    - `block`: kernel, different inputs and jitter. - `likelihood`, `numbers`: what was unknown of the first.
    - `log_weights` (K,), `values` (K, D): of the hyperparameters in their own space, the kernel's first.
    - `effects` (K, n): m above. - `sites` (K, n): the diagonals of S.
    """

    block: GaussianProcess
    likelihood: AbstractLikelihood
    numbers: LikelihoodNumbers
    log_weights: np.ndarray
    values: np.ndarray
    effects: np.ndarray
    sites: np.ndarray

    @double_precision
    def by_node(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the latent function, (rows of X, K), in blocks of bounded memory."""
        known = np.asarray(self.block.inputs)
        points = as_array("X", X, ndim=2).astype(known.dtype)
        if points.shape[1] != known.shape[1]:
            raise ValueError(f"X has {points.shape[1]} columns, but the process was fitted to {known.shape[1]}.")
        mean, variance = in_blocks(lambda block: _latent(self, block), (points,), largest_block(len(known)))
        return mean, variance

    def latent(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the mixture: within the nodes and between them."""
        means, variances = self.by_node(X)
        return _total(np.exp(self.log_weights), means, variances)

    def log_odds(self, X: Any) -> np.ndarray:
        """log P(y = 1) - log P(y = 0), both averages over the nodes."""
        means, variances = self.by_node(X)
        ones = np.ones(len(means))
        return self._log_mean(means, variances, ones) - self._log_mean(means, variances, 0 * ones)

    def log_predictive(self, X: Any, y: np.ndarray) -> np.ndarray:
        """log of the average over the nodes of E p(y | f)."""
        return self._log_mean(*self.by_node(X), y)

    def response_means(self, X: Any) -> np.ndarray:
        """E[y]."""
        return self._responses(*self.by_node(X)) @ np.exp(self.log_weights)

    def response_moments(self, X: Any, counts: bool) -> tuple[np.ndarray, np.ndarray]:
        """E[y] and the variance of E[y | f, theta]: that of f, or with `counts` of e^f."""
        means, variances = self.by_node(X)
        expected = self._responses(means, variances)
        spread = expected**2 * np.expm1(variances) if counts else variances
        return _total(np.exp(self.log_weights), expected, spread)

    @double_precision
    def _log_mean(self, means: np.ndarray, variances: np.ndarray, y: np.ndarray) -> np.ndarray:
        parts = (means, variances, np.asarray(y, means.dtype))
        found = in_blocks(lambda *block: (_log_densities(self, *block),), parts)[0]
        return np.asarray(logsumexp(found + self.log_weights, axis=1))

    @double_precision
    def _responses(self, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
        return in_blocks(lambda *block: (_responses(self, *block),), (means, variances))[0]

    def likelihood_at(self, values: Any) -> AbstractLikelihood:
        """The likelihood with the hyperparameters (D,) in their own space."""
        own = len(self.block.chosen)
        return self.numbers.assign(self.likelihood, [values[own + j] for j in range(len(self.numbers.chosen))])

    def process_at(self, values: Any, effects: Any, sites: Any) -> ExactPredictor:
        """The process of one node."""
        kernel, inputs = self.block.kernel_at(values), jnp.asarray(self.block.inputs)
        gram = self.block.gram(values)
        dual = solve_triangular(jnp.linalg.cholesky(gram), effects, lower=True, trans=1)
        lower = factorise(gram, sites).lower
        return ExactPredictor(kernel, inputs, jnp.asarray(0.0), dual, jnp.sqrt(sites), lower, None)


@double_precision
def mixture_predictor(posterior: NestedPosterior) -> MixturePredictor:
    """Of the posterior of a model with one block, a Gaussian process, and nothing else."""
    target: Any = posterior.model
    (block,) = target.blocks
    weights = posterior.weights
    order = np.argsort(weights)
    heavy = np.sort(order[np.cumsum(weights[order]) > LEFT_OUT])
    point = selected(posterior.point, heavy)
    sites = np.stack([np.bincount(block.index, row, minlength=block.size) for row in np.asarray(point.sites)])
    values = np.asarray(jax.vmap(lambda theta: jnp.stack(target.hyperparameters(theta)))(jnp.asarray(point.nodes)))
    log_weights = np.log(weights[heavy] / weights[heavy].sum())
    effects = posterior.family.conditional_means(point)
    return MixturePredictor(block, target.likelihood, target.numbers, log_weights, values, effects, sites)


def _total(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the mixtures in the rows."""
    mean = means @ weights
    return mean, (variances + (means - mean[:, None]) ** 2) @ weights


@eqx.filter_jit
def _latent(predictor: MixturePredictor, inputs: Any) -> tuple[Any, Any]:
    def one(node: Any) -> Any:
        return predictor.process_at(*node).latent(inputs)

    nodes = tuple(map(jnp.asarray, (predictor.values, predictor.effects, predictor.sites)))
    mean, variance = jax.lax.map(one, nodes)
    return mean.T, variance.T


@eqx.filter_jit
def _log_densities(predictor: MixturePredictor, mean: Any, variance: Any, y: Any) -> Any:
    def one(node: Any) -> Any:
        return predictor.likelihood_at(node[0]).log_predictive(node[1], node[2], y)

    return jax.lax.map(one, (jnp.asarray(predictor.values), mean.T, variance.T)).T


@eqx.filter_jit
def _responses(predictor: MixturePredictor, mean: Any, variance: Any) -> Any:
    def one(node: Any) -> Any:
        return predictor.likelihood_at(node[0]).mean_response(node[1], node[2])

    return jax.lax.map(one, (jnp.asarray(predictor.values), mean.T, variance.T)).T
