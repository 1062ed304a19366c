r"""The best Gaussian of a latent Gaussian model, in NumPy and apart from the library: truth for N up to about 60.

Moments of the links come from Gauss-Legendre panels (Poisson's and the Gaussian's in closed form), linear algebra from
extended precision, the optimum from Newton's method on $a = -E\ell'$, $s = E\ell''$, whose Jacobian follows from
$dv_i/ds_j = -V_{ij}^2$. A point that is not the optimum only makes the gaps of others look smaller, by
$\tfrac12(c'Vc + \mathrm{tr}(EVEV))$, which `best` checks.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy import special

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
REACH, LONG = 13.0, np.longdouble


@dataclasses.dataclass(frozen=True)
class Moments:
    """E l, and the means of the first four derivatives, each (N,)."""

    value: np.ndarray
    slope: np.ndarray
    weight: np.ndarray
    third: np.ndarray
    fourth: np.ndarray


def link(kind: str, parameter: float, eta: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-log p(y | eta), its slope and its curvature."""
    if kind == "logit":
        sign = 1 - 2 * y
        return (
            np.logaddexp(0.0, sign * eta),
            sign * special.expit(sign * eta),
            special.expit(eta) * special.expit(-eta),
        )
    if kind == "probit":
        t = (2 * y - 1) * eta
        hazard = np.sqrt(2 / np.pi) / special.erfcx(-t / np.sqrt(2))
        # h + t cancels far below zero: there by its series.
        far, x = t < -30, np.where(t < -30, -t, 30.0)
        gap = np.where(far, 1 / x - 2 / x**3 + 10 / x**5 - 74 / x**7, hazard + t)
        return -special.log_ndtr(t), -(2 * y - 1) * hazard, hazard * gap
    if kind == "binomial":
        x = eta - np.log(parameter)
        constant = special.gammaln(y + parameter) - special.gammaln(parameter) - special.gammaln(y + 1)
        value = y * np.logaddexp(0.0, -x) + parameter * np.logaddexp(0.0, x) - constant
        slope = parameter * special.expit(x) - y * special.expit(-x)
        return value, slope, (y + parameter) * special.expit(x) * special.expit(-x)
    raise ValueError(kind)


def moments(kind: str, parameter: float, mean: np.ndarray, variance: np.ndarray, y: np.ndarray) -> Moments:
    """The means of the link and its derivatives under N(mean, variance), entry by entry."""
    if kind == "poisson":
        with np.errstate(over="ignore"):
            rate = np.exp(mean + variance / 2)
        return Moments(rate - y * mean + special.gammaln(y + 1), rate - y, rate, rate, rate)
    if kind == "gaussian":
        weight, zero = np.full_like(mean, parameter**-2.0), np.zeros_like(mean)
        value = 0.5 * weight * ((y - mean) ** 2 + variance) + np.log(parameter * np.sqrt(2 * np.pi))
        return Moments(value, weight * (mean - y), weight, zero, zero)
    bend = np.log(parameter) if kind == "binomial" else 0.0
    spread = np.sqrt(np.maximum(variance, 1e-24))
    # Edges in standard deviations: equal ones, and doubling distances from where the link bends.
    steps = np.r_[0.0, 0.5 * 2.0 ** np.arange(16)]
    around = (bend + np.r_[-steps[:0:-1], steps][None, :] - mean[:, None]) / spread[:, None]
    grid = np.broadcast_to(np.linspace(-REACH, REACH, 27), (len(mean), 27))
    edges = np.sort(np.clip(np.concatenate([grid, around], axis=1), -REACH, REACH), axis=1)
    half = np.diff(edges, axis=1)[:, :, None] / 2
    t = (edges[:, :-1, None] + half * (1 + NODES)).reshape(len(mean), -1)
    share = (half * WEIGHTS).reshape(t.shape) * np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
    value, slope, weight = link(kind, parameter, mean[:, None] + spread[:, None] * t, y[:, None])

    def average(function: np.ndarray) -> np.ndarray:
        return np.sum(share * function, axis=1)

    return Moments(
        average(value),
        average(slope),
        average(weight),
        average(weight * t) / spread,
        average(weight * (t**2 - 1)) / spread**2,
    )


def long_cholesky(matrix: np.ndarray) -> np.ndarray:
    """The lower factor, in extended precision."""
    left, lower = np.array(matrix, LONG), np.zeros(matrix.shape, LONG)
    for j in range(len(left)):
        lower[j:, j] = left[j:, j] / np.sqrt(left[j, j])
        left[j:, j:] -= lower[j:, j][:, None] * lower[j:, j][None, :]
    return lower


