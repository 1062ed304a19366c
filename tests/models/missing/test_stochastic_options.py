"""Options of the stochastic solvers: constraints, schedules, recording, wrong arguments."""

import jax.numpy as jnp
import numpy as np
import pytest

from provi.models.missing.conditional import make_rows
from provi.models.missing.exact_solver import initial_parameters, solve_exact
from provi.models.missing.likelihood import log_likelihood
from provi.models.missing.stochastic_solvers import StochasticOptions, solve_mcem, solve_misso
from provi.schedules.batch_sizes import PolynomialBatch
from support.missing_rows import N, table

TOL = 0.01


@pytest.fixture(scope="module")
def problem():
    rows = make_rows(*table())
    return rows, initial_parameters(rows)


def diagonal(second):
    return jnp.diag(jnp.diag(second))


def test_a_constrained_covariance_is_stopped_in_the_complete_metric(problem):
    rows, start = problem
    penalty = jnp.array([0.0, 2, 2, 2])
    shared = {"penalty": penalty, "covariance_step": diagonal}
    exact = solve_exact(rows, start, tol=1e-9, max_iter=500, **shared)

    def objective(parameters):
        return float(log_likelihood(parameters, rows)) - 0.5 * float(jnp.sum(penalty * parameters.coefficients**2))

    found = solve_mcem(rows, start, StochasticOptions(tol=TOL, **shared))
    assert found.converged and objective(exact.parameters) - objective(found.parameters) < TOL
    np.testing.assert_array_equal(found.parameters.covariance, np.diag(np.diag(found.parameters.covariance)))


def test_schedules_record_and_no_checks_without_a_tolerance(problem):
    rows, start = problem
    seen = []
    options = StochasticOptions(
        num_draws=PolynomialBatch(2, 2.0),
        tol=0.0,
        max_passes=5,
        record=lambda passes, parameters: seen.append((passes, parameters)),
    )
    found = solve_mcem(rows, start, options)
    assert [entry["num_draws"] for entry in found.trace] == [2, 8, 18, 32, 50]
    assert [passes for passes, _ in seen] == [1, 2, 3, 4, 5] and seen[-1][1] is found.parameters
    assert not found.converged and np.isnan(found.gap_estimate) and "No check" in found.message
    assert not any("noise" in entry for entry in found.trace)


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("share", 0.0),
        ("batch", N + 1),
        ("order", "cyclic"),
        ("surrogate", "huber"),
        ("sampler", "gibbs"),
        ("num_draws", 1),
    ],
)
def test_wrong_arguments_are_named(problem, argument, wrong):
    rows, start = problem
    own = {argument: wrong} if argument in ("share", "batch", "order") else {}
    options = StochasticOptions() if own else StochasticOptions(**{argument: wrong})
    with pytest.raises(ValueError, match=argument):
        solve_misso(rows, start, options, **own)
