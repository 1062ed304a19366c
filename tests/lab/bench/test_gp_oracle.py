"""What judges the Gaussian-process benchmark, against integrals by SciPy and textbook formulas."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize

from provi_lab.bench.gp_oracle import DualState, GPOracle, log_predictive, logit_moments, optimise, score_sparse
from provi_lab.bench.problems import GPProblem, SparseGPProblem, squared_exponential


def tiny(terms=12, seed=1):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(terms, 2))
    inputs[1] = inputs[0]
    return GPProblem("tiny", inputs, (rng.random(terms) < 0.5).astype(float), 1.3, 3.0, 0.05)


def expected_energy(mean, variance, label):
    """One integral by SciPy."""
    deviation, sign = np.sqrt(variance), 1 - 2 * label

    def integrand(u):
        return np.logaddexp(0, sign * (mean + deviation * u)) * np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)

    return quad(integrand, -12, 12, epsabs=1e-11, limit=200)[0]


def plain_negative_elbo(problem, mean, covariance):
    """Energy by SciPy, divergence by the textbook formula with inverses and determinants."""
    K = problem.covariance()
    energy = sum(map(expected_energy, mean, np.diagonal(covariance), problem.response))
    trace = np.trace(np.linalg.solve(K, covariance)) + mean @ np.linalg.solve(K, mean) - len(mean)
    return energy + 0.5 * (trace + np.linalg.slogdet(K)[1] - np.linalg.slogdet(covariance)[1])


def random_gaussian(size, seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    return rng.normal(size=size), root @ root.T / size + 0.1 * np.eye(size)


def test_moments_agree_with_scipy():
    mean, variance = np.array([-3.0, 0.4, 40.0, -200.0]), np.array([0.2, 60.0, 1e3, 1e5])
    label = np.array([0.0, 1.0, 1.0, 0.0])
    value, slope, weight = logit_moments(mean, variance, label)
    expected = np.array([expected_energy(*one) for one in zip(mean, variance, label, strict=True)])
    np.testing.assert_allclose(value, expected, atol=1e-7)
    up, down = (logit_moments(mean + h, variance, label)[0] for h in (1e-4, -1e-4))
    np.testing.assert_allclose(slope, (up - down) / 2e-4, atol=1e-7)
    up, down = (logit_moments(mean, variance * (1 + h), label)[0] for h in (1e-4, -1e-4))
    np.testing.assert_allclose(weight, 2 * (up - down) / (2e-4 * variance), atol=1e-6)
    chance = quad(lambda u: np.exp(-u * u / 2) / np.sqrt(2 * np.pi) / (1 + np.exp(-0.4 - 60**0.5 * u)), -12, 12)[0]
    assert log_predictive(mean, variance, label)[1] == pytest.approx(np.log(chance), abs=1e-7)


def test_oracle_agrees_with_the_textbook_and_is_the_minimum():
    problem = tiny()
    oracle, K = GPOracle.of(problem), problem.covariance()
    for seed in range(3):
        mean, covariance = random_gaussian(len(K), seed)
        found = oracle.negative_elbo(mean, covariance)
        assert found == pytest.approx(plain_negative_elbo(problem, mean, covariance), abs=1e-6)
        assert oracle.gap(mean, covariance) > 0
    best = optimise(K, problem.response)
    assert oracle.gap(best.mean, best.covariance(K)) == pytest.approx(0, abs=1e-9)

    def objective(parameters):
        """Any Gaussian: mean and Cholesky factor, whitened by the prior."""
        factor, root = np.linalg.cholesky(K), np.zeros_like(K)
        root[np.tril_indices(len(K))] = parameters[len(K) :]
        return oracle.negative_elbo(factor @ parameters[: len(K)], factor @ root @ root.T @ factor.T)

    whitened = np.linalg.solve(np.linalg.cholesky(K), np.linalg.cholesky(best.covariance(K)))
    start = np.concatenate([np.linalg.solve(np.linalg.cholesky(K), best.mean), whitened[np.tril_indices(len(K))]])
    moved = start + 0.02 * np.random.default_rng(0).normal(size=len(start))
    found = minimize(objective, moved, method="L-BFGS-B").fun
    assert -1e-9 < found - oracle.optimum < 1e-5


def test_oracle_refuses_nonsense():
    oracle, eye = GPOracle.of(tiny()), np.eye(12)
    assert oracle.gap(np.full(12, np.nan), eye) == np.inf
    assert oracle.gap(np.zeros(12), -eye) == np.inf


def test_dual_step_is_the_natural_gradient():
    """Natural parameters V^-1 and V^-1 m move by rho times the gradient in the mean parameters, by plain inverses."""
    problem, rho = tiny(), 0.4
    K = problem.covariance()
    state = DualState.prior(K)
    for _ in range(3):
        _, slope, weight = logit_moments(state.mean, state.variance, problem.response)
        precision = np.linalg.inv(state.covariance(K))
        new_precision = (1 - rho) * precision + rho * (np.linalg.inv(K) + np.diag(weight))
        new_natural = (1 - rho) * precision @ state.mean + rho * (weight * state.mean - slope)
        state = state.step(K, slope, weight, rho)
        np.testing.assert_allclose(state.covariance(K), np.linalg.inv(new_precision), atol=1e-10)
        np.testing.assert_allclose(state.mean, np.linalg.solve(new_precision, new_natural), atol=1e-10)
        np.testing.assert_allclose(state.variance, np.diagonal(state.covariance(K)), atol=1e-12)
        value = plain_negative_elbo(problem, state.mean, state.covariance(K))
        assert state.negative_elbo(problem.response) == pytest.approx(value, abs=1e-6)


def test_sparse_score_with_inducing_points_at_the_data_is_the_dense_one():
    """With jitter on the inducing values only, f = u up to the jitter; both by formulas of different code."""
    dense = tiny(8, seed=3)
    rows = dict(inputs=dense.inputs, response=dense.response, test_inputs=dense.inputs, test_response=dense.response)
    rows |= dict(inducing=dense.inputs[[0, *range(2, 8)]], length_scale=1.3, amplitude=3.0, jitter=1e-9, batch=4)
    problem = SparseGPProblem("both", **rows)
    mean, covariance = random_gaussian(7, 5)
    factor = np.linalg.cholesky(squared_exponential(problem.inducing, problem.inducing, 1.3, 3.0) + 1e-9 * np.eye(7))
    values, spread = factor @ mean, factor @ covariance @ factor.T
    order = [0, 0, *range(1, 7)]  # the second datum lies where the first does
    energy = sum(map(expected_energy, values[order], np.diagonal(spread)[order], dense.response))
    divergence = 0.5 * (np.trace(covariance) - 7 + mean @ mean - np.linalg.slogdet(covariance)[1])
    score = score_sparse(problem, mean, covariance, chunk=3)
    assert score.elbo == pytest.approx(-energy - divergence, abs=1e-5)
    loss = -log_predictive(values[order], np.diagonal(spread)[order], dense.response).mean()
    assert score.log_loss == pytest.approx(loss, abs=1e-6)
    assert score_sparse(problem, mean, -covariance).elbo == -np.inf
    assert score_sparse(problem, mean + np.nan, covariance).log_loss == np.inf
