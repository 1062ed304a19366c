"""MISO and MISSO against closed forms and iterations written by hand in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import MISO, MISSO, Surrogate
from provi.algorithms.incremental.misso import average_draws
from provi.algorithms.incremental.surrogate_table import last_occurrences
from provi.families.base import AnyParameters
from provi.runtime import minimise_sum
from provi.schedules import PolynomialBatch, ReshuffledSampling, UniformSampling
from support.statistics import assert_mean

RNG = np.random.default_rng(5)
N, D, CURVATURE = 10, 3, 20.0
X, Y = RNG.normal(size=(N, D)), RNG.normal(size=N)


def anchor(theta, row, summary):
    x, y = row
    noise = 0.0 if summary is None else summary
    return theta - ((x @ theta - y) * x + 0.1 * theta + noise) / CURVATURE


def mean_of_anchors(mean, theta, constraint):
    return mean if constraint is None else constraint.project(mean)


def noise(key, theta, row, chain):
    return jax.random.normal(key, theta.shape), chain


def no_noise(key, theta, row, chain):
    return jnp.zeros_like(theta), chain


RIDGE = Surrogate((X, Y), build=anchor, minimise=mean_of_anchors)
NOISY = Surrogate((X, Y), build=anchor, minimise=mean_of_anchors, draw=noise)


def rows_of(algorithm, seed, num_steps):
    """The batches of a run, in the order in which it visits them."""
    algorithm = algorithm.resolve(RIDGE, AnyParameters())
    key = jax.random.split(jax.random.key(seed))[0]
    _, order, _ = jax.random.split(key, 3)
    return [np.asarray(algorithm.sampling.indices(order, jnp.asarray(t), N)) for t in range(num_steps)]


def sag_by_hand(batches):
    """theta = mean of theta_i - g_i/L, entries of a batch replaced at the present theta."""
    theta = np.zeros(D)
    table = np.stack([theta - ((x @ theta - y) * x + 0.1 * theta) / CURVATURE for x, y in zip(X, Y, strict=True)])
    for batch in batches:
        for i in batch:
            table[i] = theta - ((X[i] @ theta - Y[i]) * X[i] + 0.1 * theta) / CURVATURE
        theta = table.mean(axis=0)
    return theta


@pytest.mark.parametrize("sampling", [UniformSampling(1), ReshuffledSampling(3), UniformSampling(4), N])
def test_ridge_regression_equals_sag_by_hand(sampling):
    algorithm = MISO(sampling, refresh_every=7)
    run = minimise_sum(RIDGE, np.zeros(D), algorithm, seed=3, num_steps=50)
    np.testing.assert_allclose(run.point, sag_by_hand(rows_of(algorithm, 3, 50)), rtol=0, atol=1e-12)


def test_quadratics_are_solved_in_one_pass():
    roots = RNG.normal(size=(N, D, D))
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(D)
    centres = RNG.normal(size=(N, D))
    surrogate = Surrogate(
        (matrices, centres),
        build=lambda theta, row, summary: (row[0], row[0] @ row[1]),
        minimise=lambda mean, theta, constraint: jnp.linalg.solve(mean[0], mean[1]),
        value=lambda mean, theta: theta @ mean[0] @ theta / 2 - theta @ mean[1],
    )
    best = np.linalg.solve(matrices.sum(0), np.einsum("nij,nj->i", matrices, centres))
    run = minimise_sum(surrogate, np.ones(D), MISO(1), seed=0, num_steps=N)
    np.testing.assert_allclose(run.point, best, rtol=1e-11)
    lowest = best @ matrices.mean(0) @ best / 2 - best @ np.einsum("nij,nj->i", matrices, centres) / N
    np.testing.assert_allclose(run.history["elbo"][-1], -lowest, rtol=1e-11)


def test_misso_without_noise_is_miso():
    silent = Surrogate((X, Y), build=anchor, minimise=mean_of_anchors, draw=no_noise)
    algorithm = MISSO(3, num_draws=PolynomialBatch(2, 1.5))
    stochastic = minimise_sum(silent, np.zeros(D), algorithm, seed=1, num_steps=30)
    exact = minimise_sum(RIDGE, np.zeros(D), MISO(3), seed=1, num_steps=30)
    np.testing.assert_allclose(stochastic.point, exact.point, rtol=0, atol=1e-14)


def test_the_noise_of_misso_falls_with_the_draws():
    # After begin with M draws a full visit has theta = exact - mean noise/L: variance 1/(n M L^2) an entry.
    draws = 50
    algorithm = MISSO(N, num_draws=draws)
    exact = minimise_sum(RIDGE, np.zeros(D), MISO(N), seed=0, num_steps=1).point

    @jax.jit
    def one(key):
        first, second = jax.random.split(key)
        state = algorithm.begin(first, NOISY, jnp.zeros(D))
        return algorithm.visit(second, NOISY, state, jnp.arange(N), draws).parameters

    found = jax.vmap(one)(jax.random.split(jax.random.key(0), 400))
    errors = (np.asarray(found) - np.asarray(exact)) * CURVATURE
    assert_mean(errors.reshape(-1), 0.0)
    assert_mean(errors.reshape(-1) ** 2 * N * draws, 1.0)


@pytest.mark.parametrize("num_draws", [2, 3, 7])
def test_half_difference_measures_the_error_of_the_mean(num_draws):
    rows = jnp.zeros(3000, int)
    mean, error, chains = average_draws(
        NOISY, jax.random.key(2), jnp.zeros(1), rows, NOISY.prepare(None, rows), None, num_draws
    )
    assert chains is None
    assert_mean(np.asarray(mean)[:, 0] ** 2, 1 / num_draws)
    assert_mean(np.asarray(error)[:, 0] ** 2, 1 / num_draws)


def test_one_draw_has_no_error_estimate():
    rows = jnp.zeros(1, int)
    _, error, _ = average_draws(NOISY, jax.random.key(2), jnp.zeros(1), rows, NOISY.prepare(None, rows), None, 1)
    assert np.isnan(error).all()


def test_repeated_rows_leave_the_mean_equal_to_the_table():
    rows = jnp.asarray([4, 1, 4, 4, 1, 7])
    np.testing.assert_array_equal(last_occurrences(rows), [False, False, False, True, True, True])
    algorithm = MISSO(num_draws=2, refresh_every=None)
    state = algorithm.begin(jax.random.key(0), NOISY, jnp.ones(D))
    before = np.asarray(state.table)
    state = algorithm.visit(jax.random.key(1), NOISY, state, rows, 5)
    np.testing.assert_allclose(state.mean, np.mean(state.table, axis=0), rtol=0, atol=1e-15)
    np.testing.assert_allclose(state.parameters, state.mean, rtol=0, atol=1e-15)
    changed = np.any(np.asarray(state.table) != before, axis=1)
    np.testing.assert_array_equal(np.flatnonzero(changed), [1, 4, 7])


def test_chains_stay_warm():
    def walk(key, theta, row, chain):
        return chain.astype(float), chain + 1

    surrogate = Surrogate(
        N,
        build=lambda theta, row, summary: summary,
        minimise=lambda mean, theta, constraint: theta,
        draw=walk,
        start_chain=lambda key, theta, row: 100 * row,
    )
    algorithm = MISSO(num_draws=3)
    state = algorithm.begin(jax.random.key(0), surrogate, jnp.zeros(1))
    np.testing.assert_array_equal(state.chains, 100 * np.arange(N) + 3)
    state = algorithm.visit(jax.random.key(0), surrogate, state, jnp.asarray([2, 6]), 5)
    expected = 100 * np.arange(N) + 3
    expected[[2, 6]] += 5
    np.testing.assert_array_equal(state.chains, expected)
    np.testing.assert_allclose(state.table[2], 203 + 2)  # the mean of 203, ..., 207


def test_drift_of_the_running_mean_is_removed_by_refreshing():
    # The mean is near 1000, where float32 numbers are 6e-5 apart: the rounding of 10^5 visits adds up. The last of
    # them completes a pass, so that the refreshed mean has the rounding of one sum.
    size, visits = 61, 61 * 1640
    offsets = np.full(size, 1e3, np.float32)
    surrogate = Surrogate(
        offsets,
        build=lambda theta, row, summary: row + summary,
        minimise=lambda mean, theta, constraint: mean,
        draw=lambda key, theta, row, chain: (jax.random.normal(key, (), jnp.float32), chain),
    )

    @eqx.filter_jit
    def drift(algorithm, surrogate):
        state = algorithm.begin(jax.random.key(0), surrogate, jnp.zeros((), jnp.float32))

        def visit(t, state):
            rows = jax.random.randint(jax.random.key(t), (1,), 0, size)
            return algorithm.visit(jax.random.key(t), surrogate, state, rows, 1)

        state = jax.lax.fori_loop(0, visits, visit, state)
        return jnp.abs(state.mean.astype(float) - state.table.astype(float).mean()), state.mean.dtype

    without, dtype = drift(MISSO(num_draws=1, refresh_every=None), surrogate)
    refreshed, _ = drift(MISSO(num_draws=1, refresh_every=1), surrogate)
    assert dtype == jnp.float32
    assert refreshed < 2e-4 < 1e-3 < without


def poisson_mixture_statistics(theta, count, summary):
    logits = theta["log_weights"] + count * jnp.log(theta["rates"]) - theta["rates"]
    share = jax.nn.softmax(logits)
    return {"share": share, "weighted": share * count}


def poisson_mixture_minimiser(mean, theta, constraint):
    return {"log_weights": jnp.log(mean["share"]), "rates": mean["weighted"] / mean["share"]}


def test_incremental_em_of_a_poisson_mixture_equals_neal_and_hinton():
    counts = np.concatenate([RNG.poisson(2.0, 9), RNG.poisson(11.0, 8)]).astype(float)
    surrogate = Surrogate(counts, build=poisson_mixture_statistics, minimise=poisson_mixture_minimiser)
    start = {"log_weights": np.log([0.5, 0.5]), "rates": np.array([1.0, 5.0])}
    algorithm = MISO(UniformSampling(2))
    run = minimise_sum(surrogate, start, algorithm, seed=4, num_steps=40)
    order = jax.random.split(jax.random.split(jax.random.key(4))[0], 3)[1]

    def shares(weights, rates, values):
        joint = weights * rates ** values[:, None] * np.exp(-rates)
        return joint / joint.sum(axis=1, keepdims=True)

    weights, rates = np.array([0.5, 0.5]), np.array([1.0, 5.0])
    table = shares(weights, rates, counts)
    for t in range(40):
        batch = np.asarray(algorithm.sampling.indices(order, jnp.asarray(t), counts.size))
        table[batch] = shares(weights, rates, counts[batch])
        weights, rates = table.mean(axis=0), counts @ table / table.sum(axis=0)
    np.testing.assert_allclose(run.point["rates"], rates, rtol=1e-11)
    np.testing.assert_allclose(np.exp(run.point["log_weights"]), weights, rtol=1e-11)
