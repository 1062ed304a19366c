"""What a theorem promises about a run, before it is made."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from provi.families.location_scale import Point


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """What a theorem promises about a run, before it is made.

    - `theorem`: its name; `metric`: what the bound bounds: "gap" (nats, of the returned point) or
      "squared distance" (|w_T - w*|^2). Both are in expectation over the run's random draws.
    - `num_steps`: the planned number of steps; `bound`: the bound after all of them.
    - `curve(steps)`: the bound after each of the given numbers of steps.
    - `assumptions`: pairs (statement, status) beyond the target's own constants, status as in `targets.base`.
    - `status`: the weakest status among all assumptions: a chain is as strong as its weakest link.
    - `start`: the point the bound starts from.
    - `planned_for`: the target, the family and the algorithm's settings that the bound is about; no others.
    """

    theorem: str
    metric: str
    num_steps: int
    bound: float
    curve: Callable[[np.ndarray], np.ndarray]
    assumptions: tuple[tuple[str, str], ...]
    start: Point
    status: str
    planned_for: tuple[Any, Any, Any] | None = None


def weakest(statuses: Iterable[str]) -> str:
    """The status that decides how much the whole is worth."""
    order = ("proven", "declared", "estimated", "unknown", "violated")
    return max(statuses, key=order.index)
