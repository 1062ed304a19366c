"""Optax rules over blocks against loops written by hand: rates, passes, draws, non-finite blocks, resuming, errors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from provi.algorithms import MISSO, BlockRule, adagrad, adam, bayes_by_backprop, elbo_surrogate, momentum
from provi.algorithms.incremental.incremental import latest_elbo
from provi.algorithms.incremental.quadratic_surrogate import QuadraticSurrogate
from provi.families import Gaussian
from provi.families.base import AnyParameters
from provi.runtime.loop import RECOVERY
from provi.runtime.record import Outcome
from provi.schedules import PolynomialBatch, PolynomialStep, ReshuffledSampling
from provi.targets import LogisticRegression
from support.blocks import (
    DIM,
    NOISY,
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
    value,
    visits,
)


def plain_by_hand(state, g, k):
    return g, None


def momentum_by_hand(state, g, k):
    velocity = g if state is None else 0.8 * state + g
    return velocity, velocity


def adam_by_hand(state, g, k):
    first, second = (0.0, 0.0) if state is None else state
    first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
    return first / (1 - 0.9 ** (k + 1)) / (np.sqrt(second / (1 - 0.999 ** (k + 1))) + 1e-8), (first, second)


def adagrad_by_hand(state, g, k):
    total = g**2 if state is None else state + g**2
    return g / np.sqrt(total + 1e-7), total


def by_hand(rule, rates, batches, theta=START):
    state = None
    for k, (rate, rows) in enumerate(zip(rates, batches, strict=True)):
        update, state = rule(state, gradient(theta, rows), k)
        theta = theta - rate * update
    return theta


@pytest.mark.parametrize(
    ("make", "hand"),
    [
        (bayes_by_backprop, plain_by_hand),
        (lambda rate, **options: momentum(rate, 0.8, **options), momentum_by_hand),
        (adam, adam_by_hand),
        (adagrad, adagrad_by_hand),
    ],
    ids=["plain", "momentum", "adam", "adagrad"],
)
def test_iterates_by_hand(make, hand):
    result = go(make(0.1, sampling=InOrder(2)), 13)
    np.testing.assert_allclose(result.point, by_hand(hand, [0.1] * 13, visits(13, 2)), rtol=1e-12)
    np.testing.assert_array_equal(result.point, result.last)
    assert result.gradient_evaluations == 26


def test_a_fresh_order_each_pass_and_a_rate_for_each_pass():
    schedule = PolynomialStep(0.2, 0.5)
    result = go(bayes_by_backprop(schedule), 3 * N, seed=5)
    order = jax.random.split(jax.random.split(jax.random.key(5))[0], 3)[1]
    batches = np.asarray(jax.vmap(lambda k: ReshuffledSampling(1).indices(order, k, N))(jnp.arange(3 * N)))
    assert sorted(batches[N : 2 * N, 0]) == list(range(N))
    rates = [0.2 * (k // N + 1) ** -0.5 for k in range(3 * N)]
    np.testing.assert_allclose(result.point, by_hand(plain_by_hand, rates, batches), rtol=1e-12)


def all_rows(theta, row, draw):
    return 0.5 * jnp.mean((row[0] @ theta - row[1]) ** 2) + draw @ theta


def draw_noise(key, row):
    return jax.random.normal(key, (DIM,))


def test_all_rows_in_one_block_is_gradient_descent_for_misso_too():
    """One term: MISSO's step is that of plain descent at 1 / curvature, with the same draws."""
    whole = QuadraticSurrogate(all_rows, (X[None], Y[None]), 4.0, sample=draw_noise)
    draws = PolynomialBatch(1, 1.0)
    ours, theirs = (go(method, 7, whole) for method in (bayes_by_backprop(0.25, num_draws=draws), MISSO(1, draws)))
    np.testing.assert_allclose(ours.point, theirs.point, rtol=1e-12)
    assert ours.gradient_evaluations == sum(range(1, 8)) == theirs.gradient_evaluations - 1

    exact = go(bayes_by_backprop(0.25, sampling=N), 7)
    np.testing.assert_allclose(exact.point, by_hand(plain_by_hand, [0.25] * 7, [np.arange(N)] * 7), rtol=1e-12)
    assert np.abs(exact.point - ours.point).max() > 1e-3  # the noise was there


