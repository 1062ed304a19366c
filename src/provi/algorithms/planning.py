"""What the plans of all theorems share: exactly one goal, and the number of steps it allows."""

from collections.abc import Callable

from provi.core.checks import check_count, check_positive


def check_goal(budget: int | None, accuracy: float | None, num_draws: int = 1) -> None:
    """Exactly one of a budget of gradient evaluations and an accuracy to reach."""
    if (budget is None) == (accuracy is None):
        raise ValueError("Pass exactly one of budget= (gradient evaluations) and accuracy= (the bound's value).")
    check_count("num_draws", num_draws)
    if budget is not None and check_count("budget", budget) < num_draws:
        raise ValueError(f"budget={budget} does not pay for one step of num_draws={num_draws}.")
    if accuracy is not None:
        check_positive("accuracy", accuracy)


def planned_steps(
    budget: int | None, accuracy: float | None, num_draws: int, steps_for_accuracy: Callable[[float], int]
) -> int:
    """Steps that the budget pays for, or that the accuracy needs (at least one)."""
    if budget is not None:
        return budget // num_draws
    assert accuracy is not None  # check_goal
    return max(1, steps_for_accuracy(accuracy))
