r"""Gaussians: with independent coordinates (univariate, diagonal, unit covariance) and with a full covariance matrix.

Symmetric matrices are vectors that keep the inner product (`pack`): the lower triangle with the entries below the
diagonal times $\sqrt2$: $\langle pack\,A, pack\,B\rangle = tr(AB)$, so that lengths are Frobenius norms, gradients pack
like matrices, and no entry is stored twice.
"""

from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from provi.core.types import Matrix
from provi.families.exponential.base import AbstractExponentialFamily, all_finite

_LOG_TWO_PI = float(np.log(2 * np.pi))


class DiagonalGaussian(AbstractExponentialFamily):
    r"""$N(m, \mathrm{diag}\,v)$ in `dim` dimensions; `DiagonalGaussian(1)` is the univariate Gaussian.

    Natural parameter: $(m/v, -1/(2v))$, first the `dim` entries of the one, then those of the other;
    $T(x) = (x, x^2)$; mean parameter: $(m, v + m^2)$; moments: $(m, v)$; $A = \frac12\sum(m^2/v + \log2\pi v)$.
    """

    dim: int = eqx.field(static=True, default=1)

    @property
    def size(self) -> int:
        return 2 * self.dim

    def natural_from_moments(self, moments):
        """The natural parameter of the Gaussian with moments (m, v)."""
        mean, variance = jnp.split(moments, 2)
        return jnp.concatenate([mean / variance, -0.5 / variance])

    def moments_from_natural(self, natural):
        """(m, v)."""
        linear, quadratic = jnp.split(natural, 2)
        variance = -0.5 / quadratic
        return jnp.concatenate([linear * variance, variance])

    def minimise_in_moments(self, gradient, total, weight):
        r"""argmin over (m, v) of $\langle(m, v), g\rangle + \sum_ic_iKL(q\|q_i)$, `total` $= \sum_ic_i\lambda_i$ and
        `weight` $= \sum_ic_i$: with $\bar P = \sum_ic_iP_i$, $m = \bar P^{-1}(\sum_ic_iP_im_i - g_m)$ and
        $V^{-1} = (\bar P + 2g_V)/\sum_ic_i$. Returns the natural parameter (invalid where there is no minimum).
        """
        linear, quadratic = jnp.split(total, 2)
        slope, curvature = jnp.split(gradient, 2)
        mean = (linear - slope) / (-2 * quadratic)
        precision = (-2 * quadratic + 2 * curvature) / weight
        return jnp.concatenate([precision * mean, -precision / 2])

    def statistic(self, x):
        return jnp.concatenate([x, x * x])

    def log_partition(self, natural):
        linear, quadratic = jnp.split(natural, 2)
        return 0.5 * jnp.sum(-0.5 * linear * linear / quadratic - jnp.log(-2 * quadratic) + _LOG_TWO_PI)

    def mean_from_natural(self, natural):
        mean, variance = jnp.split(self.moments_from_natural(natural), 2)
        return jnp.concatenate([mean, variance + mean * mean])

    def natural_from_mean(self, mean):
        location, square = jnp.split(mean, 2)
        variance = square - location * location
        return self.natural_from_moments(jnp.concatenate([location, jnp.where(variance > 0, variance, jnp.nan)]))

    def valid(self, natural):
        return all_finite(natural) & jnp.all(natural[self.dim :] < 0)

    def sample(self, key, natural, count):
        mean, variance = jnp.split(self.moments_from_natural(natural), 2)
        noise = jax.random.normal(key, (count, self.dim), natural.dtype)
        return mean[None, :] + jnp.sqrt(variance)[None, :] * noise

    def to_unconstrained(self, natural):
        """(m, log v)."""
        mean, variance = jnp.split(self.moments_from_natural(natural), 2)
        return jnp.concatenate([mean, jnp.log(variance)])

    def from_unconstrained(self, free):
        mean, log_variance = jnp.split(free, 2)
        return self.natural_from_moments(jnp.concatenate([mean, jnp.exp(log_variance)]))

    def entropy(self, natural):
        return 0.5 * jnp.sum(1 + _LOG_TWO_PI - jnp.log(-2 * natural[self.dim :]))

    def kl(self, first, second):
        r"""$\frac12\sum[\rho - 1 - \log\rho + (m_1 - m_2)^2/v_2]$, $\rho = v_1/v_2$, no log-partitions."""
        mean1 = self.moments_from_natural(first)[: self.dim]
        mean2, variance2 = jnp.split(self.moments_from_natural(second), 2)
        # rho - 1 from the natural parameters: exact where the two variances are close.
        excess = (second[self.dim :] - first[self.dim :]) / first[self.dim :]
        return 0.5 * jnp.sum(excess - jnp.log1p(excess) + (mean1 - mean2) ** 2 / variance2)


