r"""All parameters as one vector: coefficients (intercept first), mean, lower triangle of $\Omega$ row by row.

$\Omega_{jk} = \Omega_{kj}$ is one parameter and counts once.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.models.missing.conditional import Parameters


def flatten_parameters(parameters: Parameters) -> Float[Array, " q"]:
    """Coefficients, mean and the lower triangle of the covariance row by row, as one vector."""
    lower = np.tril_indices(parameters.mean.shape[0])
    return jnp.concatenate([parameters.coefficients, parameters.mean, parameters.covariance[lower]])


def unflatten_parameters(vector: Float[Array, " q"], num_columns: int) -> Parameters:
    """The inverse of `flatten_parameters` for `num_columns` covariates."""
    p = num_columns
    return Parameters(vector[: p + 1], vector[p + 1 : 2 * p + 1], unfold_symmetric(vector[2 * p + 1 :], p))


def fold_symmetric(matrix: Float[Array, "... p p"]) -> Float[Array, "... h"]:
    r"""The $c_{jk}$ of $\mathrm{tr}(M'd\Omega) = \sum_{j\ge k}c_{jk}\,d\Omega_{jk}$, where $d\Omega$ is symmetric."""
    row, column = np.tril_indices(matrix.shape[-1])
    share = jnp.asarray(np.where(row == column, 0.5, 1.0), matrix.dtype)
    both = matrix[..., row, column] + matrix[..., column, row]
    return both * jnp.broadcast_to(share, both.shape)


def unfold_symmetric(lower: Float[Array, "... h"], size: int) -> Float[Array, "... p p"]:
    """The symmetric matrix whose lower triangle, row by row, is `lower`."""
    row, column = np.tril_indices(size)
    place = np.zeros((size, size), int)
    place[row, column] = place[column, row] = np.arange(len(row))
    return lower[..., place]
