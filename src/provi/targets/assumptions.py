"""What the user declares of a black-box density, and what numerical search then says of it."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import double_precision
from provi.core.types import Draws, Scalar, Vector
from provi.targets.base import (
    AbstractTarget,
    Constant,
    Constants,
    Status,
    declared,
    estimated,
    proven,
    unknown,
    violated,
)


class Assumptions(eqx.Module):
    """Declared or estimated constants. The numbers are leaves; only their statuses are static.

    **Arguments:**

    - `strong_convexity`, `smoothness`: numbers, or `None` when unknown.
    - `log_concave`: `None` when unknown.
    - `statuses`: of log-concavity, strong convexity and smoothness, in this order.
    - `counterexample`: a point whose curvature refutes one of them.
    - `implied`: whether log-concavity is known by the declared strong convexity alone, and falls with it.
    """

    strong_convexity: Scalar | None
    smoothness: Scalar | None
    counterexample: Vector | None
    log_concave: bool | None = eqx.field(static=True)
    statuses: tuple[Status, Status, Status] = eqx.field(static=True)
    implied: bool = eqx.field(static=True, default=False)

    @property
    def constants(self) -> Constants:
        """The same as host numbers, each with its grounds."""
        return Constants(
            log_concave=self._constant("log_concave", self.log_concave, self.statuses[0]),
            strong_convexity=self._constant("strong_convexity", self.strong_convexity, self.statuses[1]),
            smoothness=self._constant("smoothness", self.smoothness, self.statuses[2]),
        )

    def _constant(self, name: str, value: Any, status: Status) -> Constant:
        number = value if value is None or isinstance(value, bool) else float(value)
        if status == "violated":
            shown = np.array2string(np.asarray(self.counterexample), precision=6, threshold=10)
            return violated(number, f"refuted by the curvature at the point {shown}")
        if number is None:
            return unknown(f"not declared: pass {name} if it is known")
        if status == "estimated":
            return estimated(number, "largest curvature found by Lanczos at random points")
        return declared(number)


def declare(strong_convexity: Any, smoothness: Any, log_concave: Any) -> Assumptions:
    """The user's declarations, checked against each other."""
    lower = _number("strong_convexity", strong_convexity)
    upper = _number("smoothness", smoothness)
    if log_concave not in (None, True, False):
        raise ValueError(f"log_concave must be True, False or None, not {log_concave!r}.")
    if lower is not None and lower < 0:
        raise ValueError(f"strong_convexity must be at least 0, not {lower}; leave it out if it is unknown.")
    if upper is not None and upper <= 0:
        raise ValueError(f"smoothness must be positive, not {upper}; leave it out if it is unknown.")
    if lower is not None and upper is not None and upper < lower:
        raise ValueError(f"smoothness ({upper}) must be at least strong_convexity ({lower}).")
    if lower is not None and log_concave is False:
        raise ValueError("log_concave=False contradicts strong_convexity: strongly convex implies convex.")
    concave = True if lower is not None else None if log_concave is None else bool(log_concave)
    statuses = (_declared_status(concave), _declared_status(lower), _declared_status(upper))
    return Assumptions(_leaf(lower), _leaf(upper), None, concave, statuses, lower is not None and log_concave is None)


