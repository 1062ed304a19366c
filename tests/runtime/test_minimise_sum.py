"""Sums of surrogates in the loop: non-finite visits, resuming, budgets, errors, and a table that is never copied."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi import Budget
from provi.algorithms import MISO, MISSO, Surrogate
from provi.families.base import AnyParameters
from provi.runtime import loop, minimise_sum
from provi.runtime.loop import split
from provi.runtime.record import Outcome

N = 8
CENTRES = np.arange(N, dtype=float)


def halfway(theta, row, summary):
    return (theta + row) / 2 + (0.0 if summary is None else summary)


def to_mean(mean, theta, constraint):
    return mean


def noise(key, theta, row, chain):
    return jax.random.normal(key), chain


NOISY = Surrogate(CENTRES, build=halfway, minimise=to_mean, draw=noise)


def broken_after_the_start(theta, row, summary):
    return jnp.where((row == 3) & (theta != 0), jnp.nan, (theta + row) / 2)


def test_a_non_finite_row_keeps_its_old_surrogate():
    surrogate = Surrogate(CENTRES, build=broken_after_the_start, minimise=to_mean)
    algorithm = MISO(refresh_every=None)
    state = algorithm.begin(jax.random.key(0), surrogate, jnp.asarray(0.0))
    state = algorithm.visit(jax.random.key(0), surrogate, state, jnp.asarray([1, 2]), 1)
    assert (int(state.step), int(state.rejected), int(state.first_rejected)) == (1, 0, -1)
    after = algorithm.visit(jax.random.key(0), surrogate, state, jnp.asarray([3, 5]), 1)
    np.testing.assert_array_equal(after.table, state.table)
    np.testing.assert_array_equal(after.mean, state.mean)
    np.testing.assert_array_equal(after.parameters, state.parameters)
    assert (int(after.step), int(after.rejected), int(after.first_rejected)) == (2, 1, 1)
    assert int(after.rejected_in_a_row) == 1
    again = algorithm.visit(jax.random.key(0), surrogate, after, jnp.asarray([4, 5]), 1)
    assert (int(again.rejected), int(again.rejected_in_a_row)) == (1, 0)
    np.testing.assert_allclose(again.mean, np.mean(again.table), rtol=1e-15)


def test_the_loop_counts_and_goes_on():
    surrogate = Surrogate(CENTRES, build=broken_after_the_start, minimise=to_mean)
    run = minimise_sum(surrogate, 0.0, MISO(1), seed=0, num_steps=5 * N)
    assert run.outcome is Outcome.COMPLETED
    # Row 3 is visited once a pass and refused, unless it is the very first, when theta is still zero.
    refused = int(re.search(r"(\d+) non-finite", run.message)[1])
    assert refused in (4, 5)
    assert "a surrogate's statistics" in run.message
    assert np.isfinite(run.point)


def test_a_minimiser_that_is_never_finite_stops_the_run_at_its_start():
    surrogate = Surrogate(CENTRES, build=halfway, minimise=lambda mean, theta, constraint: jnp.log(-mean))
    run = minimise_sum(surrogate, 1.5, MISO(1), seed=0, num_steps=500)
    assert run.outcome is Outcome.NONFINITE
    assert run.num_steps == loop.LARGEST_REJECTIONS
    assert float(run.point) == 1.5
    assert "the minimiser of the surrogates" in run.message


def test_a_start_without_finite_statistics_is_said_to_be_that():
    surrogate = Surrogate(np.array([1.0, np.nan, 2.0]), build=halfway, minimise=to_mean)
    run = minimise_sum(surrogate, 0.0, MISO(1), seed=0, num_steps=100)
    assert run.outcome is Outcome.NONFINITE
    assert "first at iteration 0, where a surrogate's statistics" in run.message


def test_budget_counts_draws_of_all_rows():
    algorithm = MISSO(2, num_draws=5)
    run = minimise_sum(NOISY, 0.0, algorithm, seed=0, num_steps=100, budget=Budget(gradients=5 * N + 10 * 4))
    assert (run.outcome, run.num_steps) == (Outcome.GRADIENT_BUDGET, 4)


def test_each_visit_costs_the_same_whatever_the_number_of_terms():
    # Nothing of the table's size is copied, neither inside the loop nor on entry: the loop takes the table over.
    size, shape = 4099, (7,)
    surrogate = Surrogate(
        np.zeros(size),
        build=lambda theta, row, summary: theta - row + summary,
        minimise=to_mean,
        draw=lambda key, theta, row, chain: (jax.random.normal(key, shape), chain + 1),
        start_chain=lambda key, theta, row: jnp.zeros(11),
    )
    for batch in (1, 6):
        algorithm = MISSO(batch, num_draws=2).resolve(surrogate, AnyParameters())
        carry = loop.initial_carry(algorithm, jnp.zeros(shape))
        state, large = split(algorithm, carry.state)
        carry = loop.Carry(state, carry.health, carry.info)
        limits = (jnp.asarray(9), jnp.asarray(10**9))
        kept = (jax.random.key(0), algorithm, surrogate, AnyParameters(), carry, *limits)
        text = loop.donating_loop.lower(kept, large).compile().compiled.as_text()
        assert re.search(rf"f64\[{size},7\]", text) and re.search(rf"f64\[{size},11\]", text)
        assert not re.search(rf"f64\[{size},(7|11)\]\S* copy\(", text)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: minimise_sum(NOISY, 0.0, MISO(1), seed=0, num_steps=1), "no exact expectations"),
        (
            lambda: minimise_sum(Surrogate(3, build=halfway, minimise=to_mean), 0.0, MISSO(1), seed=0, num_steps=1),
            "MISO",
        ),
        (lambda: minimise_sum(NOISY, 0.0, MISSO(N + 1), seed=0, num_steps=1), "at most 8"),
        (lambda: minimise_sum(NOISY, np.nan, MISSO(1), seed=0, num_steps=1), "finite"),
        (lambda: minimise_sum(NOISY, (), MISSO(1), seed=0, num_steps=1), "no arrays"),
        (
            lambda: minimise_sum(
                Surrogate(CENTRES, build=halfway, minimise=lambda m, t, c: jnp.ones(2)),
                0.0,
                MISO(1),
                seed=0,
                num_steps=1,
            ),
            "minimise must return",
        ),
        (lambda: Surrogate((np.ones(2), np.ones(3)), build=halfway, minimise=to_mean), "one entry a term"),
        (lambda: Surrogate(3, build=halfway, minimise=to_mean, start_chain=noise), "needs draw"),
        (lambda: MISSO(1, refresh_every=0), "refresh_every"),
    ],
)
def test_errors_say_what_to_do(call, words):
    with pytest.raises(ValueError, match=words):
        call()
