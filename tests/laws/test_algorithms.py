"""What holds for every algorithm, run as a user runs it: own precision, repeatable, resumable, one program, guarded."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.contracts import assert_equal_bits, assert_one_program, compilations, floating
from laws.members import ALGORITHMS, Problem
from provi.algorithms.base import without_guarantee
from provi.estimators import base as estimators_base
from provi.families.location_scale import Point
from provi.runtime import Budget, run
from provi.runtime.record import FIELDS, Outcome
from support.members import dense, flat, in_space, quick_jit

by_row = pytest.mark.parametrize("name", ALGORITHMS)
STEPS, PART = 7, 3
COMPARABLE = [FIELDS.index(field) for field in FIELDS if field != "seconds"]


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_compilation):
    """One size of chunk compiles in a quarter of the time; nothing here depends on the sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators_base, "CHUNKS", (1,))
        yield


def go(algorithm: Any, problem: Problem, seed: int = 1, num_steps: int = STEPS, **options: Any) -> Any:
    return run(algorithm, *problem, seed=seed, num_steps=num_steps, progress=False, **options)


def spoiled(problem: Problem) -> Problem:
    """The same problem, its data not numbers."""
    field = next(name for name in ("response", "data", "smooth", "strata", "gradient") if hasattr(problem.target, name))
    values = getattr(problem.target, field)
    missing = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), values)
    return problem._replace(target=eqx.tree_at(lambda target: getattr(target, field), problem.target, missing))


class Runs(NamedTuple):
    """All runs of one row in double precision: they share the programs that the first one compiles."""

    whole: Any
    compiled: int
    again: Any
    other: Any
    other_seed: Any
    missing: Any
    recompiled: int


@functools.cache
def runs(name: str) -> Runs:
    row = ALGORITHMS[name]
    first, second = ((row.make(s), row.problem(np.float64, s)) for s in (1.0, 2.0))
    nothing = (first[0], spoiled(first[1]))
    with compilations() as compiled:
        whole = go(*first, budget=Budget(gradients=10**5))
    with compilations() as recompiled:
        again, other = go(*first), go(*second)
        other_seed = go(*first, seed=2, budget=Budget(gradients=10**6))
        missing = go(*nothing, num_steps=100)
    return Runs(whole, len(compiled), again, other, other_seed, missing, len(recompiled))


@by_row
def test_other_numbers_need_no_other_program(name):
    """Data, steps, numbers of draws and of steps, starts, seeds, budgets, no data: nothing compiles again."""
    row = ALGORITHMS[name]
    assert_one_program(row.make(1.0), row.make(2.0), numbers_differ=False)
    assert_one_program(*(tuple(row.problem(np.float64, s)) for s in (1.0, 2.0)))
    assert runs(name).compiled > 0 == runs(name).recompiled
    assert np.abs(flat(runs(name).other.point) - flat(runs(name).whole.point)).max() > 1e-6


@by_row
def test_a_run_repeats_with_its_seed_and_moves(name):
    found, start = runs(name), ALGORITHMS[name].problem(np.float64, 1.0).start
    assert_equal_bits((found.whole.point, found.whole.last), (found.again.point, found.again.last))
    assert found.whole.outcome is Outcome.COMPLETED and found.whole.message == Outcome.COMPLETED.value
    assert found.whole.num_steps == STEPS and found.whole.gradient_evaluations > 0
    assert np.abs(flat(found.whole.last) - flat(start)).max() > 1e-6
    assert (np.abs(flat(found.other_seed.last) - flat(found.whole.last)).max() > 1e-9) == ALGORITHMS[name].stochastic


@by_row
def test_the_answer_is_a_point_of_the_family(name):
    problem, found = ALGORITHMS[name].problem(np.float64, 1.0), runs(name).whole
    # What is returned may hold more than the point: a trace of the steps to it.
    for point in (getattr(found.point, "point", found.point), found.last):
        problem.family.check_point(point)
        assert jax.tree.structure(point) == jax.tree.structure(problem.start)
        assert np.isfinite(flat(point)).all()
        if isinstance(point, Point):
            # Triangular scales stay triangular, symmetric ones symmetric, all of them definite.
            np.testing.assert_allclose(flat(in_space(point.scale)), flat(point.scale), rtol=0, atol=1e-13)
            matrix = np.asarray(dense(point.scale))
            assert np.linalg.eigvalsh(matrix @ matrix.T)[0] > 0


@by_row
def test_the_history_is_finite(name):
    history = runs(name).whole.history
    if not ALGORITHMS[name].records:
        assert len(history) == 0
        return
    assert len(history) and history["step"][-1] == STEPS
    assert np.isfinite(history.as_array()).all()
    assert (np.diff(history["gradient_evaluations"]) >= 0).all() and not history["rejected_steps"].any()


