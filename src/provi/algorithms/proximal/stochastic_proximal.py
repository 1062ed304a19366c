r"""The one step that Prox-SGD, Proj-SGD and MPSGD share.

w_{t+1} = argmin_w <g_t, w> + h(w) + |w - w_t|^2_{Lambda^-1} / (2 gamma_t), where h is the part treated exactly:
the negative entropy (its proximal operator) or the indicator of W_M (the projection).

What the projected methods share: their checks and the projection of a point on W_M.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.natural.natural_gradient import NaturalGradient, exact_negative_elbo
from provi.core.arguments import check_positive
from provi.core.tree import add_scaled, squared_norm, subtract
from provi.core.types import Count, RandomKey, Scalar
from provi.estimators.base import AbstractEstimator, minibatch_gradient
from provi.families.location_scale import LocationScale, Point
from provi.geometry.operators import project_nondegenerate
from provi.schedules.averaging import AbstractAveraging
from provi.schedules.batch_sizes import AbstractBatchSize
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize
from provi.targets.base import AbstractFiniteSum, AbstractTarget
from provi.theory.solution_region import smallest_scale

_DRAWS, _DATA = 0, 1  # separate random streams for Monte-Carlo draws and data indices


class ProximalState(eqx.Module):
    """The iterate, its running average, the step number and the Halpern anchor (None when not anchored)."""

    point: Point
    average: Any
    step: Count
    anchor: Point | None


class StepPotential(eqx.Module):
    """The potential that a step sees: of all terms (`indices` is None) or of a batch, on the target's devices."""

    target: Any
    indices: Any

    def __call__(self, z: Any) -> Scalar:
        return self.target.potential(z) if self.indices is None else self.target.minibatch_potential(z, self.indices)

    @property
    def division(self) -> Any:
        """The target's."""
        return self.target.division


def step_potential(key: RandomKey, step: Count, target: AbstractTarget, sampling: AbstractSampling | None) -> Callable:
    """The potential that this step sees: the whole target, or an unbiased one from a batch of its terms."""
    if sampling is None:
        return StepPotential(target, None)
    assert isinstance(target, AbstractFiniteSum)  # by `check_parts`
    return StepPotential(target, sampling.indices(jax.random.fold_in(key, _DATA), step, target.num_terms))


def step_gradient(
    key: RandomKey,
    state: Any,
    target: AbstractTarget,
    family: LocationScale,
    estimator: AbstractEstimator,
    num_draws: Count,
    sampling: AbstractSampling | None,
) -> Point:
    """The minibatch gradient at the state's point. Randomness depends on (key, step) only, so runs can resume."""
    potential = step_potential(key, state.step, target, sampling)
    draw_key = jax.random.fold_in(jax.random.fold_in(key, _DRAWS), state.step)
    return minibatch_gradient(draw_key, estimator, potential, family, state.point, num_draws)


def step_info(step_size: Scalar, num_draws: Count, gradient: Point, point: Point) -> StepInfo:
    """A step of `num_draws` gradients, with the norms of the default `quantities`."""
    norms = [jnp.sqrt(squared_norm(part)) for part in (gradient.loc, gradient.scale, point)]
    return StepInfo(step_size, num_draws, (norms[0], norms[1], norms[2]))


