r"""A Gaussian prior N(mu, FF') seen from q = (m, C), with bounds on the rounding: $F^{-1}C$ and $F^{-1}(m - \mu)$.

A triangular system solved in floating point has the exact solution of $(F + \Delta)x = b$ with
$|\Delta| \le n\epsilon|F|$ entry by entry (Higham, Accuracy and Stability, theorem 8.5), so
$|\hat x - x| \le n\epsilon|F^{-1}||F||\hat x|$ to first order; twice that is taken here. For a kernel matrix with small
jitter this is far more than the rounding of the products that follow.
"""

import dataclasses
import math

import numpy as np
from scipy.linalg import solve_triangular

from provi.targets.priors import GaussianPrior

_EPS, _LARGEST_RELATIVE = float(np.finfo(float).eps), 0.1


@dataclasses.dataclass(frozen=True)
class WhitenedPrior:
    """`scale` = F^-1 C and `shift` = F^-1 (m - mu), with bounds on the error of every entry; infinite if F is singular
    to working precision."""

    scale: np.ndarray
    shift: np.ndarray
    scale_error: np.ndarray
    shift_error: np.ndarray

    @property
    def gradient(self) -> np.ndarray:
        """C' L_0 (m - mu)."""
        return self.scale.T @ self.shift

    @property
    def gradient_error(self) -> float:
        """On the norm of the gradient."""
        scale, shift = np.abs(self.scale), np.abs(self.shift)
        product = scale.T @ (self.shift_error + 2 * len(shift) * _EPS * shift)
        return float(np.linalg.norm(product + self.scale_error.T @ (shift + self.shift_error)))

    @property
    def curvature(self) -> np.ndarray:
        """C' L_0 C."""
        product = self.scale.T @ self.scale
        return (product + product.T) / 2

    @property
    def curvature_error(self) -> float:
        """On the Frobenius norm of the curvature."""
        scale, error = float(np.linalg.norm(self.scale)), float(np.linalg.norm(self.scale_error))
        return 2 * scale * error + error**2 + 2 * len(self.shift) * _EPS * scale**2

    @property
    def energy(self) -> tuple[float, float]:
        """(|scale|_F^2 + |shift|^2) / 2, and a bound on its error."""
        total, error = 0.0, 0.0
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
        return WhitenedPrior(scale, shift, 2 * _EPS * np.abs(scale), 2 * _EPS * np.abs(shift))
    scale, shift = (solve_triangular(factor, x, lower=True) for x in (root, deviation))
    inverse = np.abs(solve_triangular(factor, np.eye(prior.dim), lower=True))
    growth = 2 * prior.dim * _EPS * (inverse @ np.abs(factor))
    if not np.linalg.norm(growth, np.inf) < _LARGEST_RELATIVE:
        return WhitenedPrior(scale, shift, np.full_like(scale, math.inf), np.full_like(shift, math.inf))
    return WhitenedPrior(scale, shift, growth @ np.abs(scale), growth @ np.abs(shift))
