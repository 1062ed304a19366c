r"""A kernel matrix that is not stored: entries are computed when a product needs them, a block of rows at a time.

$K = k(X, X) + jI$ takes $N^2$ numbers, its inputs Nd. A product with K that computes its rows anew needs 128N numbers
at a time and the evaluation of $N^2$ covariances: several times the cost of a product with one column, and little
beside that with some hundred columns together.

**Which matrix it is.** A stored K is what was stored. Entries that are computed anew may differ in their last digits
from one compiled program to another: K is then the kernel in exact arithmetic, and what is computed is within
$u\sqrt{k_ik_j}$ of it, $k_i$ the variances (`entry_rounding`). Bounds on errors count u.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.interpreter import instant_jit
from provi.core.types import Count, Indices, Matrix, Scalar, Vector
from provi.kernels.base import AbstractKernel, Constant, Product, Sum
from provi.kernels.distances import Points
from provi.kernels.linear import Linear
from provi.kernels.stationary import Matern12, Matern32, Matern52, Periodic, SquaredExponential, White

LARGEST_IN_FULL = 5000
"""Number of data up to which a matrix that is not stored is made for what needs all of it: 0.2 GB in float64."""

_ROWS_AT_ONCE = 128


class KernelRows(eqx.Module):
    """K of `inputs` with `jitter` on its diagonal, known by its rows; `K @ v` and `K @ V` are products with it."""

    kernel: AbstractKernel
    inputs: Points
    jitter: Scalar

    @property
    def shape(self) -> tuple[int, int]:
        """(N, N)."""
        return self.inputs.shape[0], self.inputs.shape[0]

    @property
    def dtype(self) -> Any:
        """The floating type of the entries."""
        return self.inputs.dtype

    def astype(self, dtype: Any) -> "KernelRows":
        """The same kernel at the same inputs, evaluated in another type."""
        return KernelRows(self.kernel, self.inputs.astype(dtype), self.jitter.astype(dtype))

    def diagonal(self) -> Vector:
        """The variances, jitter included."""
        return self.kernel.diagonal(self.inputs) + self.jitter

    def rows(self, indices: Indices) -> Float[Array, "rows terms"]:
        """K[indices]. Its own variance is that of `diagonal`: white noise is not shared between two tables."""
        points = self.inputs[indices]
        own = indices[:, None] == jnp.arange(self.shape[0])[None, :]
        variance = self.kernel.diagonal(points) + self.jitter
        return jnp.where(own, variance[:, None], self.kernel.matrix(points, self.inputs))

    def __matmul__(self, columns: Any) -> Any:
        """K v or K V."""
        return self._over_rows(lambda rows: rows @ columns, columns.shape[1:])

    def absolute_row_sums(self) -> Vector:
        """Of |K|: their largest is at least the largest eigenvalue."""
        return self._over_rows(lambda rows: jnp.sum(jnp.abs(rows), axis=1), ())

    def _over_rows(self, function: Any, shape: tuple[int, ...]) -> Any:
        size = self.shape[0]
        block = min(_ROWS_AT_ONCE, size)

        def fill(index: Any, found: Any) -> Any:
            start = jnp.minimum(index * block, size - block)  # the last block overlaps the one before it
            part = function(self.rows(start + jnp.arange(block)))
            return jax.lax.dynamic_update_slice_in_dim(found, part, start, 0)

        return jax.lax.fori_loop(0, -(-size // block), fill, jnp.zeros((size, *shape), self.dtype))


Gram = Matrix | KernelRows
"""K, stored or not."""


def is_streamed(gram: Any) -> bool:
    """Whether K is not stored."""
    return isinstance(gram, KernelRows)


def gram_diagonal(gram: Gram) -> Vector:
    """The diagonal of K."""
    return gram.diagonal() if isinstance(gram, KernelRows) else jnp.diagonal(gram)


def gram_columns(gram: Gram, start: Count, block: int) -> Float[Array, "terms columns"]:
    """`block` columns of K from `start` on."""
    if isinstance(gram, KernelRows):
        return gram.rows(start + jnp.arange(block)).T
    # Rows, transposed, would be the same, but the GPU compiler would then keep K twice more.
    return jax.lax.dynamic_slice_in_dim(gram, start, block, axis=1)


def gram_rows(gram: Gram, indices: Indices) -> Float[Array, "rows terms"]:
    """K[indices]."""
    return gram.rows(indices) if isinstance(gram, KernelRows) else gram[indices]


def in_full(gram: Gram) -> Matrix:
    """All of K, for what cannot do without; `ValueError` for more than `LARGEST_IN_FULL` data that are not stored."""
    if not isinstance(gram, KernelRows):
        return gram
    size = gram.shape[0]
    if size > LARGEST_IN_FULL:
        raise ValueError(
            f"the kernel matrix of {size} data is not stored (stream=True), and draws, densities, the entropy and the "
            f"whole covariance need all of it; mean, standard deviations, predictions and the certificate do not. "
            f"Make the target with stream=False if {8 * size**2 / 2**30:.1f} GiB fit into memory several times."
        )
    return _filled(gram)


@instant_jit
def _filled(gram: KernelRows) -> Matrix:
    filled = gram._over_rows(lambda rows: rows, (gram.shape[0],))
    return 0.5 * (filled + filled.T)


absolute_row_sums = instant_jit(lambda gram: gram.absolute_row_sums())
"""`KernelRows.absolute_row_sums` as one program."""


def entry_rounding(kernel: AbstractKernel, columns: int, dtype: Any = np.float64) -> float | None:
    r"""u: computed covariances are within $u\sqrt{k_ik_j}$ of the kernel's in any program; None where it is not known.

    With $\epsilon$ the spacing of numbers at 1: the squared distance, a sum of d squares of scaled differences, has a
    relative error of $(d + 8)\epsilon$, and $|r\rho'(r)| < 1$ for the stationary correlations here, whose functions
    round by a few $\epsilon$. Points on a circle are known to $20\epsilon$ in each of 2d coordinates, of distances that
    the length scale divides, and $|\rho'(r)| < 1$. Sums and inner products: Cauchy's inequality, so that a sum of
    kernels has the largest u of its terms. Products: relative errors add up.
    """
    eps = float(np.finfo(dtype).eps)
    match kernel:
        case Constant() | White():
            return 8 * eps
        case SquaredExponential() | Matern12() | Matern32() | Matern52():
            return (columns + 32) * eps
        case Linear():
            return (columns + 16) * eps
        case Periodic():
            shortest = float(np.min(np.asarray(kernel.length_scale)))
            return (2 * columns + 32 + 40 * math.sqrt(2 * columns) / shortest) * eps
        case Sum() | Product():
            parts = kernel.terms if isinstance(kernel, Sum) else kernel.factors
            found = [entry_rounding(part, columns, dtype) for part in parts]
            known = [value for value in found if value is not None]
            if len(known) < len(found):
                return None
            if isinstance(kernel, Sum):
                return max(known) + len(known) * eps
            return math.expm1(sum(math.log1p(value) for value in known)) + len(known) * eps
    return None
