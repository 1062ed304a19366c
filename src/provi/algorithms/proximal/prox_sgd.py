"""Proximal stochastic gradient descent: the energy by gradients, the negative entropy by its proximal operator.

`from_theorem` takes its settings from Theorems 7 and 8 of paper 003 and the constants of a problem.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from provi.algorithms.base import check_parts, planned
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.natural.laplace import laplace_approximation
from provi.algorithms.proximal.stochastic_proximal import AbstractStochasticProximal
from provi.algorithms.proximal.theorem_inputs import TheoremInputs, check_goal, planned_steps, theorem_inputs
from provi.core.arguments import double_precision
from provi.estimators.base import AbstractEstimator
from provi.estimators.gradients import Energy
from provi.families.location_scale import LocationScale, Point
from provi.families.scales import Diagonal, Triangular
from provi.geometry.operators import prox_negative_entropy
from provi.schedules.averaging import AbstractAveraging, GeometricAverage, LastIterate
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize, ConstantStep, StronglyConvexStep, as_step_size
from provi.targets.base import AbstractTarget
from provi.targets.whitened import Whitened
from provi.theory import noise, prox_sgd


def _factor(value: Any) -> Any:
    return np.asarray(value, np.float64) if isinstance(value, np.ndarray | list | tuple) else value


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
    - `factor`: F, lower triangular (dim, dim) with a positive diagonal, or (dim,) for a diagonal scale: the steps are
      those in the coordinates x with z = Fx + c, where C is F times that of x. A triangular or diagonal scale only.
    """

    step_size: AbstractStepSize = eqx.field(converter=as_step_size)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=1)
    estimator: AbstractEstimator = Energy()
    averaging: AbstractAveraging = LastIterate()
    anchored: bool = eqx.field(static=True, default=False)
    data_sampling: AbstractSampling | None = None
    factor: Any = eqx.field(default=None, converter=_factor)
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
        wanted = {"triangular": (family.dim, family.dim), "diagonal": (family.dim,)}.get(family.scale)
        if self.factor is not None and self.factor.shape != wanted:
            raise ValueError(
                f"factor has shape {self.factor.shape}: it must be (dim, dim) for scale='triangular' and (dim,) for "
                f"scale='diagonal', and the family has scale={family.scale!r} and dimension {family.dim}."
            )
        self.estimator.check(family)
        return self

    def precondition(self, gradient):
        r"""$FF'g_m$ and $F\,\mathrm{tril}(F'g_C)$: gradients in x are $F'g_m$ and $\mathrm{tril}(F'g_C)$."""
        if self.factor is None:
            return gradient
        factor = jnp.asarray(self.factor, gradient.loc.dtype)
        if isinstance(gradient.scale, Diagonal):
            return Point(factor**2 * gradient.loc, Diagonal(factor**2 * gradient.scale.diagonal))
        assert isinstance(gradient.scale, Triangular)  # by `resolve`
        inner = jnp.tril(factor.T @ gradient.scale.matrix)
        return Point(factor @ (factor.T @ gradient.loc), Triangular(factor @ inner))

    def operator(self, point, step_size):
        """The proximal operator; in x, where there is a factor."""
        if self.factor is None:
            return Point(point.loc, prox_negative_entropy(point.scale, step_size))
        factor = jnp.asarray(self.factor, point.loc.dtype)
        if isinstance(point.scale, Diagonal):
            inner: Any = prox_negative_entropy(Diagonal(point.scale.diagonal / factor), step_size)
            return Point(point.loc, Diagonal(factor * inner.diagonal))
        assert isinstance(point.scale, Triangular)  # by `resolve`
        inner = prox_negative_entropy(Triangular(solve_triangular(factor, point.scale.matrix, lower=True)), step_size)
        return Point(point.loc, Triangular(factor @ inner.matrix))


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
    whiten: bool = False,
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
    - `whiten`: apply the theorem in the coordinates of the Laplace approximation (some gradients and one Hessian at
      the mode), in which M is smaller and the optimum near the mode, and start there. The bound is on the gap, which
      is the same in all coordinates, and rests on the constants in x alone, not on the approximation; declared
      distances are those of x. For "convex" with a triangular or diagonal scale.
    """
    check_goal(budget, accuracy, num_draws)
    if family.scale == "low_rank":
        raise ValueError("No theorem covers scale='low_rank': the entropy is not convex in its parameters.")
    distances = {
        "initial_distance_squared": initial_distance_squared,
        "reference_distance_squared": reference_distance_squared,
    }
    if whiten:
        if theorem != "convex":
            raise ValueError("whiten=True is for theorem='convex': a squared distance would be one in x.")
        return _whitened(target, family, start, distances, budget, accuracy, num_draws)
    inputs = theorem_inputs(target, family, start=start, **distances)
    if theorem == "convex":
        return _convex(inputs, budget, accuracy, num_draws)
    if theorem == "strongly_convex":
        return _strongly_convex(inputs, budget, accuracy, num_draws, schedule)
    raise ValueError(f"theorem must be 'convex' or 'strongly_convex', not {theorem!r}.")


@double_precision
def _whitened(
    target: AbstractTarget,
    family: LocationScale,
    start: Point | None,
    distances: dict[str, float | None],
    budget: int | None,
    accuracy: float | None,
    num_draws: int,
) -> dict[str, Any]:
    """The plan in x, z = mode + Fx, and its start in z."""
    if family.scale not in ("triangular", "diagonal"):
        raise ValueError(f"whiten=True needs scale='triangular' or 'diagonal', not {family.scale!r}.")
    found = laplace_approximation(target, target.default_location, diagonal=family.scale == "diagonal")
    factor = np.asarray(found.factor, np.float64)
    if factor.ndim == 1 and family.scale == "triangular":
        factor = np.diag(factor)
    inner = None if start is None else _moved(start, found.mode, factor, into=True)
    inputs = theorem_inputs(Whitened(target, found.mode, factor), family, start=inner, **distances)
    plan = _convex(inputs, budget, accuracy, num_draws)
    begin = _moved(inputs.start, found.mode, factor, into=False) if start is None else start
    words = "coordinates of the Laplace approximation, in which the constants are those of x"
    guarantee = dataclasses.replace(
        plan["guarantee"], start=begin, assumptions=(*inputs.assumptions, (words, inputs.status))
    )
    return plan | {"factor": factor, "guarantee": guarantee}


def _moved(point: Point, mode: np.ndarray, factor: np.ndarray, into: bool) -> Point:
    """A point of z in the coordinates x, or back."""
    loc, dtype = np.asarray(point.loc, np.float64), point.loc.dtype
    square = factor if factor.ndim == 2 else np.diag(factor)
    loc = np.linalg.solve(square, loc - mode) if into else mode + square @ loc
    if isinstance(point.scale, Diagonal):
        own = np.asarray(point.scale.diagonal, np.float64)
        return Point(jnp.asarray(loc, dtype), Diagonal(jnp.asarray(own / factor if into else own * factor, dtype)))
    own = np.asarray(point.scale.apply(jnp.eye(len(loc), dtype=dtype)), np.float64).T
    matrix = np.tril(np.linalg.solve(square, own) if into else square @ own)
    return Point(jnp.asarray(loc, dtype), Triangular(jnp.asarray(matrix, dtype)))


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
