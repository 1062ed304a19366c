"""The surrogates against brute-force integration over the missing entries, and against one step of exact EM."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms.incremental.misso import MISO, MISSO, average_draws
from provi.core.compilation import quick_jit
from provi.models.missing.conditional import Parameters, make_rows
from provi.models.missing.likelihood import expected_statistics
from provi.models.missing.surrogate import CURVATURES, MissingSurrogate, control_variates
from support.statistics import assert_mean

N, P = 60, 3


def problem(dtype=np.float64):
    rng = np.random.default_rng(7)
    root = rng.normal(size=(P, P))
    covariance = root @ root.T / 2 + np.eye(P)
    X = rng.multivariate_normal(np.array([0.5, -1, 0]), covariance, N)
    delta = np.array([0.4, 1.2, -0.7, 0.9])
    labels = np.where(rng.random(N) < 1 / (1 + np.exp(-delta[0] - X @ delta[1:])), 1.0, -1.0)
    X[rng.random((N, P)) < 0.4] = np.nan
    X[0], X[1] = [np.nan, np.nan, 0.3], [0.2, -0.5, 1.0]
    X[2] = np.nan
    parameters = Parameters(*(jnp.asarray(x.astype(dtype)) for x in (delta, np.array([0.4, -0.8, 0.1]), covariance)))
    return make_rows(X.astype(dtype), labels), parameters


@quick_jit
def everything(surrogate, parameters):
    """Prepared, exact summary and statistics of all rows."""
    rows = jnp.arange(N)
    prepared = surrogate.prepare(parameters, rows)
    summary = surrogate.expect(parameters, rows, prepared)
    return prepared, summary, surrogate.build(parameters, rows, prepared, summary)


def grid_law(rows, parameters, row):
    """Points (m, p) and weights (m,) of the law of z given observed entries and label, on a product grid."""
    mean, covariance, delta = (np.asarray(x) for x in (parameters.mean, parameters.covariance, parameters.coefficients))
    values, missing = np.asarray(rows.values[row]), ~np.asarray(rows.observed[row])
    nodes = [np.linspace(m - 9 * s, m + 9 * s, 121) for m, s in zip(mean, np.sqrt(np.diag(covariance)), strict=True)]
    axes = [nodes[j] if missing[j] else values[j : j + 1] for j in range(P)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, P)
    centred = points - mean
    eta = delta[0] + points @ delta[1:]
    log_weight = -0.5 * np.sum(centred * np.linalg.solve(covariance, centred.T).T, axis=1)
    log_weight -= np.logaddexp(0, -float(rows.labels[row]) * eta)
    weight = np.exp(log_weight - log_weight.max())
    return points, weight / weight.sum()


def curvature_of(eta, name):
    sigmoid = 1 / (1 + np.exp(-eta))
    return {"boehning": 0.25 + 0 * eta, "newton": sigmoid * (1 - sigmoid), "jaakkola": np.tanh(eta / 2) / (2 * eta)}[
        name
    ]


@pytest.mark.parametrize("name", CURVATURES)
def test_statistics_are_the_expectations_over_the_missing_entries(name):
    rows, parameters = problem()
    _, _, statistics = everything(MissingSurrogate(rows, jnp.zeros(P + 1), name), parameters)
    delta = np.asarray(parameters.coefficients)
    for row in (0, 1, 2, 5, 9):
        points, weight = grid_law(rows, parameters, row)
        extended = np.concatenate([np.ones((len(points), 1)), points], axis=1)
        eta = extended @ delta
        A = (extended * (weight * curvature_of(eta, name))[:, None]).T @ extended
        slope = (weight * (1 / (1 + np.exp(-eta)) - (float(rows.labels[row]) + 1) / 2)) @ extended
        for found, wanted in (
            (statistics.first[row], weight @ points),
            (statistics.second[row], (points * weight[:, None]).T @ points),
            (statistics.curvature[row], A),
            (statistics.slope[row], A @ delta - slope),
        ):
            # The eight probits are good to 1e-8 in the ratios, the grid to rounding.
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CURVATURES)
def test_quadratics_touch_the_expected_loss_and_majorise_it(name):
    rows, parameters = problem()
    _, _, statistics = everything(MissingSurrogate(rows, jnp.zeros(P + 1), name), parameters)
    anchor, rng = np.asarray(parameters.coefficients), np.random.default_rng(1)
    directions = rng.normal(size=(40, P + 1)) * rng.choice([0.1, 1, 5], size=(40, 1))
    for row in (0, 1, 5):
        points, weight = grid_law(rows, parameters, row)
        extended = np.concatenate([np.ones((len(points), 1)), points], axis=1)
        positive = (float(rows.labels[row]) + 1) / 2
        A, h = np.asarray(statistics.curvature[row]), np.asarray(statistics.slope[row])

        def loss(delta, extended=extended, weight=weight, positive=positive):
            eta = extended @ delta
            return weight @ (np.logaddexp(0, eta) - positive * eta)

        def quadratic(delta, A=A, h=h):
            return 0.5 * delta @ A @ delta - h @ delta

        offset = loss(anchor) - quadratic(anchor)
        if name != "newton":
            gaps = [quadratic(anchor + d) + offset - loss(anchor + d) for d in directions]
            assert min(gaps) > -1e-7 and max(gaps) > 1e-2
        step = 1e-4
        for j in np.eye(P + 1):
            slopes = [(f(anchor + step * j) - f(anchor - step * j)) / (2 * step) for f in (loss, quadratic)]
            np.testing.assert_allclose(slopes[0], slopes[1], atol=1e-7)


def test_miso_on_all_rows_is_one_step_of_exact_em():
    rows, parameters = problem()
    surrogate = MissingSurrogate(rows, jnp.full(P + 1, 0.5), "boehning")
    algorithm = MISO(sampling=N)
    state = algorithm.begin(jax.random.key(0), surrogate, parameters)
    new = algorithm.visit(jax.random.key(0), surrogate, state, jnp.arange(N), 1).parameters
    exact = expected_statistics(parameters, rows)
    shift, beta = np.asarray(exact.shift), np.asarray(parameters.mean)
    np.testing.assert_allclose(new.mean, beta + shift, rtol=1e-10)
    np.testing.assert_allclose(new.covariance, np.asarray(exact.scatter) - np.outer(shift, shift), rtol=1e-10)
    second = np.asarray(exact.scatter) + np.outer(beta + shift, beta + shift) - np.outer(shift, shift)
    moments = np.block([[np.ones((1, 1)), (beta + shift)[None]], [(beta + shift)[:, None], second]])
    delta = np.asarray(parameters.coefficients)
    # Boehning's step: delta + (E zz'/4 + penalty/n)^-1 (score - penalty delta/n)
    step = np.linalg.solve(moments / 4 + 0.5 / N * np.eye(P + 1), np.asarray(exact.score) - 0.5 / N * delta)
    np.testing.assert_allclose(new.coefficients, delta + step, rtol=1e-9)


@quick_jit
def averaged(surrogate, keys, parameters, num_calls):
    """For each key: statistics from draws, and the summaries with their half differences, without and with controls."""
    rows = jnp.arange(N)
    prepared = surrogate.prepare(parameters, rows)

    def one(key):
        mean, error, _ = average_draws(surrogate, key, parameters, rows, prepared, None, num_calls)
        controlled = control_variates(prepared, mean), control_variates(prepared, error, constant=0.0)
        return surrogate.build(parameters, rows, prepared, mean), (mean, error), controlled

    return jax.lax.map(one, keys)


def test_draws_tend_to_the_expectation_at_the_monte_carlo_rate():
    rows, parameters = problem()
    surrogate = MissingSurrogate(rows, jnp.zeros(P + 1), "newton", "exact", 4)
    _, exact, statistics = everything(surrogate, parameters)
    errors = {}
    for calls in (8, 512):
        drawn, *summaries = averaged(surrogate, jax.random.key(3)[None], parameters, jnp.asarray(calls))
        pairs = zip(jax.tree.leaves(drawn), jax.tree.leaves(statistics), strict=True)
        errors[calls] = np.sqrt(np.mean(np.concatenate([np.ravel(a[0] - b) for a, b in pairs]) ** 2))
        for mean, half in summaries:
            # The half differences' mean square is the variance: here the ratio of two means over about 50 rows.
            ratio = np.mean(half.first**2) / np.mean((mean.first - exact.first[None]) ** 2)
            assert 0.3 < ratio < 3
    # 64 times the draws: 8 times less. About 50 rows decide, so that a ratio outside (5, 13) has a chance below 1e-3.
    assert 5 < errors[8] / errors[512] < 13


def test_control_variates_leave_exact_means_alone_and_take_most_of_the_noise():
    rows, parameters = problem()
    surrogate = MissingSurrogate(rows, jnp.zeros(P + 1), "newton", "exact", 4)
    prepared, exact, _ = everything(surrogate, parameters)
    for old, new in zip(jax.tree.leaves(exact), jax.tree.leaves(control_variates(prepared, exact)), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-8)
    keys = jax.random.split(jax.random.key(5), 150)
    _, (plain, _), (controlled, _) = averaged(surrogate, keys, parameters, jnp.asarray(8))
    missing = np.asarray(prepared.deviation) > 0
    assert 40 < missing.sum() < N
    for name in ("first", "second", "sigmoid", "sigmoid_first"):
        rough, smooth, mean = (np.asarray(getattr(x, name))[..., missing] for x in (plain, controlled, exact))
        assert_mean(rough, mean, alarm=1e-6)
        assert_mean(smooth, mean, alarm=1e-6)
        assert np.mean(smooth.var(axis=0)) < 0.1 * np.mean(rough.var(axis=0))


def test_mean_of_mini_batches_is_the_mean_of_the_table_and_float32_stays():
    rows, parameters = problem(np.float32)
    surrogate = MissingSurrogate(rows, jnp.zeros(P + 1, jnp.float32), "jaakkola", block=2)
    algorithm = MISSO(sampling=7, num_draws=4, refresh_every=None)
    state = algorithm.begin(jax.random.key(0), surrogate, parameters)
    for k in range(10):
        batch = jnp.asarray(np.random.default_rng(k).integers(0, N, 7))
        state = algorithm.visit(jax.random.key(k), surrogate, state, batch, jnp.asarray(4))
    assert int(state.rejected) == 0
    for table, mean in zip(jax.tree.leaves(state.table), jax.tree.leaves(state.mean), strict=True):
        assert table.dtype == mean.dtype == jnp.float32
        np.testing.assert_allclose(mean, np.asarray(table, np.float64).mean(axis=0), rtol=1e-4, atol=1e-4)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.parameters))
    assert 0.5 < state.chains.acceptance < 1
