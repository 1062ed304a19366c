"""A place where a target is seen to be less convex than was claimed."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Counterexample:
    """Curvature of the potential below what was claimed of it; no bound that rests on the claim is issued.

    - `point`, `direction`: where. With a second derivative, the curvature is that at `point` along the unit vector
      `direction`; with first derivatives only, it is the average one on the segment from `point` to
      `point + direction`.
    - `curvature`: what was found, x' (Hessian) x for the unit vector x along `direction`.
    - `claimed`: the least that it should be: 0 for a convex potential, mu for a strongly convex one.
    """

    point: np.ndarray
    direction: np.ndarray
    curvature: float
    claimed: float

    def __str__(self) -> str:
        shown = np.array2string(self.point, precision=6, threshold=10)
        needed = "a log-concave density has at least 0"
        if self.claimed:
            needed = f"strong_convexity = {self.claimed:.4g} needs at least that"
        return f"curvature {self.curvature:.4g} found at {shown}, where {needed}"
