"""The natural gradient for linear models: its formula, its descent, its fixed points, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms.natural.natural_gradient import NaturalGradient, first_location
from provi.diagnostics import exact_negative_elbo, linear_model_optimum
from provi.families import Gaussian, Laplace, LocationScale
from provi.targets import LogDensity, LogisticRegression, PoissonRegression
from support.linear_models import DIM, KINDS, check_stationary, gradients, linear_model, objective
from support.trajectories import step, trajectory

KEY = jax.random.key(0)
LOC = np.array([0.4, -0.9, 0.2])
ROOT = np.array([[0.6, 0.0, 0.0], [0.2, 0.5, 0.0], [-0.1, 0.3, 0.4]])


def start_of(family, dtype=np.float64):
    return family.point_from_covariance(LOC, ROOT @ ROOT.T, dtype)


def iterate(target, family, num_steps, start=None, **options):
    start = start_of(family, target.dtype) if start is None else start
    return trajectory(NaturalGradient(**options), target, family, start, KEY, num_steps)[0]


@pytest.mark.parametrize("scale", ["triangular", "symmetric", "diagonal"])
def test_one_step_is_the_formula(scale):
    target, family, beta = linear_model("logistic"), Gaussian(DIM, scale), 1.5
    state = iterate(target, family, 2, step_size=beta)[-1]
    covariance = np.asarray(start_of(family).scale.covariance())
    gradient, wanted = gradients(target, LOC, covariance)
    goal = np.diag(np.diagonal(wanted)) if scale == "diagonal" else wanted
    precision = (np.linalg.inv(covariance) + beta * goal) / (1 + beta)
    metric = wanted if scale == "diagonal" else precision
    loc = LOC - beta / (1 + beta) * np.linalg.solve(metric, gradient)
    # The moments are eight probits here and fine quadrature there: within 1e-8 a row.
    np.testing.assert_allclose(state.point.loc, loc, atol=1e-6)
    np.testing.assert_allclose(state.point.scale.covariance(), np.linalg.inv(precision), atol=1e-6)
    np.testing.assert_allclose(state.precision, precision, atol=1e-6)
    assert int(state.stage) == 2 and int(state.failures) == 0


def test_evaluation_is_the_exact_negative_elbo_and_norms_are_whitened():
    target, family = linear_model("logistic"), Gaussian(DIM)
    state = iterate(target, family, 1)[-1]
    exact = float(exact_negative_elbo(target, family, start_of(family)))
    assert float(state.evaluation.negative_elbo) == pytest.approx(exact, abs=target.num_terms * target.value_error)
    gradient, wanted = gradients(target, LOC, ROOT @ ROOT.T)
    expected = np.linalg.norm(ROOT.T @ gradient), np.linalg.norm(ROOT.T @ wanted @ ROOT - np.eye(DIM))
    np.testing.assert_allclose([float(x) for x in state.gradient_norms], expected, rtol=1e-6)


def divergence(old, new):
    """KL(q || q_+) of two Gaussians, in NumPy."""
    first, second = (np.asarray(state.point.scale.covariance()) for state in (old, new))
    precision, move = np.linalg.inv(second), np.asarray(new.point.loc) - np.asarray(old.point.loc)
    trace = np.trace(precision @ first) - len(move) + move @ precision @ move
    return 0.5 * (trace + np.linalg.slogdet(second)[1] - np.linalg.slogdet(first)[1])


def check_descent(states):
    """Every accepted step has half of the promised decrease; a rejected one changes the step size only."""
    accepted = rejected = 0
    for old, new in zip(states[1:-1], states[2:], strict=True):
        if int(new.failures) == 0:
            beta = float(old.step_size)
            fall = float(old.evaluation.negative_elbo) - float(new.evaluation.negative_elbo)
            slack = 64 * np.finfo(float).eps * abs(float(old.evaluation.likelihood)) + 1e-12
            assert fall >= 0.5 * (1 + 1 / beta) * divergence(old, new) - slack
            assert float(new.step_size) == min(4 * beta, 1e8)
            accepted += 1
        else:
            np.testing.assert_array_equal(old.point.loc, new.point.loc)
            np.testing.assert_array_equal(old.precision, new.precision)
            assert float(new.step_size) == float(old.step_size) / 4
            rejected += 1
    return accepted, rejected


def test_descent_from_a_bad_start():
    """Poisson rates that are wrong in both directions at the start."""
    target, family = linear_model("poisson"), Gaussian(DIM)
    states = iterate(target, family, 25, family.point(np.array([3.0, 0.0, -3.0]), 0.05))
    assert check_descent(states)[0] >= 5
    check_stationary(target, states[-1].point, 1e-6)


def test_a_trial_is_accepted_exactly_when_half_the_promise_is_kept():
    """One row, computed in NumPy; among the starts are some where the objective falls, but by too little."""
    target, family, beta = LogisticRegression(np.ones((4, 1)), np.array([0, 1, 1, 1]), 10.0), Gaussian(1), 1000.0
    outcomes = set()
    for centre in np.linspace(-4.0, 4.0, 21):
        loc, covariance = np.array([centre]), np.array([[0.25]])
        gradient, wanted = gradients(target, loc, covariance)
        precision = (np.linalg.inv(covariance) + beta * wanted) / (1 + beta)
        move = -beta / (1 + beta) * np.linalg.solve(precision, gradient)
        fall = objective(target, loc, covariance) - objective(target, loc + move, np.linalg.inv(precision))
        ratio = float(precision[0, 0] * covariance[0, 0])
        promise = 0.5 * (1 + 1 / beta) * 0.5 * (ratio - 1 - np.log(ratio) + float(move @ precision @ move))
        state = iterate(target, family, 2, family.point(loc, 0.5), step_size=beta)[-1]
        assert (int(state.failures) == 0) == (fall >= promise), centre
        outcomes.add((bool(fall >= promise), bool(fall > 0)))
    assert outcomes == {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_point_of_every_model(kind):
    target, family = linear_model(kind), Gaussian(DIM)
    check_stationary(target, iterate(target, family, 25)[-1].point, 1e-6)


@pytest.mark.parametrize("scale", ["symmetric", "diagonal"])
def test_fixed_point_of_every_scale(scale):
    target, family = linear_model("logistic"), Gaussian(DIM, scale)
    point = iterate(target, family, 40)[-1].point
    assert point.scale.kind == scale
    check_stationary(target, point, 1e-6, diagonal=scale == "diagonal")


def test_fixed_point_for_another_base_is_the_optimum():
    target, family = linear_model("logistic"), LocationScale(DIM, Laplace())
    best = linear_model_optimum(target, family)
    point = iterate(target, family, 40)[-1].point
    np.testing.assert_allclose(point.loc, best.point.loc, atol=1e-6)
    np.testing.assert_allclose(point.scale.covariance(), best.point.scale.covariance(), atol=1e-6)


def test_gaussian_process():
    """X = identity and a kernel matrix as prior covariance; one latent value a row."""
    times = np.linspace(0, 1, 8)
    kernel = 4.0 * np.exp(-0.5 * ((times[:, None] - times[None, :]) / 0.3) ** 2) + 1e-6 * np.eye(8)
    target = LogisticRegression(np.eye(8), np.array([0, 0, 1, 0, 1, 1, 1, 1]), prior_covariance=kernel)
    family = Gaussian(8)
    point = iterate(target, family, 25, family.point(np.zeros(8), 1.0), from_curvature=True)[-1].point
    check_stationary(target, point, 1e-5)


def test_from_curvature_begins_with_the_laplace_covariance_at_the_start():
    target, family = linear_model("logistic"), Gaussian(DIM)
    state = iterate(target, family, 1, family.point(LOC, 7.0), from_curvature=True)[-1]
    _, wanted = gradients(target, LOC, 1e-12 * np.eye(DIM))
    # The curvature is averaged over a variance of 1e-6 in eta.
    np.testing.assert_allclose(state.precision, wanted, rtol=1e-5)
    np.testing.assert_array_equal(state.point.loc, LOC)
    assert int(state.stage) == 1


def test_a_trial_that_is_not_finite_is_rejected():
    """Rates of exp(-30) at the start: the Newton step goes to where exp overflows."""
    target = PoissonRegression(np.full((4, 1), 10.0), np.array([50, 40, 60, 30]), 100.0)
    family = Gaussian(1)
    states = iterate(target, family, 30, family.point(np.array([-3.0]), 0.01))
    assert int(states[2].failures) == 1 and float(states[2].step_size) < float(states[1].step_size)
    assert check_descent(states)[1] >= 1
    values = np.array([float(state.evaluation.negative_elbo) for state in states[1:]])
    assert np.isfinite(values).all() and (np.diff(values) <= 1e-9).all() and values[-1] < values[0] - 100


def test_single_precision():
    target, family = linear_model("logistic", dtype=np.float32), Gaussian(DIM)
    state = iterate(target, family, 20)[-1]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.point)} == {np.dtype("float32")}
    check_stationary(target, state.point, 1e-3)


def test_shrink_scales_the_step_size():
    target, family = linear_model("logistic"), Gaussian(DIM)
    algorithm = NaturalGradient(step_size=8.0).resolve(target, family)
    state = algorithm.init(start_of(family))
    _, info = step(KEY, algorithm, state, target, family, jnp.asarray(0.25))
    assert float(info.step_size) == 2.0 and int(info.cost) == 1
    assert isinstance(NaturalGradient(step_size=3).step_size, np.ndarray)


def test_refusals():
    density = LogDensity(lambda z: -0.5 * jnp.sum(z**2), DIM)
    with pytest.raises(ValueError, match="StochasticNaturalGradient"):
        NaturalGradient().resolve(density, Gaussian(DIM))
    with pytest.raises(ValueError, match="low-rank"):
        NaturalGradient().resolve(linear_model("logistic"), Gaussian(DIM, "low_rank"))
    with pytest.raises(ValueError, match="dimension"):
        NaturalGradient().resolve(linear_model("logistic"), Gaussian(DIM + 1))


def test_counts_on_columns_that_are_copies_begin_at_the_prior_mean():
    """The ridge regression that would be the start is singular to rounding."""
    target = PoissonRegression(1e12 * np.ones((4, 2)), np.arange(4.0), prior_mean=0.5)
    np.testing.assert_array_equal(first_location(target), [0.5, 0.5])
    assert first_location(PoissonRegression(np.eye(2), [100.0, 1.0]))[0] > 4
