"""How much a run may cost."""

import dataclasses
from typing import Any

from provi.core.checks import check_count, check_positive


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits on a run; whichever is reached first ends it. None means no limit.

    - `gradients`: evaluations of the target's gradient (Monte-Carlo draws, over all steps); never exceeded;
    - `steps`: steps of the algorithm;
    - `seconds`: wall-clock time, compilation included.
    """

    gradients: int | None = None
    steps: int | None = None
    seconds: float | int | None = None

    def __post_init__(self) -> None:
        if self.gradients is not None:
            check_count("budget.gradients", self.gradients)
        if self.steps is not None:
            check_count("budget.steps", self.steps)
        if self.seconds is not None:
            check_positive("budget.seconds", self.seconds)


def as_budget(value: Any) -> Budget:
    """A budget, or a number of gradient evaluations, or None for no limit."""
    if value is None:
        return Budget()
    return value if isinstance(value, Budget) else Budget(gradients=check_count("budget", value))
