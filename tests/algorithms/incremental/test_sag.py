"""SAG against a loop written by hand and the normal equations; its table's mean, guard and resuming."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import SAG
from provi.algorithms.incremental.quadratic_surrogate import QuadraticSurrogate
from provi.families.base import AnyParameters
from provi.runtime.record import Outcome
from support.blocks import (
    START,
    SURROGATE,
    InOrder,
    N,
    X,
    Y,
    final_state,
    go,
    gradient,
    many_noisy_terms,
    value,
    visits,
)


def by_hand(rate, batches, theta=START):
    """The last point, and each term's value when it was last visited."""
    table = np.stack([gradient(theta, [i]) for i in range(N)])
    values = value(theta, np.arange(N))
    for rows in batches:
        table[rows] = [gradient(theta, [i]) for i in rows]
        values[rows] = value(theta, rows)
        theta = theta - rate * table.mean(axis=0)
    return theta, values


def test_iterates_by_hand_and_the_solution():
    result = go(SAG(0.1, sampling=InOrder(2)), 13)
    theta, values = by_hand(0.1, visits(13, 2))
    np.testing.assert_allclose(result.point, theta, rtol=1e-12)
    np.testing.assert_allclose(result.history["elbo"][-1], -values.mean(), rtol=1e-12)
    np.testing.assert_allclose(result.history["elbo_standard_error"][-1], values.std(ddof=1) / N**0.5, rtol=1e-12)
    assert result.elbo is None  # not exact: the values are of several points
    assert result.gradient_evaluations == N + 26
    # The same compiled loop at a rate of 1 / (2 l) for l-smooth terms, for long enough.
    rate = 1 / (2 * np.sum(X**2, axis=1).max())
    np.testing.assert_allclose(go(SAG(rate, sampling=InOrder(2)), 20000).point, np.linalg.lstsq(X, Y)[0], rtol=1e-9)


def test_all_terms_at_once_is_gradient_descent():
    theta = START
    for _ in range(8):
        theta = theta - 0.3 * gradient(theta, np.arange(N))
    np.testing.assert_allclose(go(SAG(0.3, sampling=N), 8).point, theta, rtol=1e-12)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_mean_is_that_of_the_table_after_1000_visits(dtype):
    state = final_state(SAG(0.02), 1000, many_noisy_terms(dtype), START.astype(np.float32))
    table, mean = np.asarray(state.table.gradient, np.float64), np.asarray(state.mean.gradient)
    assert state.table.gradient.dtype == jnp.dtype(dtype or np.float32)
    assert mean.dtype == np.float32
    scale = np.abs(table).mean(axis=0)  # the mean itself may be near zero
    assert np.all(np.abs(mean - table.mean(axis=0)) < 1e-6 * scale)


def broken_away_from_the_start(theta, row):
    loss = 0.5 * (row[0] @ theta - row[1]) ** 2
    return jnp.where((row[2] == 3) & (theta[0] != START[0]), jnp.nan, loss)


def test_a_block_that_is_not_finite_keeps_its_old_gradient():
    surrogate = QuadraticSurrogate(broken_away_from_the_start, (X, Y, np.arange(N)), 1.0)
    result = go(SAG(0.1, sampling=InOrder(1)), 3 * N, surrogate)
    assert result.outcome is Outcome.COMPLETED
    assert re.search(r"; 3 non-finite .* first at iteration 3, where a surrogate's statistics", result.message)
    theta, table = START, np.stack([gradient(START, [i]) for i in range(N)])
    for (row,) in visits(3 * N, 1):
        if row != 3:
            table[row] = gradient(theta, [row])
            theta = theta - 0.1 * table.mean(axis=0)
    np.testing.assert_allclose(result.point, theta, rtol=1e-12)


def test_a_rate_is_a_number_that_may_change():
    surrogate = SAG(0.1).resolve(SURROGATE, AnyParameters()).surrogate
    assert surrogate.rate.shape == ()  # a leaf
    for rate in (0.0, -1.0, np.inf):
        with pytest.raises(ValueError, match="rate must be a positive number"):
            SAG(rate)
    with pytest.raises(ValueError, match="SAG needs the gradients"):
        SAG(0.1).resolve(surrogate, AnyParameters())
