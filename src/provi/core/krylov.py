"""Krylov methods, for symmetric operators known by their action: systems by preconditioned conjugate gradients,
determinants, extreme eigenvalues by Lanczos' method."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import Count, RandomKey, Scalar, Vector

Columns = Float[Array, "dim columns"]
"""Vectors side by side, one a column."""

_PROBES = 32


class LinearSolution(NamedTuple):
    """`solution` of A X = B, `relative_residuals` |b - A x| / |b| for each column, computed anew from the solution,
    and `iterations`, the number of products with A before that."""

    solution: Columns
    relative_residuals: Float[Array, " columns"]
    iterations: Count


def solve(
    matvec: Callable[[Columns], Columns],
    rhs: Columns,
    precondition: Callable[[Columns], Columns],
    tolerance: Any,
    max_iterations: Any,
) -> LinearSolution:
    r"""The solution of $A X = B$ for a symmetric positive definite A, by preconditioned conjugate gradients.

    All columns advance together, each with its own step sizes, until each has a residual of at most
    `tolerance` times its right-hand side, or `max_iterations` products are made. After k products the error in the
    norm of A is at most $2 ((\sqrt\kappa - 1)/(\sqrt\kappa + 1))^k$ times that at the start, $\kappa$ the condition
    number of $M^{-1} A$. The tolerance bounds the error: $|x - A^{-1}b| \le \mathrm{tolerance}\,|b|/\lambda_{\min}(A)$,
    and $\lambda_{\min} \ge 1$ for $I + S^{1/2} K S^{1/2}$.

    **Arguments:**

    - `matvec`: V -> A V, for columns.
    - `rhs`: B, one right-hand side a column; a column of zeros has the solution zero.
    - `precondition`: V -> M^-1 V, for columns, symmetric positive definite; `lambda v: v` for none.
    - `tolerance`: relative to each column's norm; not below the rounding of a product with A.
    - `max_iterations`: the largest number of products.

    **Returns:** a `LinearSolution`. A column that was not solved, also because A is not positive definite, shows in
    `relative_residuals`.
    """
    norms = _norms(rhs)
    goal = tolerance * norms

    def unfinished(residual: Columns) -> Array:
        return _norms(residual) > goal

    def proceed(carry: Any) -> Array:
        _, _, _, _, active, count = carry
        return jnp.any(active) & (count < max_iterations)

    def step(carry: Any) -> Any:
        solution, residual, direction, product, active, count = carry
        image = matvec(direction)
        curvature = jnp.sum(direction * image, axis=0)
        # A solved column stays as it is; so does one that meets a direction of no positive curvature.
        active = active & (curvature > 0)
        length = jnp.where(active, product / jnp.where(active, curvature, 1), 0)[None, :]
        solution, residual = solution + length * direction, residual - length * image
        preconditioned = precondition(residual)
        following = jnp.sum(residual * preconditioned, axis=0)
        ratio = jnp.where(active, following / jnp.where(product > 0, product, 1), 0)[None, :]
        direction = preconditioned + ratio * direction
        return solution, residual, direction, following, active & unfinished(residual), count + 1

    first = precondition(rhs)
    start = (jnp.zeros_like(rhs), rhs, first, jnp.sum(rhs * first, axis=0), unfinished(rhs), jnp.zeros((), jnp.int32))
    solution, *_, iterations = jax.lax.while_loop(proceed, step, start)
    residuals = _norms(rhs - matvec(solution)) / jnp.where(norms > 0, norms, 1)
    return LinearSolution(solution, residuals, iterations)


class IdentityPlusLowRank(eqx.Module):
    r"""$M = I + S^{1/2} P P' S^{1/2}$, S = diag(s): with $K \approx P P'$ the preconditioner of
    $B = I + S^{1/2} K S^{1/2}$.

    Woodbury's identity with $W = S^{1/2} P$ gives $M^{-1} = I - W (I + W'W)^{-1} W'$: a Cholesky factor of the size
    of the rank, of a matrix with no eigenvalue below 1.

    **Arguments:**

    - `factor`: P, of shape (n, rank).
    - `weights`: s, not negative; zeros are allowed.
    """

    factor: Float[Array, "dim rank"]
    cholesky: Float[Array, "rank rank"]

    def __init__(self, factor: Float[Array, "dim rank"], weights: Vector):
        self.factor = jnp.sqrt(weights)[:, None] * factor
        identity = jnp.eye(factor.shape[1], dtype=factor.dtype)
        self.cholesky = jnp.linalg.cholesky(identity + self.factor.T @ self.factor)

    def solve(self, columns: Columns) -> Columns:
        """M^-1 V."""
        inner = jax.scipy.linalg.cho_solve((self.cholesky, True), self.factor.T @ columns)
        return columns - self.factor @ inner

    def multiply(self, columns: Columns) -> Columns:
        """M V."""
        return columns + self.factor @ (self.factor.T @ columns)

    def log_determinant(self) -> Scalar:
        """log det M = log det (I + W'W)."""
        return 2 * jnp.sum(jnp.log(jnp.diagonal(self.cholesky)))


def _norms(columns: Columns) -> Float[Array, " columns"]:
    return jnp.sqrt(jnp.sum(columns**2, axis=0))


def stochastic_log_det(
    multiply: Callable[[Columns], Columns],
    key: RandomKey,
    dim: int,
    num_batches: int,
    num_steps: int,
    dtype: Any,
) -> tuple[Scalar, Scalar]:
    r"""log |A| by stochastic Lanczos quadrature: the estimate and its standard error over the probes.

    $\log|A| = \mathrm{tr}\log A = E\,z'(\log A)z$ for signs z, each by Gauss quadrature: with T the Lanczos matrix of A
    from $z/|z|$, $z'(\log A)z \approx |z|^2e_1'(\log T)e_1$ (Ubaru, Chen and Saad 2017). The standard error is that of
    the probes; that of the quadrature falls geometrically with the number of steps, at the rate of conjugate gradients.

    **Arguments:**

    - `multiply`: V -> A V, for columns; A symmetric with positive eigenvalues.
    - `num_batches`: of 32 probes, one after the other; the Lanczos vectors of one are kept at a time.
    - `num_steps`: products of A with each probe, at most `dim` are made.
    """
    found = jax.lax.map(
        lambda own: _quadratures(multiply, own, dim, min(num_steps, dim), dtype), jax.random.split(key, num_batches)
    ).reshape(-1)
    return jnp.mean(found), jnp.std(found, ddof=1) / jnp.sqrt(jnp.asarray(found.shape[0], dtype))


def _quadratures(
    multiply: Callable[[Columns], Columns], key: RandomKey, dim: int, steps: int, dtype: Any
) -> Float[Array, " probes"]:
    """z' (log A) z for each probe of a batch."""
    probes = jax.random.rademacher(key, (dim, _PROBES), dtype) / jnp.sqrt(jnp.asarray(dim, dtype))
    tolerance = 10 * dim * jnp.finfo(dtype).eps

    def step(index: Any, carry: Any) -> Any:
        basis, diagonal, below, alive = carry
        vector = basis[index]
        image = multiply(vector)
        rayleigh = jnp.sum(vector * image, axis=0)
        residual = image
        for _ in range(2):  # twice is enough (Kahan and Parlett)
            residual = residual - jnp.einsum("knp,kp->np", basis, jnp.einsum("knp,np->kp", basis, residual))
        length = jnp.sqrt(jnp.sum(residual**2, axis=0))
        going = alive & (length > tolerance * jnp.abs(rayleigh))
        following = jnp.where(going[None, :], residual / jnp.where(going, length, 1)[None, :], 0)
        # An exhausted Krylov space: what follows is cut off, ones on the diagonal whose logarithm is zero.
        diagonal = diagonal.at[index].set(jnp.where(alive, rayleigh, 1))
        below = below.at[index].set(jnp.where(going, length, 0))
        return basis.at[index + 1].set(following), diagonal, below, going

    basis = jnp.zeros((steps + 1, dim, _PROBES), dtype).at[0].set(probes)
    zero = jnp.zeros((steps, _PROBES), dtype)
    start = (basis, zero, zero, jnp.ones(_PROBES, bool))
    _, diagonal, below, _ = jax.lax.fori_loop(0, steps, step, start)

    def quadrature(diagonal: Any, below: Any) -> Any:
        matrix = jnp.diag(diagonal) + jnp.diag(below[:-1], 1) + jnp.diag(below[:-1], -1)
        values, vectors = jnp.linalg.eigh(matrix)
        return jnp.sum(vectors[0] ** 2 * jnp.log(values))

    return dim * jax.vmap(quadrature, in_axes=(1, 1))(diagonal, below)


def extreme_eigenvalues(
    matvec: Callable[[Vector], Vector], key: RandomKey, dim: int, num_iterations: int, dtype: Any
) -> tuple[Scalar, Scalar]:
    """The smallest and the largest Ritz value of a symmetric operator, by Lanczos' method.

    Ritz values lie inside the spectrum: the largest eigenvalue is at least the second result, the
    smallest at most the first. With `num_iterations >= dim` both are exact up to rounding. The basis
    is reorthogonalised in full, twice, and where the Krylov space is exhausted the method goes on from a
    fresh direction, so that a repeated eigenvalue hides nothing.

    **Arguments:**

    - `matvec`: v -> A v.
    - `key`: a random key, for the starting directions.
    - `dim`: the size of A.
    - `num_iterations`: the number of products; at most `dim` are made.
    - `dtype`: the floating type of the vectors.

    **Returns:** (smallest, largest).
    """
    size = min(num_iterations, dim)
    fresh = jax.random.normal(key, (size + 1, dim), dtype)
    tolerance = 10 * dim * jnp.finfo(dtype).eps

    def step(index: Any, carry: Any) -> Any:
        basis, diagonal, off_diagonal, magnitude = carry
        vector = basis[index]
        image = matvec(vector)
        rayleigh = jnp.dot(vector, image)
        residual = _orthogonalise(basis, image)
        length = jnp.linalg.norm(residual)
        magnitude = jnp.maximum(magnitude, jnp.linalg.norm(image))
        exhausted = length <= tolerance * magnitude
        following = jnp.where(exhausted, _orthogonalise(basis, fresh[index + 1]), residual)
        return (
            basis.at[index + 1].set(_normalise(following)),
            diagonal.at[index].set(rayleigh),
            off_diagonal.at[index].set(jnp.where(exhausted, 0.0, length)),
            magnitude,
        )

    basis = jnp.zeros((size + 1, dim), dtype).at[0].set(_normalise(fresh[0]))
    start = (basis, jnp.zeros(size, dtype), jnp.zeros(size, dtype), jnp.zeros((), dtype))
    _, diagonal, off_diagonal, _ = jax.lax.fori_loop(0, size, step, start)
    inner = off_diagonal[: size - 1]
    ritz = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(inner, 1) + jnp.diag(inner, -1))
    return ritz[0], ritz[-1]


def _orthogonalise(basis: Float[Array, "rows dim"], vector: Vector) -> Vector:
    # Once leaves components of the size of the cancellation; twice is enough (Kahan and Parlett).
    once = vector - basis.T @ (basis @ vector)
    return once - basis.T @ (basis @ once)


def _normalise(vector: Vector) -> Vector:
    length = jnp.linalg.norm(vector)
    return vector / jnp.where(length > 0, length, 1.0)