def long_solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """L^-1 M by substitution, in extended precision."""
    result = np.array(right, LONG)
    for j in range(len(lower)):
        result[j] /= lower[j, j]
        result[j + 1 :] -= lower[j + 1 :, j][:, None] * result[j][None, :]
    return result


@dataclasses.dataclass(frozen=True)
class Oracle:
    """y_n ~ p(y | eta_n), eta ~ N(mean, gram), for a log-concave link."""

    kind: str
    parameter: float
    gram: np.ndarray
    mean: np.ndarray
    y: np.ndarray

    def at(self, a: Any, s: Any) -> tuple[float, np.ndarray, np.ndarray, Moments]:
        """The negative ELBO at (a, s), the mean of eta, its covariance, and the moments there."""
        gram, a, s = np.asarray(self.gram, LONG), np.asarray(a, LONG), np.asarray(s, LONG)
        root = np.sqrt(s)
        lower = long_cholesky(np.eye(len(gram), dtype=LONG) + root[:, None] * gram * root[None, :])
        half = long_solve(lower, root[:, None] * gram)
        covariance, deviation = gram - half.T @ half, gram @ a
        variance, log_det = np.maximum(np.diagonal(covariance), 0), 2 * np.sum(np.log(np.diagonal(lower)))
        centre, spread = (np.asarray(x, float) for x in (self.mean + deviation, variance))
        at = moments(self.kind, self.parameter, centre, spread, self.y)
        total = np.sum(np.asarray(at.value, LONG)) + (log_det - s @ variance + a @ deviation) / 2
        return float(total), centre, np.asarray(covariance, float), at

    def negative_elbo(self, a: Any, s: Any) -> float:
        """The negative ELBO at (a, s)."""
        return self.at(a, s)[0]

    def best(self, most: int = 400) -> tuple[np.ndarray, np.ndarray, float]:
        """(a, s, F*): natural-gradient steps with backtracking, then Newton's, until the error is 1e-13 (1 + |F|)."""
        size = len(self.y)
        # Poisson: under a wide prior the mean rate is infinite.
        a, s, rho = np.zeros(size), 1 + self.y if self.kind == "poisson" else np.zeros(size), 0.5
        value, _, covariance, at = self.at(a, s)
        for _ in range(most):
            c, e = a + at.slope, at.weight - s
            if _error(c, e, covariance) <= 1e-13 * (1 + abs(value)):
                return a, s, value
            trial = self._newton(a, s, c, e, covariance, at) if _error(c, e, covariance) < 0.1 else None
            if trial is not None:
                found = self.at(*trial)
                if np.isfinite(found[0]) and found[0] <= value + 1e-13 * (1 + abs(value)):
                    (a, s), (value, _, covariance, at) = trial, found
                    continue
            next_s = s + rho * e
            next_a = a - rho * np.linalg.solve(np.asarray(np.eye(size) + next_s[:, None] * self.gram, float), c)
            found = self.at(next_a, next_s)
            if np.isfinite(found[0]) and found[0] < value:
                (a, s), (value, _, covariance, at), rho = (next_a, next_s), found, min(1.0, 1.5 * rho)
            else:
                rho /= 2
        raise RuntimeError(
            f"no convergence: error {_error(a + at.slope, at.weight - s, covariance):.1e} of {value:.6g}"
        )

    def _newton(self, a, s, c, e, covariance, at) -> tuple[np.ndarray, np.ndarray] | None:
        square, eye = covariance**2, np.eye(len(a))
        jacobian = np.block(
            [
                [eye + at.weight[:, None] * self.gram, -0.5 * at.third[:, None] * square],
                [at.third[:, None] * self.gram, -eye - 0.5 * at.fourth[:, None] * square],
            ]
        )
        try:
            step = np.linalg.solve(np.asarray(jacobian, float), -np.r_[c, e])
        except np.linalg.LinAlgError:
            return None
        change, move = np.split(step, 2)
        return (a + change, s + move) if np.isfinite(step).all() and (s + move >= 0).all() else None


def _error(c: np.ndarray, e: np.ndarray, covariance: np.ndarray) -> float:
    """Half the squared norm of the whitened gradient: about the gap."""
    return 0.5 * float(abs(c @ covariance @ c) + abs(e @ covariance**2 @ e))