class AbstractStochasticProximal(AbstractAlgorithm):
    """The family of methods above; a member says what its operator and its preconditioner are.

    With an anchor w_0 the step is Halpern's: w_{t+1} = w_0/(t+2) + (1 - 1/(t+2)) T(w_t), T the plain step;
    the result stays in the (convex) constraint set.
    """

    step_size: AbstractVar[AbstractStepSize]
    num_draws: AbstractVar[AbstractBatchSize]
    estimator: AbstractVar[AbstractEstimator]
    averaging: AbstractVar[AbstractAveraging]
    anchored: AbstractVar[bool]
    data_sampling: AbstractVar[AbstractSampling | None]

    @abstractmethod
    def precondition(self, gradient: Point) -> Point:
        """Lambda g."""

    @abstractmethod
    def operator(self, point: Point, step_size: Scalar) -> Point:
        """The proximal operator or the projection."""

    def init(self, point):
        anchor = point if self.anchored else None
        return ProximalState(point, self.averaging.init(point), jnp.zeros((), dtype=int), anchor)

    def step(self, key, state, target, family, shrink):
        dtype = state.point.loc.dtype
        gamma = (self.step_size(state.step) * shrink).astype(dtype)
        draws = self.num_draws(state.step)
        gradient = step_gradient(key, state, target, family, self.estimator, draws, self.data_sampling)
        moved = self.operator(add_scaled(state.point, -gamma, self.precondition(gradient)), gamma)
        if state.anchor is not None:
            moved = add_scaled(moved, 1 / (state.step + 2).astype(dtype), subtract(state.anchor, moved))
        average = self.averaging.update(state.average, state.point, moved, gamma, draws.astype(dtype))
        info = step_info(gamma, draws, gradient, moved)
        return ProximalState(moved, average, state.step + 1, state.anchor), info

    def cost_at(self, step):
        return self.num_draws(step)

    def output(self, state):
        return self.averaging.value(state.average, state.point)


class Fed(AbstractAlgorithm):
    """A method whose batches the host draws (`runtime`'s feed): `inner` sees all rows of the target that it is fed.

    An ELBO that is recorded is exact, of one pass over the whole `target`: each draw of an estimate would be one.
    `batch`: rows of what it is fed, by which a checkpoint knows the run.
    """

    inner: Any
    batch: int = eqx.field(static=True)
    target: Any = None
    family: Any = None
    rule: Any = None
    guarantee: Guarantee | None = eqx.field(static=True, default=None)

    def resolve(self, target, family):
        if family.scale == "low_rank":
            raise ValueError(
                "Of a low-rank scale there is no ELBO by a pass over rows that are read in blocks: use "
                "scale='diagonal' or 'triangular'."
            )
        rule = NaturalGradient().resolve(target, family).rule
        return Fed(self.inner.resolve(target, family), self.batch, target, family, rule)

    def init(self, point):
        return self.inner.init(point)

    def step(self, key, state, target, family, shrink):
        return self.inner.step(key, state, target, family, shrink)

    def cost_at(self, step):
        return self.inner.cost_at(step)

    def output(self, state):
        return self.inner.output(state)

    def recorded_elbo(self, state):
        value = exact_negative_elbo(self.target, self.family, self.output(state), self.rule)
        return -np.asarray(value), 0.0


def optional_positive(name: str) -> Callable[[Any], Any]:
    """A converter: None and arrays under transformation pass, numbers must be positive and become leaves."""

    def convert(value: Any) -> Any:
        if isinstance(value, int | float | np.generic | np.ndarray):
            return np.asarray(check_positive(name, value), dtype=np.float64)
        return value

    return convert


def check_projected(name: str, estimator: AbstractEstimator, family: LocationScale) -> None:
    """The parts of a projected method fit together, or a `ValueError` says which do not."""
    if not estimator.includes_entropy:
        raise ValueError(
            f"{name} needs the gradient of the whole objective, but the estimator '{estimator.name}' leaves the "
            f"entropy out. Use estimator=provi.estimators.Entropy() or StickingTheLanding(), or ProxSGD."
        )
    if family.scale == "triangular":
        raise ValueError(
            f"{name} projects on scales with sigma_min >= 1/sqrt(M), which is not a convex set for "
            f"scale='triangular'. Use scale='symmetric' or 'diagonal', or ProxSGD with 'triangular'."
        )
    estimator.check(family)


def known_smallest_scale(name: str, target: AbstractTarget) -> float:
    """1/sqrt(M) from the target's constants."""
    smoothness = target.constants.smoothness
    if not smoothness.known:
        raise ValueError(
            f"{name} needs the smoothness of the target, which is unknown ({smoothness.reason}). "
            f"Pass smallest_scale=, declare smoothness= on the target, use LogDensity.estimate_smoothness, or ProxSGD."
        )
    return smallest_scale(float(smoothness.value))  # pyright: ignore[reportArgumentType]


def project_point(point: Point, smallest: Any) -> Point:
    """The nearest point of W_M, `smallest` = 1/sqrt(M)."""
    return Point(point.loc, project_nondegenerate(point.scale, jnp.asarray(smallest, point.loc.dtype)))