def test_blocks_that_are_not_finite_are_left_out_and_found():
    """Row 1 has no number, the squares of row 4's gradient overflow in single precision: both would stay in Adam."""
    design = X.astype(np.float32)
    design[1, 0], design[4] = np.nan, 1e13
    surrogate = QuadraticSurrogate(SURROGATE.loss, (design, Y.astype(np.float32)), 1.0)
    last = []

    def watch(state):
        last[:] = [state]
        return False

    num_steps = 4 * N
    algorithm = adam(0.1, sampling=InOrder(1))
    result = go(algorithm, num_steps, surrogate, START.astype(np.float32), stop=watch)
    assert result.outcome is Outcome.COMPLETED
    assert re.search(r"; 8 non-finite .* first at iteration 1, where a block's value or gradient", result.message)
    assert np.flatnonzero(np.isnan(last[0].values)).tolist() == [1, 4]
    assert len(result.history) == 0  # the objective is not known
    theta, state, shrink, k = START, None, 1.0, 0
    for (row,) in visits(num_steps, 1):
        if row in (1, 4):
            shrink /= 2
        else:
            update, state = adam_by_hand(state, gradient(theta, [row]), k)
            theta, shrink, k = theta - shrink * 0.1 * update, min(1, RECOVERY * shrink), k + 1
    np.testing.assert_allclose(result.point, theta, rtol=2e-5)
    assert {leaf.dtype for leaf in jax.tree.leaves(last[0].point)} == {np.dtype(np.float32)}


def test_draws_grow_with_the_passes():
    found = go(adam(0.05, num_draws=PolynomialBatch(2, 1.0)), 20, NOISY)
    assert found.gradient_evaluations == 6 * 2 + 6 * 4 + 6 * 6 + 2 * 8


def test_the_history_holds_the_latest_values():
    rate, theta, values = 0.1, START, np.full(N, np.nan)
    result = go(bayes_by_backprop(rate, sampling=InOrder(1)), 2 * N + 2, num_records=2 * N + 2)
    expected = []
    for (row,) in visits(2 * N + 2, 1):
        values[row] = value(theta, [row])[0]
        theta = theta - rate * gradient(theta, [row])
        expected.append((-values.mean(), values.std(ddof=1) / N**0.5))
    steps = result.history["step"].astype(int)
    assert (steps[0], steps[-1]) == (N, 2 * N + 2)  # not known before
    np.testing.assert_allclose(result.history["elbo"], [expected[k - 1][0] for k in steps], rtol=1e-12)
    np.testing.assert_allclose(result.history["elbo_standard_error"], [expected[k - 1][1] for k in steps], rtol=1e-12)
    np.testing.assert_allclose(result.history["step_size"], rate, rtol=1e-15)
    assert result.elbo is None  # not exact: the values are of several points
    assert latest_elbo(np.array([2.0])) == (-2.0, np.inf)


def test_the_state_shares_no_array():
    start = jnp.asarray(START)
    algorithm = adam(0.1).resolve(SURROGATE, AnyParameters())
    places = buffers((algorithm.init(start), start))
    assert len(set(places)) == len(places)
    assert np.isnan(latest_elbo(final_state(adam(0.1), 2).values)).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: go(BlockRule(optax.adam(1e-3), 1.0), 1), "scale_by_adam"),
        (lambda: BlockRule("adam", 1e-3), "rule must be an optax transformation"),
        (lambda: go(adam(0.1, sampling=N + 1), 1), f"at most {N}"),
        (lambda: adam(0.0), "rate must be a positive number"),
        (lambda: adam(np.nan), "rate must be a positive number"),
        (lambda: momentum(0.1, 1.0), "decay must be below 1"),
        (lambda: adam(0.1).init(jnp.ones(2)), "call resolve"),
        (lambda: adam(0.1).resolve(LOGISTIC, Gaussian(DIM)), "BlockRule needs the gradients"),
        # Its gradients are without the entropy.
        (lambda: adam(0.1).resolve(elbo_surrogate(LOGISTIC, Gaussian(DIM)), AnyParameters()), "ELBOSurrogate does not"),
    ],
)
def test_errors_say_what_to_do(call, words):
    with pytest.raises(ValueError, match=words):
        call()


LOGISTIC = LogisticRegression(X, Y > 0, 1.0)
