r"""The linear algebra of a Gaussian $q \propto N(0, K)\prod_n\exp(-s_n\eta_n^2/2)$, without $K^{-1}$ or $1/s_n$.

$V^{-1} = K^{-1} + S$ with $S = \mathrm{diag}(s)$. Where every $s_n \ge 0$, with $r = \sqrt s$ and
$B = I + S^{1/2}KS^{1/2} = LL'$ (eigenvalues at least 1, however ill-conditioned K is):
$V = K - T'T$, $T = L^{-1}S^{1/2}K$, and $(I + SK)^{-1} = I - S^{1/2}B^{-1}S^{1/2}K$.
Where some $s_n$ may be negative (likelihoods that are not log-concave), with a root $K = RR'$ and
$B = I + R'SR = LL'$, positive definite exactly when V is: $V = T'T$, $T = L^{-1}R'$. In both, $|B| = |K||V|^{-1}$.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular

from provi.core.types import Matrix, Scalar, Vector


class SiteFactor(eqx.Module):
    """The factorisation at the site precisions s: L, T, the diagonal of V and log |B|."""

    precision: Vector
    lower: Matrix
    half: Matrix
    variance: Vector
    log_det: Scalar
    whitened: bool = eqx.field(static=True)

    def covariance_times(self, gram: Matrix, vector: Vector) -> Vector:
        """V c."""
        product = self.half.T @ (self.half @ vector)
        return product if self.whitened else gram @ vector - product

    def apply_inverse(self, gram: Matrix, vector: Vector) -> Vector:
        """(I + S K)^-1 c."""
        if self.whitened:
            return vector - self.precision * self.covariance_times(gram, vector)
        root = jnp.sqrt(self.precision)
        return vector - root * cho_solve((self.lower, True), root * (gram @ vector))


def factorise(gram: Matrix, precision: Vector, root: Any = None) -> SiteFactor:
    """The factorisation for site precisions `precision`; they may be negative if a `root` R of K = RR' is given."""
    identity = jnp.eye(gram.shape[0], dtype=gram.dtype)
    if root is None:
        half = jnp.sqrt(precision)
        lower = _cholesky(identity + half[:, None] * gram * half[None, :])
        half = solve_triangular(lower, half[:, None] * gram, lower=True)
        variance = jnp.diagonal(gram) - jnp.sum(half**2, axis=0)
    else:
        inner = root.T @ (precision[:, None] * root)
        lower = _cholesky(identity + inner)
        half = solve_triangular(lower, root.T, lower=True)
        variance = jnp.sum(half**2, axis=0)
    # Rounding may leave a variance below zero where K is singular.
    variance = jnp.where(variance < 0, jnp.zeros_like(variance), variance)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(lower)))
    return SiteFactor(precision, lower, half, variance, log_det, root is not None)


def _cholesky(matrix: Matrix) -> Matrix:
    """Only the lower triangle is read: `jnp.linalg.cholesky` would first make a symmetric copy."""
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


def covariance_root(gram: Matrix) -> Matrix:
    """R with RR' = K for any positive semi-definite K, singular ones too."""
    values, vectors = jnp.linalg.eigh((gram + gram.T) / 2)
    return vectors * jnp.sqrt(jnp.maximum(values, jnp.zeros_like(values)))[None, :]
