r"""The prior of a Gaussian in dual form, and the factor of $B = I + S^{1/2}KS^{1/2}$, with bounds on their rounding.

A Cholesky factor computed in floating point is the exact one of $B + \Delta$, $|\Delta| \le N\epsilon\,\mathrm{tr}B$
(Higham, Accuracy and Stability, theorem 10.3). With $B^{-1}S^{1/2}Ke_n = S^{1/2}Ve_n$ and $VSV \preceq V$ it moves
$v_n = K_{nn} - |T_n|^2$ by at most $|\Delta|v_n$, and forming the difference adds $N\epsilon K_{nn}$. An error in K (a
product of N x D matrices, for a linear model) of at most $u\sqrt{k_ik_j}$ in each entry moves $v_n$ by at most
$2u(k_n + v_n\sum_js_jk_j)$.
"""

import dataclasses

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from provi.families.dual_gaussian import DualGaussian

ROUNDING, EPS = 8.0, float(np.finfo(float).eps)
"""Multiple of N eps taken for the relative rounding of sums over N products."""


@dataclasses.dataclass(frozen=True)
class Prior:
    """The prior of the eta in float64: K, its mean, and how they were rounded.

    - `size`: k; `unit`: u, the error of K_ij is at most u sqrt(k_i k_j). Zero for a Gaussian process, whose K is given.
    - `mean_error`: of the mean.
    """

    gram: np.ndarray
    mean: np.ndarray
    size: np.ndarray
    unit: float
    mean_error: np.ndarray

    def product_error(self, vector: np.ndarray) -> np.ndarray:
        """A bound on the error of K @ vector, entry by entry."""
        root = np.sqrt(self.size)
        computed = ROUNDING * len(root) * EPS * (np.abs(self.gram) @ np.abs(vector))
        return computed + self.unit * root * float(root @ np.abs(vector))

    def trace(self, sites: np.ndarray) -> float:
        """tr(I + S^(1/2) K S^(1/2))."""
        return len(sites) + float(np.sum(sites * self.size))

    def factor_error(self, sites: np.ndarray) -> float:
        """A bound on the spectral norm of the error of I + S^(1/2) K S^(1/2) whose exact factor was computed."""
        return ((len(sites) + 3) * EPS + self.unit) * self.trace(sites)


def prior_in_double(family: DualGaussian) -> Prior:
    """K and X mu_0 in float64; those of a linear model in float32 are computed anew from its design."""
    gram = np.asarray(family.gram, np.float64)
    if family.design is None or family.prior is None:
        mean = np.asarray(family.prior_mean, np.float64)
        return Prior(gram, mean, np.diagonal(gram), 0.0, 4 * EPS * np.abs(mean))
    design, factor, mean = (np.asarray(x, np.float64) for x in (family.design, family.prior.factor, family.prior.mean))
    rows = design @ factor if factor.ndim == 2 else design * factor
    sizes = np.abs(design) @ np.abs(factor) if factor.ndim == 2 else np.abs(rows)
    gram = gram if np.asarray(family.gram).dtype == np.float64 else rows @ rows.T
    unit = 4 * design.shape[1] * EPS
    return Prior(gram, design @ mean, np.sum(sizes**2, axis=1), unit, unit * (np.abs(design) @ np.abs(mean)))


def site_factor(gram: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """L and T = L^-1 S^(1/2) K, LL' = I + S^(1/2) K S^(1/2)."""
    root = np.sqrt(precision)
    lower = inner_factor(gram, root)
    return lower, solve_triangular(lower, root[:, None] * gram, lower=True, check_finite=False)


def log_det_of_sites(gram: np.ndarray, precision: np.ndarray) -> float:
    """log |I + S^(1/2) K S^(1/2)|."""
    return 2 * float(np.sum(np.log(np.diagonal(inner_factor(gram, np.sqrt(precision))))))


def log_det_rounding(prior: Prior, precision: np.ndarray) -> float:
    """Error of `log_det_of_sites`: |tr(B^-1 D)| <= |B^-1|_F |D|_F, with all eigenvalues of B at least 1."""
    return float(np.sqrt(len(precision))) * prior.factor_error(precision)


def inner_factor(gram: np.ndarray, root: np.ndarray) -> np.ndarray:
    """The lower Cholesky factor of I + S^(1/2) K S^(1/2), `root` the square roots of s."""
    inner = root[:, None] * gram * root[None, :]
    inner[np.diag_indices_from(inner)] += 1.0
    return cholesky(inner, lower=True, overwrite_a=True, check_finite=False)
