"""MPSGD on a general F and Theta: against a loop in NumPy, its bounds on measured runs, its random iterate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import provi
from provi.algorithms import Projected, ProjectedConstants, ProjectedSGD, bounded_elbo
from provi.families import LocationScale
from provi.families.base import AnyParameters
from provi.runtime import minimise_projected
from provi.theory.noise import NoiseBound, block_noise

FACTORS = {"a": 1.0, "b": 0.25}
START = {"a": np.array([2.0]), "b": np.array([1.0, -1.0])}


def _slope(theta):
    """F = 0.3 a + a^2/2 + |b - (2, 0)|^2/2 on [0, 2] x [-1, 1]^2: the minimiser (0, 1, 0) is on the boundary, L = 1."""
    return {"a": 0.3 + theta["a"], "b": theta["b"] - jnp.asarray([2.0, 0.0], theta["b"].dtype)}


def _value(theta):
    return 0.3 * theta["a"][0] + theta["a"][0] ** 2 / 2 + ((theta["b"] - np.array([2.0, 0.0])) ** 2).sum() / 2


OPTIMUM = _value({"a": np.array([0.0]), "b": np.array([1.0, 0.0])})


def _project(theta):
    return {"a": jnp.clip(theta["a"], 0, 2), "b": jnp.clip(theta["b"], -1, 1)}


def _exact(key, theta):
    del key
    return _slope(theta)


def _noisy(key, theta):
    keys, slope = jax.random.split(key), _slope(theta)
    return {
        "a": slope["a"] + (1 + theta["a"]) * jax.random.normal(keys[0], (1,)),
        "b": slope["b"] + jax.random.normal(keys[1], (2,)),
    }


# E|e_a|^2 = (1 + a)^2 <= 2 + 2 a^2, E|e_b|^2 = 2, by blocks (Proposition 3).
VARIANCE = block_noise([[2.0, 0.0], [0.0, 0.0]], [2.0, 2.0], [1.0, 0.25])
DISTANCE = 4.0 + 5.0 / 0.25


def test_without_noise_it_is_the_loop_written_out():
    constants = ProjectedConstants(1.0, NoiseBound(0.7, 0.0, "any"), DISTANCE)
    problem = Projected(_exact, _project, FACTORS, exact_gradient=_slope)
    run = minimise_projected(problem, START, constants, seed=3, num_steps=5, step_size=0.5, num_draws=7)
    theta, weights, iterates, mappings = START, [], [START], []
    for k in range(5):
        slope = {name: np.asarray(part) for name, part in _slope(theta).items()}
        moved = {
            "a": np.clip(theta["a"] - 0.5 * slope["a"], 0, 2),
            "b": np.clip(theta["b"] - 0.5 * 0.25 * slope["b"], -1, 1),
        }
        squares = [((theta[name] - moved[name]) ** 2).sum() / FACTORS[name] for name in theta]
        mappings.append(sum(squares) / 0.25)
        weights.append(0.5 * (1 + 2 * 0.7 * 0.25 / 7) ** -(k + 1.0))
        iterates.append(moved)
        theta = moved
    for name in START:
        np.testing.assert_allclose(run.last[name], theta[name], atol=1e-12)
        mean = np.average([iterate[name] for iterate in iterates[1:]], axis=0, weights=weights)
        np.testing.assert_allclose(run.average[name], mean, atol=1e-12)
        assert any(np.allclose(run.chosen[name], iterate[name], atol=1e-12) for iterate in iterates[:-1])
    assert run.mean_mapping_squared == pytest.approx(np.mean(mappings), rel=1e-10)
    index = next(k for k in range(5) if np.allclose(run.chosen["b"], iterates[k]["b"], atol=1e-12))
    assert run.mapping**2 == pytest.approx(mappings[index], rel=1e-10)
    assert run.mapping_error == 0


def _states(problem, method, steps, count):
    """`count` runs at once, by the algorithm's own step."""
    start = jax.tree.map(jnp.asarray, START)

    def one(key):
        def advance(state, _):
            return method.step(key, state, problem, AnyParameters(), jnp.ones(()))[0], None

        return jax.lax.scan(advance, method.init(start), length=steps)[0]

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), count))


