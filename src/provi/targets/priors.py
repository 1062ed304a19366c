r"""Gaussian priors, stored by a factor of the covariance so that no inverse is ever formed on the way.

Seen from q = (m, C), `whitened_prior`: F^-1 C and F^-1 (m - mu), FF' = K, with bounds on their rounding.

A triangular system solved in floating point has the exact solution of $(F + \Delta)x = b$ with $|\Delta| \le
n\epsilon|F|$ entry by entry (Higham, Accuracy and Stability, theorem 8.5), so $|\hat x - x| \le
n\epsilon|F^{-1}||F||\hat x|$ to first order; twice that is taken here.

F itself is rounded: $FF' = K + \Delta$, $|\Delta_{ij}| \le \eta r_ir_j$, $r_i^2 = K_{ii}$ (theorem 10.3). From $K^{-1}
= L + L\Delta L + L\Delta K^{-1}\Delta L$, $L = (FF')^{-1}$, what is meant, $x'K^{-1}y$, is off by at most
$\eta(r'|Lx|)(r'|Ly|)/(1 - \beta)$ where $\beta = \eta|\,|F^{-1}|r\,|^2 \ge \eta r'|L|r$. For a kernel matrix with small
jitter both are far more than the rounding of the products that follow.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular as host_solve_triangular

from provi.core.arguments import as_array, check_positive_definite, check_scale, default_dtype, device_array
from provi.core.types import Scalar, Vector

_EPS, _LARGEST_RELATIVE = float(np.finfo(float).eps), 0.1


class GaussianPrior(eqx.Module):
    """The normalised Gaussian N(mean, F F').

    **Arguments:**

    - `mean`: (dim,).
    - `factor`: F, a standard deviation (), one for each coordinate (dim,), or the lower Cholesky factor
        of the covariance (dim, dim). A leaf: its value may change without recompilation.
    """

    mean: Vector
    factor: Scalar | Vector | Float[Array, "dim dim"]

    @property
    def dim(self) -> int:
        """The length of the parameter vector."""
        return self.mean.shape[0]

    def potential(self, z: Vector) -> Scalar:
        """-log N(z; mean, F F'), with its normalising constant, so that an ELBO bounds the log evidence."""
        deviation = z - self.mean
        if self.factor.ndim == 2:
            white = solve_triangular(self.factor, deviation, lower=True)
        else:
            white = deviation / self.factor
        return 0.5 * jnp.sum(white**2) + self.log_det() + 0.5 * self.dim * math.log(2 * math.pi)

    def whitener(self) -> Float[Array, "dim dim"]:
        """F^-1 as a traced matrix: |F^-1 (z - mean)|^2 / 2 is the potential up to a constant."""
        identity = jnp.eye(self.dim, dtype=self.mean.dtype)
        if self.factor.ndim == 2:
            return solve_triangular(self.factor, identity, lower=True)
        return identity / jnp.broadcast_to(self.factor, (self.dim,))[None, :]

    def factor_times(self, matrix: Any) -> Any:
        """F M, traced."""
        if self.factor.ndim == 2:
            return self.factor @ matrix
        return jnp.broadcast_to(self.factor, (self.dim,))[:, None] * matrix

    def factor_transpose_times(self, matrix: Any) -> Any:
        """F' M, traced."""
        return self.factor.T @ matrix if self.factor.ndim == 2 else self.factor_times(matrix)

    def covariance_times(self, matrix: Any) -> Any:
        """F F' M, traced."""
        return self.factor_times(self.factor_transpose_times(matrix))

    def variance(self) -> Vector:
        """The diagonal of F F', traced."""
        if self.factor.ndim == 2:
            return jnp.sum(self.factor**2, axis=1)
        return jnp.broadcast_to(self.factor, (self.dim,)) ** 2

    def log_det(self) -> Scalar:
        """log det F, traced."""
        diagonal = jnp.diagonal(self.factor) if self.factor.ndim == 2 else jnp.broadcast_to(self.factor, (self.dim,))
        return jnp.sum(jnp.log(diagonal))

    def covariance_factor(self) -> np.ndarray:
        """F as a (dim, dim) matrix on the host, in float64."""
        factor = np.asarray(self.factor, dtype=np.float64)
        return factor if factor.ndim == 2 else np.diag(np.broadcast_to(factor, (self.dim,)))

    def precision_matrix(self) -> np.ndarray:
        """(F F')^-1 on the host, in float64."""
        factor = np.asarray(self.factor, dtype=np.float64)
        if factor.ndim < 2:
            return np.diag(np.broadcast_to(factor, (self.dim,)) ** -2.0)
        inverse = host_solve_triangular(factor, np.eye(self.dim), lower=True)
        return inverse.T @ inverse

    def precision_rounding(self) -> float:
        """A bound on the spectral error of `precision_matrix()`; zero for a diagonal covariance.

        A triangular inverse has relative error of a modest multiple of dim * eps * cond(F).
        """
        if self.factor.ndim < 2:
            return 0.0
        singular = np.linalg.svd(np.asarray(self.factor, dtype=np.float64), compute_uv=False)
        relative = 8 * self.dim * np.finfo(np.float64).eps * singular[0] / singular[-1]
        return float(relative * np.sum(singular**-2.0))

    def strong_convexity(self) -> float:
        """The smallest eigenvalue of the precision, 1 / |F|^2, rounded down."""
        factor = np.asarray(self.factor, dtype=np.float64)
        largest = np.linalg.norm(factor, 2) if factor.ndim == 2 else factor.max()
        return float(largest**-2.0 * (1 - 32 * self.dim * np.finfo(np.float64).eps))


def gaussian_prior(
    dim: int, scale: Any = 1.0, covariance: Any = None, mean: Any = None, dtype: Any = None
) -> GaussianPrior:
    """The prior that the arguments `prior_scale`, `prior_covariance` and `prior_mean` of a model describe.

    **Arguments:**

    - `dim`: the number of parameters.
    - `scale`: a standard deviation, or (dim,) of them.
    - `covariance`: instead of `scale`, (dim,) variances or a (dim, dim) matrix.
    - `mean`: (dim,), a number for all, or `None` for zero.
    - `dtype`: the floating type; `None` for the default.

    **Returns:** a `GaussianPrior`; a `ValueError` names the model's argument that is wrong.
    """
    dtype = default_dtype() if dtype is None else dtype
    centre = as_array("prior_mean", 0.0 if mean is None else mean)
    if centre.shape not in ((), (dim,)):
        raise ValueError(f"prior_mean must be a number or have shape ({dim},); its shape is {centre.shape}.")
    factor = (
        _scale_factor(dim, scale, dtype) if covariance is None else _covariance_factor(dim, scale, covariance, dtype)
    )
    return GaussianPrior(
        device_array(np.broadcast_to(centre, (dim,)).astype(dtype)), device_array(np.asarray(factor, dtype))
    )


def _scale_factor(dim: int, scale: Any, dtype: Any) -> np.ndarray:
    factor = check_scale("prior_scale", scale, dtype)
    if factor.shape not in ((), (dim,)):
        raise ValueError(
            f"prior_scale must be a number or have shape ({dim},), one standard deviation a parameter "
            f"(the intercept included); its shape is {factor.shape}. Pass a matrix as prior_covariance."
        )
    return factor


def _covariance_factor(dim: int, scale: Any, covariance: Any, dtype: Any) -> np.ndarray:
    if not (np.ndim(scale) == 0 and scale == 1.0):
        raise ValueError("prior_scale and prior_covariance were both given; pass one of them.")
    matrix = as_array("prior_covariance", covariance)
    if matrix.shape == (dim,):
        if not (matrix > 0).all():
            raise ValueError(f"prior_covariance must hold positive variances; the least is {matrix.min()}.")
        return check_scale("the square root of prior_covariance", np.sqrt(matrix), dtype)
    if matrix.shape != (dim, dim):
        raise ValueError(f"prior_covariance must have shape ({dim},) or ({dim}, {dim}); its shape is {matrix.shape}.")
    check_scale("the square root of the diagonal of prior_covariance", np.sqrt(np.abs(np.diagonal(matrix))), dtype)
    return check_positive_definite("prior_covariance", matrix)


@dataclasses.dataclass(frozen=True)
class WhitenedPrior:
    r"""`scale` = F^-1 C and `shift` = F^-1 (m - mu), with bounds on the error of every entry.

    - `scale_reach`, `shift_reach`: $\sqrt{\eta/(1 - \beta)}\,r'|Lx|$ for each column x of C and for m - mu: x'K^-1y is
      x'Ly up to the product of two of them. Infinite if K is singular to working precision.
    """

    scale: np.ndarray
    shift: np.ndarray
    scale_error: np.ndarray
    shift_error: np.ndarray
    scale_reach: np.ndarray
    shift_reach: float

    @property
    def gradient(self) -> np.ndarray:
        """C' K^-1 (m - mu)."""
        return self.scale.T @ self.shift

    @property
    def gradient_error(self) -> float:
        """On the norm of the gradient."""
        scale, shift = np.abs(self.scale), np.abs(self.shift)
        product = scale.T @ (self.shift_error + 2 * len(shift) * _EPS * shift)
        product += self.scale_error.T @ (shift + self.shift_error)
        return float(np.linalg.norm(product + self.scale_reach * self.shift_reach))

    @property
    def curvature(self) -> np.ndarray:
        """C' K^-1 C."""
        product = self.scale.T @ self.scale
        return (product + product.T) / 2

    @property
    def curvature_error(self) -> float:
        """On the Frobenius norm of the curvature."""
        scale, error = float(np.linalg.norm(self.scale)), float(np.linalg.norm(self.scale_error))
        rounding = 2 * len(self.shift) * _EPS * scale**2
        return 2 * scale * error + error**2 + rounding + float(np.sum(self.scale_reach**2))

    @property
    def energy(self) -> tuple[float, float]:
        """(tr C' K^-1 C + (m - mu)' K^-1 (m - mu)) / 2, and a bound on its error."""
        total, error = 0.0, 0.5 * (float(np.sum(self.scale_reach**2)) + self.shift_reach**2)
        for value, bound in ((self.scale, self.scale_error), (self.shift, self.shift_error)):
            size = 0.5 * float(np.sum(value**2))
            total += size
            error += float(np.sum(np.abs(value) * bound)) + 0.5 * float(np.sum(bound**2)) + value.size * _EPS * size
        return total, error


def whitened_prior(prior: GaussianPrior, root: np.ndarray, loc: np.ndarray) -> WhitenedPrior:
    """In float64, for q = (`loc`, `root`)."""
    factor = np.asarray(prior.factor, np.float64)
    deviation = loc - np.asarray(prior.mean, np.float64)
    if factor.ndim < 2:
        factor = np.broadcast_to(factor, (prior.dim,))
        scale, shift = root / factor[:, None], deviation / factor
        return WhitenedPrior(
            scale, shift, 2 * _EPS * np.abs(scale), 2 * _EPS * np.abs(shift), np.zeros_like(deviation), 0.0
        )
    scale, shift = (host_solve_triangular(factor, x, lower=True) for x in (root, deviation))
    inverse = np.abs(host_solve_triangular(factor, np.eye(prior.dim), lower=True))
    growth = 2 * prior.dim * _EPS * (inverse @ np.abs(factor))
    size = np.linalg.norm(factor, axis=1)
    # A factor in float32 was rounded once more.
    unit = (prior.dim + 2) * _EPS + 2 * float(np.finfo(np.asarray(prior.factor).dtype).eps)
    relative = unit * float(np.sum((inverse @ size) ** 2))
    if not max(float(np.linalg.norm(growth, np.inf)), relative) < _LARGEST_RELATIVE:
        unknown = np.full_like(shift, math.inf)
        return WhitenedPrior(scale, shift, np.zeros_like(scale), np.zeros_like(shift), unknown, math.inf)
    # L x is itself known to about 1 + |growth|, twice.
    unit *= (1 + _LARGEST_RELATIVE) ** 4 / (1 - relative)
    columns, column = (size @ np.abs(host_solve_triangular(factor, x, lower=True, trans=1)) for x in (scale, shift))
    return WhitenedPrior(
        scale,
        shift,
        growth @ np.abs(scale),
        growth @ np.abs(shift),
        math.sqrt(unit) * columns,
        math.sqrt(unit) * float(column),
    )