def confront(
    assumptions: Assumptions, smallest: np.ndarray, largest: np.ndarray, points: Draws, tolerance: float
) -> Assumptions:
    """The assumptions after the curvature was measured: `smallest` and `largest` eigenvalue at each point.

    What was declared stays unless a point refutes it; smoothness that was not declared is estimated. A
    Ritz value lies inside the spectrum, so what refutes a claim is real up to the rounding `tolerance`.
    """
    extreme = np.maximum(np.abs(smallest), np.abs(largest))
    slack = tolerance * extreme
    concave_status, lower_status, upper_status = assumptions.statuses
    lower = -np.inf if assumptions.strong_convexity is None else float(assumptions.strong_convexity)
    claimed = assumptions.smoothness if upper_status == "declared" else None
    upper = np.inf if claimed is None else float(claimed)
    refutes_concave, refutes_lower = smallest + slack < 0, smallest + slack < lower
    refutes_upper = extreme - slack > upper
    concave_status = "violated" if refutes_concave.any() else concave_status
    lower_status = "violated" if refutes_lower.any() else lower_status
    log_concave = False if refutes_concave.any() else assumptions.log_concave
    if assumptions.implied and lower_status == "violated" and log_concave:
        # Nobody said more than the claim that has fallen.
        log_concave, concave_status = None, "unknown"
    if upper_status != "declared":
        upper_status = "violated" if upper_status == "violated" else "estimated"
    elif refutes_upper.any():
        upper_status = "violated"
    first = next((flags for flags in (refutes_concave, refutes_lower, refutes_upper) if flags.any()), None)
    return Assumptions(
        strong_convexity=assumptions.strong_convexity,
        smoothness=assumptions.smoothness if upper_status == "declared" else _leaf(float(extreme.max())),
        counterexample=assumptions.counterexample if first is None else points[int(np.argmax(first))],
        log_concave=log_concave,
        statuses=(concave_status, lower_status, upper_status),
        implied=assumptions.implied,
    )


_AGREE = 1e-6
"""Relative: a declared number this close to the proven one is that number, before its rounding to the safe side."""


@double_precision
def proven_or(target: AbstractTarget, assumptions: Assumptions) -> Constants:
    """The constants that the program of the target's potential proves; where it does not, those that are assumed.

    What was refuted stays so. A declared number that says more than the proven one stays declared, unless the proof
    contradicts it.
    """
    # Here, because a model that is recognised has no need of it.
    from provi.targets.convexity.trace import curvature_of

    given, found = assumptions.constants, curvature_of(target)
    if found is None:
        return given
    concave, lower, upper = given.log_concave, given.strong_convexity, given.smoothness
    if found.log_concave and concave.status != "violated":
        concave = proven(True, found.reason)
    elif concave.status == "unknown":
        concave = unknown(f"{concave.reason}; {found.reason}")
    if found.log_concave and lower.status != "violated" and found.strong_convexity:
        ceiling = np.inf if found.smoothness is None else found.smoothness
        claimed = float(lower.value) if lower.status == "declared" and lower.value is not None else 0.0
        if claimed <= found.strong_convexity * (1 + _AGREE) or claimed > ceiling * (1 + _AGREE):
            lower = proven(found.strong_convexity, f"least curvature, rounded down, {found.reason}")
    if found.smoothness and upper.status != "violated":
        claimed = float(upper.value) if upper.status == "declared" and upper.value is not None else np.inf
        floor = found.strong_convexity or 0.0
        if claimed >= found.smoothness * (1 - _AGREE) or claimed < floor * (1 - _AGREE):
            upper = proven(found.smoothness, f"largest curvature, rounded up, {found.reason}")
    return Constants(log_concave=concave, strong_convexity=lower, smoothness=upper)


@double_precision
def proven_bounds(target: AbstractTarget, assumptions: Assumptions) -> tuple[np.ndarray, np.ndarray | None] | None:
    """The matrices around the Hessian that the program proves, unless the user declared more than they say."""
    from provi.targets.convexity.trace import curvature_of

    found, constants = curvature_of(target), proven_or(target, assumptions)
    says_all = constants.log_concave.status == "proven" and constants.strong_convexity.status in ("proven", "unknown")
    return found.bounds if found is not None and says_all else None


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    if not np.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {value}; leave it out if it is unknown.")
    return number


def _declared_status(value: Any) -> Status:
    return "unknown" if value is None else "declared"


def _leaf(value: float | None) -> Scalar | None:
    return None if value is None else jnp.asarray(value, jnp.float64)