def test_both_bounds_hold_on_measured_runs_and_the_random_iterate_has_its_weights():
    """400 runs of the plan for 300 draws; the bounds are above the mean plus five standard errors."""
    constants = ProjectedConstants(1.0, VARIANCE, DISTANCE, _value(START) - OPTIMUM, 9.0 + 0.25 * 2)
    plan = constants.plan(300)
    problem = Projected(_noisy, _project, FACTORS, exact_gradient=_slope)
    sizes, draws = np.full(plan.num_steps, plan.step_size), np.full(plan.num_steps, plan.num_draws)
    gap_bound, none = constants.bounds(sizes, draws)
    assert none is None  # the step 1/L is too long for Theorem 8
    method = ProjectedSGD(plan.step_size, plan.num_draws, 2 * VARIANCE.slope, 1.0)
    means = jax.tree.map(np.asarray, _states(problem, method, plan.num_steps, 400).mean)
    gaps = np.array([_value({name: part[i] for name, part in means.items()}) for i in range(400)]) - OPTIMUM
    assert gaps.min() >= 0
    assert gaps.mean() + 5 * gaps.std() / 20 <= gap_bound

    schedule = provi.schedules.PolynomialStep(0.8, 0.5)
    steps = 4
    method = ProjectedSGD(schedule, 3, 0.0, 1.0)
    states = _states(problem, method, steps, 400)
    sizes = np.asarray(schedule(np.arange(steps)), float)
    _, mapping_bound = constants.bounds(sizes, np.full(steps, 3))
    assert float(jnp.mean(states.mapping_sum / states.chosen_weight)) <= mapping_bound
    weights = sizes * (1 - sizes)
    counts = [(np.isclose(np.asarray(states.chosen_step_size), size)).sum() for size in sizes]
    # A chi-squared test of the choice, alarm rate 1e-6.
    assert stats.chisquare(counts, 400 * weights / weights.sum()).pvalue > 1e-6


def _wells(z):
    return jnp.sum(jnp.cos(2 * z)) - 0.05 * jnp.sum(z**2)


def test_theorem_8_on_a_target_that_is_not_log_concave():
    """Two wells an axis: the set is kept, and the mapping at the random iterate is below the bound."""
    target = provi.targets.LogDensity(_wells, 2, smoothness=4.1)
    family = LocationScale(2, scale="symmetric")
    # f >= -2 - log det C; on the set det C <= (R^2/2), so that the gap is at most f(w0) + 2 + log(R^2/2).
    radius, start = 2.0, family.point(jnp.asarray([0.5, 0.2]), 0.6, jnp.float64)
    gap = 2 + 0.05 * 2 * 0.6**2 + 0.05 * 0.29 - 2 * np.log(0.6) + 2 + np.log(radius**2 / 2)
    problem, constants = bounded_elbo(target, family, centre=jnp.zeros(2), radius=radius, initial_gap=gap)
    run = minimise_projected(problem, start, constants, seed=0, budget=20_000, mapping_draws=2000)
    assert run.step_sizes[0] == pytest.approx(1 / (3 * 8.2))
    for point in (run.chosen, run.last):
        matrix = np.asarray(point.scale.matrix)
        assert np.linalg.eigvalsh(matrix)[0] >= 1 / np.sqrt(4.1) * (1 - 1e-9)
        assert float(jnp.sum(point.loc**2)) + (matrix**2).sum() <= radius**2 * (1 + 1e-9)
    assert run.mapping_bound is not None
    assert run.gap_bound is None
    assert 0 < run.mapping_error < 0.5
    assert (run.mapping + 4 * run.mapping_error) ** 2 < run.mapping_bound


def test_refuses():
    problem = Projected(_exact, _project)
    with pytest.raises(ValueError, match="exactly one of budget="):
        minimise_projected(problem, START, ProjectedConstants(1.0), seed=0)
    with pytest.raises(ValueError, match="A plan needs variance="):
        minimise_projected(problem, START, ProjectedConstants(1.0), seed=0, budget=10)
    with pytest.raises(ValueError, match="factors must lie in"):
        Projected(_exact, _project, 1.5)
    with pytest.raises(ValueError, match="use MPSGD or ProjSGD"):
        ProjectedSGD(0.1).resolve(provi.targets.LogDensity(_wells, 2), None)
    target, family = provi.targets.LogDensity(_wells, 2, smoothness=4.1), LocationScale(2, scale="symmetric")
    with pytest.raises(ValueError, match="radius must be at least"):
        bounded_elbo(target, family, centre=jnp.zeros(2), radius=0.1, initial_gap=1.0)
    assert ProjectedConstants(1.0, VARIANCE, DISTANCE).bounds(np.array([1.5]), np.array([1])) == (None, None)
