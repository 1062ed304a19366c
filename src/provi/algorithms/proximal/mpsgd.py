"""Minibatch projected SGD with a block preconditioner and dynamic batches (paper 004).

`from_theorem` takes its settings from Theorems 4, 6 and 7 of paper 004 (as corrected in `provi.theory`).
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
    theorem_inputs,
)
from provi.estimators.base import AbstractEstimator
from provi.estimators.gradients import Entropy
from provi.families.location_scale import LocationScale, Point
from provi.geometry.operators import BlockPreconditioner
from provi.schedules.averaging import AbstractAveraging, GeometricAverage, LastIterate, NoiseWeightedAverage
from provi.schedules.batch_sizes import AbstractBatchSize, ConstantBatch, PolynomialBatch, as_batch_size
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize, ConstantStep, PolynomialStep, as_step_size
from provi.targets.base import AbstractTarget
from provi.theory import mpsgd, noise
from provi.theory.solution_region import smallest_scale

STRATEGIES = ("decaying_step", "decaying_step_growing_batch", "growing_batch")


class MPSGD(AbstractStochasticProximal):
    r"""Minimises f(w) = E_q[potential] - log det C by preconditioned minibatch projected gradients.

    w_{k+1} = proj_{W_M}(w_k - gamma_k Lambda g_k), g_k the mean of N_k draws, Lambda = (1, lambda_C) by blocks.

    **Requires** as `ProjSGD`; the guarantees also need the `Entropy` estimator and a finite kurtosis of the base.
    **Guarantee** (paper 004, with our corrections): with E = sum N_k gradient evaluations, E f(avg) - f* =
    O(1/sqrt(E)) (Theorems 4 and 6); with growing batches, rates arbitrarily close to that and almost-sure
    convergence when sum gamma_k^2/N_k is finite (Theorem 7).
    **Cost per step** on top of the N_k gradients: one O(dim^3) projection, which the batch amortises.
    Reference: Labarriere, Molinari, Villa and Rosasco (2026), equation 7.
    """

    step_size: AbstractStepSize = eqx.field(converter=as_step_size)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=1)
    # Made when it is asked for: it holds arrays, and `import provi` must not start JAX, after which forks hang.
    preconditioner: BlockPreconditioner = eqx.field(default_factory=BlockPreconditioner)
    estimator: AbstractEstimator = Entropy()
    averaging: AbstractAveraging = LastIterate()
    smallest_scale: Any = eqx.field(converter=optional_positive("smallest_scale"), default=None)
    anchored: bool = eqx.field(static=True, default=False)
    data_sampling: AbstractSampling | None = None
    guarantee: Guarantee | None = None

    @classmethod
    def from_theorem(cls, target: AbstractTarget, family: LocationScale, **options: Any) -> "MPSGD":
        """Step, batch, preconditioner and averaging of Theorem 4: see `plan_mpsgd` for the options."""
        return planned(cls(**plan_mpsgd(target, family, **options)), target, family)

    @classmethod
    def dynamic(cls, target: AbstractTarget, family: LocationScale, **options: Any) -> "MPSGD":
        """The three dynamic strategies of Theorem 7: see `plan_mpsgd_dynamic` for the options."""
        return planned(cls(**plan_mpsgd_dynamic(target, family, **options)), target, family)

    def resolve(self, target, family):
        check_parts(target, family, self.data_sampling)
        check_projected("MPSGD", self.estimator, family)
        if self.smallest_scale is not None:
            return self
        return dataclasses.replace(self, smallest_scale=known_smallest_scale("MPSGD", target))

    def precondition(self, gradient):
        return self.preconditioner(gradient)

    def operator(self, point, step_size):
        del step_size  # a projection does not depend on it
        return project_point(point, self.smallest_scale)


def plan_mpsgd(
    target: AbstractTarget,
    family: LocationScale,
    *,
    budget: int | None = None,
    accuracy: float | None = None,
    preconditioned: bool = False,
    start: Point | None = None,
    initial_distance_squared: float | None = None,
    reference_distance_squared: float | None = None,
) -> dict[str, Any]:
    """The arguments of `MPSGD` that Theorem 4 prescribes: step 1/(2M), one batch size, geometric averaging.

    **Arguments:**

    - `budget`: gradient evaluations to spend; or `accuracy`: the expected gap the bound must reach.
    - `preconditioned`: Theorem 4.2 (lambda_C = 1/(2 rho), N = K = sqrt(E)) instead of 4.1.
    - `initial_distance_squared`: |w0 - w*|^2 in the Lambda^-1 norm if declared; the others as in `theorem_inputs`.
    """
    check_goal(budget, accuracy)
    inputs = _inputs(target, family, start, initial_distance_squared, reference_distance_squared)
    bound, factor = _noise(inputs, preconditioned)
    distance = inputs.initial_distance_squared
    if initial_distance_squared is None:
        distance = inputs.initial_distance_squared_scaled(factor)
    shape = (inputs.dim, inputs.kurtosis, inputs.smoothness, preconditioned)
    if budget is None:
        budget = mpsgd.budget_for_accuracy(accuracy, distance, bound, *shape)  # pyright: ignore
    plan = mpsgd.plan(budget, *shape)

    def curve(steps: np.ndarray) -> np.ndarray:
        return np.asarray(mpsgd.sharp_bound(steps, plan.num_draws, plan.step_size, distance, bound, inputs.smoothness))

    averaging = mpsgd.averaging_factor(plan.step_size, plan.num_draws, bound.slope)
    name = "4.2, preconditioned" if preconditioned else "4.1"
    return {
        "step_size": ConstantStep(plan.step_size),
        "num_draws": ConstantBatch(plan.num_draws),
        "preconditioner": BlockPreconditioner(1.0, factor),
        "estimator": Entropy(),
        "averaging": GeometricAverage(averaging, of="before"),
        "smallest_scale": smallest_scale(inputs.smoothness),
        "guarantee": inputs.guarantee(f"MPSGD (paper 004, Theorem {name})", "gap", plan.num_steps, curve),
    }


def plan_mpsgd_dynamic(
    target: AbstractTarget,
    family: LocationScale,
    *,
    num_steps: int,
    strategy: str = "growing_batch",
    exponent: float = 0.1,
    num_draws: int = 1,
    preconditioned: bool = False,
    start: Point | None = None,
    initial_distance_squared: float | None = None,
    reference_distance_squared: float | None = None,
) -> dict[str, Any]:
    """The arguments of `MPSGD` for the three dynamic strategies of Theorem 7, gamma_0 = 1/(2M).

    **Arguments:**

    - `num_steps`: how far the guarantee's curve is computed (the schedules themselves are anytime).
    - `strategy`, with e = `exponent` > 0: "decaying_step": gamma ~ k^(-1/2-e), N constant;
      "decaying_step_growing_batch": gamma ~ k^(-1/2), N ~ k^e; "growing_batch": gamma constant, N ~ k^(1+e).
    - `num_draws`: the first batch. - the others as in `plan_mpsgd`.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}.")
    step_exponent, batch_exponent = {
        "decaying_step": (0.5 + exponent, 0.0),
        "decaying_step_growing_batch": (0.5, exponent),
        "growing_batch": (0.0, 1 + exponent),
    }[strategy]
    verdict = mpsgd.summable(step_exponent, batch_exponent)
    if not verdict.holds:
        raise ValueError(f"exponent={exponent} does not meet Theorem 7's condition: {verdict.reason}")
    inputs = _inputs(target, family, start, initial_distance_squared, reference_distance_squared)
    bound, factor = _noise(inputs, preconditioned)
    distance = inputs.initial_distance_squared
    if initial_distance_squared is None:
        distance = inputs.initial_distance_squared_scaled(factor)
    largest = mpsgd.largest_step_size(inputs.smoothness)
    step_size: Any = PolynomialStep(largest, step_exponent) if step_exponent else ConstantStep(largest)
    batch: Any = PolynomialBatch(num_draws, batch_exponent) if batch_exponent else ConstantBatch(num_draws)

    def curve(steps: np.ndarray) -> np.ndarray:
        counter = np.arange(int(np.max(steps)))
        sizes = np.asarray(step_size(counter)) * np.ones(len(counter))
        draws = np.asarray(batch(counter)) * np.ones(len(counter), dtype=int)
        return mpsgd.dynamic_bound(sizes, draws, distance, bound)[np.asarray(steps) - 1]

    return {
        "step_size": step_size,
        "num_draws": batch,
        "preconditioner": BlockPreconditioner(1.0, factor),
        "estimator": Entropy(),
        "averaging": NoiseWeightedAverage(bound.slope),
        "smallest_scale": smallest_scale(inputs.smoothness),
        "guarantee": inputs.guarantee(
            f"MPSGD, {strategy} (paper 004, Theorem 7): {verdict.reason}", "gap", num_steps, curve
        ),
    }


def _inputs(
    target: AbstractTarget,
    family: LocationScale,
    start: Point | None,
    initial: float | None,
    reference: float | None,
) -> TheoremInputs:
    if family.scale not in ("symmetric", "diagonal"):
        raise ValueError(f"The theorems on MPSGD need scale='symmetric' or 'diagonal', not {family.scale!r}.")
    inputs = theorem_inputs(
        target, family, start=start, initial_distance_squared=initial, reference_distance_squared=reference
    )
    check_start_nondegenerate(inputs)
    return inputs


def _noise(inputs: TheoremInputs, preconditioned: bool) -> tuple[noise.NoiseBound, float]:
    """The noise of one draw in the norms of Lambda, and lambda_C."""
    function = noise.preconditioned_entropy_noise if preconditioned else noise.entropy_noise
    bound = function(
        dim=inputs.dim,
        smoothness=inputs.smoothness,
        reference_distance_squared=inputs.reference_distance_squared,
        kurtosis=inputs.kurtosis,
    )
    return bound, noise.scale_preconditioner(inputs.dim, inputs.kurtosis) if preconditioned else 1.0
