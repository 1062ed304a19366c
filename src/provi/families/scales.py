"""Scale operators C of z = m + C u: triangular, symmetric, diagonal, low-rank plus diagonal.

A scale is a pytree of its own free entries, so scales form a vector space that gradients share.
Rows are draws: `apply` maps `(draws, base_dim)` to `(draws, dim)`.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from equinox import AbstractClassVar
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from provi.core.types import Draws, Matrix, Scalar, Vector


class AbstractScale(eqx.Module):
    """A linear map C, known through its free entries."""

    kind: AbstractClassVar[str]

    @property
    @abstractmethod
    def base_dim(self) -> int:
        """Length of u: dim, or dim + rank for the low-rank scale."""

    @abstractmethod
    def apply(self, u: Float[Array, "draws base_dim"]) -> Draws:
        """C u for each row u."""

    @abstractmethod
    def pull_back(self, v: Draws, u: Float[Array, "draws base_dim"]) -> "AbstractScale":
        """Gradient of mean_i <v_i, C u_i> in the free entries: P(mean v u')."""

    @abstractmethod
    def factorise(self) -> Any:
        """Whatever `precision_times` needs and does not depend on the draws."""

    @abstractmethod
    def precision_times(self, u: Float[Array, "draws base_dim"], factors: Any) -> tuple[Draws, Float[Array, " draws"]]:
        """(CC')^-1 C u for each row, and the squared Mahalanobis norm of C u."""

    @abstractmethod
    def standardise(self, x: Vector) -> Vector:
        """A vector u of length dim with |u|^2 = x'(CC')^-1 x: C^-1 x for square C."""

    @abstractmethod
    def log_det(self) -> Scalar:
        """log det C = log det(CC') / 2."""

    @abstractmethod
    def log_det_gradient(self) -> "AbstractScale":
        """Gradient of `log_det` in the free entries: P(C^-T)."""

    @abstractmethod
    def covariance(self) -> Matrix:
        """CC'."""


class Triangular(AbstractScale):
    """Lower triangular C; entries above the diagonal are zero and stay so."""

    matrix: Matrix
    kind: ClassVar[str] = "triangular"

    @property
    def base_dim(self) -> int:
        return self.matrix.shape[0]

    def apply(self, u):
        return u @ self.matrix.T

    def pull_back(self, v, u):
        return Triangular(jnp.tril(v.T @ u) / u.shape[0])

    def factorise(self):
        return None

    def precision_times(self, u, factors):
        del factors
        return solve_triangular(self.matrix, u.T, trans=1, lower=True).T, jnp.sum(u * u, axis=1)

    def standardise(self, x):
        return solve_triangular(self.matrix, x, lower=True)

    def log_det(self):
        return jnp.sum(jnp.log(jnp.diagonal(self.matrix)))

    def log_det_gradient(self):
        # C^-T is upper triangular with 1/C_ii on its diagonal, which is all that survives P = tril.
        return Triangular(jnp.diag(1 / jnp.diagonal(self.matrix)))

    def covariance(self):
        return self.matrix @ self.matrix.T


class Symmetric(AbstractScale):
    """Symmetric C; the square root of the covariance when positive definite."""

    matrix: Matrix
    kind: ClassVar[str] = "symmetric"

    @property
    def base_dim(self) -> int:
        return self.matrix.shape[0]

    def apply(self, u):
        return u @ self.matrix

    def pull_back(self, v, u):
        product = v.T @ u
        return Symmetric((product + product.T) / (2 * u.shape[0]))

    def factorise(self):
        return jnp.linalg.cholesky(self.matrix)

    def precision_times(self, u, factors):
        return cho_solve((factors, True), u.T).T, jnp.sum(u * u, axis=1)

    def standardise(self, x):
        return jnp.linalg.solve(self.matrix, x)

    def log_det(self):
        return 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(self.matrix))))

    def log_det_gradient(self):
        identity = jnp.eye(self.base_dim, dtype=self.matrix.dtype)
        inverse = cho_solve((jnp.linalg.cholesky(self.matrix), True), identity)
        return Symmetric((inverse + inverse.T) / 2)

    def covariance(self):
        return self.matrix @ self.matrix


class Diagonal(AbstractScale):
    """Diagonal C: the mean-field family."""

    diagonal: Vector
    kind: ClassVar[str] = "diagonal"

    @property
    def base_dim(self) -> int:
        return self.diagonal.shape[0]

    def apply(self, u):
        return u * self.diagonal[None, :]

    def pull_back(self, v, u):
        return Diagonal(jnp.mean(v * u, axis=0))

    def factorise(self):
        return None

    def precision_times(self, u, factors):
        del factors
        return u / self.diagonal[None, :], jnp.sum(u * u, axis=1)

    def standardise(self, x):
        return x / self.diagonal

    def log_det(self):
        return jnp.sum(jnp.log(self.diagonal))

    def log_det_gradient(self):
        return Diagonal(1 / self.diagonal)

    def covariance(self):
        return jnp.diag(self.diagonal**2)


class LowRank(AbstractScale):
    r"""Low rank plus diagonal: z = m + s * u_1 + V u_2, covariance diag(s^2) + V V'.

    u has length dim + rank. Its image is elliptic with the same base only for bases closed under
    marginals (Gaussian, Student-t); h is not convex in (s, V), so no theorem of the library applies.
    Everything costs O(dim * rank^2) through the matrix I + V' diag(s^-2) V.
    """

    diagonal: Vector
    factor: Float[Array, "dim rank"]
    kind: ClassVar[str] = "low_rank"

    @property
    def base_dim(self) -> int:
        return self.factor.shape[0] + self.factor.shape[1]

    def apply(self, u):
        dim = self.diagonal.shape[0]
        return u[:, :dim] * self.diagonal[None, :] + u[:, dim:] @ self.factor.T

    def pull_back(self, v, u):
        dim = self.diagonal.shape[0]
        return LowRank(jnp.mean(v * u[:, :dim], axis=0), v.T @ u[:, dim:] / u.shape[0])

    def factorise(self):
        weighted = self.factor / self.diagonal[:, None]
        return jnp.linalg.cholesky(jnp.eye(self.factor.shape[1], dtype=weighted.dtype) + weighted.T @ weighted)

    def _solve_covariance(self, x: Draws, factors: Any) -> Draws:
        scaled = x / self.diagonal[None, :] ** 2
        return scaled - (cho_solve((factors, True), self.factor.T @ scaled.T).T @ self.factor.T) / (
            self.diagonal[None, :] ** 2
        )

    def precision_times(self, u, factors):
        x = self.apply(u)
        precision = self._solve_covariance(x, factors)
        return precision, jnp.sum(x * precision, axis=1)

    def standardise(self, x):
        squared = jnp.sum(x * self._solve_covariance(x[None, :], self.factorise())[0])
        return jnp.zeros_like(x).at[0].set(jnp.sqrt(squared))

    def log_det(self):
        return jnp.sum(jnp.log(self.diagonal)) + jnp.sum(jnp.log(jnp.diagonal(self.factorise())))

    def log_det_gradient(self):
        precision_factor = self._solve_covariance(self.factor.T, self.factorise()).T
        # diag(Sigma^-1) by Woodbury, without forming Sigma^-1.
        weighted = solve_triangular(self.factorise(), (self.factor / self.diagonal[:, None] ** 2).T, lower=True)
        precision_diagonal = 1 / self.diagonal**2 - jnp.sum(weighted**2, axis=0)
        return LowRank(precision_diagonal * self.diagonal, precision_factor)

    def covariance(self):
        return jnp.diag(self.diagonal**2) + self.factor @ self.factor.T
