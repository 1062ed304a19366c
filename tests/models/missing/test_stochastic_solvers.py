"""MISSO, MCEM and SAEM against the exact maximum, and the stop by Monte-Carlo error against the exact gap."""

import jax.numpy as jnp
import numpy as np
import pytest

from provi.models.missing.conditional import Rows
from provi.models.missing.exact_solver import initial_parameters
from provi.models.missing.stochastic_solvers import StochasticOptions, solve_mcem, solve_misso, solve_saem
from support.missing_rows import N, P, solved_problem, table

TOL = 0.01


@pytest.fixture(scope="module")
def problem():
    return solved_problem()


def test_misso_stops_within_its_tolerance_of_the_exact_maximum(problem):
    rows, start, _, gap = problem
    runs = [solve_misso(rows, start, StochasticOptions(seed=seed, tol=TOL)) for seed in range(24)]
    gaps = np.array([gap(run.parameters) for run in runs])
    assert all(run.converged and run.gap_estimate <= TOL for run in runs)
    assert all(np.isfinite(run.monte_carlo_error).all() and 0.6 < run.acceptance < 1 for run in runs)
    assert len({float(run.parameters.mean[0]) for run in runs}) == 24
    # The estimate is the expected gap, so that a few may be beyond it: at most one in ten is claimed.
    assert (gaps <= TOL).mean() >= 0.9 and gaps.max() < 2 * TOL
    # and it is not far too cautious either
    assert np.mean([run.gap_estimate for run in runs]) < 5 * gaps.mean()


def test_mcem_reaches_the_maximum_and_a_shrinking_step_does_not_stop_saem(problem):
    rows, start, _, gap = problem
    em = solve_mcem(rows, start, StochasticOptions(tol=TOL))
    assert em.converged and gap(em.parameters) < 2 * TOL
    burnt = solve_saem(rows, start, StochasticOptions(tol=TOL), burn_in=30)
    assert burnt.converged and gap(burnt.parameters) < 2 * TOL
    # The paper's gains 1/k from the first pass: the steps become tiny long before the maximum.
    slow = solve_saem(rows, start, StochasticOptions(tol=TOL, max_passes=40))
    assert not slow.converged and "Not converged" in slow.message and "max_passes" in slow.message
    assert slow.trace[-1]["step"] < TOL < 0.1 < gap(slow.parameters)
    np.testing.assert_allclose(slow.gap_estimate, gap(slow.parameters), rtol=0.5)


def test_complete_data_are_ordinary_logistic_regression(problem):
    X, labels = table(share=0.0)
    patterns = problem[0].patterns  # the same shapes, so that nothing is compiled again
    complete = int(np.flatnonzero(np.asarray(patterns).all(axis=1))[0])
    rows = Rows(jnp.asarray(X), jnp.asarray(labels), jnp.full(N, complete, jnp.int32), patterns)
    found = solve_mcem(rows, initial_parameters(rows), StochasticOptions(tol=1e-12, num_draws=16))
    design, delta = np.column_stack([np.ones(len(X)), X]), np.zeros(P + 1)
    for _ in range(30):
        p = 1 / (1 + np.exp(-design @ delta))
        delta += np.linalg.solve((design * (p * (1 - p))[:, None]).T @ design, design.T @ ((labels + 1) / 2 - p))
    assert found.converged and found.trace[-1]["noise"] == 0 and np.isnan(found.acceptance)
    np.testing.assert_allclose(found.parameters.coefficients, delta, rtol=1e-6)
    np.testing.assert_allclose(found.parameters.mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.parameters.covariance, np.cov(X.T, bias=True), rtol=1e-10)


def test_draws_grow_when_noise_hides_what_remains(problem):
    rows, start, _, gap = problem
    found = solve_mcem(rows, start, StochasticOptions(controls=False, tol=0.03))
    draws = [entry["num_draws"] for entry in found.trace]
    assert found.converged and gap(found.parameters) < 0.06
    assert draws == sorted(draws) and draws[0] == 16 and draws[-1] > 100
