r"""Inducing points of a sparse Gaussian process, and the features that they give every input.

With $L L' = k(Z, Z) + jI$ the whitened inducing values $w = L^{-1}u$ are $N(0, I)$ a priori, and
$f(x) = \phi(x)'w + e$, $\phi(x) = L^{-1}k(Z, x)$, $e \sim N(0, \kappa(x))$ independent of w,
$\kappa(x) = k(x, x) - |\phi(x)|^2 \ge 0$. The jitter j makes u the function values with noise of variance j: these are
inducing variables like any others, so that the bound on the evidence stays a bound.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from provi.core.checks import as_array, check_count
from provi.core.pivoted_cholesky import pivoted_cholesky
from provi.kernels import AbstractKernel

CANDIDATES_PER_POINT, _FEWEST_CANDIDATES = 8, 2000
"""Among how many inputs, drawn without replacement, the inducing points are chosen."""


def inducing_factor(kernel: AbstractKernel, inducing: Any, jitter: Any) -> Any:
    """L, the Cholesky factor of k(Z, Z) + jitter * mean variance * I; traced and differentiable."""
    gram = kernel.matrix(inducing)
    added = jitter * jnp.mean(kernel.diagonal(inducing))
    return jnp.linalg.cholesky(gram + added * jnp.eye(gram.shape[0], dtype=gram.dtype))


def inducing_features(kernel: AbstractKernel, inducing: Any, factor: Any, inputs: Any) -> tuple[Any, Any]:
    """phi and kappa of every input, (n, M) and (n,); kappa is not below 0 by rounding."""
    features = solve_triangular(factor, kernel.matrix(inputs, inducing).T, lower=True).T
    left = kernel.diagonal(inputs) - jnp.sum(features**2, axis=1)
    return features, jnp.maximum(left, 0)


def choose_inducing(inducing: Any, inputs: np.ndarray, kernel: AbstractKernel, seed: int) -> np.ndarray:
    """The user's own points, or a number of inputs chosen greedily.

    Each next point is the candidate whose value is the least determined by the points so far, the one with the
    largest kappa: the pivots of the Cholesky factor of the candidates' covariances (greedy variance selection of Burt,
    Rasmussen and van der Wilk 2020). Fewer points come back where the rest would add nothing but rounding.
    """
    if np.ndim(inducing) == 0:
        wanted = check_count("inducing", inducing)
        rng = np.random.default_rng(seed)
        num = min(len(inputs), max(_FEWEST_CANDIDATES, CANDIDATES_PER_POINT * wanted))
        candidates = inputs if num == len(inputs) else inputs[np.sort(rng.choice(len(inputs), num, replace=False))]
        pivots, used = _greedy(kernel, jnp.asarray(candidates), min(wanted, num))
        return candidates[np.asarray(pivots)[: max(int(used), 1)]]
    points = as_array("inducing", inducing, ndim=2)
    if points.shape[1] != inputs.shape[1]:
        raise ValueError(f"inducing has {points.shape[1]} columns, but X has {inputs.shape[1]}: give both the same.")
    return points.astype(inputs.dtype)


@eqx.filter_jit
def _greedy(kernel: AbstractKernel, candidates: Any, rank: int) -> tuple[Any, Any]:
    def column(index: Any) -> Any:
        chosen = jax.lax.dynamic_slice_in_dim(candidates, index, 1)
        return kernel.matrix(candidates, chosen)[:, 0]

    found = pivoted_cholesky(column, kernel.diagonal(candidates), rank)
    return found.pivots, found.num_pivots
