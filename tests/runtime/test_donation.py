"""The table is taken over by the loop: never there twice, never lost, and the caller's arrays stay."""

import importlib
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import MISO, QuadraticSurrogate, Surrogate
from provi.algorithms.incremental import surrogate_table
from provi.algorithms.incremental.surrogate_table import table_bytes
from provi.families.base import AnyParameters
from provi.runtime import loop, minimise_sum
from provi.runtime.loop import interrupts_wait, is_lost, split
from provi.runtime.record import Outcome

driver = importlib.import_module("provi.runtime.run")
TERMS, DIM = 64, 5000
DATA = np.random.default_rng(0).normal(size=(TERMS, DIM)).astype(np.float32)


def loss(theta, row):
    return jnp.mean((theta - row) ** 2) / 2


SURROGATE = QuadraticSurrogate(loss, DATA, np.float32(2 / DIM))
START = np.zeros(DIM, np.float32)
TABLE_BYTES = 4 * TERMS * DIM


def first_carry(algorithm):
    algorithm = algorithm.resolve(SURROGATE, AnyParameters())
    return algorithm, loop.initial_carry(algorithm, jnp.asarray(START))


def advance(algorithm, carry, until):
    limits = (jnp.asarray(until), jnp.asarray(10**9))
    return loop.advance(jax.random.key(0), algorithm, SURROGATE, AnyParameters(), carry, *limits)


def large_arrays():
    return sum(x.size == TERMS * DIM and x is not SURROGATE.data for x in jax.live_arrays())


def test_there_is_one_table(monkeypatch):
    """Out of the compiler's own account, and by counting arrays: the new table lies where the old one lay."""
    monkeypatch.setattr(surrogate_table, "_BLOCK_BYTES", 1)  # the first pass in blocks of one, as for long rows
    algorithm, carry = first_carry(MISO(1))
    before, place = large_arrays(), carry.state.table.centre.unsafe_buffer_pointer()
    state, large = split(algorithm, carry.state)
    assert state.table.centre is None and state.table.constant is carry.state.table.constant
    kept = (
        jax.random.key(0),
        algorithm,
        SURROGATE,
        AnyParameters(),
        loop.Carry(state, carry.health, carry.info),
        jnp.asarray(3),
        jnp.asarray(10**9),
    )
    memory = loop.donating_loop.lower(kept, large).compile().compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= TABLE_BYTES
    assert memory.temp_size_in_bytes < TABLE_BYTES / 2
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes <= table_bytes(SURROGATE, jnp.asarray(START))
    after = advance(algorithm, carry, 3)
    assert large_arrays() == before
    assert after.state.table.centre.unsafe_buffer_pointer() == place
    assert carry.state.table.centre.is_deleted() and is_lost(carry) and not is_lost(after)
    # All else is still there.
    np.testing.assert_array_equal(carry.state.parameters, START)
    assert int(carry.state.step) == 0 and int(carry.health.rejected) == 0
    assert float(jnp.max(jnp.abs(after.state.parameters))) > 0


def go(surrogate=SURROGATE, num_steps=90, start=START, **options):
    return minimise_sum(surrogate, start, MISO(1), seed=3, num_steps=num_steps, progress=False, **options)


@pytest.fixture(scope="module")
def whole(quick_compilation):
    """Compiled quickly, as is all below; what the compiler does with memory, above, is asked of it as users have it."""
    return go()


def interrupt_at(monkeypatch, call, how):
    """The loop as it is, but for one call, after which, its table taken and its result not yet named, comes Ctrl-C."""
    calls = []

    def interrupted(*arguments):
        result = loop.advance(*arguments)
        calls.append(1)
        if len(calls) == call:
            how()
        return result

    monkeypatch.setattr(driver, "advance", interrupted)


@pytest.fixture(autouse=True)
def handler():
    """Python's own, which a test runner's worker may have put aside."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_once():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)


def press_twice():
    press_once()
    press_once()


def test_an_interrupt_waits_for_the_table(monkeypatch, tmp_path, whole):
    path = tmp_path / "run.safetensors"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3, press_once)
        stopped = go(checkpoint=path)
    assert stopped.outcome is Outcome.INTERRUPTED and 0 < stopped.num_steps < 90
    np.testing.assert_array_equal(stopped.point, go(num_steps=stopped.num_steps).point)
    np.testing.assert_array_equal(go(checkpoint=path, resume=True).point, whole.point)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_pressed_twice_the_table_is_lost_and_the_answer_is_not(monkeypatch, tmp_path, whole):
    """The answer is that before the call; the checkpoint is an older one, from which the run goes on."""
    path = tmp_path / "run.safetensors"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4, press_twice)
        stopped = go(checkpoint=path, checkpoint_seconds=0.0)
    assert stopped.outcome is Outcome.INTERRUPTED and 0 < stopped.num_steps < 90
    np.testing.assert_array_equal(stopped.point, go(num_steps=stopped.num_steps).point)
    np.testing.assert_array_equal(go(checkpoint=path, resume=True).point, whole.point)


def test_an_error_in_the_loop_is_not_hidden_by_the_lost_table(monkeypatch, tmp_path):
    def fail():
        raise RuntimeError("out of memory")

    interrupt_at(monkeypatch, 2, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        go(checkpoint=tmp_path / "run.safetensors")


def test_elsewhere_interrupts_come_at_once():
    with pytest.raises(KeyboardInterrupt), interrupts_wait(False):
        press_once()
        raise AssertionError("not reached")


def undefined_above_one(mean, theta):
    return jnp.where(theta[0] > 1, jnp.nan, jnp.sum(mean))


def test_the_last_state_with_a_finite_value_is_kept_without_its_table():
    surrogate = Surrogate(
        np.arange(1.0, 9.0),
        build=lambda theta, row, summary: theta + row / 20,
        minimise=lambda mean, theta, constraint: mean,
        value=undefined_above_one,
    )
    result = go(surrogate, start=np.zeros(2))
    assert result.outcome is Outcome.NONFINITE and "the last recorded one" in result.message
    assert 0.5 < float(result.point[0]) <= 1
    finite = np.isfinite(result.history["elbo"])
    assert result.elbo == (result.history["elbo"][finite][-1], 0.0)


def test_the_callers_start_stays(whole):
    start = jnp.asarray(START)
    assert float(jnp.max(jnp.abs(go(start=start, num_steps=20).point))) > 0
    np.testing.assert_array_equal(start, START)


def test_a_table_of_half_precision_resumes_bit_for_bit(tmp_path):
    surrogate = QuadraticSurrogate(loss, DATA[:, :50], np.float32(2 / 50), table_dtype="bfloat16")
    options = {"surrogate": surrogate, "start": START[:50]}
    path = tmp_path / "run.safetensors"
    go(num_steps=40, checkpoint=path, **options)
    np.testing.assert_array_equal(go(checkpoint=path, resume=True, **options).point, go(**options).point)
