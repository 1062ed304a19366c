"""Steps that are not finite: located, rejected, and recovered from, or the last good state is returned."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from provi.algorithms import MPSGD, Optax, ProxSGD
from provi.algorithms.base import without_guarantee
from provi.core.tree import all_finite
from provi.families import Diagonal, Gaussian, Point
from provi.runtime import run
from provi.runtime.loop import LARGEST_REJECTIONS, RECOVERY, guarded_step, initial_carry
from provi.runtime.record import Outcome
from provi.schedules import GeometricAverage
from provi.targets import LogDensity
from support.members import flat
from support.trajectories import step

FAMILY = Gaussian(1, "diagonal")
START = FAMILY.point([0.0], 1.0)
WIDE = FAMILY.point([0.0], 1.2)  # reaches beyond 2, where the densities below are not finite; the optimum does not


def nan_above_two(z):
    return jnp.sum(-2 * z**2 + 1e-3 * jnp.sqrt(2 - z))


def infinite_gradient_above_two(z):
    return jnp.sum(jnp.where(z > 2, -jnp.exp(1000 * jnp.where(z > 2, z, 0.0)), -2 * z**2))


def first_bad_step(algorithm, target, seed):
    """By plain steps, without the guard."""
    key = jax.random.split(jax.random.key(seed))[0]
    algorithm = without_guarantee(algorithm.resolve(target, FAMILY))
    state = algorithm.init(WIDE)
    for _ in range(500):
        state, info = step(key, algorithm, state, target, FAMILY, jnp.ones(()))
        if not np.isfinite(float(info.norms[0])):
            return int(state.step) - 1
    raise AssertionError("no bad step")


@pytest.mark.parametrize("density", [nan_above_two, infinite_gradient_above_two])
def test_a_bad_step_is_located_rejected_and_recovered_from(density):
    target, algorithm = LogDensity(density, 1), ProxSGD(0.02, 2)
    bad = first_bad_step(algorithm, target, seed=1)
    result = run(algorithm, target, FAMILY, WIDE, seed=1, num_steps=150)
    assert result.outcome is Outcome.COMPLETED
    assert result.num_steps == 150
    assert f"the first at iteration {bad}, where the gradient of the location was not finite" in result.message
    rejected = result.history["rejected_steps"][-1]
    assert 1 <= rejected < LARGEST_REJECTIONS
    assert f"{int(rejected)} non-finite step(s) rejected" in result.message
    assert bool(all_finite((result.point, result.last)))
    assert np.abs(flat(result.last) - flat(WIDE)).max() > 1e-3
    # Each rejection halves the step, accepted steps let it grow back to its plan, and rejected draws are paid for.
    assert result.history["step_size"].min() <= 0.01 * RECOVERY**2
    assert result.history["step_size"][-1] == pytest.approx(0.02)
    assert result.gradient_evaluations == 300


def test_a_rejected_step_changes_nothing_but_the_step_number():
    target = LogDensity(lambda z: jnp.sum(jnp.sqrt(50 - z)), 1)
    algorithm = Optax(optax.adam(0.1), 1, averaging=GeometricAverage(0.9))
    carry = initial_carry(algorithm, FAMILY.point([100.0], 1.0))
    after = jax.jit(guarded_step)(jax.random.key(0), algorithm, target, FAMILY, carry)
    assert int(after.state.step) == 1 and int(carry.state.step) == 0
    for old, new in zip(
        jax.tree.leaves((carry.state.point, carry.state.rule_state, carry.state.average)),
        jax.tree.leaves((after.state.point, after.state.rule_state, after.state.average)),
        strict=True,
    ):
        np.testing.assert_array_equal(old, new)
    assert float(after.health.shrink) == 0.5
    assert int(after.health.consecutive) == int(after.health.rejected) == 1
    assert int(after.health.first_step) == 0
    assert int(after.health.gradient_evaluations) == 1


def test_when_every_step_fails_the_last_good_state_is_returned(tmp_path):
    """The first step goes to 100, where there are no finite values any more."""
    target = LogDensity(lambda z: jnp.sum(100 * z + jnp.sqrt(50 - z)), 1)
    result = run(
        ProxSGD(1.0, 50), target, FAMILY, START, seed=0, num_steps=10_000, checkpoint=tmp_path / "run.safetensors"
    )
    assert result.outcome is Outcome.NONFINITE
    assert not result.outcome.ok
    assert result.num_steps == 1 + LARGEST_REJECTIONS
    np.testing.assert_allclose(result.last.loc, [100.0], atol=0.1)
    assert bool(all_finite(result.point))
    assert "last good state" in result.message and "at iteration 1," in result.message
    assert f"{LARGEST_REJECTIONS} non-finite step(s)" in result.message


@pytest.mark.parametrize(
    ("algorithm", "density", "start", "quantity"),
    [
        (ProxSGD(0.1), lambda z: jnp.nan * jnp.sum(z - 1e300), START, None),
        (ProxSGD(1e200), lambda z: -1e150 * jnp.sum(z), START, "the new parameters"),
        (
            MPSGD(0.1, smallest_scale=1e-320),
            lambda z: -jnp.sum(z**2),
            Point(jnp.zeros(1), Diagonal(jnp.asarray([1e-310]))),
            "the gradient of the scale",
        ),
    ],
)
def test_the_message_names_the_quantity(algorithm, density, start, quantity):
    if quantity is None:
        with pytest.raises(ValueError, match="finite"):
            LogDensity(density, 1)
        return
    result = run(algorithm, LogDensity(density, 1), FAMILY, start, seed=0, num_steps=100)
    assert result.outcome is Outcome.NONFINITE
    assert f"at iteration 0, where {quantity} was not finite" in result.message
    np.testing.assert_array_equal(flat(result.last), flat(start))


def test_a_clean_run_says_nothing_of_rejections():
    target = LogDensity(lambda z: -jnp.sum(z**2) / 2, 1)
    result = run(ProxSGD(0.1), target, FAMILY, START, seed=0, num_steps=5)
    assert result.message == Outcome.COMPLETED.value
    assert not result.history["rejected_steps"].any()


def test_nan_density_with_finite_gradients_is_seen_in_the_elbo():
    # log of a negative number is NaN, its derivative 1/z is finite: no step looks wrong.
    target = LogDensity(lambda z: jnp.log(z[0]) - z[0], 1, start=np.ones(1))
    family = Gaussian(1, "diagonal")
    start = family.point([3.0], 2.5)
    result = run(ProxSGD(1e-4), target, family, start, seed=0, num_steps=20)
    assert result.outcome is Outcome.NONFINITE
    assert "not finite at draws of q" in result.message
    assert np.isfinite(np.asarray(result.point.loc)).all()


def test_shrunk_step_size_recovers():
    # NaN in a small region only: after the rejections the step size returns to its plan.
    target = LogDensity(lambda z: jnp.sum(-2 * z**2 + 1e-3 * jnp.sqrt((z - 1.5) ** 2 - 0.01)), 1)
    result = run(ProxSGD(0.01), target, FAMILY, WIDE, seed=0, num_steps=1500)
    assert result.history["rejected_steps"][-1] > 0
    assert result.history["step_size"][-1] == pytest.approx(0.01)
