"""What an algorithm is: pure `init`, `step`, `output` on states; the compiled loop lives in `runtime`."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from equinox import AbstractVar

from provi.core.types import Count, RandomKey, Scalar
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """What a theorem promises about a run, before it is made.

    - `theorem`: its name; `metric`: what the bound bounds: "gap" (nats, of the returned point) or
      "squared distance" (|w_T - w*|^2). Both are in expectation over the run's random draws.
    - `num_steps`: the planned number of steps; `bound`: the bound after all of them.
    - `curve(steps)`: the bound after each of the given numbers of steps.
    - `assumptions`: pairs (statement, status), status as in `targets.constants`.
    """

    theorem: str
    metric: str
    num_steps: int
    bound: float
    curve: Callable[[np.ndarray], np.ndarray]
    assumptions: tuple[tuple[str, str], ...]

    @property
    def status(self) -> str:
        """The weakest status among the assumptions: a chain is as strong as its weakest link."""
        order = ("proven", "declared", "estimated", "unknown", "violated")
        return max((status for _, status in self.assumptions), key=order.index, default="proven")


class StepInfo(eqx.Module):
    """What one step tells people; the next step does not read it."""

    step_size: Scalar
    num_draws: Count
    gradient_norm_loc: Scalar
    gradient_norm_scale: Scalar
    point_norm: Scalar


class AbstractAlgorithm(eqx.Module):
    """A stochastic method on a location-scale family."""

    guarantee: AbstractVar[Guarantee | None]

    @abstractmethod
    def resolve(self, target: AbstractTarget, family: LocationScale) -> "AbstractAlgorithm":
        """Check that the parts fit together (`ValueError` otherwise) and fill in what depends on the target."""

    @abstractmethod
    def init(self, point: Point) -> Any:
        """The state at the start `point`; every state has fields `point` and `step`."""

    @abstractmethod
    def step(
        self, key: RandomKey, state: Any, target: AbstractTarget, family: LocationScale, shrink: Scalar
    ) -> tuple[Any, StepInfo]:
        """One step with the step size multiplied by `shrink`. `key` is the run's key, the same at every step."""

    @abstractmethod
    def output(self, state: Any) -> Point:
        """The point to return."""


def without_guarantee(algorithm: Any) -> Any:
    """The algorithm as the compiled loop sees it: the guarantee's numbers must not trigger recompilation."""
    return dataclasses.replace(algorithm, guarantee=None)
