r"""One iteration of the exact solver: which point to try next, and whether to keep it.

From a point the attempts are, in this order: Newton steps of length $1, \frac12, \ldots, \frac1{16}$ where the observed
information is available and positive definite; an extrapolation of the last two EM steps; an EM step whose
coefficients make a Newton step; an EM step whose coefficients make Boehning's step, which cannot descend. Each costs
one evaluation of the statistics, and is kept if the objective does not fall. A covariance that is not positive definite
has the objective NaN, and is not kept.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Int

from provi.models.missing.conditional import Parameters, Rows
from provi.models.missing.information import louis_information
from provi.models.missing.likelihood import ExpectedStatistics, expected_statistics, score_from_statistics
from provi.models.missing.parameter_vector import flatten_parameters, fold_symmetric, unflatten_parameters

LARGEST_INFORMATION = 1500
"""Newton's method is used up to this many parameters: its matrix is 18 MB, its factorisation 0.1 s."""

_NEAR = 0.1
"""Newton's method is tried once an iteration gains less than this many nats a row."""

_NEWTON, _EXTRAPOLATION, _EM, _BOEHNING, STUCK = 0, 5, 6, 7, 8


class AscentState(eqx.Module):
    """The point kept last, what is known there, and the attempt to make next.

    `gains` are the last two; `plain` counts the EM steps since anything else; `rate` is by how much the gains of EM
    steps shrink; `before` are the two points kept previously.
    """

    parameters: Parameters
    statistics: ExpectedStatistics
    objective: Float[Array, ""]
    gains: Float[Array, "2"]
    plain: Int[Array, ""]
    rate: Float[Array, ""]
    before: Float[Array, "2 q"]
    direction: Float[Array, " q"]
    decrement: Float[Array, ""]
    gap: Float[Array, ""]
    attempt: Int[Array, ""]
    iterations: Int[Array, ""]
    trace: Float[Array, " size"]


