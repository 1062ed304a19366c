"""Settings of Proj-SGD from Theorems 10, 11 and Corollary 14 of paper 003 and the constants of a problem."""

from typing import Any

import numpy as np

from provi.algorithms.planning import check_goal, planned_steps
from provi.algorithms.theorem_inputs import TheoremInputs, check_start_nondegenerate, theorem_inputs
from provi.estimators.base import AbstractEstimator
from provi.estimators.entropy import Entropy
from provi.estimators.sticking_the_landing import StickingTheLanding
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.schedules.averaging import GeometricAverage, LastIterate
from provi.schedules.step_sizes import ConstantStep, StronglyConvexStep
from provi.targets.base import AbstractTarget
from provi.targets.gaussian import Gaussian
from provi.targets.linear_regression import LinearRegression
from provi.theory import noise, proj_sgd_convex, proj_sgd_strongly_convex
from provi.theory.solution_region import smallest_scale


def plan_proj_sgd(
    target: AbstractTarget,
    family: LocationScale,
    *,
    budget: int | None = None,
    accuracy: float | None = None,
    num_draws: int = 1,
    theorem: str = "convex",
    schedule: str = "constant",
    estimator: AbstractEstimator | None = None,
    start: Point | None = None,
    initial_distance_squared: float | None = None,
    reference_distance_squared: float | None = None,
) -> dict[str, Any]:
    """The arguments of `ProjSGD` that a theorem prescribes.

    **Arguments:**

    - `theorem`: "convex" (Theorem 11: expected gap, averaged point) or "strongly_convex" (Theorem 10: expected squared
      distance, last iterate; with `StickingTheLanding` on a Gaussian target this is Corollary 14, a linear rate).
    - `schedule`, for "strongly_convex": "constant" or "decaying".
    - `estimator`: `Entropy()` (default, any base) or `StickingTheLanding()` (Gaussian base).
    - the others as in `plan_prox_sgd`.
    """
    check_goal(budget, accuracy, num_draws)
    estimator = Entropy() if estimator is None else estimator
    if family.scale not in ("symmetric", "diagonal"):
        raise ValueError(f"The theorems on Proj-SGD need scale='symmetric' or 'diagonal', not {family.scale!r}.")
    inputs = theorem_inputs(
        target,
        family,
        start=start,
        initial_distance_squared=initial_distance_squared,
        reference_distance_squared=reference_distance_squared,
    )
    check_start_nondegenerate(inputs)
    bound = _noise(target, family, inputs, estimator)
    bound = noise.minibatch_noise(bound, num_draws, 4 * inputs.smoothness**2, 0.0)
    if theorem == "convex":
        plan = _convex(inputs, bound, budget, accuracy, num_draws)
    elif theorem == "strongly_convex":
        plan = _strongly_convex(inputs, bound, budget, accuracy, num_draws, schedule)
    else:
        raise ValueError(f"theorem must be 'convex' or 'strongly_convex', not {theorem!r}.")
    return {
        **plan,
        "num_draws": num_draws,
        "estimator": estimator,
        "smallest_scale": smallest_scale(inputs.smoothness),
    }


def _noise(
    target: AbstractTarget, family: LocationScale, inputs: TheoremInputs, estimator: AbstractEstimator
) -> noise.NoiseBound:
    common: dict[str, Any] = {
        "dim": inputs.dim,
        "smoothness": inputs.smoothness,
        "reference_distance_squared": inputs.reference_distance_squared,
        "kurtosis": inputs.kurtosis,
    }
    if isinstance(estimator, Entropy):
        return noise.entropy_noise(**common)
    if not isinstance(estimator, StickingTheLanding):
        raise ValueError(f"The theorems cover Entropy() and StickingTheLanding(), not '{estimator.name}'.")
    if not isinstance(family.base, Normal):
        raise ValueError("The noise bound of sticking the landing is proven for the Gaussian base only; use Entropy().")
    # The residual log p - log q* of a Gaussian posterior vanishes in the full-covariance family.
    exact = isinstance(target, Gaussian | LinearRegression) and family.scale == "symmetric"
    # For a convex potential both Hessians lie in [0, M], so their difference has norm at most M.
    residual = 0.0 if exact else inputs.smoothness
    return noise.stl_noise(**common, residual_smoothness=residual)


def _convex(
    inputs: TheoremInputs, bound: noise.NoiseBound, budget: int | None, accuracy: float | None, num_draws: int
) -> dict[str, Any]:
    distance = inputs.initial_distance_squared
    num_steps = planned_steps(
        budget, accuracy, num_draws, lambda eps: proj_sgd_convex.steps_for_accuracy(eps, distance, bound)
    )
    gamma = proj_sgd_convex.step_size(num_steps, bound.slope)

    def curve(steps: np.ndarray) -> np.ndarray:
        return np.asarray(proj_sgd_convex.bound(steps, gamma, distance, bound))

    return {
        "step_size": ConstantStep(gamma),
        "averaging": GeometricAverage(proj_sgd_convex.averaging_factor(gamma, bound.slope), of="before"),
        "guarantee": inputs.guarantee("Proj-SGD, convex (paper 003, Theorem 11)", "gap", num_steps, curve),
    }


def _strongly_convex(
    inputs: TheoremInputs,
    bound: noise.NoiseBound,
    budget: int | None,
    accuracy: float | None,
    num_draws: int,
    schedule: str,
) -> dict[str, Any]:
    mu = inputs.strong_convexity
    if mu <= 0:
        raise ValueError("theorem='strongly_convex' needs a strongly convex target; use theorem='convex'.")
    if schedule not in ("constant", "decaying"):
        raise ValueError(f"schedule must be 'constant' or 'decaying', not {schedule!r}.")
    common = (inputs.initial_distance_squared, mu, bound)
    num_steps = planned_steps(
        budget,
        accuracy,
        num_draws,
        lambda eps: proj_sgd_strongly_convex.steps_for_accuracy(eps, *common, schedule=schedule),
    )
    if schedule == "decaying":
        largest = proj_sgd_strongly_convex.largest_constant_step_size(mu, bound.slope)
        step_size: Any = StronglyConvexStep(largest, mu / 2)
    else:
        step_size = ConstantStep(proj_sgd_strongly_convex.best_constant_step_size(num_steps, *common))

    def curve(steps: np.ndarray) -> np.ndarray:
        if schedule == "decaying":
            return np.asarray(proj_sgd_strongly_convex.decaying_step_bound(steps, *common))
        return np.asarray(proj_sgd_strongly_convex.constant_step_bound(steps, float(step_size.value), *common))

    corollary = " and Corollary 14" if bound.floor == 0 else ""
    return {
        "step_size": step_size,
        "averaging": LastIterate(),
        "guarantee": inputs.guarantee(
            f"Proj-SGD, strongly convex, {schedule} step (paper 003, Theorem 10{corollary})",
            "squared distance",
            num_steps,
            curve,
        ),
    }
