r"""The maximum of the observed-data likelihood: exact EM, then Newton's method with Louis's information.

The E-step is closed form (`likelihood`), so nothing here is random. One iteration evaluates the statistics at one
candidate and keeps it only if the objective $\ell(\theta) - \frac12\sum_j\lambda_j\delta_j^2$ does not fall:

* *EM*: $\beta$ and $\Omega$ are the mean and covariance of the completed rows; $\delta$ makes one Newton step on the
  expected complete-data likelihood. If that overshoots, Boehning's step, whose matrix
  $\frac14\sum_iE\tilde z_i\tilde z_i'$ bounds the curvature, cannot.
* *Extrapolation* (SQUAREM) of every two EM steps in a row.
* *Newton*: once an iteration gains little, $\theta + 2^{-k}(I + \lambda I_c)^{-1}g$, with the observed information $I$
  and that of complete rows $I_c$; $\lambda = 0$ if $I$ is positive definite, else a little more than it takes. If no
  $k < 5$ ascends, EM.

The gap to the maximum is half the Newton decrement $g'I^{-1}g$ where the likelihood is quadratic; to be safe all of it
is reported, 2.5 times it where coefficients grow to infinity, and infinity where $I$ is not positive definite: a saddle
point is no maximum. Without $I$ (many columns, or a constrained covariance) the estimate is Aitken's sum of the gains
to come, $\Delta r/(1 - r)$ for gains that shrink by $r$.

The whole ascent is one compiled loop of its own, not `runtime`'s: an iteration is a deterministic attempt that is kept
or refused, a small table takes milliseconds, and the host reads the result once, at the end.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from provi.core.arguments import double_precision
from provi.core.compilation import sized_jit
from provi.models.missing.conditional import Parameters, Rows
from provi.models.missing.exact_ascent import STUCK, AscentState, ExactAscent, growth
from provi.models.missing.likelihood import conditional_log_likelihoods


class Solution(eqx.Module):
    """The maximiser and how it was found.

    `log_likelihood` is without the penalty; `gap_estimate` is what the objective may still gain, in nats; `trace` holds
    the objective at the start and after each iteration; `separated` says that the coefficients of separable labels
    were stopped on their way to infinity, within `gap_estimate` of the supremum.
    """

    parameters: Parameters
    log_likelihood: float
    gap_estimate: float
    iterations: int
    converged: bool
    separated: bool
    message: str
    trace: np.ndarray


def initial_parameters(rows: Rows) -> Parameters:
    """Means and variances of the observed entries, no correlation, and an intercept that is the labels' log odds."""
    values, seen, labels = (np.asarray(x) for x in (rows.values, rows.observed, rows.labels))
    count = np.maximum(seen.sum(axis=0), 1)
    mean = values.sum(axis=0, where=seen) / count
    variance = ((values - mean) ** 2).sum(axis=0, where=seen) / count
    positive = np.sum(labels > 0)
    coefficients = np.zeros(len(mean) + 1)
    # Half a row of each label more: finite with one label only.
    coefficients[0] = np.log((positive + 0.5) / (len(labels) - positive + 0.5))
    return Parameters(*(jnp.asarray(x, values.dtype) for x in (coefficients, mean, np.diag(variance))))