class UnitGaussian(AbstractExponentialFamily):
    r"""$N(\lambda, I)$: natural and mean parameter are both the location, and the Fisher matrix is the identity.

    Here KL in either direction is $\frac12|\lambda - \lambda'|^2$: the methods of Euclidean geometry on a free vector
    (gradient descent, proximal gradient) are the proximal-gradient iteration in this family.
    $T(x) = x$, $b(x) = N(x; 0, I)$, $A = |\lambda|^2/2$.
    """

    dim: int = eqx.field(static=True, default=1)

    @property
    def size(self) -> int:
        return self.dim

    @property
    def reverse_kl_convex_in_mean(self) -> bool:
        return True

    def statistic(self, x):
        return x

    def log_base(self, x):
        return -0.5 * jnp.sum(x * x + _LOG_TWO_PI)

    def mean_log_base(self, mean):
        return -0.5 * jnp.sum(mean * mean + 1 + _LOG_TWO_PI)

    def log_partition(self, natural):
        return 0.5 * natural @ natural

    def mean_from_natural(self, natural):
        return natural

    def natural_from_mean(self, mean):
        return mean

    def valid(self, natural):
        return all_finite(natural)

    def sample(self, key, natural, count):
        return natural[None, :] + jax.random.normal(key, (count, self.dim), natural.dtype)

    def to_unconstrained(self, natural):
        return natural

    def from_unconstrained(self, free):
        return free

    def entropy(self, natural):
        return jnp.asarray(0.5 * self.dim * (1 + _LOG_TWO_PI), natural.dtype)

    def kl(self, first, second):
        return 0.5 * jnp.sum((first - second) ** 2)


def gaussian_moments_alpha(largest_variance: float) -> float:
    r"""alpha of KL in the moments (m, V) while every eigenvalue of V is at most `largest_variance` $= 1/\tau$:
    $\min(\tau, \tau^2/2)$ (papers 000 and 002; errata 25: $\tau$ bounds the variances from above).

    $\delta_m'V_0^{-1}\delta_m + \frac12tr(\delta_VV_0^{-1}\delta_VV_1^{-1}) \ge
    \tau|\delta_m|^2 + \frac{\tau^2}2|\delta_V|_F^2$. The length of $\delta_V$ is its Frobenius norm.
    """
    tau = 1 / largest_variance
    return min(tau, tau * tau / 2)


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


