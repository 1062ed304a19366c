r"""L-BFGS from many points at once: searches in step with each other, so that one compiled program serves them all.

Each search has its own direction, step and memory; what they share is the evaluation: a round computes the potential
and its gradient at one trial point of each, in one call. A trial is accepted where it decreases the potential enough
(Armijo), $\phi(z + s d) \le \phi(z) + 10^{-4} s\, d'\nabla\phi(z)$, else the step shrinks, by a parabola through what
is known. The recursion itself, some dot products, is NumPy's: compiling it would take longer than running it.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

_MEMORY, _DECREASE, _SMALLEST_STEP = 10, 1e-4, 1e-10
_FLAT, _STILL = 1e-6, 3
_ENOUGH = 1e-9
"""A search has ended where its gradient is at most `_FLAT`, or `_STILL` steps in a row gained `_ENOUGH`, relatively."""

_QUORUM, _PATIENCE = 0.5, 2
"""When half of the searches have ended, the others have as many rounds again."""


@dataclasses.dataclass(frozen=True)
class Descent:
    """Where searches have ended, one a row: `points`, their `values` (infinite where a search could not even begin),
    `gradients`, and `settled`, those that ended of themselves. `evaluations`: of value and gradient, of all rows."""

    points: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    settled: np.ndarray
    evaluations: int


_Function: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def descend(
    evaluate: _Function,
    points: np.ndarray,
    rounds: int,
    go_on: Callable[[], bool] = lambda: True,
) -> Descent:
    """Minimise a function from each row of `points`.

    **Arguments:**

    - `evaluate`: values (n,) and gradients (n, dim) at rows (n, dim). A row that is not finite is not accepted.
    - `rounds`: calls of `evaluate`, at most.
    - `go_on`: asked before every round; False ends all searches where they are.
    """
    with np.errstate(all="ignore"):  # far out numbers overflow, and are not accepted
        return _descend(evaluate, np.array(points, np.float64), rounds, go_on)


def _descend(evaluate: _Function, z: np.ndarray, rounds: int, go_on: Callable[[], bool]) -> Descent:
    count, dim = z.shape
    value, gradient = evaluate(z)
    alive = _finite(value, gradient)
    value, gradient = np.where(alive, value, np.inf), np.where(alive[:, None], gradient, 0.0)
    memory = _Memory(count, dim)
    direction = -gradient
    norm = np.linalg.norm(gradient, axis=1)
    step = 1 / np.maximum(norm, 1.0)  # of length one at most: far jumps leave the basin, or the finite numbers
    active, settled, still = alive.copy(), np.zeros(count, bool), np.zeros(count, int)
    used, limit = 1, rounds
    while used < limit and active.any() and go_on():
        slope = np.sum(gradient * direction, axis=1)
        trial = np.where(active[:, None], z + step[:, None] * direction, z)
        found, found_gradient = evaluate(trial)
        used += 1
        finite = _finite(found, found_gradient)
        found, found_gradient = np.where(finite, found, np.inf), np.where(finite[:, None], found_gradient, 0.0)
        accepted = active & finite & (found <= value + _DECREASE * step * slope)
        rejected = active & ~accepted

        moved = np.where(accepted[:, None], trial - z, 0.0)
        gained = np.where(accepted, value - found, 0.0)
        curved = memory.add(moved, np.where(accepted[:, None], found_gradient - gradient, 0.0), accepted)
        z, value = np.where(accepted[:, None], trial, z), np.where(accepted, found, value)
        gradient = np.where(accepted[:, None], found_gradient, gradient)

        gentle = gained <= _ENOUGH * (1 + np.abs(value))
        still = np.where(accepted, np.where(gentle, still + 1, 0), still)
        flat = np.abs(gradient).max(axis=1) <= _FLAT
        done = accepted & (flat | (still >= _STILL))

        # Along a parabola through the two values and the slope; by a tenth where the trial was not finite.
        parabola = -slope / (2 * ((found - value) / step - slope))
        factor = np.where(finite & np.isfinite(parabola), np.clip(parabola, 0.1, 0.5), 0.1)
        step = np.where(rejected, step * factor, step)
        stuck = rejected & (step * np.linalg.norm(direction, axis=1) <= _SMALLEST_STEP * (1 + np.abs(z).max(axis=1)))
        # What the memory made of the gradient is no descent: begin again with the gradient itself, or end.
        done |= stuck & (memory.size == 0)
        again = stuck & (memory.size > 0)
        memory.clear(again)
        settled, active = settled | done, active & ~done
        if limit == rounds and settled.sum() >= _QUORUM * alive.sum():
            limit = min(rounds, _PATIENCE * used)  # what creeps on, on a ridge or to a spike, is not waited for

        fresh = (accepted | again) & active
        proposed = memory.directions(gradient)
        direction = np.where(fresh[:, None], proposed, direction)
        # A step along negative curvature teaches no scale: go on twice as far.
        length = np.linalg.norm(moved, axis=1)
        bare = np.where(curved, 1.0, 2 * length / np.maximum(np.linalg.norm(direction, axis=1), 1e-300))
        bare = np.where(again, 1 / np.maximum(np.linalg.norm(gradient, axis=1), 1.0), bare)
        step = np.where(fresh, bare, step)
    return Descent(z, value, gradient, settled, used * count)


class _Memory:
    """The last steps and changes of the gradient of each search, oldest first; `size`: how many of them each has."""

    def __init__(self, count: int, dim: int) -> None:
        self.steps, self.changes = np.zeros((_MEMORY, count, dim)), np.zeros((_MEMORY, count, dim))
        self.size = np.zeros(count, int)

    def add(self, step: np.ndarray, change: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Keep the steps along which the gradient grows; a search that met none forgets. Returns where it grew."""
        product = np.sum(step * change, axis=1)
        lengths = np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
        curved = where & (product > 1e-10 * lengths)
        self.clear(where & ~curved)
        for kept, new in ((self.steps, step), (self.changes, change)):
            kept[:-1, curved], kept[-1, curved] = kept[1:, curved], new[curved]
        self.size = np.where(curved, np.minimum(self.size + 1, _MEMORY), self.size)
        return curved

    def clear(self, where: np.ndarray) -> None:
        self.steps[:, where], self.changes[:, where], self.size[where] = 0.0, 0.0, 0

    def directions(self, gradient: np.ndarray) -> np.ndarray:
        """-H g by the two loops, for each search; entries that are zero leave it as it is."""
        inverse = np.sum(self.steps * self.changes, axis=2)
        weight = np.where(inverse > 0, 1 / np.where(inverse > 0, inverse, 1.0), 0.0)
        shares = np.zeros(inverse.shape)
        result = gradient.copy()
        for k in range(_MEMORY - 1, -1, -1):
            shares[k] = weight[k] * np.sum(self.steps[k] * result, axis=1)
            result -= shares[k][:, None] * self.changes[k]
        squares = np.sum(self.changes[-1] ** 2, axis=1)
        scale = np.where(squares > 0, inverse[-1] / np.where(squares > 0, squares, 1.0), 1.0)
        result *= scale[:, None]
        for k in range(_MEMORY):
            share = weight[k] * np.sum(self.changes[k] * result, axis=1)
            result += (shares[k] - share)[:, None] * self.steps[k]
        return -result


def _finite(values: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & np.isfinite(gradients).all(axis=1)
