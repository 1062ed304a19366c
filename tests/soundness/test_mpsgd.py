"""The theorems on MPSGD as inequalities: bound >= measured mean error at every recorded step, 32 seeds."""

import jax
import numpy as np
import pytest

from provi.algorithms import MPSGD
from provi.core.tree import add_scaled, scale, squared_norm, subtract
from provi.diagnostics import exact_negative_elbo
from provi.families import Point
from provi.geometry import BlockPreconditioner, project_nondegenerate
from provi.theory import mpsgd, noise
from soundness.problems import BASES, DIM, compare, geometric_steps, problem, replace, upper

PROBLEMS = [
    ("logistic", "normal", "symmetric"),
    ("logistic", "laplace", "symmetric"),
    ("linear", "uniform", "diagonal"),
    ("gaussian", "student_t", "symmetric"),
]
STRATEGIES = {
    "decaying_step": ("gaussian", "normal", "symmetric"),
    "decaying_step_growing_batch": ("linear", "normal", "diagonal"),
    "growing_batch": ("logistic", "normal", "symmetric"),
}


def _distances(chosen, preconditioned):
    """Options with the distances derived, and with the true ones in the norm of Lambda^-1."""
    factor = noise.scale_preconditioner(DIM, chosen.family.base.kurtosis(DIM)) if preconditioned else 1.0
    yield chosen.automatic
    yield {**chosen.sharp, "initial_distance_squared": chosen.initial_distance_squared(factor)}


@pytest.mark.parametrize("names", PROBLEMS, ids="-".join)
def test_fixed_batch(names):
    """Theorems 4.1, 4.2 and 6: the gap of the average (the same compiled run)."""
    chosen = problem(*names)
    for preconditioned in (False, True):
        for distances in _distances(chosen, preconditioned):
            algorithm = MPSGD.from_theorem(
                chosen.target, chosen.family, budget=3000, preconditioned=preconditioned, **distances
            )
            assert compare(chosen, algorithm).min() >= 1


def test_closed_form_of_theorem_4():
    """The bound as a function of the budget, at the end of the run with rounded batch and steps."""
    chosen = problem(*PROBLEMS[0])
    away = subtract(chosen.start, chosen.optimum.point)
    smoothness = chosen.target.constants.smoothness.value
    for preconditioned in (False, True):
        algorithm = MPSGD.from_theorem(
            chosen.target, chosen.family, budget=3000, preconditioned=preconditioned, **chosen.automatic
        )
        last = np.array([algorithm.guarantee.num_steps])
        measured = upper(chosen.gaps(chosen.run(algorithm, last).outputs))[0]
        bound = mpsgd.theorem4_bound(
            3000,
            DIM,
            3.0,
            smoothness,
            float(squared_norm(away.loc)),
            float(squared_norm(away.scale)),
            chosen.reference_distance_squared,
            preconditioned,
        )
        assert measured <= bound


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dynamic(strategy):
    """Theorem 7: the gap of the weighted average, steps and batches changing along the run."""
    chosen = problem(*STRATEGIES[strategy])
    for preconditioned, num_draws in ((False, 1), (True, 3)):
        for distances in _distances(chosen, preconditioned):
            algorithm = MPSGD.dynamic(
                chosen.target,
                chosen.family,
                num_steps=100 if strategy == "growing_batch" else 600,
                strategy=strategy,
                num_draws=num_draws,
                preconditioned=preconditioned,
                **distances,
            )
            assert compare(chosen, algorithm).min() >= 1


def test_one_draw_and_any_step():
    """Theorem 6 with N = 1 allows steps above 1/(2M): here three times that."""
    chosen = problem(*PROBLEMS[0])
    smoothness = chosen.target.constants.smoothness.value
    step = 3 * mpsgd.largest_step_size(smoothness)
    bound = _entropy_noise(chosen, smoothness)
    planned = MPSGD.from_theorem(chosen.target, chosen.family, budget=3000, **chosen.sharp)
    algorithm = replace(
        planned,
        step_size=type(planned.step_size)(step),
        num_draws=type(planned.num_draws)(1),
        averaging=type(planned.averaging)(mpsgd.averaging_factor(step, 1, bound.slope), of="before"),
    )
    steps = geometric_steps(200)
    curve = mpsgd.sharp_bound(steps, 1, step, chosen.initial_distance_squared(1.0), bound, smoothness)
    assert (curve / upper(chosen.gaps(chosen.run(algorithm, steps).outputs))).min() >= 1


def test_gradient_mapping_without_convexity():
    """Theorem 8 of paper 004; the radius of the iterates, which the theorem takes as given, is measured."""
    chosen = problem(*PROBLEMS[0])
    smoothness = chosen.target.constants.smoothness.value
    step, draws, steps = 0.3 / smoothness, 20, np.arange(60)
    planned = MPSGD.from_theorem(chosen.target, chosen.family, budget=3000, **chosen.automatic)
    algorithm = replace(planned, step_size=type(planned.step_size)(step), num_draws=type(planned.num_draws)(draws))
    iterates = chosen.run(algorithm, steps).iterates
    radius = float(chosen.squared_distances(iterates).max())
    bound = _entropy_noise(chosen, smoothness)
    moment = mpsgd.second_moment(bound.slope, bound.floor, radius)
    initial_gap = float(exact_negative_elbo(chosen.target, chosen.family, chosen.start)) - chosen.optimum.negative_elbo
    curve = mpsgd.nonconvex_bound(np.full(60, step), np.full(60, draws), initial_gap, 2 * smoothness, moment)

    def squared_mapping(point):
        gradient = jax.grad(lambda w: exact_negative_elbo(chosen.target, chosen.family, w))(point)
        moved = add_scaled(point, -step, gradient)
        projected = Point(moved.loc, project_nondegenerate(moved.scale, smoothness**-0.5))
        return squared_norm(scale(1 / step, subtract(point, projected)))

    values = np.asarray(jax.jit(jax.vmap(jax.vmap(squared_mapping)))(iterates))
    assert (np.minimum.accumulate(upper(values)) <= curve).all()


def test_the_comparison_can_fail():
    """One draw a step instead of the plan's batch, and six times its step, held against its bound."""
    chosen = problem(*PROBLEMS[0])
    planned = MPSGD.from_theorem(chosen.target, chosen.family, budget=3000, **chosen.sharp)
    algorithm = replace(
        planned,
        step_size=type(planned.step_size)(6 * float(planned.step_size.value)),
        num_draws=type(planned.num_draws)(1),
        preconditioner=BlockPreconditioner(1.0, 1.0),
    )
    assert compare(chosen, algorithm).min() < 1


def test_every_base_is_covered():
    assert {names[1] for names in PROBLEMS} == set(BASES)


def _entropy_noise(chosen, smoothness):
    return noise.entropy_noise(
        dim=DIM, smoothness=smoothness, reference_distance_squared=chosen.reference_distance_squared
    )
