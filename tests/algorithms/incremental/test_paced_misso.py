"""PacedMISSO against loops written by hand, its stationary noise against closed forms, and what it converges to."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from provi.algorithms import PacedMISSO
from provi.algorithms.incremental import surrogate_table
from provi.algorithms.incremental import surrogate_table as table_memory
from provi.algorithms.incremental.quadratic_surrogate import QuadraticSurrogate
from provi.families.base import AnyParameters
from provi.runtime import loop
from provi.runtime.loop import split
from provi.runtime.record import Outcome
from provi.schedules import UniformSampling
from support.blocks import (
    START,
    SURROGATE,
    InOrder,
    N,
    X,
    Y,
    buffers,
    final_state,
    go,
    gradient,
    many_noisy_terms,
    visits,
)
from support.statistics import assert_mean

PLAIN, HEAVY = optax.identity(), optax.trace(0.8)
RATE = 0.1


def walk(batches, theta=START, decay=0.8, rate=RATE):
    """Points of the heavy ball."""
    velocity, points = 0.0, []
    for rows in batches:
        velocity = decay * velocity + gradient(theta, rows)
        theta = theta - rate * velocity
        points.append(theta)
    return points


@pytest.mark.parametrize("table", [True, False])
def test_answers_by_hand(table):
    batch = 4  # runs on over the end of a pass
    algorithm = PacedMISSO(HEAVY, RATE, sampling=InOrder(batch), table=table)
    for num_steps in (1, 2, 11):
        result = go(algorithm, num_steps)
        points = walk(visits(num_steps, batch))
        rows, mean = {}, np.zeros(3)
        for point, places in zip(points, visits(num_steps, batch), strict=True):
            rows.update({int(i): point for i in places})
            mean += batch / N * (point - mean)
        kept = np.mean(list(rows.values()), axis=0)
        geometric = mean / (1 - (1 - batch / N) ** num_steps)
        np.testing.assert_allclose(result.point, kept if table else geometric, rtol=1e-12)
        np.testing.assert_allclose(result.last, points[-1], rtol=1e-12)
        assert result.gradient_evaluations == batch * num_steps  # no pass before the first visit


def test_all_terms_at_once_is_gradient_descent():
    theta = walk([np.arange(N)] * 8, decay=0.0)[-1]
    np.testing.assert_allclose(go(PacedMISSO(PLAIN, RATE, N), 8).point, theta, rtol=1e-12)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_mean_is_that_of_the_table_after_1000_visits(dtype):
    surrogate = many_noisy_terms(dtype)
    algorithm = PacedMISSO(HEAVY, 0.02)
    state = final_state(algorithm, 1000, surrogate, START.astype(np.float32))
    table = np.asarray(state.table, np.float64)
    assert state.table.dtype == jnp.dtype(dtype or np.float32)
    assert state.mean.dtype == np.float32
    assert np.ptp(table, axis=0).min() > 0
    error = np.linalg.norm(state.mean - table.mean(axis=0))
    assert error < 1e-6 * np.linalg.norm(table.mean(axis=0))
    np.testing.assert_array_equal(algorithm.resolve(surrogate, AnyParameters()).output(state), state.mean)


def test_terms_that_come_twice_in_a_visit_count_once():
    algorithm = PacedMISSO(PLAIN, RATE, UniformSampling(5)).resolve(SURROGATE, AnyParameters())
    state = final_state(algorithm, 2)
    rows = np.asarray(state.table)
    seen = np.any(rows != 0, axis=1)
    assert 2 < seen.sum() == int(state.count) < N
    assert np.isfinite(state.lead.values).sum() == seen.sum()
    np.testing.assert_allclose(algorithm.output(state), rows[seen].mean(axis=0), rtol=1e-14)


HESSIAN = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.7]])


def quadratic(theta, row):
    hessian, centre = row
    return 0.5 * (theta - centre) @ hessian @ (theta - centre)


def test_a_common_hessian_gives_the_exact_minimiser():
    """In a fixed order with exact gradients; the walk itself ends away from it."""
    centres = X
    surrogate = QuadraticSurrogate(quadratic, (np.tile(HESSIAN, (N, 1, 1)), centres), 1.0)
    result = go(PacedMISSO(PLAIN, 0.3, InOrder(1)), 100 * N, surrogate)
    np.testing.assert_allclose(result.point, centres.mean(axis=0), atol=1e-13)
    assert np.abs(result.last - centres.mean(axis=0)).max() > 0.05


def test_different_hessians_leave_a_gradient_of_the_order_of_the_rate():
    def left(rate):
        point = go(PacedMISSO(PLAIN, rate, InOrder(1)), int(500 / rate)).point
        return np.linalg.norm(gradient(np.asarray(point), np.arange(N)))

    large, small = left(0.04), left(0.01)
    assert 1e-4 < small < large
    assert 3.5 < large / small < 4.5


TERMS, COPIES, CURVATURE, NOISE, STEP = 20, 4000, 0.8, 1.5, 0.25


def noisy_bowl(theta, row, draw):
    return 0.5 * CURVATURE * jnp.sum(theta**2) + NOISE * draw @ theta


def normal(key, row):
    return jax.random.normal(key, (COPIES,))


@pytest.mark.parametrize("table", [True, False])
def test_stationary_noise(table):
    """4000 walks side by side, each a stationary AR(1). Two z-tests of 1e-6 each: false alarms at most 2e-6."""
    surrogate = QuadraticSurrogate(noisy_bowl, np.zeros(TERMS), 1.0, sample=normal)
    # 15 passes: what is left of the start is (1 - 1/20)^300 = 2e-7.
    result = go(PacedMISSO(PLAIN, STEP, table=table), 15 * TERMS, surrogate, np.zeros(COPIES))
    rho, n = 1 - STEP * CURVATURE, TERMS
    floor = STEP * NOISE**2 / (CURVATURE * (2 - STEP * CURVATURE))
    lags = np.arange(1, n)
    share = (n + 2 * np.sum((n - lags) * rho**lags)) / n**2
    if not table:
        w = 1 / n
        share = w / (2 - w) * (1 + (1 - w) * rho) / (1 - (1 - w) * rho)
    assert_mean(np.asarray(result.last) ** 2, floor)
    assert_mean(np.asarray(result.point) ** 2, share * floor)
    # The docstring's 2 tau / n and tau / n with tau = 1 / (rate x curvature) = 5, not yet far below n = 20.
    assert 0.6 < share / ((2 if table else 1) / (STEP * CURVATURE * n)) < 1


def test_a_block_that_is_not_finite_has_no_row():
    design = X.copy()
    design[2, 1] = np.nan
    surrogate = QuadraticSurrogate(SURROGATE.loss, (design, Y), 1.0)
    for table in (True, False):
        algorithm = PacedMISSO(PLAIN, RATE, InOrder(1), table=table)
        result = go(algorithm, 3 * N, surrogate)
        assert result.outcome is Outcome.COMPLETED
        assert re.search(r"; 3 non-finite .* first at iteration 2, where a block's value or gradient", result.message)
        theta, shrink, rows, mean, weight = START, 1.0, {}, 0.0, 0.0
        for (row,) in visits(3 * N, 1):
            if row == 2:
                shrink /= 2
                continue
            theta = theta - shrink * RATE * gradient(theta, [row])
            rows[row], shrink = theta, min(1, loop.RECOVERY * shrink)
            mean, weight = mean + (theta - mean) / N, weight + (1 - weight) / N
        expected = np.mean(list(rows.values()), axis=0) if table else mean / weight
        np.testing.assert_allclose(result.point, expected, rtol=1e-12)


def test_nothing_finite_returns_the_start():
    surrogate = QuadraticSurrogate(SURROGATE.loss, (np.full_like(X, np.nan), Y), 1.0)
    result = go(PacedMISSO(PLAIN, RATE, InOrder(1)), 100, surrogate)  # compiled above
    assert (result.outcome, result.num_steps) == (Outcome.NONFINITE, loop.LARGEST_REJECTIONS)
    np.testing.assert_array_equal(result.point, START)


def test_no_copy_of_the_table_in_the_loop(monkeypatch):
    monkeypatch.setattr(surrogate_table, "_BLOCK_BYTES", 2**12)  # else a table as small as this is one block
    terms = 4099
    surrogate = QuadraticSurrogate(quadratic_row, np.zeros((terms, 70)), 1.0)
    for batch in (1, 6):
        algorithm = PacedMISSO(PLAIN, RATE, batch).resolve(surrogate, AnyParameters())
        start = jnp.zeros(70)
        carry = loop.initial_carry(algorithm, start)
        places = buffers((carry.state, start))
        assert len(set(places)) == len(places)
        state, large = split(algorithm, carry.state)
        carry = loop.Carry(state, carry.health, carry.info)
        kept = (jax.random.key(0), algorithm, surrogate, AnyParameters(), carry, jnp.asarray(9), jnp.asarray(10**9))
        compiled = loop.donating_loop.lower(kept, large).compile().compiled
        assert not re.search(rf"f64\[{terms},70\]\S* copy\(", compiled.as_text())
        table = 8 * 70 * terms
        assert compiled.memory_analysis().alias_size_in_bytes >= table
        assert compiled.memory_analysis().temp_size_in_bytes < table / 4


def quadratic_row(theta, row):
    return jnp.sum((theta - row) ** 2)


def test_a_table_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(table_memory, "available_bytes", lambda *devices: 50)
    with pytest.raises(ValueError, match="PacedMISSO with table=False"):
        PacedMISSO(PLAIN, RATE).resolve(SURROGATE, AnyParameters()).init(jnp.asarray(START))
    PacedMISSO(PLAIN, RATE, table=False).resolve(SURROGATE, AnyParameters()).init(jnp.asarray(START))
