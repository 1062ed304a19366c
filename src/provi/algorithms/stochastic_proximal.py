r"""The one step that Prox-SGD, Proj-SGD and MPSGD share.

w_{t+1} = argmin_w <g_t, w> + h(w) + |w - w_t|^2_{Lambda^-1} / (2 gamma_t), where h is the part treated exactly:
the negative entropy (its proximal operator) or the indicator of W_M (the projection).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.core.tree import add_scaled, squared_norm, subtract
from provi.core.types import Count, RandomKey, Scalar
from provi.estimators.base import AbstractEstimator, minibatch_gradient
from provi.families.location_scale import LocationScale, Point
from provi.schedules.averaging import AbstractAveraging
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize
from provi.targets.base import AbstractFiniteSum, AbstractTarget

_DRAWS, _DATA = 0, 1  # separate random streams for Monte-Carlo draws and data indices


class ProximalState(eqx.Module):
    """The iterate, its running average, the step number and the Halpern anchor (None when not anchored)."""

    point: Point
    average: Any
    step: Count
    anchor: Point | None


def step_potential(key: RandomKey, step: Count, target: AbstractTarget, sampling: AbstractSampling | None) -> Callable:
    """The potential that this step sees: the whole target, or an unbiased one from a batch of its terms."""
    if sampling is None:
        return target.potential
    assert isinstance(target, AbstractFiniteSum)  # by `check_parts`
    indices = sampling.indices(jax.random.fold_in(key, _DATA), step, target.num_terms)
    return lambda z: target.minibatch_potential(z, indices)


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
    """The norms that the runtime's finiteness check and the history read."""
    return StepInfo(
        step_size,
        num_draws,
        jnp.sqrt(squared_norm(gradient.loc)),
        jnp.sqrt(squared_norm(gradient.scale)),
        jnp.sqrt(squared_norm(point)),
    )


class AbstractStochasticProximal(AbstractAlgorithm):
    """The family of methods above; a member says what its operator and its preconditioner are.

    With an anchor w_0 the step is Halpern's: w_{t+1} = w_0/(t+2) + (1 - 1/(t+2)) T(w_t), T the plain step;
    the result stays in the (convex) constraint set.
    """

    step_size: AbstractVar[AbstractStepSize]
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

    def output(self, state):
        return self.averaging.value(state.average, state.point)