@double_precision
def solve_exact(
    rows: Rows,
    start: Parameters | None = None,
    *,
    penalty: Any = 0.0,
    tol: float = 1e-6,
    max_iter: int = 1000,
    covariance_step: Callable[[Array], Array] | None = None,
) -> Solution:
    r"""Maximise $\ell(\theta) - \frac12\sum_j\lambda_j\delta_j^2$; see the head of this file.

    **Arguments:**

    - `start`: where to begin; `initial_parameters(rows)` by default.
    - `penalty`: $\lambda$, a number (which then spares the intercept) or a vector with the intercept's first.
    - `tol`: the estimated gap to the maximum, in nats, at which to stop.
    - `max_iter`: the largest number of iterations.
    - `covariance_step`: the $\Omega$ that maximises $-\log|\Omega| - \mathrm{tr}\,\Omega^{-1}S$ over the set allowed,
      as a function of $S$; a module-level function or an equinox module, so that it is compiled once. With it there
      is EM only.
    """
    p, dtype = rows.values.shape[1], rows.values.dtype
    weights = np.asarray(penalty, float)
    if weights.ndim == 0:
        weights = np.concatenate([[0.0], np.full(p, float(weights))])
    if weights.shape != (p + 1,) or not np.all(weights >= 0):
        raise ValueError(f"penalty must be a number or {p + 1} numbers >= 0, intercept first; got {penalty!r}")
    if not tol > 0 or max_iter < 1:
        raise ValueError(f"tol must be positive and max_iter at least 1, got {tol} and {max_iter}")
    start = initial_parameters(rows) if start is None else start
    # A size, hence compiled in: a few values only.
    size = max(1024, 1 << int(max_iter).bit_length())
    ascent = ExactAscent(rows, jnp.asarray(weights, dtype), covariance_step)
    state, growing = _solve(ascent, start, jnp.asarray(tol, dtype), jnp.asarray(max_iter), size)
    separated = _is_separated(state.parameters, rows, float(growing))
    gap, steps = float(state.gap), max(int(state.iterations), 0)
    converged = bool(gap <= _reachable(ascent, tol, state.objective))
    return Solution(
        state.parameters,
        float(state.statistics.log_likelihood) * rows.values.shape[0],
        gap,
        steps,
        converged,
        separated,
        _message(converged, separated, int(state.attempt) == STUCK, steps, gap),
        np.asarray(state.trace)[: steps + 1],
    )


def _is_separated(parameters: Parameters, rows: Rows, growing: float) -> bool:
    r"""Whether the coefficients are on their way to infinity.

    Either all rows are on the right side of the boundary, and the likelihood rises like $-e^{-t}$ where the step is
    $1/t$ of the coefficients; or only the complete ones are, and the labels of the others become
    $\Phi(\mu/s)$: it rises like $-1/t$ or $-1/t^2$, where Newton's step is $\frac12$ or $\frac13$ of them.
    """
    slope = np.asarray(parameters.coefficients)[1:]
    certain = slope @ np.asarray(parameters.covariance) @ slope > 100
    if growing > 0.1 and certain:
        return True
    return growing > 0.01 and bool(jnp.all(conditional_log_likelihoods(parameters, rows) > np.log(0.5)))


def _message(converged: bool, separated: bool, stuck: bool, steps: int, gap: float) -> str:
    if separated and converged:
        return (
            "the labels are separated by the covariates, where these are observed: the coefficients have no finite "
            f"maximum; stopped {gap:.1e} nats below the supremum. Give a penalty for finite coefficients."
        )
    if converged:
        return f"converged after {steps} iterations, an estimated {gap:.1e} nats below the maximum"
    if stuck:
        return (
            f"no step ascends after {steps} iterations: the covariance of the covariates is singular (a constant or "
            "repeated column, more columns than rows, or columns seldom observed together), or the tolerance is below "
            "the rounding error"
        )
    if np.isinf(gap) and steps > 100:
        return (
            f"stopped after {steps} iterations where the likelihood is not concave: it may rise for ever towards a "
            "singular covariance or infinite coefficients, as columns seldom observed together allow; or raise max_iter"
        )
    return f"stopped after {steps} iterations, an estimated {gap:.1e} nats below the maximum: raise max_iter"


def _reachable(ascent: ExactAscent, tol: Any, objective: Array) -> Array:
    """`tol`, or the rounding error of the objective where that is larger."""
    return jnp.maximum(tol, ascent.rounding_error(objective))


@sized_jit
def _solve(ascent: ExactAscent, start: Parameters, tol: Array, max_iter: Array, trace_size: int) -> tuple:
    """The last state, and the share by which the next step would let the coefficients grow."""

    def unfinished(state: AscentState) -> Array:
        done = state.gap <= _reachable(ascent, tol, state.objective)
        return ~done & (state.attempt < STUCK) & (state.iterations < max_iter)

    state = jax.lax.while_loop(unfinished, lambda s: ascent.iterate(s), ascent.begin(start, trace_size))
    coefficients = state.parameters.coefficients
    step = ascent.coefficient_step(state.parameters, state.statistics, False)
    planned = jnp.where(state.decrement >= 0, growth(coefficients, state.direction), 0) if ascent.newton else 0
    return state, jnp.maximum(growth(coefficients, step), planned)