class FullGaussian(AbstractExponentialFamily):
    r"""$N(m, V)$ in `dim` dimensions, $P = V^{-1}$.

    Natural parameter: $(Pm, -\frac12P)$; $T(x) = (x, xx')$; mean parameter: $(m, V + mm')$; moments: $(m, V)$. Matrices
    are packed (`packing.pack`), so a vector has dim + dim (dim + 1)/2 entries and its length is the Frobenius norm.
    $A = \frac12(m'Pm - \log\det P + d\log2\pi)$.
    """

    dim: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.dim + packed_size(self.dim)

    def _split(self, vector):
        return vector[: self.dim], unpack(vector[self.dim :], self.dim)

    def _join(self, vector, matrix):
        return jnp.concatenate([vector, pack(matrix)])

    def natural_from_moments(self, moments):
        """The natural parameter of the Gaussian with moments (m, V); NaN where V is not positive definite."""
        mean, covariance = self._split(moments)
        precision = _inverse(jnp.linalg.cholesky(covariance))
        return self._join(precision @ mean, -precision / 2)

    def moments_from_natural(self, natural):
        """(m, V)."""
        linear, quadratic = self._split(natural)
        covariance = _inverse(jnp.linalg.cholesky(-2 * quadratic))
        return self._join(covariance @ linear, covariance)

    def minimise_in_moments(self, gradient, total, weight):
        r"""argmin over (m, V) of $\langle(m, V), g\rangle + \sum_ic_iKL(q\|q_i)$, `total` $= \sum_ic_i\lambda_i$ and
        `weight` $= \sum_ic_i$: with $\bar P = \sum_ic_iP_i$, $m = \bar P^{-1}(\sum_ic_iP_im_i - g_m)$ and
        $V^{-1} = (\bar P + 2g_V)/\sum_ic_i$. Returns the natural parameter (invalid where there is no minimum).
        """
        linear, quadratic = self._split(total)
        slope, curvature = self._split(gradient)
        mean = cho_solve((jnp.linalg.cholesky(-2 * quadratic), True), linear - slope)
        precision = (-2 * quadratic + 2 * curvature) / weight
        return self._join(precision @ mean, -precision / 2)

    def statistic(self, x):
        return self._join(x, jnp.outer(x, x))

    def log_partition(self, natural):
        linear, quadratic = self._split(natural)
        root = jnp.linalg.cholesky(-2 * quadratic)
        whitened = solve_triangular(root, linear, lower=True)
        return 0.5 * (whitened @ whitened + self.dim * _LOG_TWO_PI) - jnp.sum(jnp.log(jnp.diagonal(root)))

    def mean_from_natural(self, natural):
        mean, covariance = self._split(self.moments_from_natural(natural))
        return self._join(mean, covariance + jnp.outer(mean, mean))

    def natural_from_mean(self, mean):
        location, square = self._split(mean)
        return self.natural_from_moments(self._join(location, square - jnp.outer(location, location)))

    def valid(self, natural):
        # The factor of a matrix that is not positive definite is NaN.
        return all_finite(natural) & all_finite(jnp.diagonal(jnp.linalg.cholesky(-2 * self._split(natural)[1])))

    def sample(self, key, natural, count):
        linear, quadratic = self._split(natural)
        root = jnp.linalg.cholesky(-2 * quadratic)
        mean = cho_solve((root, True), linear)
        noise = jax.random.normal(key, (self.dim, count), natural.dtype)
        return mean[None, :] + solve_triangular(root, noise, lower=True, trans=1).T

    def to_unconstrained(self, natural):
        """m, and the Cholesky factor of P by rows, with the logarithm of its diagonal."""
        linear, quadratic = self._split(natural)
        root = jnp.linalg.cholesky(-2 * quadratic)
        logged = root + jnp.diag(jnp.log(jnp.diagonal(root)) - jnp.diagonal(root))
        return jnp.concatenate([cho_solve((root, True), linear), logged[np.tril_indices(self.dim)]])

    def from_unconstrained(self, free):
        logged = jnp.zeros((self.dim, self.dim), free.dtype).at[np.tril_indices(self.dim)].set(free[self.dim :])
        root = logged + jnp.diag(jnp.exp(jnp.diagonal(logged)) - jnp.diagonal(logged))
        precision = root @ root.T
        return self._join(precision @ free[: self.dim], -precision / 2)

    def entropy(self, natural):
        root = jnp.linalg.cholesky(-2 * self._split(natural)[1])
        return 0.5 * self.dim * (1 + _LOG_TWO_PI) - jnp.sum(jnp.log(jnp.diagonal(root)))

    def kl(self, first, second):
        r"""$\frac12[tr(P_2V_1) - d - \log\det P_2V_1 + (m_1 - m_2)'P_2(m_1 - m_2)]$, no log-partitions."""
        (linear1, quadratic1), (linear2, quadratic2) = self._split(first), self._split(second)
        root1, root2 = jnp.linalg.cholesky(-2 * quadratic1), jnp.linalg.cholesky(-2 * quadratic2)
        ratio = solve_triangular(root1, root2, lower=True)
        shift = root2.T @ (cho_solve((root1, True), linear1) - cho_solve((root2, True), linear2))
        # Both factors are lower triangular, so the diagonal of the ratio is the ratio of the diagonals.
        diagonal = jnp.diagonal(ratio)
        lower = jnp.sum(jnp.tril(ratio, -1) ** 2)
        return 0.5 * (lower + jnp.sum(diagonal**2 - 1 - 2 * jnp.log(diagonal)) + shift @ shift)


def _inverse(root):
    """The inverse of R R'."""
    inverse_root = solve_triangular(root, jnp.eye(root.shape[0], dtype=root.dtype), lower=True)
    return inverse_root.T @ inverse_root
