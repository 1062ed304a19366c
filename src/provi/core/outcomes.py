"""Why a run stopped: the third layer of error handling (arguments raise, outcomes are returned)."""

import enum


class Outcome(enum.Enum):
    """The reason a run ended. `fit.outcome.value` is a sentence for people."""

    COMPLETED = "all planned steps were taken"
    TOLERANCE = "the gap is proven to be within the tolerance"
    CONDITIONAL = "the gap is within the tolerance under an assumption that was not verified"
    STATIONARY = "the iterates look stationary; a heuristic, nothing is proven"
    TIME_BUDGET = "the time budget was used up"
    GRADIENT_BUDGET = "the budget of gradient evaluations was used up"
    NONFINITE = "numbers that are not finite could not be avoided; the last good state is returned"
    INTERRUPTED = "interrupted by the user; the last good state is returned"

    @property
    def ok(self) -> bool:
        """True when the result is what the plan asked for."""
        return self not in (Outcome.NONFINITE, Outcome.INTERRUPTED)
