"""What holds for every part of an algorithm: its numbers are leaves, and it may be traced, batched and repeated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.contracts import assert_one_program, floating
from laws.members import AVERAGINGS, BATCH_SIZES, ESTIMATORS, SAMPLINGS, STEP_SIZES
from support.members import family_of, point_of

PARTS = {
    f"{kind}, {name}": make
    for kind, rows in {
        "step": STEP_SIZES,
        "batch": BATCH_SIZES,
        "sampling": SAMPLINGS,
        "averaging": AVERAGINGS,
    }.items()
    for name, make in rows.items()
}
STEPS = np.arange(20)


@pytest.mark.parametrize("name", PARTS)
def test_one_program_for_all_numbers(name):
    first, second = (PARTS[name](number) for number in (1.0, 2.0))
    assert_one_program(first, second, numbers_differ=bool(jax.tree.leaves(first)))


@pytest.mark.parametrize("name", STEP_SIZES | BATCH_SIZES)
def test_schedules_are_functions_of_the_step(name):
    """Traced and batched: the same as step by step; positive, and step sizes never grow, batches never shrink."""
    for rows, sign in ((STEP_SIZES, -1), (BATCH_SIZES, 1)):
        if name not in rows:
            continue
        schedule = rows[name](1.0)
        together = np.asarray(jax.jit(jax.vmap(lambda step, s=schedule: s(step)))(jnp.asarray(STEPS)))
        np.testing.assert_allclose(together, [float(schedule(jnp.asarray(step))) for step in STEPS], rtol=1e-12)
        assert (together > 0).all() and (sign * np.diff(together) >= 0).all()
        assert np.issubdtype(together.dtype, np.integer) == (rows is BATCH_SIZES)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_rows_depend_on_the_key_and_the_step_only(name):
    sampling = SAMPLINGS[name](1.0)

    @jax.jit
    def rows(key):
        return jax.vmap(lambda step: sampling.indices(key, step, 7))(jnp.asarray(STEPS))

    first, again, other = (np.asarray(rows(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[5], sampling.indices(jax.random.key(0), jnp.asarray(5), 7))
    assert (first != other).any() and first.shape == (20, 3) and first.min() >= 0 and first.max() < 7


@pytest.mark.parametrize("name", AVERAGINGS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_averages_have_the_type_of_the_points(name, dtype):
    averaging, point = AVERAGINGS[name](1.0), point_of(family_of("normal", "triangular"), dtype)
    state, one = averaging.init(point), jnp.ones((), dtype)
    new = jax.eval_shape(averaging.update, state, point, point, one, one)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert floating((state, new)) <= {np.dtype(dtype)}
    assert floating(jax.eval_shape(averaging.value, new, point)) == {np.dtype(dtype)}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_hold_no_numbers_and_say_what_they_differentiate(name):
    estimator = ESTIMATORS[name]
    assert jax.tree.leaves(estimator) == [] and isinstance(estimator.includes_entropy, bool)
    assert hash(estimator) == hash(type(estimator)())
