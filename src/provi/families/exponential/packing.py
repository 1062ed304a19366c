r"""Symmetric matrices as vectors that keep the inner product.

The lower triangle with the entries below the diagonal times $\sqrt2$: $\langle pack\,A, pack\,B\rangle = tr(AB)$, so
that lengths are Frobenius norms, gradients pack like matrices, and no entry is stored twice.
"""

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.types import Matrix

Packed: TypeAlias = Float[Array, " packed"]


def packed_size(dim: int) -> int:
    """dim (dim + 1) / 2."""
    return dim * (dim + 1) // 2


def _weights(dim: int, dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.tril_indices(dim)
    return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0)).astype(dtype)


def pack(matrix: Matrix) -> Packed:
    """The vector of a symmetric matrix (of its symmetric part)."""
    rows, columns, weights = _weights(matrix.shape[0], matrix.dtype)
    return (matrix[rows, columns] + matrix[columns, rows]) / 2 * weights


def unpack(vector: Packed, dim: int) -> Matrix:
    """The symmetric matrix of a packed vector."""
    rows, columns, weights = _weights(dim, vector.dtype)
    lower = jnp.zeros((dim, dim), vector.dtype).at[rows, columns].set(vector / weights)
    return lower + lower.T - jnp.diag(jnp.diagonal(lower))
