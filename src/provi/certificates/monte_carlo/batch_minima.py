r"""The minima of R Monte-Carlo energies over the location, all at once.

$\hat l_b(v) = \mathrm{mean}_i\,\phi(m + C(v \pm u_i))$ is convex when $\phi$ is. Any $v_b$ gives a valid bound, whose
*remainder* for not being the minimiser is $\tfrac12|W r_b|^2$ with $r_b = \nabla\hat l_b(v_b)$ where the Hessian has a
known lower bound, and $|r_b|(|v_b| + \rho)$ without one, where the best mean lies within $\rho$ standard deviations of
q: by the growth of the potential (`whitened_frame.growth`), else, on that condition, $\rho = 10^6$.

Each batch ends by a rule of its own, so that what it ends with is independent of the other batches.

The loop is on the host: it makes 2 to 10 passes over all draws, each one call of a compiled function, and a few
operations on R x d numbers in between, which would take longer to compile than to run.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

from provi.certificates.monte_carlo.batch_sums import NUM_BATCHES, BatchMeans

LARGEST_DISTANCE = 1e6
"""How far, in standard deviations of q, the best mean is assumed to be where neither curvature nor growth is known."""

MEMORY, STALLED = 8, 10
"""Secant pairs kept by the quasi-Newton method; passes without progress after which it gives up."""

NEGLIGIBLE = 1e-8
"""Nats below which a remainder is not worth another pass over the draws."""

HostMeans: TypeAlias = Any
"""A `BatchMeans` whose arrays are NumPy's."""

Evaluate: TypeAlias = Callable[[np.ndarray, bool], HostMeans]
"""The means at the points m + C(v_b +- u), from the shifts v (R, d) and whether the Fisher information is wanted."""


@dataclasses.dataclass(frozen=True)
class BatchMinima:
    """Where the minimisation ended.

    - `first`: the means at v = 0. - `shifts`: v_b. - `decrease`: lhat_b(0) - lhat_b(v_b). - `remainder`: see above.
    - `moment`: that of `BatchMeans`, at v_b. - `passes`: evaluations of all draws.
    - `least`, `least_at`: the smallest `BatchMeans.least` of all passes, and the shifts of the pass that it is from.
    """

    first: HostMeans
    shifts: np.ndarray
    decrease: np.ndarray
    remainder: np.ndarray
    moment: np.ndarray
    passes: int
    least: float
    least_at: np.ndarray


