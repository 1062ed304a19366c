r"""Logistic regression with missing Gaussian covariates in plain NumPy: likelihood, EM, and the exact maximum by BFGS.

Written apart from the library: it judges every answer, and EM is one of its peers. Given its observed entries the
linear predictor of a row is $\eta \sim N(\mu, s^2)$; with $x = (\eta - \mu)/s$ a sum over equally spaced $x$
(exponentially accurate for such an integrand) gives $P(y|z_o) = E\,\sigma(\pm\eta)$ and moments given y.
"""

import dataclasses

import numpy as np
from scipy.optimize import minimize

from provi_lab.bench.problems import MissingProblem

_REACH, _LARGEST_SPACING = 9.0, 0.4
"""The normal density at 9 is 1e-18; at the spacing 0.4 the sum over it has an error of exp(-2 pi^2/0.16) = 1e-54."""


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Coefficients, intercept first; mean and covariance of the covariates."""

    coefficients: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


@dataclasses.dataclass(frozen=True)
class Moments:
    r"""Sums over rows: $\log p(y, z_o)$, the score in the coefficients, $E z$, $E zz'$ and $E\,\sigma'(\eta)zz'$."""

    log_likelihood: float
    score: np.ndarray
    first: np.ndarray
    second: np.ndarray
    curvature: np.ndarray


def moments(features: np.ndarray, response: np.ndarray, parameters: Parameters) -> Moments:
    """All that EM and the gradient need, one pattern of missing entries after the other."""
    patterns, pattern = np.unique(np.isnan(features), axis=0, return_inverse=True)
    pattern = pattern.ravel()
    parts = [
        _moments(features[pattern == index], response[pattern == index], missing, parameters)
        for index, missing in enumerate(patterns)
    ]
    columns = zip(*(dataclasses.astuple(part) for part in parts), strict=True)
    return Moments(*(np.sum(column, axis=0) for column in columns))


def _moments(features: np.ndarray, response: np.ndarray, missing: np.ndarray, parameters: Parameters) -> Moments:
    """Rows with the same missing entries."""
    omega, slope, p = parameters.covariance, parameters.coefficients[1:], len(missing)
    seen, centred = ~missing, (features - parameters.mean)[:, ~missing]
    root = np.linalg.cholesky(omega[np.ix_(seen, seen)])
    white = np.linalg.solve(root, centred.T)
    gain = np.linalg.solve(root, omega[seen])  # root^-1 Omega_o.
    filled = np.where(missing, parameters.mean + white.T @ gain, features)
    density = -0.5 * (white**2).sum() - len(features) * (np.log(np.diagonal(root)).sum() + 0.5 * _LOG_2_PI * seen.sum())
    conditional = np.where(np.outer(missing, missing), omega - gain.T @ gain, 0.0)
    direction = conditional @ slope
    deviation = np.sqrt(max(float(slope @ direction), 0.0))
    along = direction / deviation if deviation > 0 else np.zeros(p)  # d z / d x
    nodes, log_weights = _nodes(deviation)
    eta = (parameters.coefficients[0] + filled @ slope)[:, None] + deviation * nodes
    log_joint = log_weights - np.logaddexp(0.0, np.where(response == 1, -1.0, 1.0)[:, None] * eta)
    largest = log_joint.max(axis=1, keepdims=True)
    log_label = largest[:, 0] + np.log(np.exp(log_joint - largest).sum(axis=1))
    weights = np.exp(log_joint - log_label[:, None])
    probability = np.exp(-np.logaddexp(0.0, -eta))
    powers = np.stack([np.ones_like(nodes), nodes, nodes**2], axis=1)
    position = weights @ powers  # E x^k given y, k = 0, 1, 2
    error = (weights * (response[:, None] - probability)) @ powers[:, :2]
    variance = (weights * probability * (1 - probability)) @ powers
    design = np.column_stack([np.ones(len(filled)), filled])
    slant = np.concatenate([[0.0], along])
    rest = np.zeros((p + 1, p + 1))  # what is left of the covariance once eta is known
    rest[1:, 1:] = conditional - np.outer(along, along)
    cross = np.outer((filled * position[:, 1:2]).sum(axis=0), along)
    second = filled.T @ filled + cross + cross.T + np.outer(along, along) * position[:, 2].sum()
    second += len(filled) * rest[1:, 1:]
    cross = np.outer((design * variance[:, 1:2]).sum(axis=0), slant)
    curvature = (design * variance[:, :1]).T @ design + cross + cross.T
    curvature += np.outer(slant, slant) * variance[:, 2].sum() + rest * variance[:, 0].sum()
    return Moments(
        float(density + log_label.sum()),
        (design * error[:, :1]).sum(axis=0) + slant * error[:, 1].sum(),
        filled.sum(axis=0) + along * position[:, 1].sum(),
        second,
        curvature,
    )


_LOG_2_PI = float(np.log(2 * np.pi))


