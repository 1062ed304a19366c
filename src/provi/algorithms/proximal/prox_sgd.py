"""Proximal stochastic gradient descent: the energy by gradients, the negative entropy by its proximal operator.

`from_theorem` takes its settings from Theorems 7 and 8 of paper 003 and the constants of a problem.
"""

from typing import Any

import equinox as eqx
import numpy as np

from provi.algorithms.base import check_parts, planned
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.proximal.stochastic_proximal import AbstractStochasticProximal
from provi.algorithms.proximal.theorem_inputs import TheoremInputs, check_goal, planned_steps, theorem_inputs
from provi.estimators.base import AbstractEstimator
from provi.estimators.gradients import Energy
from provi.families.location_scale import LocationScale, Point
from provi.geometry.operators import prox_negative_entropy
from provi.schedules.averaging import AbstractAveraging, GeometricAverage, LastIterate
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize, ConstantStep, StronglyConvexStep, as_step_size
from provi.targets.base import AbstractTarget
from provi.theory import noise, prox_sgd


class ProxSGD(AbstractStochasticProximal):
    r"""Minimises f(w) = E_q[potential] - log det C by proximal stochastic gradients.

    w_{t+1} = prox_{gamma_t h}(w_t - gamma_t g_t), g_t an estimate of grad l, h = -log det C.

    **Requires** an estimator of grad l (`Energy`, `ScoreFunction`) and a triangular, symmetric or diagonal scale;
    the guarantees also need `Energy` and a convex, smooth potential.
    **Guarantee** (paper 003): E f(avg) - f* = O(1/sqrt(T)) (Theorem 8), E|w_T - w*|^2 = O(1/T) with strong
    convexity (Theorem 7); `from_theorem` computes the constants.
    **Cost per step** on top of the gradient: O(dim) (triangular, diagonal), O(dim^3) (symmetric).
    Reference: Domke, Garrigos and Gower (2023), Definition 6.

    **Arguments:**

    - `step_size`: a number or a schedule; `num_draws`: Monte-Carlo draws per step, a number or a schedule.
    - `averaging`: which point to return. - `anchored`: Halpern's variant (no bound is claimed for it).
    - `data_sampling`: e.g. `provi.schedules.UniformSampling(100)` to see 100 data terms per step.
    """

    step_size: AbstractStepSize = eqx.field(converter=as_step_size)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=1)
    estimator: AbstractEstimator = Energy()
    averaging: AbstractAveraging = LastIterate()
    anchored: bool = eqx.field(static=True, default=False)
    data_sampling: AbstractSampling | None = None
    guarantee: Guarantee | None = None

    @classmethod
    def from_theorem(cls, target: AbstractTarget, family: LocationScale, **options: Any) -> "ProxSGD":
        """Step size, batch and averaging from the target's constants: see `plan_prox_sgd` for the options."""
        return planned(cls(**plan_prox_sgd(target, family, **options)), target, family)

    def resolve(self, target, family):
        check_parts(target, family, self.data_sampling)
        if self.estimator.includes_entropy:
            raise ValueError(
                f"ProxSGD treats the entropy by its proximal operator, but the estimator "
                f"'{self.estimator.name}' already contains the entropy's gradient: it would count twice. "
                f"Use estimator=provi.estimators.Energy(), or ProjSGD with this estimator."
            )
        if family.scale == "low_rank":
            raise ValueError("ProxSGD has no proximal operator for scale='low_rank': use ProjSGD or Optax.")
        self.estimator.check(family)
        return self

    def precondition(self, gradient):
        return gradient

    def operator(self, point, step_size):
        return Point(point.loc, prox_negative_entropy(point.scale, step_size))


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
        budget, accuracy, num_draws, lambda eps: prox_sgd.convex_steps_for_accuracy(eps, distance, bound, smoothness)
    )
    gamma = prox_sgd.convex_step_size(num_steps, bound.slope, smoothness)

    def curve(steps: np.ndarray) -> np.ndarray:
        return np.asarray(prox_sgd.convex_bound(steps, gamma, distance, bound, smoothness))

    return {
        "step_size": ConstantStep(gamma),
        "num_draws": num_draws,
        "estimator": Energy(),
        "averaging": GeometricAverage(prox_sgd.convex_averaging_factor(gamma, bound.slope), of="after"),
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
        lambda eps: prox_sgd.steps_for_accuracy(eps, *common, schedule=inverted),
    )
    if schedule == "decaying":
        largest = prox_sgd.largest_constant_step_size(mu, bound.slope)
        step_size: Any = StronglyConvexStep(largest, mu)
    elif schedule == "log_over_t":
        step_size = ConstantStep(prox_sgd.log_over_t_step_size(num_steps, mu))
    else:
        step_size = ConstantStep(prox_sgd.best_constant_step_size(num_steps, *common))

    def curve(steps: np.ndarray) -> np.ndarray:
        if schedule == "decaying":
            return np.asarray(prox_sgd.decaying_step_bound(steps, *common))
        return np.asarray(prox_sgd.constant_step_bound(steps, float(step_size.value), *common))

    return {
        "step_size": step_size,
        "num_draws": num_draws,
        "estimator": Energy(),
        "averaging": LastIterate(),
        "guarantee": inputs.guarantee(
            f"Prox-SGD, strongly convex, {schedule} step (paper 003, Theorem 7)", "squared distance", num_steps, curve
        ),
    }
