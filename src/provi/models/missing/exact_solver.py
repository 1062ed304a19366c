r"""The maximum of the observed-data likelihood: exact EM, then Newton's method with Louis's information.

The E-step is closed form (`likelihood`), so nothing here is random. One iteration evaluates the statistics at one
candidate and keeps it only if the objective $\ell(\theta) - \frac12\sum_j\lambda_j\delta_j^2$ does not fall:

* *EM*: $\beta$ and $\Omega$ are the mean and covariance of the completed rows; $\delta$ makes one Newton step on the
  expected complete-data likelihood. If that overshoots, Boehning's step, whose matrix
  $\frac14\sum_iE\tilde z_i\tilde z_i'$ bounds the curvature, cannot.
* *Extrapolation* (SQUAREM) of every two EM steps in a row.
* *Newton*: once an iteration gains little, $\theta + 2^{-k}I^{-1}g$ with the observed information $I$, if it is
  positive definite and some $k < 5$ ascends (a covariance that is not positive definite has no likelihood); else EM.

The gap to the maximum is estimated by half the Newton decrement $g'I^{-1}g$; without $I$ (many columns, or a
constrained covariance) by Aitken's sum of the gains to come, $\Delta r/(1 - r)$ for gains that shrink by $r$.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from provi.core.precision import double_precision
from provi.models.missing.conditional import Parameters, Rows
from provi.models.missing.exact_ascent import STUCK, AscentState, ExactAscent, rounding_error
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
    # Every row on the right side of the boundary.
    separated = bool(growing) and bool(jnp.all(conditional_log_likelihoods(state.parameters, rows) > np.log(0.5)))
    gap, steps = float(state.gap) * (2 if separated else 1), max(int(state.iterations), 0)
    converged = bool(gap <= _reachable(tol, state.objective))
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


def _message(converged: bool, separated: bool, stuck: bool, steps: int, gap: float) -> str:
    if separated and converged:
        return (
            f"the labels are separated by the covariates: the coefficients have no finite maximum; stopped {gap:.1e} "
            "nats below the supremum. Give a penalty for finite coefficients."
        )
    if converged:
        return f"converged after {steps} iterations, an estimated {gap:.1e} nats below the maximum"
    if stuck:
        return (
            f"no step ascends after {steps} iterations: the covariance of the covariates is singular (a constant or "
            "repeated column, or more columns than rows), or the tolerance is below the rounding error"
        )
    return f"stopped after {steps} iterations, an estimated {gap:.1e} nats below the maximum: raise max_iter"


def _reachable(tol: Any, objective: Array) -> Array:
    """`tol`, or the rounding error of the objective where that is larger."""
    return jnp.maximum(tol, rounding_error(objective))


@eqx.filter_jit
def _solve(ascent: ExactAscent, start: Parameters, tol: Array, max_iter: Array, trace_size: int) -> tuple:
    """The last state, and whether the coefficients would still grow by a hundredth."""

    def unfinished(state: AscentState) -> Array:
        # A separated likelihood rises like -exp(-t), whose gap is the whole decrement: hence half of tol.
        done = state.gap <= _reachable(tol / 2, state.objective)
        return ~done & (state.attempt < STUCK) & (state.iterations < max_iter)

    state = jax.lax.while_loop(unfinished, lambda s: ascent.iterate(s), ascent.begin(start, trace_size))
    coefficients = state.parameters.coefficients
    step = ascent.coefficient_step(state.parameters, state.statistics, False)
    return state, jnp.dot(step, coefficients) > 0.01 * jnp.sum(coefficients**2)
