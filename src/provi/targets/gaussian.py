"""A Gaussian target: the exactly solvable case."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from provi.core.arguments import as_array, check_positive_definite, double_precision, floating_dtype
from provi.core.types import Scalar, Vector
from provi.targets.base import AbstractTarget, Constants, outer_spectrum, proven
from provi.targets.data import default_names, read_names
from provi.targets.priors import GaussianPrior


class Gaussian(AbstractTarget):
    """The normalised Gaussian N(mean, covariance)."""

    density: GaussianPrior
    names: tuple[str, ...] | None = eqx.field(static=True)

    @double_precision
    def __init__(self, mean: Any, covariance: Any = None, precision: Any = None, *, names: Sequence[str] | None = None):
        """**Arguments:**

        - `mean`: (dim,).
        - `covariance`: (dim,) variances or a (dim, dim) matrix; the identity if neither is given.
        - `precision`: the inverse, instead of `covariance`; (dim,) or (dim, dim).
        - `names`: a name for each coordinate.
        """
        centre, dtype = as_array("mean", mean, ndim=1), floating_dtype(mean)
        if covariance is not None and precision is not None:
            raise ValueError("covariance and precision were both given; pass one of them.")
        if precision is not None:
            factor = _inverse_factor(_positive("precision", precision, centre.shape[0]))
        else:
            chosen = np.ones(centre.shape[0]) if covariance is None else covariance
            factor = _positive("covariance", chosen, centre.shape[0])
        self.density = GaussianPrior(jnp.asarray(centre, dtype), jnp.asarray(factor, dtype))
        self.names = read_names(names, centre.shape[0], f"mean has {centre.shape[0]}")

    @property
    def dim(self) -> int:
        """The length of the mean."""
        return self.density.dim

    @property
    def dtype(self) -> Any:
        """The floating type of the mean."""
        return self.density.mean.dtype

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The names given, or `z[0]`, `z[1]`, ..."""
        return default_names("z", self.dim) if self.names is None else self.names

    def potential(self, z: Vector) -> Scalar:
        """-log N(z; mean, covariance), normalised."""
        return self.density.potential(z)

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The precision matrix twice, moved apart by the rounding of its computation."""
        precision = self.density.precision_matrix()
        rounding = self.density.precision_rounding() * np.eye(self.dim)
        return precision - rounding, precision + rounding

    @property
    def constants(self) -> Constants:
        """Proven and tight: the extreme eigenvalues of the precision."""
        low, high = self.curvature_bounds()
        strong_convexity = max(outer_spectrum(low)[0], self.density.strong_convexity())
        return Constants(
            log_concave=proven(True, "Gaussian"),
            strong_convexity=proven(strong_convexity, "lambda_min of the precision, rounded down"),
            smoothness=proven(outer_spectrum(high)[1], "lambda_max of the precision, rounded up"),
        )

    def exact_posterior(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the covariance, on the host in float64."""
        factor = self.density.covariance_factor()
        return np.asarray(self.density.mean, np.float64), factor @ factor.T

    def log_evidence(self) -> float:
        """Zero: the density is normalised."""
        return 0.0


def _positive(name: str, value: Any, dim: int) -> np.ndarray:
    """Square roots of (dim,) numbers, or the lower Cholesky factor of a (dim, dim) matrix."""
    array = as_array(name, value)
    if array.shape == (dim,):
        if not (array > 0).all():
            raise ValueError(f"{name} must be positive; its smallest entry is {array.min()}.")
        return np.sqrt(array)
    if array.shape != (dim, dim):
        raise ValueError(f"{name} must have shape ({dim},) or ({dim}, {dim}); its shape is {array.shape}.")
    return check_positive_definite(name, array)


def _inverse_factor(factor: np.ndarray) -> np.ndarray:
    """The lower Cholesky factor of (K K')^-1, from K."""
    if factor.ndim == 1:
        return 1 / factor
    # The inverse is K^-T K^-1 with K^-T upper triangular; with K^-1 = Q R it is R' R, and R' is lower.
    upper = np.linalg.qr(solve_triangular(factor, np.eye(factor.shape[0]), lower=True))[1]
    return (upper * np.sign(np.diagonal(upper))[:, None]).T
