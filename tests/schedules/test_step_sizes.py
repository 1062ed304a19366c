"""Step-size schedules against their formulas, in and outside compiled code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.schedules import ConstantStep, PolynomialStep, StronglyConvexStep
from provi.schedules.step_sizes import as_step_size

STEPS = np.array([0, 1, 2, 5, 99, 10**6, 10**10])
FORMULAS = {
    "constant": (ConstantStep(0.3), lambda t: 0.3 + 0 * t),
    "polynomial": (PolynomialStep(0.3, 0.6), lambda t: 0.3 / (t + 1.0) ** 0.6),
    "square_root": (PolynomialStep(2.0), lambda t: 2.0 / np.sqrt(t + 1.0)),
    "strongly_convex": (
        StronglyConvexStep(0.25, 0.5),
        lambda t: np.minimum(0.25, (2 * t + 1) / (0.5 * (t + 1.0) ** 2)),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name):
    schedule, formula = FORMULAS[name]
    compiled = jax.jit(lambda schedule, t: schedule(t))
    for t in STEPS:
        value = compiled(schedule, jnp.asarray(t))
        assert value.dtype == jnp.float64
        np.testing.assert_allclose(value, formula(float(t)), rtol=1e-13)
        np.testing.assert_allclose(schedule(jnp.asarray(t)), formula(float(t)), rtol=1e-13)
    assert compiled._cache_size() == 1


def test_the_strongly_convex_schedule_changes_regime():
    values = [float(StronglyConvexStep(0.25, 0.5)(jnp.asarray(t))) for t in range(40)]
    assert values[0] == values[10] == 0.25
    assert values[39] < 0.25


@pytest.mark.parametrize("bad", [0.0, -0.1, np.nan, np.inf, np.asarray(-1.0)])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="step_size must be a positive number"):
        as_step_size(bad)
    with pytest.raises(ValueError, match="initial must be"):
        PolynomialStep(bad)
    with pytest.raises(ValueError, match="exponent must be"):
        PolynomialStep(1.0, bad)
    with pytest.raises(ValueError, match="largest must be"):
        StronglyConvexStep(bad, 1.0)
    with pytest.raises(ValueError, match="strong_convexity must be"):
        StronglyConvexStep(1.0, bad)


def test_numbers_become_leaves_and_schedules_pass():
    assert len(jax.tree.leaves(StronglyConvexStep(1, 2))) == 2
    schedule = as_step_size(1)
    assert isinstance(schedule, ConstantStep)
    assert as_step_size(schedule) is schedule