def _nodes(deviation: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Equally spaced nodes and log weights; the sigmoid's poles at $\pm i\pi/s$ bound the spacing: error e^-39."""
    if deviation == 0:
        return np.zeros(1), np.zeros(1)
    spacing = min(_LARGEST_SPACING, 0.5 / deviation)
    # Given the label the density moves by at most s.
    nodes = np.arange(-np.ceil((_REACH + deviation) / spacing), np.ceil((_REACH + deviation) / spacing) + 1) * spacing
    return nodes, np.log(spacing) - 0.5 * (nodes**2 + _LOG_2_PI)


def start(features: np.ndarray, response: np.ndarray) -> Parameters:
    """Observed means and variances, no correlation, and coefficients that know the share of ones alone."""
    share = response.mean()
    coefficients = np.zeros(features.shape[1] + 1)
    coefficients[0] = np.log(share / (1 - share))
    return Parameters(coefficients, np.nanmean(features, axis=0), np.diag(np.nanvar(features, axis=0)))


def em_step(parameters: Parameters, found: Moments, count: int) -> Parameters:
    """Mean and covariance in closed form, one Newton step for the coefficients (generalised EM)."""
    mean = found.first / count
    covariance = found.second / count - np.outer(mean, mean)
    coefficients = parameters.coefficients + np.linalg.solve(found.curvature, found.score)
    return Parameters(coefficients, mean, (covariance + covariance.T) / 2)


_EM_STEPS = 20
"""Before BFGS: they bring the start into the basin where it is fast."""


@dataclasses.dataclass(frozen=True)
class MissingOracle:
    """A problem in standardised columns with its maximum; `remainder` estimates what BFGS left of it, in nats."""

    features: np.ndarray
    response: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    maximum: float
    remainder: float
    optimum: Parameters

    @staticmethod
    def of(problem: MissingProblem) -> "MissingOracle":
        """Solve the problem."""
        centre, scale = np.nanmean(problem.features, axis=0), np.nanstd(problem.features, axis=0)
        features, response = (problem.features - centre) / scale, problem.response
        parameters, count = start(features, response), len(features)
        for _ in range(_EM_STEPS):
            parameters = em_step(parameters, moments(features, response, parameters), count)

        def objective(vector: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = _negative_log_likelihood(vector, features, response)
            return value / count, gradient / count

        options = {"gtol": 1e-9, "maxiter": 2000}
        found = minimize(objective, _pack(parameters), jac=True, method="BFGS", options=options)
        remainder = 0.5 * count * float(found.jac @ found.hess_inv @ found.jac)
        best = _unpack(found.x, features.shape[1])[0]
        return MissingOracle(features, response, centre, scale, -count * float(found.fun), remainder, best)

    def gap(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        """The maximum minus the log-likelihood of an answer as `MissingProblem` describes it; infinite if not finite.

        The Jacobian of the standardisation is the same for both and cancels.
        """
        p = len(self.scale)
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            return np.inf
        slopes = mean[1 : p + 1] * self.scale
        coefficients = np.concatenate([[mean[0] + mean[1 : p + 1] @ self.centre], slopes])
        parameters = Parameters(
            coefficients, (mean[p + 1 :] - self.centre) / self.scale, covariance / np.outer(self.scale, self.scale)
        )
        try:
            return self.maximum - moments(self.features, self.response, parameters).log_likelihood
        except np.linalg.LinAlgError:
            return np.inf


def _pack(parameters: Parameters) -> np.ndarray:
    """Coefficients, mean, and the Cholesky factor of the precision with the logarithm of its diagonal."""
    root = np.linalg.cholesky(np.linalg.inv(parameters.covariance))
    root[np.diag_indices_from(root)] = np.log(np.diagonal(root))
    return np.concatenate([parameters.coefficients, parameters.mean, root[np.tril_indices_from(root)]])


def _unpack(vector: np.ndarray, p: int) -> tuple[Parameters, np.ndarray]:
    root = np.zeros((p, p))
    root[np.tril_indices(p)] = vector[2 * p + 1 :]
    root[np.diag_indices(p)] = np.exp(np.diagonal(root))
    return Parameters(vector[: p + 1], vector[p + 1 : 2 * p + 1], np.linalg.inv(root @ root.T)), root


def _negative_log_likelihood(
    vector: np.ndarray, features: np.ndarray, response: np.ndarray
) -> tuple[float, np.ndarray]:
    r"""With its gradient: the expected score of $n\log|L| - \frac12\mathrm{tr}(L'SL)$ (Fisher's identity)."""
    count, p = features.shape
    parameters, root = _unpack(vector, p)
    found = moments(features, response, parameters)
    mean = parameters.mean
    scatter = found.second - np.outer(found.first, mean) - np.outer(mean, found.first) + count * np.outer(mean, mean)
    by_mean = root @ (root.T @ (found.first - count * mean))
    by_root = count * np.linalg.inv(root).T - scatter @ root
    by_root[np.diag_indices(p)] *= np.diagonal(root)
    gradient = np.concatenate([found.score, by_mean, by_root[np.tril_indices(p)]])
    return -found.log_likelihood, -gradient
