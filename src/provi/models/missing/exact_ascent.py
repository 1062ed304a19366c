r"""One iteration of the exact solver: which point to try next, and whether to keep it.

From a point the attempts are, in this order: Newton steps of length $1, \frac12, \ldots, \frac1{16}$ where the observed
information is available and positive definite; an extrapolation of the last two EM steps; an EM step whose
coefficients make a Newton step; an EM step whose coefficients make Boehning's step, which cannot descend. Each costs
one evaluation of the statistics, and is kept if the objective does not fall and the covariance is positive definite.
The search for the shift that makes the information definite is a loop inside one attempt; the loop over attempts is
`exact_solver`'s.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Int

from provi.core.arguments import device_array
from provi.models.missing.conditional import Parameters, Rows, flatten_parameters, fold_symmetric, unflatten_parameters
from provi.models.missing.information import complete_information, louis_information
from provi.models.missing.likelihood import ExpectedStatistics, expected_statistics, score_from_statistics

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

    def rounding_error(self, objective: Array) -> Array:
        """What the sum over the rows may be off by, and an iterative `covariance_step`: 1e-10 a row."""
        inexact = 0 if self.covariance_step is None else 1e-10 * self.rows.values.shape[0]
        return 8 * jnp.finfo(objective.dtype).eps * jnp.abs(objective) + inexact

    def begin(self, start: Parameters, trace_size: int) -> AscentState:
        """Nothing known: the first attempt, a step of length zero, is to evaluate the start."""
        flat = flatten_parameters(start)
        shapes = jax.eval_shape(expected_statistics, start, self.rows)
        infinite = device_array(np.inf, flat.dtype)
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
        ascends = value >= state.objective + promised - self.rounding_error(state.objective)
        # Where no row is complete an indefinite covariance may have a likelihood, and a high one.
        ascends = ascends & jnp.all(jnp.isfinite(jnp.linalg.cholesky(candidate.covariance)))

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
        # The pair after an extrapolation may miss the slowest direction, which an earlier one saw.
        ratio = state.gains[0] / jnp.where(state.gains[1] > 0, state.gains[1], np.inf)
        seen = jnp.maximum(jnp.maximum(ratio, eigenvalue**2), 0.9 * state.rate)
        rate = jnp.where(pair, seen, state.rate)
        # Aitken: gains that shrink by the rate add up to this. And what the extrapolation and the pair gained.
        cycle = state.objective - state.trace[state.iterations - 3]
        to_come = jnp.maximum(state.gains[0] * rate / (1 - rate) + cycle, self.rounding_error(state.objective))
        gap = jnp.where(pair & (rate < 1) & (state.iterations >= 5), to_come, np.inf)
        attempt, decrement = jnp.where(pair, _EXTRAPOLATION, _EM), state.decrement
        plain = jnp.where(pair, 0, state.plain)
        if self.newton:
            near = state.gains[0] <= _NEAR * self.rows.values.shape[0]
            nothing = (jnp.zeros_like(direction), jnp.full_like(decrement, np.nan), jnp.zeros((), bool))
            newton, decrement, concave = jax.lax.cond(near, lambda s: self._newton_step(s), lambda _: nothing, state)
            usable = decrement >= 0
            direction = jnp.where(usable, newton, direction)
            attempt = jnp.where(usable, _NEWTON, attempt)
            # Without Aitken: EM passes saddle points with small gains that shrink, and grow again.
            gap = jnp.where(usable & concave, decrement * self._caution(state, newton), np.inf)
        return eqx.tree_at(
            lambda s: (s.rate, s.gap, s.attempt, s.plain, s.direction, s.decrement),
            state,
            (rate, gap, attempt, plain, direction, decrement),
        )

    def _caution(self, state: AscentState, step: Array) -> Array:
        """The gap in Newton decrements: half of one where the likelihood is quadratic, and 1 leaves room. Coefficients
        on their way to infinity, which the step moves outwards, have one where it rises like -exp(-t), two where like
        -1/t: then 2.5.
        """
        return jnp.where(growth(state.parameters.coefficients, step) > 0.01, 2.5, 1.0)

    def _newton_step(self, state: AscentState) -> tuple[Array, Array, Array]:
        r"""$d = (I + \lambda I_c)^{-1}g$, $g'd$, and whether $I$ is positive definite, which is where $\lambda = 0$.

        Else $\lambda$ is the first of $10^{-3}, 10^{-2}, \ldots$ with a positive definite matrix; $I_c$ is the
        information of complete rows, with which alone the step would be one of EM. NaN if there is none.
        """
        parameters, n = state.parameters, self.rows.values.shape[0]
        gradient = score_from_statistics(parameters, state.statistics, n)
        coefficients = gradient.coefficients - self.penalty * parameters.coefficients
        flat = jnp.concatenate([coefficients, gradient.mean, fold_symmetric(gradient.covariance)])
        places = np.arange(self.penalty.shape[0])
        information = louis_information(parameters, self.rows).at[places, places].add(self.penalty)

        def solve(shift: Array) -> Array:
            complete = complete_information(parameters, state.statistics.curvature, n)
            return cho_solve(cho_factor(information + shift * complete, lower=True), flat)

        def larger(tried: tuple[Array, Array]) -> tuple[Array, Array]:
            shift = jnp.maximum(10 * tried[0], 1e-3)
            return shift, solve(shift)

        start = (jnp.zeros((), flat.dtype), cho_solve(cho_factor(information, lower=True), flat))
        shift, direction = jax.lax.while_loop(
            lambda tried: ~jnp.all(jnp.isfinite(tried[1])) & (tried[0] < 10), larger, start
        )
        return direction, flat @ direction, shift == 0


def _length(state: AscentState) -> Array:
    """Of the step along the direction: shorter with each Newton step refused, 1 in an extrapolation."""
    return jnp.where(state.attempt < _EXTRAPOLATION, 0.5 ** state.attempt.astype(state.direction.dtype), 1)


def growth(coefficients: Array, step: Array) -> Array:
    """How much longer, relative to their length, a step that begins with theirs makes the coefficients."""
    size = jnp.maximum(jnp.sum(coefficients**2), jnp.finfo(coefficients.dtype).tiny)
    return jnp.dot(step[: coefficients.shape[0]], coefficients) / size


def _extrapolate(latest: Array, middle: Array, oldest: Array) -> tuple[Array, Array]:
    r"""SQUAREM's step from the latest of three EM iterates, and the largest eigenvalue of EM that it implies.

    With $r = x_1 - x_0$, $v = x_2 - 2x_1 + x_0$ and $\alpha = -\max(1, |r|/|v|)$ the new point is
    $x_0 - 2\alpha r + \alpha^2v$ (Varadhan & Roland, 2008); for one eigenvalue $\rho$, $|v| = (1 - \rho)|r|$.
    """
    r = middle - oldest
    v = latest - middle - r
    length = jnp.maximum(jnp.linalg.norm(r) / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny), 1)
    return oldest + 2 * length * r + length**2 * v - latest, 1 - 1 / length
