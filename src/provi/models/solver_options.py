"""The options of the conjugate models that say how they are fitted."""

from typing import Any

from provi.core.checks import check_positive


def forgetting_option(model: Any) -> tuple[float, float] | None:
    """Check `solver`, `learning_rate`, `learning_offset`, `learning_decay`, `tol`, `total_samples` of an estimator.

    **Returns:** (offset, decay) for a decaying rate, None for the automatic one.
    """
    if model.solver not in ("coordinate", "stochastic"):
        raise ValueError(f"solver must be 'coordinate' or 'stochastic', not {model.solver!r}.")
    if model.learning_rate not in ("automatic", "decay"):
        raise ValueError(f"learning_rate must be 'automatic' or 'decay', not {model.learning_rate!r}.")
    if not model.learning_offset >= 0:
        raise ValueError(f"learning_offset must not be negative, but is {model.learning_offset}.")
    if not 0 < model.learning_decay <= 1:
        raise ValueError(f"learning_decay must be in (0, 1], not {model.learning_decay}; 0.5 < decay <= 1 converges.")
    if not model.tol >= 0:
        raise ValueError(f"tol must not be negative, but is {model.tol}.")
    if model.total_samples is not None:
        check_positive("total_samples", model.total_samples)
    return None if model.learning_rate == "automatic" else (float(model.learning_offset), float(model.learning_decay))
