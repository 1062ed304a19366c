"""Projected stochastic gradient descent on the non-degenerate scales.

`from_theorem` takes its settings from Theorems 10, 11 and Corollary 14 of paper 003 and the constants of a problem.
"""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np

from provi.algorithms.base import check_parts, planned
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.proximal.stochastic_proximal import (
    AbstractStochasticProximal,
    check_projected,
    known_smallest_scale,
    optional_positive,
    project_point,
)
from provi.algorithms.proximal.theorem_inputs import (
    TheoremInputs,
    check_goal,
    check_start_nondegenerate,
    planned_steps,
    theorem_inputs,
)
from provi.estimators.base import AbstractEstimator
from provi.estimators.gradients import Entropy, StickingTheLanding
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.schedules.averaging import AbstractAveraging, GeometricAverage, LastIterate
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize, ConstantStep, StronglyConvexStep, as_step_size
from provi.targets.base import AbstractTarget
from provi.targets.gaussian import Gaussian
from provi.targets.regressions import LinearRegression
from provi.theory import noise, proj_sgd
from provi.theory.solution_region import smallest_scale


class ProjSGD(AbstractStochasticProximal):
    r"""Minimises f(w) = E_q[potential] - log det C by projected stochastic gradients.

    w_{t+1} = proj_{W_M}(w_t - gamma_t g_t), g_t an estimate of grad f, W_M = {sigma_min(C) >= 1/sqrt(M)}.

    **Requires** an estimator of grad f (`Entropy`, `StickingTheLanding`), a symmetric or diagonal scale (the set W_M
    is not convex for triangular ones; a low-rank scale runs without a guarantee) and the target's smoothness M.
    **Guarantee** (paper 003): E f(avg) - f* = O(1/sqrt(T)) (Theorem 11), E|w_T - w*|^2 = O(1/T) with strong convexity
    (Theorem 10), linear convergence with `StickingTheLanding` on a Gaussian target (Corollary 14).
    **Cost per step** on top of the gradient: O(dim^3) (symmetric), O(dim) (diagonal).
    Reference: Domke, Garrigos and Gower (2023), Definition 9.

    **Arguments:**

    - `smallest_scale`: 1/sqrt(M); None takes it from the target's constants.
    - the others as in `ProxSGD`.
    """

    step_size: AbstractStepSize = eqx.field(converter=as_step_size)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=1)
    estimator: AbstractEstimator = Entropy()
    averaging: AbstractAveraging = LastIterate()
    smallest_scale: Any = eqx.field(converter=optional_positive("smallest_scale"), default=None)
    anchored: bool = eqx.field(static=True, default=False)
    data_sampling: AbstractSampling | None = None
    guarantee: Guarantee | None = None

    @classmethod
    def from_theorem(cls, target: AbstractTarget, family: LocationScale, **options: Any) -> "ProjSGD":
        """Step size, batch and averaging from the target's constants: see `plan_proj_sgd` for the options."""
        return planned(cls(**plan_proj_sgd(target, family, **options)), target, family)

    def resolve(self, target, family):
        check_parts(target, family, self.data_sampling)
        check_projected("ProjSGD", self.estimator, family)
        if self.smallest_scale is not None:
            return self
        return dataclasses.replace(self, smallest_scale=known_smallest_scale("ProjSGD", target))

    def precondition(self, gradient):
        return gradient

    def operator(self, point, step_size):
        del step_size  # a projection does not depend on it
        return project_point(point, self.smallest_scale)


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
        budget, accuracy, num_draws, lambda eps: proj_sgd.convex_steps_for_accuracy(eps, distance, bound)
    )
    gamma = proj_sgd.convex_step_size(num_steps, bound.slope)

    def curve(steps: np.ndarray) -> np.ndarray:
        return np.asarray(proj_sgd.convex_bound(steps, gamma, distance, bound))

    return {
        "step_size": ConstantStep(gamma),
        "averaging": GeometricAverage(proj_sgd.convex_averaging_factor(gamma, bound.slope), of="before"),
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
        lambda eps: proj_sgd.steps_for_accuracy(eps, *common, schedule=schedule),
    )
    if schedule == "decaying":
        largest = proj_sgd.largest_constant_step_size(mu, bound.slope)
        step_size: Any = StronglyConvexStep(largest, mu / 2)
    else:
        step_size = ConstantStep(proj_sgd.best_constant_step_size(num_steps, *common))

    def curve(steps: np.ndarray) -> np.ndarray:
        if schedule == "decaying":
            return np.asarray(proj_sgd.decaying_step_bound(steps, *common))
        return np.asarray(proj_sgd.constant_step_bound(steps, float(step_size.value), *common))

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
