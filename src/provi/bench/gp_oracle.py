"""The true gap of a Gaussian posterior of a process, from its mean and covariance: what every method is judged by."""

import dataclasses

import numpy as np
from scipy.linalg import solve_triangular

from provi.bench.gp_numpy import log_predictive, logit_moments, optimise
from provi.bench.gp_problem import GPProblem, SparseGPProblem


@dataclasses.dataclass(frozen=True)
class GPOracle:
    """A problem with its optimum; `factor` is the Cholesky factor of the prior covariance."""

    response: np.ndarray
    factor: np.ndarray
    optimum: float

    @staticmethod
    def of(problem: GPProblem) -> "GPOracle":
        """Solve the problem, in seconds up to a thousand points."""
        K = problem.covariance()
        state = optimise(K, problem.response)
        return GPOracle(problem.response, np.linalg.cholesky(K), state.negative_elbo(problem.response))

    def negative_elbo(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        r"""$\sum_n E[-\log p(y_n|f_n)] + KL(N(m, V)\|N(0, K))$; infinite where V is not positive definite."""
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            return np.inf
        try:
            root = np.linalg.cholesky((covariance + covariance.T) / 2)
        except np.linalg.LinAlgError:
            return np.inf
        energy = logit_moments(mean, np.diagonal(covariance), self.response)[0].sum()
        distance = solve_triangular(self.factor, mean, lower=True)
        ratio = solve_triangular(self.factor, root, lower=True)
        log_ratio = np.log(np.diagonal(self.factor)).sum() - np.log(np.diagonal(root)).sum()
        value = energy + log_ratio + 0.5 * ((ratio**2).sum() - len(mean) + distance @ distance)
        return float(value) if np.isfinite(value) else np.inf

    def gap(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        """Negative ELBO minus its optimum, in nats."""
        return self.negative_elbo(mean, covariance) - self.optimum


@dataclasses.dataclass(frozen=True)
class SparseScore:
    """What a sparse answer is worth: its exact ELBO over all data, and the log loss a held-out point in nats."""

    elbo: float
    log_loss: float


def score_sparse(
    problem: SparseGPProblem, mean: np.ndarray, covariance: np.ndarray, chunk: int = 10_000
) -> SparseScore:
    r"""Score q(w) = N(m, V), w whitened, over the data and the held-out points, `chunk` points at a time."""
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        return SparseScore(-np.inf, np.inf)
    sign, log_determinant = np.linalg.slogdet(covariance)
    if sign <= 0:
        return SparseScore(-np.inf, np.inf)

    def total(function, inputs: np.ndarray, response: np.ndarray) -> float:
        value = 0.0
        for start in range(0, len(inputs), chunk):
            part = slice(start, start + chunk)
            features = problem.features(inputs[part])
            own = np.maximum(problem.amplitude**2 - (features**2).sum(axis=0), 0.0)
            variance = own + np.einsum("in,in->n", features, covariance @ features)
            value += function(mean @ features, variance, response[part]).sum()
        return float(value)

    energy = total(lambda m, v, y: logit_moments(m, v, y)[0], problem.inputs, problem.response)
    divergence = 0.5 * (np.trace(covariance) - len(mean) + mean @ mean - log_determinant)
    loss = -total(log_predictive, problem.test_inputs, problem.test_response) / len(problem.test_inputs)
    return SparseScore(-energy - float(divergence), loss)
