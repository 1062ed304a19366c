"""What is known of a target's shape, and on what grounds: the numbers that the guarantees rest on."""

import dataclasses
from typing import Literal, TypeAlias

import numpy as np

Status: TypeAlias = Literal["proven", "declared", "estimated", "unknown", "violated"]
"""Closed form; the user's word; measured numerically; nothing known; a counter-example was found."""


@dataclasses.dataclass(frozen=True)
class Constant:
    """One property of a target, with the grounds for it.

    **Arguments:**

    - `value`: a host float or bool; `None` when unknown.
    - `status`: `"proven"`, `"declared"`, `"estimated"`, `"unknown"` or `"violated"`.
    - `reason`: a few words for people.
    """

    value: float | bool | None
    status: Status
    reason: str

    @property
    def known(self) -> bool:
        """True when there is a value and nothing contradicts it."""
        return self.value is not None and self.status != "violated"


@dataclasses.dataclass(frozen=True)
class Constants:
    """The three properties of a potential that the theorems ask for.

    **Arguments:**

    - `log_concave`: whether the potential is convex.
    - `strong_convexity`: mu; the Hessian of the potential is at least mu everywhere.
    - `smoothness`: M; the Hessian of the potential is at most M everywhere.
    """

    log_concave: Constant
    strong_convexity: Constant
    smoothness: Constant


def proven(value: float | bool, reason: str) -> Constant:
    """A constant known in closed form."""
    return Constant(value, "proven", reason)


def declared(value: float | bool, reason: str = "declared by the user") -> Constant:
    """A constant taken on the user's word."""
    return Constant(value, "declared", reason)


def estimated(value: float | bool, reason: str) -> Constant:
    """A constant measured numerically: it may be too optimistic."""
    return Constant(value, "estimated", reason)


def unknown(reason: str) -> Constant:
    """A constant nothing is known of."""
    return Constant(None, "unknown", reason)


def violated(value: float | bool | None, reason: str) -> Constant:
    """A claim that a counter-example refutes."""
    return Constant(value, "violated", reason)


def outer_spectrum(matrix: np.ndarray, error: float = 0.0) -> tuple[float, float]:
    """Numbers below the smallest and above the largest eigenvalue of a symmetric `matrix`.

    `eigvalsh` is backward stable, so each eigenvalue is off by at most a modest multiple of
    dim * eps * |matrix|; both ends move outwards by 8 dim eps |matrix|, plus `error`, a bound on how
    far `matrix` itself is from the matrix that is meant. A diagonal matrix needs no such allowance.
    """
    dim, epsilon = matrix.shape[0], float(np.finfo(np.float64).eps)
    diagonal = np.diagonal(matrix)
    if np.count_nonzero(matrix) == np.count_nonzero(diagonal):
        return (
            float(diagonal.min() - 8 * epsilon * abs(diagonal.min()) - error),
            float(diagonal.max() + 8 * epsilon * abs(diagonal.max()) + error),
        )
    eigenvalues = np.linalg.eigvalsh(matrix)
    slack = 8 * dim * epsilon * float(np.abs(eigenvalues).max()) + float(error)
    return float(eigenvalues[0]) - slack, float(eigenvalues[-1]) + slack
