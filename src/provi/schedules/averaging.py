"""Which point a stochastic method returns: the last iterate or a weighted average of the iterates."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.tree import add_scaled, subtract
from provi.core.types import Scalar


class AverageState(eqx.Module):
    """The running weighted mean, the sum of its weights and the current discount alpha_t."""

    mean: Any
    weight: Scalar
    discount: Scalar


class AbstractAveraging(eqx.Module):
    """A rule that turns the sequence of iterates into the point to return."""

    @abstractmethod
    def init(self, point: Any) -> AverageState | None:
        """The state before the first step."""

    @abstractmethod
    def update(self, state: Any, before: Any, after: Any, step_size: Scalar, num_draws: Any) -> AverageState | None:
        """Take in one step from `before` = w_t to `after` = w_{t+1}."""

    @abstractmethod
    def value(self, state: Any, current: Any) -> Any:
        """The point to return when the current iterate is `current`."""


def _initial_state(point: Any) -> AverageState:
    one = jnp.ones((), point.loc.dtype)
    return AverageState(mean=point, weight=0 * one, discount=one)


def _take_in(state: AverageState, iterate: Any, weight: Scalar, discount: Scalar) -> AverageState:
    total = state.weight + weight
    mean = add_scaled(state.mean, weight / total, subtract(iterate, state.mean))
    return AverageState(mean, total, discount)


class LastIterate(AbstractAveraging):
    """The last iterate (paper 003, Theorems 7 and 10)."""

    def init(self, point):
        del point

    def update(self, state, before, after, step_size, num_draws):
        del state, before, after, step_size, num_draws

    def value(self, state, current):
        del state
        return current


class GeometricAverage(AbstractAveraging):
    r"""Weights factor^(t+1): sum_t factor^(t+1) w_t / sum_t factor^(t+1); factor = 1 is the plain mean.

    `of="after"` averages w_1..w_T (Prox-SGD, Theorem 8), `of="before"` w_0..w_{T-1} (Proj-SGD, Theorem 11 of
    paper 003; MPSGD, Theorems 4 and 6 of paper 004).
    """

    factor: Any = eqx.field(
        converter=lambda x: np.asarray(x, np.float64) if isinstance(x, int | float | np.generic) else x
    )
    of: str = eqx.field(static=True, default="before")

    def __check_init__(self):
        if self.of not in ("before", "after"):
            raise ValueError(f"of must be 'before' or 'after', not {self.of!r}.")
        if isinstance(self.factor, np.ndarray) and not 0 < self.factor <= 1:
            raise ValueError(f"factor must lie in (0, 1], not {self.factor}.")

    def init(self, point):
        return _initial_state(point)

    def update(self, state, before, after, step_size, num_draws):
        del step_size, num_draws
        discount = state.discount * jnp.asarray(self.factor, state.discount.dtype)
        return _take_in(state, after if self.of == "after" else before, discount, discount)

    def value(self, state, current):
        del current
        return state.mean


class NoiseWeightedAverage(AbstractAveraging):
    r"""Weights gamma_k alpha_{k+1} on w_k, alpha_{k+1} = alpha_k / (1 + a gamma_k^2 / N_k) (paper 004, Theorem 7).

    For steps and batches that change along the run; a is the `noise_slope`.
    """

    noise_slope: Any = eqx.field(
        converter=lambda x: np.asarray(x, np.float64) if isinstance(x, int | float | np.generic) else x
    )

    def __check_init__(self):
        if isinstance(self.noise_slope, np.ndarray) and not 0 <= self.noise_slope < np.inf:
            raise ValueError(f"noise_slope must be a finite number of at least 0, not {self.noise_slope}.")

    def init(self, point):
        return _initial_state(point)

    def update(self, state, before, after, step_size, num_draws):
        del after
        noise = jnp.asarray(self.noise_slope, step_size.dtype) * step_size**2 / num_draws
        discount = state.discount / (1 + noise)
        return _take_in(state, before, step_size * discount, discount)

    def value(self, state, current):
        del current
        return state.mean
