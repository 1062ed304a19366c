"""Factor covariances against scikit-learn, L-BFGS-B on the same problem, and a covariance that is exactly one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.decomposition import FactorAnalysis

from provi.models.missing.factor_covariance import SMALLEST_SHARE, Factors, factor_covariance, fit_factors


def make_table(num_rows: int, p: int, rank: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    noise = random.normal(size=(num_rows, p)) * random.uniform(0.5, 2, size=p)
    X = random.normal(size=(num_rows, rank)) @ random.normal(size=(rank, p)) + noise
    return X - X.mean(axis=0)


def loss(covariance, S) -> float:
    return float(np.linalg.slogdet(covariance)[1] + np.trace(np.linalg.solve(covariance, S)))


@pytest.mark.parametrize(
    ("num_rows", "p", "rank"), [(500, 10, 2), (60, 100, 5)], ids=["many rows", "fewer rows than columns"]
)
def test_as_good_as_scikit_learn(num_rows, p, rank):
    X = make_table(num_rows, p, rank, seed=p)
    S = X.T @ X / num_rows
    theirs = FactorAnalysis(rank, tol=1e-12, max_iter=20000, svd_method="lapack").fit(X).get_covariance()
    ours = np.asarray(factor_covariance(jnp.asarray(S), rank))
    assert abs(loss(ours, S) - loss(theirs, S)) < 1e-8
    # At a minimum off the bound the variances are matched.
    np.testing.assert_allclose(np.diag(ours), np.diag(S), rtol=1e-4)


def test_heywood_case_is_the_minimum_under_the_bound():
    """Two columns that are almost one: the best psi is on the bound, where L-BFGS-B finds it too."""
    X = make_table(300, 6, 1, seed=3)
    X[:, 1] = X[:, 0] + 0.001 * X[:, 2]
    S = X.T @ X / 300
    S = S / np.sqrt(np.outer(np.diag(S), np.diag(S)))
    ours = fit_factors(jnp.asarray(S), 2)
    share = np.asarray(ours.uniquenesses)
    assert share.min() == pytest.approx(SMALLEST_SHARE)

    def objective(free):
        loadings = free[:12].reshape(6, 2)
        covariance = loadings @ loadings.T + np.diag(np.exp(free[12:]))
        inverse = np.linalg.inv(covariance)
        gradient = inverse - inverse @ S @ inverse
        return loss(covariance, S), np.r_[(2 * gradient @ loadings).ravel(), np.diag(gradient) * np.exp(free[12:])]

    values = []
    for seed in range(5):
        start = np.r_[np.random.default_rng(seed).normal(size=12), np.log(np.full(6, 0.5))]
        bounds = [(None, None)] * 12 + [(np.log(SMALLEST_SHARE), None)] * 6
        options = {"maxiter": 20000, "maxfun": 50000, "ftol": 1e-15, "gtol": 1e-9}
        values.append(minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun)
    assert loss(np.asarray(ours.covariance), S) < min(values) + 1e-7


def test_a_factor_covariance_is_returned_as_it_is():
    random = np.random.default_rng(4)
    loadings, noise = random.normal(size=(7, 2)), random.uniform(0.3, 2, size=7)
    covariance = loadings @ loadings.T + np.diag(noise)
    found = fit_factors(jnp.asarray(covariance), 2)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.uniquenesses, noise, rtol=1e-4)


def test_units_do_not_matter_and_no_start_is_left_worse():
    X = make_table(200, 7, 2, seed=5)
    S = X.T @ X / 200
    scale = 10.0 ** np.arange(-3, 4)
    plain = np.asarray(factor_covariance(jnp.asarray(S), 2))
    scaled = np.asarray(factor_covariance(jnp.asarray(S * np.outer(scale, scale)), 2))
    np.testing.assert_allclose(scaled, plain * np.outer(scale, scale), rtol=1e-6)
    for seed in range(5):
        noise = np.random.default_rng(seed).uniform(0.01, 1, size=7) * np.diag(S)
        start = Factors(jnp.zeros((7, 2)), jnp.asarray(noise))
        assert loss(np.asarray(fit_factors(jnp.asarray(S), 2, start).covariance), S) < loss(plain, S) + 1e-8


def test_a_covariance_without_factors_and_too_many_factors():
    """Independent columns: the first eigenvalues may fall below 1, where a loading would be imaginary."""
    found = fit_factors(jnp.eye(5), 2)
    np.testing.assert_allclose(found.covariance, np.eye(5), atol=1e-6)
    # Rank 4 of 5 can be any covariance.
    S = np.cov(make_table(50, 5, 3, seed=6).T)
    found = factor_covariance(jnp.asarray(S), 4)
    assert loss(np.asarray(found), S) < loss(S, S) + 1e-6
    for rank in (0, 5):
        with pytest.raises(ValueError, match="rank must lie between 1 and 4"):
            fit_factors(jnp.eye(5), rank)


def test_single_precision_and_inside_a_compiled_loop():
    X = make_table(500, 10, 2, seed=10)
    S = X.T @ X / 500
    found = jax.jit(lambda S: factor_covariance(S, 2))(jnp.asarray(S, jnp.float32))
    assert found.dtype == jnp.float32
    assert loss(np.asarray(found, np.float64), S) < loss(np.asarray(factor_covariance(jnp.asarray(S), 2)), S) + 1e-4