@by_row
def test_a_run_in_two_parts_ends_with_the_same_bits(name, tmp_path):
    row, whole, path = ALGORITHMS[name], runs(name).whole, tmp_path / "run.safetensors"
    algorithm, problem = row.make(1.0), row.problem(np.float64, 1.0)
    part = go(algorithm, problem, num_steps=PART, checkpoint=path)
    assert part.num_steps == PART
    resumed = go(algorithm, problem, checkpoint=path, resume=True)
    assert_equal_bits((resumed.point, resumed.last), (whole.point, whole.last))
    assert (resumed.num_steps, resumed.gradient_evaluations) == (STEPS, whole.gradient_evaluations)
    np.testing.assert_array_equal(*(r.history.as_array()[-1:, COMPARABLE] for r in (resumed, whole)))
    assert np.isin(part.history["step"], resumed.history["step"]).all()
    with pytest.raises(ValueError, match="belongs to another run"):
        go(row.make(1.0), row.problem(np.float64, 2.0), checkpoint=path, resume=True)


@by_row
def test_data_that_are_not_numbers_are_located_and_refused(name):
    found, start = runs(name).missing, ALGORITHMS[name].problem(np.float64, 1.0).start
    assert_equal_bits(getattr(found.point, "point", found.point), start)
    if ALGORITHMS[name].locates:
        assert found.outcome is Outcome.NONFINITE and not found.outcome.ok
        assert "the first at iteration 0, where" in found.message and "was not finite" in found.message


@by_row
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_everything_has_the_type_of_the_target(name, dtype):
    """By the types of what a step makes, without compiling it; the state keeps its own, as the loop needs it to."""
    row, number = ALGORITHMS[name], np.dtype(dtype)
    target, family, start = row.problem(dtype, 1.0)
    algorithm = without_guarantee(row.make(1.0).resolve(target, family))
    state = algorithm.init(start)
    # A table of half precision has its mean in single precision.
    allowed = {number, np.dtype(jnp.bfloat16), np.dtype(np.float32)} if "half precision" in name else {number}
    assert floating(state) <= allowed and number in floating(state)
    step = eqx.filter_eval_shape(algorithm.step, jax.random.key(0), state, target, family, jnp.ones((), dtype))
    assert floating(step) <= allowed
    assert jax.tree.structure(step[0]) == jax.tree.structure(state)
    for new, old in zip(jax.tree.leaves(step[0]), jax.tree.leaves(state), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert floating(eqx.filter_eval_shape(algorithm.output, state)) == {number}


# One of each state: the types of the others are seen above, and single precision is run where they are at home.
SINGLE = ("prox", "optax", "natural gradient", "dual natural gradient", "pgsvi", "misso", "adam")


@pytest.mark.parametrize("name", SINGLE)
def test_a_run_in_single_precision(name):
    row = ALGORITHMS[name]
    single, double = go(row.make(1.0), row.problem(np.float32, 1.0)), runs(name).whole
    assert floating((single.point, single.last)) == {np.dtype(np.float32)}
    assert single.outcome is Outcome.COMPLETED and np.isfinite(flat(single.point)).all()
    if not row.stochastic:  # the draws of float32 are others
        np.testing.assert_allclose(flat(single.point), flat(double.point), rtol=1e-3, atol=1e-4)


def plain_steps(key, algorithm, target, family, start):
    def body(state, _):
        return algorithm.step(key, state, target, family, jnp.ones((), start.loc.dtype))

    state, infos = jax.lax.scan(body, algorithm.init(start), length=PART)
    return algorithm.output(state), state, infos


@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if row.vmap])
def test_steps_are_pure_and_batched_over_keys(name):
    """Inside `jit`, `vmap` and `scan` at once, the same points as those of the runs one by one."""
    row = ALGORITHMS[name]
    problem = row.problem(np.float64, 1.0)
    algorithm = without_guarantee(row.make(1.0).resolve(problem.target, problem.family))
    keys = jnp.stack([jax.random.split(jax.random.key(seed))[0] for seed in (1, 2)])
    batched = quick_jit(jax.vmap(plain_steps, in_axes=(0, None, None, None, None)))
    together, states, infos = batched(keys, algorithm, *problem)
    assert np.isfinite(flat(infos)).all() and (np.asarray(states.step) == PART).all()
    for place, seed in enumerate((1, 2)):
        alone = go(row.make(1.0), problem, seed=seed, num_steps=PART)
        for one, both in zip(jax.tree.leaves(alone.point), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(both[place], one, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["prox", "prox, score"])
def test_a_float32_point_on_float64_data_stays_float32(name):
    row = ALGORITHMS[name]
    target, family, _ = row.problem(np.float64, 1.0)
    algorithm, start = without_guarantee(row.make(1.0).resolve(target, family)), row.problem(np.float32, 1.0).start
    output, _, _ = jax.eval_shape(plain_steps, jax.random.key(0), algorithm, target, family, start)
    assert floating(output) == {np.dtype(np.float32)}


@by_row
def test_the_loop_sees_no_guarantee(name):
    row = ALGORITHMS[name]
    algorithm = row.make(1.0).resolve(*row.problem(np.float64, 1.0)[:2])
    bare = without_guarantee(algorithm)
    assert bare.guarantee is None and type(bare) is type(algorithm)
    assert bool(eqx.tree_equal(bare, without_guarantee(bare)))
