r"""One bound on the optimality gap: its value, its grounds, and the function J that all of them share."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class GapBound:
    """An upper bound on f(w) - f*, in nats.

    - `name`: which of the bounds of docs/theory/certificates.md; `value`: infinite where it does not apply.
    - `status`: 'proven' (from proven or declared properties of the target) or 'conditional'.
    - `confidence`: None for a deterministic bound, otherwise the probability with which it holds at least.
    - `num_samples`: gradients of the log density that it used; `detail`: what it assumes or why it is infinite.
    """

    name: str
    value: float
    status: str
    confidence: float | None = None
    num_samples: int = 0
    detail: str = ""


def log_det_gap(eigenvalues: np.ndarray) -> float:
    r"""J(S) = tr(S - I) - log det S = sup over B > 0 of log det B - <S, B - I>, from the eigenvalues of S.

    Infinite unless S is positive definite.
    """
    if not (eigenvalues > 0).all():
        return math.inf
    excess = eigenvalues - 1.0
    # log1p keeps the digits of J ~ |S - I|^2 / 2 near its zero; the difference is never negative but by rounding.
    return float(np.sum(np.maximum(excess - np.log1p(excess), 0.0)))


def log_det_gap_from_norm(norm: float) -> float:
    r"""The largest J(I + G) over all symmetric G with |G|_F <= norm: -norm - log(1 - norm), infinite from 1 on.

    x - log(1 + x) grows faster to the left of zero, and convexity puts all of the norm into one eigenvalue.
    """
    return -norm - math.log1p(-norm) if norm < 1 else math.inf