def minimise_batches(
    evaluate: Evaluate,
    whitener: np.ndarray | None,
    preconditioner: np.ndarray,
    max_passes: int,
    epsilon: float,
    distance: Callable[[HostMeans], float] = lambda _: LARGEST_DISTANCE,
) -> BatchMinima:
    """Minimise all batches by L-BFGS with unit steps, from v = 0, until each remainder is 1% of its decrease.

    **Arguments:**

    - `whitener`: W, a matrix or the diagonal of one, or None. - `preconditioner`: a guess of the inverse Hessian, the
      same for all batches; a matrix or the diagonal of one. - `max_passes`: evaluations that are allowed, one or more.
    - `epsilon`: the relative rounding error of the potential.
    - `distance`: how far the best mean may be, in standard deviations of q, from the means at v = 0; without
      `whitener`.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # A potential that overflows at a trial is rejected below.
        return _minimise(evaluate, whitener, preconditioner, max_passes, epsilon, distance)


def _minimise(
    evaluate: Evaluate,
    whitener: np.ndarray | None,
    preconditioner: np.ndarray,
    max_passes: int,
    epsilon: float,
    distance: Callable[[HostMeans], float],
) -> BatchMinima:
    v = np.zeros((NUM_BATCHES, preconditioner.shape[0]))
    first = evaluate(v, True)
    value, gradient, moment = first.value, first.gradient, first.moment
    least, least_at = first.least.min(), v
    pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    step = -_quasi_newton(gradient, pairs, preconditioner)
    far = 0.0 if whitener is not None else distance(first)
    remainder, passes, stalled = _remainder(whitener, v, gradient, far), 1, np.zeros(NUM_BATCHES)
    smallest = remainder
    # A negative `least` refutes convexity, on which all that follows would rest.
    while passes < max_passes and least >= 0 and np.isfinite(value).all():
        going = (remainder > np.maximum(0.01 * (first.value - value), NEGLIGIBLE)) & (stalled < STALLED)
        if not going.any():
            break
        step = np.where(going[:, None], step, 0.0)
        means = evaluate(v + step, False)
        passes += 1
        if means.least.min() < least:
            least, least_at = means.least.min(), v + step
        change = means.gradient - gradient
        finite = np.isfinite(means.value) & np.isfinite(change).all(axis=1)
        accepted = going & finite & _better(value, gradient, step, means, epsilon)
        # A rejected trial tells as much about the curvature as an accepted one.
        change = np.where(finite[:, None], change, 0.0)
        curvature = _inner(step, change)
        useful = going & (curvature > 1e-10 * _inner(step, step))
        pairs = [*pairs[1 - MEMORY :], (step, change, np.where(useful, 1 / np.where(useful, curvature, 1.0), 0.0))]
        v = np.where(accepted[:, None], v + step, v)
        value = np.where(accepted, means.value, value)
        gradient = np.where(accepted[:, None], means.gradient, gradient)
        moment = means.moment if accepted.all() else np.where(_like(accepted, moment), means.moment, moment)
        # A trial that taught nothing, because it was not finite, is tried again closer by.
        step = np.where((accepted | useful)[:, None], -_quasi_newton(gradient, pairs, preconditioner), step / 4)
        remainder = _remainder(whitener, v, gradient, far)
        # A rejected trial is on the way to a shorter one, and counts half.
        stalled = np.where(remainder < smallest / 2, 0.0, stalled + np.where(accepted, 1.0, 0.5))
        smallest = np.minimum(smallest, remainder)
    return BatchMinima(first, v, first.value - value, remainder, moment, passes, float(least), least_at)


def on_host(means: BatchMeans) -> HostMeans:
    """The same numbers as NumPy arrays, without a copy on the CPU."""
    return jax.tree.map(np.asarray, means)


def _better(value: np.ndarray, gradient: np.ndarray, step: np.ndarray, means: HostMeans, epsilon: float) -> np.ndarray:
    """Which trials are accepted.

    Convexity: a step that stops before the minimum along it went down. Past it, the slope must have shrunk, and the
    value must not be larger but by rounding, which hides the last digits of a decrease.
    """
    before, after = _inner(gradient, step), _inner(means.gradient, step)
    return (after <= 0.9 * np.abs(before)) & (means.value <= value + 8 * epsilon * means.magnitude)


def _quasi_newton(
    gradient: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]], preconditioner: np.ndarray
) -> np.ndarray:
    """The L-BFGS two-loop recursion for all batches: (step, change of the gradient, 1 / their product or 0) a pair."""
    vector, weights = gradient, []
    for step, change, inverse in reversed(pairs):
        weights.append(inverse * _inner(step, vector))
        vector = vector - weights[-1][:, None] * change
    vector = times_rows(preconditioner, vector)
    for (step, change, inverse), weight in zip(pairs, reversed(weights), strict=True):
        vector = vector + (weight - inverse * _inner(change, vector))[:, None] * step
    return vector


def times_rows(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """M x for each row x, where a vector stands for a diagonal matrix."""
    return rows * matrix[None, :] if matrix.ndim == 1 else rows @ matrix.T


def _remainder(whitener: np.ndarray | None, v: np.ndarray, gradient: np.ndarray, far: float) -> np.ndarray:
    if whitener is not None:
        return 0.5 * np.sum(times_rows(whitener, gradient) ** 2, axis=1)
    return np.linalg.norm(gradient, axis=1) * (np.linalg.norm(v, axis=1) + far)


def _like(flags: np.ndarray, array: np.ndarray) -> np.ndarray:
    return flags.reshape(-1, *([1] * (array.ndim - 1)))


def _inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sum(a * b, axis=1)
