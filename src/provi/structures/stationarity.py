"""A rule that asks whether q still moves, for densities of which nothing can be proven."""

import math
from typing import Any

import numpy as np


class StationarityRule:
    r"""A heuristic stop where nothing can be proven: does q still move?

    q is looked at after 40 steps, 60, 90, 135, ... (each half as many again); it looks stationary when it has moved by
    at most half of `tol` since each of the last two looks, $KL(q_{then} \| q_{now}) \le tol/2$. A method that
    converges moves less and less in each of these growing spans, so that what is left is of the order of the last
    span's; one that wanders in its noise moves as far in each. It proves nothing: a method that is stuck does
    not move either. `moved` is the last of these numbers at a look, and 0 between looks.

    It takes the place of split R-hat over the iterates and the precision of their average (Dhaka et al. 2020), which
    asks for fifty times the gradients here: it was made for steps of constant size, and those of the natural gradient
    shrink with the noise, so that consecutive iterates hardly differ.
    """

    _FIRST, _GROWTH, _NEEDED = 40, 1.5, 2

    def __init__(self) -> None:
        self.calls, self.next_look, self.moved = 0, self._FIRST, 0.0
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def memory(self) -> dict[str, Any]:
        """The counters, and where q was."""
        seen = {f"seen/{i}/{part}": pair[part] for i, pair in enumerate(self.seen) for part in (0, 1)}
        return {"looks": len(self.seen), "calls": self.calls, "next_look": self.next_look, **seen}

    def recall(self, memory: dict[str, Any]) -> None:
        """The inverse of `memory`."""
        self.calls, self.next_look = int(memory["calls"]), int(memory["next_look"])
        self.seen = [(memory[f"seen/{i}/0"], memory[f"seen/{i}/1"]) for i in range(memory["looks"])]

    def stationary(self, loc: Any, factor: Any, tol: float) -> bool:
        """Whether q = N(loc, factor factor') is within tol/2 nats of where it was at both of the last two looks."""
        self.calls, self.moved = self.calls + 1, 0.0
        if self.calls < self.next_look:
            return False
        self.next_look = int(self._GROWTH * self.calls)
        now = np.asarray(loc, np.float64), np.asarray(factor, np.float64)
        moves = [gaussian_kl(*then, *now) for then in self.seen]
        self.moved = moves[-1] if moves else 0.0
        self.seen = [*self.seen[1 - self._NEEDED :], now]
        return len(moves) == self._NEEDED and max(moves) <= tol / 2


def gaussian_kl(loc: np.ndarray, factor: np.ndarray, other_loc: np.ndarray, other_factor: np.ndarray) -> float:
    """KL(N(loc, factor factor') || N(other_loc, other_factor other_factor')); infinite where it is not a number."""
    with np.errstate(all="ignore"):  # of a q that runs away
        try:
            ratio = np.linalg.solve(other_factor, np.column_stack([factor, loc - other_loc]))
        except np.linalg.LinAlgError:
            return math.inf
        _, log_determinant = np.linalg.slogdet(ratio[:, :-1])
        value = 0.5 * float(np.sum(ratio**2)) - 0.5 * len(loc) - float(log_determinant)
    return value if math.isfinite(value) else math.inf
