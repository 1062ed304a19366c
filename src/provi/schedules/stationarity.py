r"""A heuristic stop where nothing can be proven: does q still move?

q is looked at after 40 steps, 60, 90, 135, ... (each half as many again); it looks stationary when it has moved by
at most half of `tol` since each of the last two looks, $KL(q_{then} \| q_{now}) \le tol/2$. A method that converges
moves less and less in each of these growing spans, so that what is left is of the order of the last span's; one that
wanders in its noise moves as far in each. It proves nothing: a method that is stuck does not move either.

It takes the place of split R-hat over the iterates and the precision of their average (Dhaka et al. 2020), which asks
for fifty times the gradients here: it was made for steps of constant size, and those of the natural gradient shrink
with the noise, so that consecutive iterates hardly differ.
"""

from typing import Any

import numpy as np
from scipy.linalg import solve

_FIRST, _GROWTH, _NEEDED = 40, 1.5, 2


class StationarityRule:
    """`stationary(loc, factor, tol)`, called once a step, keeps the Gaussians of the last two looks."""

    def __init__(self) -> None:
        self.calls, self.next_look = 0, _FIRST
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def stationary(self, loc: Any, factor: Any, tol: float) -> bool:
        """Whether q = N(loc, factor factor') is within tol/2 nats of where it was at both of the last two looks."""
        self.calls += 1
        if self.calls < self.next_look:
            return False
        self.next_look = int(_GROWTH * self.calls)
        now = np.asarray(loc, np.float64), np.asarray(factor, np.float64)
        near = len(self.seen) == _NEEDED and all(gaussian_kl(*then, *now) <= tol / 2 for then in self.seen)
        self.seen = [*self.seen[1 - _NEEDED :], now]
        return near


def gaussian_kl(loc: np.ndarray, factor: np.ndarray, other_loc: np.ndarray, other_factor: np.ndarray) -> float:
    """KL(N(loc, factor factor') || N(other_loc, other_factor other_factor')); infinite where it is not a number."""
    ratio = solve(other_factor, np.column_stack([factor, loc - other_loc]))
    _, log_determinant = np.linalg.slogdet(ratio[:, :-1])
    value = 0.5 * float(np.sum(ratio**2)) - 0.5 * len(loc) - float(log_determinant)
    return value if np.isfinite(value) else np.inf
