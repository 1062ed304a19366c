"""Why a run stopped: the third layer of error handling (arguments raise, outcomes are returned)."""

import enum


class Outcome(enum.Enum):
    """The reason a run ended. `fit.outcome.value` is a sentence for people."""

    COMPLETED = "all planned steps were taken"
    TOLERANCE = "the requested tolerance was reached"
    TIME_BUDGET = "the time budget was used up"
    GRADIENT_BUDGET = "the budget of gradient evaluations was used up"
    NONFINITE = "numbers that are not finite could not be avoided; the last good state is returned"
    INTERRUPTED = "interrupted by the user; the last good state is returned"

    @property
    def ok(self) -> bool:
        """True when the result is what the plan asked for."""
        return self in (Outcome.COMPLETED, Outcome.TOLERANCE, Outcome.GRADIENT_BUDGET, Outcome.TIME_BUDGET)
