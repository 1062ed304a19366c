"""Settings of Prox-SGD from Theorems 7 and 8 of paper 003 and the constants of a problem."""

from typing import Any

import numpy as np

from provi.algorithms.planning import check_goal, planned_steps
from provi.algorithms.theorem_inputs import TheoremInputs, theorem_inputs
from provi.estimators.energy import Energy
from provi.families.location_scale import LocationScale, Point
from provi.schedules.averaging import GeometricAverage, LastIterate
from provi.schedules.step_sizes import ConstantStep, StronglyConvexStep
from provi.targets.base import AbstractTarget
from provi.theory import noise, prox_sgd_convex, prox_sgd_strongly_convex


def plan_prox_sgd(
    target: AbstractTarget,
    family: LocationScale,
    *,
    budget: int | None = None,
    accuracy: float | None = None,
    num_draws: int = 1,
    theorem: str = "convex",
    schedule: str = "constant",
    start: Point | None = None,
    initial_distance_squared: float | None = None,
    reference_distance_squared: float | None = None,
) -> dict[str, Any]:
    """The arguments of `ProxSGD` that a theorem prescribes.

    **Arguments:**

    - `budget`: gradient evaluations to spend; or `accuracy`: the value the bound must reach (exactly one of them).
    - `num_draws`: Monte-Carlo draws per step.
    - `theorem`: "convex" (Theorem 8: expected gap in nats, averaged point) or "strongly_convex" (Theorem 7: expected
      squared distance, last iterate).
    - `schedule`, for "strongly_convex": "constant" (the best constant step for the budget), "decaying" (anytime) or
      "log_over_t" (Corollary 34).
    - `start`, `initial_distance_squared`, `reference_distance_squared`: as in `theorem_inputs`.
    """
    check_goal(budget, accuracy, num_draws)
    if family.scale == "low_rank":
        raise ValueError("No theorem covers scale='low_rank': the entropy is not convex in its parameters.")
    inputs = theorem_inputs(
        target,
        family,
        start=start,
        initial_distance_squared=initial_distance_squared,
        reference_distance_squared=reference_distance_squared,
    )
    if theorem == "convex":
        return _convex(inputs, budget, accuracy, num_draws)
    if theorem == "strongly_convex":
        return _strongly_convex(inputs, budget, accuracy, num_draws, schedule)
    raise ValueError(f"theorem must be 'convex' or 'strongly_convex', not {theorem!r}.")


def _energy_noise(inputs: TheoremInputs) -> noise.NoiseBound:
    return noise.energy_noise(
        dim=inputs.dim,
        smoothness=inputs.smoothness,
        reference_distance_squared=inputs.reference_distance_squared,
        kurtosis=inputs.kurtosis,
    )


def _convex(inputs: TheoremInputs, budget: int | None, accuracy: float | None, num_draws: int) -> dict[str, Any]:
    bound = noise.minibatch_noise(_energy_noise(inputs), num_draws, 0.0, 0.0)
    distance, smoothness = inputs.initial_distance_squared, inputs.smoothness
    num_steps = planned_steps(
        budget, accuracy, num_draws, lambda eps: prox_sgd_convex.steps_for_accuracy(eps, distance, bound, smoothness)
    )
    gamma = prox_sgd_convex.step_size(num_steps, bound.slope, smoothness)

    def curve(steps: np.ndarray) -> np.ndarray:
        return np.asarray(prox_sgd_convex.bound(steps, gamma, distance, bound, smoothness))

    return {
        "step_size": ConstantStep(gamma),
        "num_draws": num_draws,
        "estimator": Energy(),
        "averaging": GeometricAverage(prox_sgd_convex.averaging_factor(gamma, bound.slope), of="after"),
        "guarantee": inputs.guarantee("Prox-SGD, convex (paper 003, Theorem 8)", "gap", num_steps, curve),
    }


def _strongly_convex(
    inputs: TheoremInputs, budget: int | None, accuracy: float | None, num_draws: int, schedule: str
) -> dict[str, Any]:
    squared, mu = inputs.smoothness**2, inputs.strong_convexity
    if mu <= 0:
        raise ValueError("theorem='strongly_convex' needs a strongly convex target; use theorem='convex'.")
    if schedule not in ("constant", "decaying", "log_over_t"):
        raise ValueError(f"schedule must be 'constant', 'decaying' or 'log_over_t', not {schedule!r}.")
    if schedule == "log_over_t" and budget is None:
        raise ValueError("schedule='log_over_t' needs budget=; use schedule='constant' or 'decaying' with accuracy=.")
    reference = inputs.reference_distance_squared
    bound = noise.minibatch_noise(_energy_noise(inputs), num_draws, 2 * squared, 2 * squared * reference)
    common = (inputs.initial_distance_squared, mu, inputs.smoothness, bound, reference)
    inverted = "decaying" if schedule == "decaying" else "constant"
    num_steps = planned_steps(
        budget,
        accuracy,
        num_draws,
        lambda eps: prox_sgd_strongly_convex.steps_for_accuracy(eps, *common, schedule=inverted),
    )
    if schedule == "decaying":
        largest = prox_sgd_strongly_convex.largest_constant_step_size(mu, bound.slope)
        step_size: Any = StronglyConvexStep(largest, mu)
    elif schedule == "log_over_t":
        step_size = ConstantStep(prox_sgd_strongly_convex.log_over_t_step_size(num_steps, mu))
    else:
        step_size = ConstantStep(prox_sgd_strongly_convex.best_constant_step_size(num_steps, *common))

    def curve(steps: np.ndarray) -> np.ndarray:
        if schedule == "decaying":
            return np.asarray(prox_sgd_strongly_convex.decaying_step_bound(steps, *common))
        return np.asarray(prox_sgd_strongly_convex.constant_step_bound(steps, float(step_size.value), *common))

    return {
        "step_size": step_size,
        "num_draws": num_draws,
        "estimator": Energy(),
        "averaging": LastIterate(),
        "guarantee": inputs.guarantee(
            f"Prox-SGD, strongly convex, {schedule} step (paper 003, Theorem 7)", "squared distance", num_steps, curve
        ),
    }
