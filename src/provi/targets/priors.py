"""Gaussian priors, stored by a factor of the covariance so that no inverse is ever formed on the way."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular as host_solve_triangular

from provi.core.checks import as_array, check_positive_definite
from provi.core.precision import default_dtype
from provi.core.types import Scalar, Vector


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
    factor = _scale_factor(dim, scale) if covariance is None else _covariance_factor(dim, scale, covariance)
    return GaussianPrior(jnp.asarray(np.broadcast_to(centre, (dim,)), dtype), jnp.asarray(factor, dtype))


def _scale_factor(dim: int, scale: Any) -> np.ndarray:
    factor = as_array("prior_scale", scale)
    if factor.shape not in ((), (dim,)):
        raise ValueError(
            f"prior_scale must be a number or have shape ({dim},), one standard deviation a parameter "
            f"(the intercept included); its shape is {factor.shape}. Pass a matrix as prior_covariance."
        )
    if not (factor > 0).all():
        raise ValueError(f"prior_scale must be positive; its smallest entry is {factor.min()}.")
    return factor


def _covariance_factor(dim: int, scale: Any, covariance: Any) -> np.ndarray:
    if not (np.ndim(scale) == 0 and scale == 1.0):
        raise ValueError("prior_scale and prior_covariance were both given; pass one of them.")
    matrix = as_array("prior_covariance", covariance)
    if matrix.shape == (dim,):
        if not (matrix > 0).all():
            raise ValueError(f"prior_covariance must hold positive variances; the least is {matrix.min()}.")
        return np.sqrt(matrix)
    if matrix.shape != (dim, dim):
        raise ValueError(f"prior_covariance must have shape ({dim},) or ({dim}, {dim}); its shape is {matrix.shape}.")
    return check_positive_definite("prior_covariance", matrix)