class ExactAscent(eqx.Module):
    r"""Ascent on $\ell(\theta) - \frac12\sum_j\lambda_j\delta_j^2$; with a `covariance_step`, over its covariances."""

    rows: Rows
    penalty: Float[Array, " p_plus_1"]
    covariance_step: Callable[[Array], Array] | None

    @property
    def newton(self) -> bool:
        """Whether Newton's method is used."""
        p = self.rows.values.shape[1]
        return self.covariance_step is None and 1 + 2 * p + p * (p + 1) // 2 <= LARGEST_INFORMATION

    def objective(self, parameters: Parameters, statistics: ExpectedStatistics) -> Float[Array, ""]:
        """The penalised log-likelihood."""
        ridge = 0.5 * jnp.sum(self.penalty * parameters.coefficients**2)
        return self.rows.values.shape[0] * statistics.log_likelihood - ridge

    def begin(self, start: Parameters, trace_size: int) -> AscentState:
        """Nothing known: the first attempt, a step of length zero, is to evaluate the start."""
        flat = flatten_parameters(start)
        shapes = jax.eval_shape(expected_statistics, start, self.rows)
        infinite = jnp.asarray(np.inf, flat.dtype)
        return AscentState(
            parameters=start,
            statistics=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
            objective=jnp.asarray(jnp.finfo(flat.dtype).min, flat.dtype),
            gains=jnp.full(2, np.inf, flat.dtype),
            plain=jnp.asarray(0),
            rate=jnp.zeros((), flat.dtype),
            before=jnp.stack([flat, flat]),
            direction=jnp.zeros_like(flat),
            decrement=infinite,
            gap=infinite,
            attempt=jnp.asarray(_EXTRAPOLATION),
            iterations=jnp.asarray(-1),
            trace=jnp.full(trace_size, np.nan, flat.dtype),
        )

    def iterate(self, state: AscentState) -> AscentState:
        """Make the next attempt; if it ascends, keep it and plan the next."""
        candidate = self._candidate(state)
        statistics = expected_statistics(candidate, self.rows)
        value = self.objective(candidate, statistics)
        promised = jnp.where(state.attempt < _EXTRAPOLATION, 1e-4 * _length(state) * state.decrement, 0)
        ascends = value >= state.objective + promised - rounding_error(state.objective)

        def keep(state: AscentState) -> AscentState:
            gains = jnp.stack([value - state.objective, state.gains[0]])
            plain = jnp.where(state.attempt >= _EM, state.plain + 1, 0)
            before = jnp.stack([flatten_parameters(state.parameters), state.before[0]])
            steps = state.iterations + 1
            trace = state.trace.at[steps].set(value)
            new = (candidate, statistics, value, gains, plain, before, steps, trace)
            kept = lambda s: (  # noqa: E731
                s.parameters, s.statistics, s.objective, s.gains, s.plain, s.before, s.iterations, s.trace
            )  # fmt: skip
            return self._plan(eqx.tree_at(kept, state, new))

        def refuse(state: AscentState) -> AscentState:
            # After the shortest Newton step there is no extrapolation: `direction` is Newton's.
            attempt = jnp.where(state.attempt == _EXTRAPOLATION - 1, _EM, state.attempt + 1)
            return eqx.tree_at(lambda s: s.attempt, state, attempt)

        return jax.lax.cond(ascends, keep, refuse, state)

    def coefficient_step(self, parameters: Parameters, statistics: ExpectedStatistics, boehning: Any) -> Array:
        r"""Newton's step on the expected complete-data likelihood; Boehning's has $\frac14E\tilde z\tilde z'$ for
        $E\,\sigma'\tilde z\tilde z'$.
        """
        n, shift, mean = self.rows.values.shape[0], statistics.shift, parameters.mean + statistics.shift
        second = statistics.scatter - shift[:, None] * shift[None] + mean[:, None] * mean[None]
        bound = 0.25 * jnp.block([[jnp.ones((1, 1), mean.dtype), mean[None]], [mean[:, None], second]])
        curvature = n * jnp.where(boehning, bound, statistics.curvature) + jnp.diag(self.penalty)
        gradient = n * statistics.score - self.penalty * parameters.coefficients
        return cho_solve(cho_factor(curvature, lower=True), gradient)

    def _candidate(self, state: AscentState) -> Parameters:
        old, statistics = state.parameters, state.statistics
        moved = unflatten_parameters(flatten_parameters(old) + _length(state) * state.direction, old.mean.shape[0])
        step = self.coefficient_step(old, statistics, state.attempt == _BOEHNING)
        covariance = statistics.scatter - statistics.shift[:, None] * statistics.shift[None]
        completed = Parameters(old.coefficients + step, old.mean + statistics.shift, covariance)
        chosen = jax.tree.map(lambda a, b: jnp.where(state.attempt < _EM, a, b), moved, completed)
        if self.covariance_step is None:
            return chosen
        return Parameters(chosen.coefficients, chosen.mean, self.covariance_step(chosen.covariance))

    def _plan(self, state: AscentState) -> AscentState:
        """The first attempt from a new point, and the estimated gap there."""
        direction, eigenvalue = _extrapolate(flatten_parameters(state.parameters), *state.before)
        pair = state.plain >= 2
        rate = jnp.where(pair, jnp.maximum(state.gains[0] / state.gains[1], eigenvalue**2), state.rate)
        # Aitken: gains that shrink by the rate add up to this.
        gap = jnp.where(pair & (rate < 1), state.gains[0] * rate / (1 - rate), np.inf)
        attempt, decrement = jnp.where(pair, _EXTRAPOLATION, _EM), state.decrement
        plain = jnp.where(pair, 0, state.plain)
        if self.newton:
            near = state.gains[0] <= _NEAR * self.rows.values.shape[0]
            nothing = (jnp.zeros_like(direction), jnp.full_like(decrement, np.nan))
            newton, decrement = jax.lax.cond(near, lambda s: self._newton_step(s), lambda _: nothing, state)
            usable = decrement >= 0
            direction = jnp.where(usable, newton, direction)
            attempt, gap = jnp.where(usable, _NEWTON, attempt), jnp.where(usable, 0.5 * decrement, gap)
        return eqx.tree_at(
            lambda s: (s.rate, s.gap, s.attempt, s.plain, s.direction, s.decrement),
            state,
            (rate, gap, attempt, plain, direction, decrement),
        )

    def _newton_step(self, state: AscentState) -> tuple[Array, Array]:
        r"""$I^{-1}g$ and $g'I^{-1}g$; NaN where $I$ is not positive definite."""
        gradient = score_from_statistics(state.parameters, state.statistics, self.rows.values.shape[0])
        coefficients = gradient.coefficients - self.penalty * state.parameters.coefficients
        flat = jnp.concatenate([coefficients, gradient.mean, fold_symmetric(gradient.covariance)])
        information = louis_information(state.parameters, self.rows)
        places = np.arange(self.penalty.shape[0])
        information = information.at[places, places].add(self.penalty)
        direction = cho_solve(cho_factor(information, lower=True), flat)
        return direction, flat @ direction


def _length(state: AscentState) -> Array:
    """Of the step along the direction: shorter with each Newton step refused, 1 in an extrapolation."""
    return jnp.where(state.attempt < _EXTRAPOLATION, 0.5 ** state.attempt.astype(state.direction.dtype), 1)


def rounding_error(objective: Array) -> Array:
    """What the sum over the rows may be off by."""
    return 8 * jnp.finfo(objective.dtype).eps * jnp.abs(objective)


def _extrapolate(latest: Array, middle: Array, oldest: Array) -> tuple[Array, Array]:
    r"""SQUAREM's step from the latest of three EM iterates, and the largest eigenvalue of EM that it implies.

    With $r = x_1 - x_0$, $v = x_2 - 2x_1 + x_0$ and $\alpha = -\max(1, |r|/|v|)$ the new point is
    $x_0 - 2\alpha r + \alpha^2v$ (Varadhan & Roland, 2008); for one eigenvalue $\rho$, $|v| = (1 - \rho)|r|$.
    """
    r = middle - oldest
    v = latest - middle - r
    length = jnp.maximum(jnp.linalg.norm(r) / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny), 1)
    return oldest + 2 * length * r + length**2 * v - latest, 1 - 1 / length
