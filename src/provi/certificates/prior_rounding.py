r"""A Gaussian prior N(mu, K) seen from q = (m, C), with bounds on the rounding: F^-1 C and F^-1 (m - mu), FF' = K.

A triangular system solved in floating point has the exact solution of $(F + \Delta)x = b$ with
$|\Delta| \le n\epsilon|F|$ entry by entry (Higham, Accuracy and Stability, theorem 8.5), so
$|\hat x - x| \le n\epsilon|F^{-1}||F||\hat x|$ to first order; twice that is taken here.

F itself is rounded: $FF' = K + \Delta$, $|\Delta_{ij}| \le \eta r_ir_j$, $r_i^2 = K_{ii}$ (theorem 10.3). From
$K^{-1} = L + L\Delta L + L\Delta K^{-1}\Delta L$, $L = (FF')^{-1}$, what is meant, $x'K^{-1}y$, is off by at most
$\eta(r'|Lx|)(r'|Ly|)/(1 - \beta)$ where $\beta = \eta|\,|F^{-1}|r\,|^2 \ge \eta r'|L|r$. For a kernel matrix with small
jitter both are far more than the rounding of the products that follow.
"""

import dataclasses
import math

import numpy as np
from scipy.linalg import solve_triangular

from provi.targets.priors import GaussianPrior

_EPS, _LARGEST_RELATIVE = float(np.finfo(float).eps), 0.1


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
    scale, shift = (solve_triangular(factor, x, lower=True) for x in (root, deviation))
    inverse = np.abs(solve_triangular(factor, np.eye(prior.dim), lower=True))
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
    columns, column = (size @ np.abs(solve_triangular(factor, x, lower=True, trans=1)) for x in (scale, shift))
    return WhitenedPrior(
        scale,
        shift,
        growth @ np.abs(scale),
        growth @ np.abs(shift),
        math.sqrt(unit) * columns,
        math.sqrt(unit) * float(column),
    )
