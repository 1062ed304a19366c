r"""What Gaussian posteriors of a process are judged by, in plain NumPy: moments, optimum, true gap, sparse score.

State (a, s): $m = Ka$, $V^{-1} = K^{-1} + \mathrm{diag}(s)$; the prior is (0, 0). With $B = I + S^{1/2}KS^{1/2} = LL'$
nothing is inverted that may be singular. Its natural-gradient step is also one of the peers.
"""

import dataclasses

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import ndtr

from provi.targets.likelihoods.bernoulli import SLOPES, WEIGHTS
from provi_lab.bench.problems import GPProblem, SparseGPProblem

_WEIGHTS, _SLOPES = np.array(WEIGHTS), np.array(SLOPES)


def logit_moments(mean: np.ndarray, variance: np.ndarray, response: np.ndarray) -> tuple[np.ndarray, ...]:
    r"""$E[-\log p(y|f)]$, its derivative in the mean and twice that in the variance, for $f \sim N(m, v)$.

    The sigmoid as a mixture of eight probits, within 2e-8 of the truth at every mean and variance.
    """
    sign = 1 - 2 * response
    shrink = 1 / np.sqrt(1 + _SLOPES**2 * variance[:, None])
    t = _SLOPES * (sign * mean)[:, None] * shrink
    density, probability = np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi), ndtr(t)
    value = ((sign * mean)[:, None] * probability + density / (_SLOPES * shrink)) @ _WEIGHTS
    return value, sign * (probability @ _WEIGHTS), (density * _SLOPES * shrink) @ _WEIGHTS


def log_predictive(mean: np.ndarray, variance: np.ndarray, response: np.ndarray) -> np.ndarray:
    r"""$\log E\,p(y|f)$ for $f \sim N(m, v)$, by the same mixture; the probability is within 5e-9 of the truth."""
    sign = 2 * response - 1
    t = _SLOPES * (sign * mean)[:, None] / np.sqrt(1 + _SLOPES**2 * variance[:, None])
    return np.log(ndtr(t) @ _WEIGHTS)


@dataclasses.dataclass(frozen=True)
class DualState:
    """A point (a, s) with the mean, the variances and the factor of B that belong to it."""

    a: np.ndarray
    s: np.ndarray
    factor: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @staticmethod
    def prior(K: np.ndarray) -> "DualState":
        """The prior N(0, K)."""
        zeros = np.zeros(len(K))
        return DualState(zeros, zeros, np.eye(len(K)), zeros, np.diagonal(K).copy())

    def covariance(self, K: np.ndarray) -> np.ndarray:
        r"""$V = K - KS^{1/2}B^{-1}S^{1/2}K$."""
        whitened = solve_triangular(self.factor, np.sqrt(self.s)[:, None] * K, lower=True)
        return K - whitened.T @ whitened

    def negative_elbo(self, response: np.ndarray) -> float:
        r"""$\sum_n E[-\log p] + \frac12[\log|B| - \sum_n s_nv_n + a'm]$."""
        divergence = 2 * np.log(np.diagonal(self.factor)).sum() - self.s @ self.variance + self.a @ self.mean
        return float(logit_moments(self.mean, self.variance, response)[0].sum() + 0.5 * divergence)

    def step(self, K: np.ndarray, slope: np.ndarray, weight: np.ndarray, rho: float) -> "DualState":
        r"""$s_+ = (1-\rho)s + \rho\gamma$, $a_+ = a - \rho(I + S_+K)^{-1}(a + \alpha)$: natural gradient, step $\rho$.

        **Arguments:** `slope` is $\alpha$ and `weight` is $\gamma$, the two derivatives that `logit_moments` gives.
        """
        s = (1 - rho) * self.s + rho * weight
        root = np.sqrt(s)
        factor = np.linalg.cholesky(np.eye(len(K)) + root[:, None] * K * root)
        change = self.a + slope
        a = self.a - rho * (change - root * cho_solve((factor, True), root * (K @ change)))
        whitened = solve_triangular(factor, root[:, None] * K, lower=True, check_finite=False)
        variance = np.diagonal(K) - np.einsum("ij,ij->j", whitened, whitened)
        return DualState(a, s, factor, K @ a, variance)


def optimise(K: np.ndarray, response: np.ndarray, tolerance: float = 1e-9, max_steps: int = 2000) -> DualState:
    """The optimum: steps of 0.5, halved when the objective grows, until ten in a row gain less than `tolerance`.

    Every accepted step lowers the objective, and the steps contract by about 1 - rho near the optimum, so what is left
    is of the order of the last change.
    """
    state, rho, quiet = DualState.prior(K), 0.5, 0
    value = state.negative_elbo(response)
    for _ in range(max_steps):
        _, slope, weight = logit_moments(state.mean, state.variance, response)
        trial = state.step(K, slope, weight, rho)
        new = trial.negative_elbo(response)
        if new > value + 1e-10 * abs(value):
            rho /= 2
            continue
        quiet = quiet + 1 if value - new < tolerance else 0
        state, value, rho = trial, new, min(0.5, 1.1 * rho)
        if quiet == 10:
            return state
    raise RuntimeError(f"The oracle of the benchmark did not converge in {max_steps} steps.")


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
