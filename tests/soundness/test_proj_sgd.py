"""The theorems on Proj-SGD as inequalities: bound >= measured mean error at every recorded step, 32 seeds."""

import numpy as np
import pytest

from provi.algorithms import ProjSGD
from provi.estimators import Entropy, StickingTheLanding
from provi.theory import noise, proj_sgd
from soundness.problems import DIM, compare, geometric_steps, problem, replace, settings, upper

ENTROPY, STL = Entropy(), StickingTheLanding()


def _name(part):
    return part.name.replace(" ", "_") if isinstance(part, Entropy | StickingTheLanding) else "-".join(part)


@pytest.mark.parametrize(
    ("names", "estimator"),
    [
        (("logistic", "normal", "symmetric"), ENTROPY),
        (("gaussian", "uniform", "diagonal"), ENTROPY),
        (("linear", "normal", "diagonal"), STL),
    ],
    ids=_name,
)
def test_convex(names, estimator):
    """Theorem 11: the gap of the average."""
    chosen = problem(*names)
    for options in settings(chosen, 2000):
        algorithm = ProjSGD.from_theorem(chosen.target, chosen.family, theorem="convex", estimator=estimator, **options)
        assert compare(chosen, algorithm).min() >= 1


@pytest.mark.parametrize(
    ("names", "schedule", "estimator"),
    [
        (("linear", "uniform", "symmetric"), "constant", ENTROPY),
        (("logistic", "normal", "symmetric"), "constant", STL),
        (("logistic", "normal", "diagonal"), "decaying", ENTROPY),
        (("gaussian", "normal", "symmetric"), "decaying", STL),
    ],
    ids=lambda part: part if isinstance(part, str) else _name(part),
)
def test_strongly_convex(names, schedule, estimator):
    """Theorem 10: the distance of the last iterate."""
    chosen = problem(*names)
    for options in settings(chosen, 4000):
        algorithm = ProjSGD.from_theorem(
            chosen.target, chosen.family, theorem="strongly_convex", schedule=schedule, estimator=estimator, **options
        )
        assert compare(chosen, algorithm).min() >= 1


def test_recursion_with_twice_the_contraction_is_still_above():
    """Ours, 1 - 2 gamma mu + gamma^2 a, at the largest step of the theorem and at three times that."""
    chosen = problem("linear", "uniform", "symmetric")
    constants = chosen.target.constants
    mu, smoothness = constants.strong_convexity.value, constants.smoothness.value
    bound = noise.entropy_noise(
        dim=DIM,
        smoothness=smoothness,
        reference_distance_squared=chosen.reference_distance_squared,
        kurtosis=chosen.family.base.kurtosis(DIM),
    )
    planned = ProjSGD.from_theorem(chosen.target, chosen.family, budget=4000, theorem="strongly_convex", **chosen.sharp)
    steps = geometric_steps(2000)
    for factor in (1.0, 3.0):
        step = factor * proj_sgd.largest_constant_step_size(mu, bound.slope)
        curve = proj_sgd.recursion_bound(np.full(2000, step), chosen.initial_distance_squared(1.0), mu, bound)
        algorithm = replace(planned, step_size=type(planned.step_size)(step))
        ratio = curve[steps] / upper(chosen.squared_distances(chosen.run(algorithm, steps).iterates))
        assert ratio.min() >= 1
        assert ratio[0] <= 1.1
