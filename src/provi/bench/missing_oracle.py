"""The exact maximum of the observed-data log-likelihood, by BFGS on `missing_numpy`: it judges every answer."""

import dataclasses

import numpy as np
from scipy.optimize import minimize

from provi.bench.missing_numpy import Parameters, em_step, moments, start
from provi.bench.missing_problem import MissingProblem

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
