r"""How far the parameters are from the maximum, by fresh draws: the stop that a shrinking step cannot fool.

One sweep over all rows at a fixed $\theta$ gives, by Fisher's identity, an unbiased score $\hat g$ (up to what the
chains remember). The difference $\pm d_i$ between the two halves of a row's draws has the variance of the row's mean
as its expected square, so $V = \sum_id_id_i'$ estimates the Monte-Carlo covariance of $\hat g$. With the observed
information $I$ (Louis's formula) the gap to the maximum of the log-likelihood, in nats, is about
$\frac12g'I^{-1}g$, and

$$\text{remaining} = \tfrac12\hat g'I^{-1}\hat g,\qquad \text{noise} = \tfrac12\mathrm{tr}(I^{-1}V).$$

Given the draws, $g = \hat g - e$ with $\mathrm{Cov}\,e = V$: remaining + noise is the expected gap of someone who knew
nothing about $g$ beforehand, and an upper estimate otherwise. A gap of at most `tol` puts *every* parameter, and every
linear combination, within $\sqrt{2\,\mathrm{tol}}$ of its standard error from the maximum: 0.14 of it at 0.01.

Where the information is too large a matrix (q beyond `_MOST_DENSE`), or the covariance is constrained by a
`covariance_step`, the *complete* information stands in for it: $I_c^{-1}\hat g$ is the step of EM, and
$I^{-1} \preceq I_c^{-1}/(1 - \rho)$ with $\rho$ the rate of EM, the largest share of missing information.

What a solver decides between two passes is here too: how many draws (`DrawCount`), whether to check and whether to
stop (`Watch`), and what to say at the end (`ending`).
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from provi.algorithms.incremental.misso import average_draws
from provi.core.compilation import quick_jit
from provi.core.types import RandomKey
from provi.models.missing.conditional import Parameters, fold_symmetric
from provi.models.missing.information import louis_information
from provi.models.missing.surrogate import MissingSurrogate, Prepared, Statistics, Summary, control_variates
from provi.schedules.batch_sizes import as_batch_size

_MOST_DENSE = 1500
"""Up to this many parameters the information is formed and factorised."""

_BLOCK_ENTRIES = 2**20
"""Rows are taken in blocks whose p-by-p matrices have this many entries: 8 MB each."""

_FEWEST_DRAWS = 16
_LARGEST_GROWTH = 4
_LONGEST_WAIT = 4
"""Passes after which a check is made whatever the steps were."""
_UNKNOWN_RATE = 0.9
"""The rate of EM where it is needed and could not be measured: a cautious one."""


class Spread(eqx.Module):
    r"""The Monte-Carlo covariance of the score: `matrix` is V, or, where q is too large, its block of coefficients.

    Then `gaussian` is $\mathrm{tr}(I_c^{-1}V)$ of the other blocks; else it is 0.
    """

    matrix: Float[Array, "q q"]
    gaussian: Float[Array, ""]


class Sweep(eqx.Module):
    """Fresh draws of all rows at one theta: the rows' statistics (or None), their mean, the chains, the spread."""

    table: Statistics | None
    mean: Statistics
    chains: Any
    spread: Spread


class Assessment(eqx.Module):
    """The two parts of the estimated gap in nats, and the coefficients' estimated distances from the maximum."""

    remaining: Float[Array, ""]
    noise: Float[Array, ""]
    coefficient_errors: Float[Array, " q"]


def is_dense(surrogate: MissingSurrogate) -> bool:
    """Whether the information is formed as a matrix."""
    p = surrogate.data.values.shape[1]
    return surrogate.covariance_step is None and 2 * p + 1 + p * (p + 1) // 2 <= _MOST_DENSE


def sweep(
    key: RandomKey, surrogate: MissingSurrogate, parameters: Parameters, chains: Any, num_calls: Any, keep_table: bool
) -> Sweep:
    """`num_calls` calls of the surrogate's `draw` for every row, in blocks of rows; traced."""
    n, p = surrogate.data.values.shape
    num_blocks = -(-n // max(64, _BLOCK_ENTRIES // p**2))
    size = -(-n // num_blocks)
    root = jnp.linalg.cholesky(parameters.covariance)

    def block(k: Any) -> tuple:
        places = k * size + jnp.arange(size)
        rows, real = jnp.minimum(places, n - 1), places < n
        prepared = surrogate.prepare(parameters, rows)
        mine, key_of_block = jax.tree.map(lambda x: x[rows], chains), jax.random.fold_in(key, k)
        mean, error, mine = average_draws(surrogate, key_of_block, parameters, rows, prepared, mine, num_calls)
        statistics = surrogate.build(parameters, rows, prepared, mean)
        total = jax.tree.map(lambda x: jnp.einsum("b,b...->...", real.astype(x.dtype), x), statistics)
        error = control_variates(prepared, error, constant=0.0) if surrogate.controls else error
        error = jax.tree.map(lambda x: jnp.where(real, x, 0), error)
        spread = _spread(parameters, root, prepared, error, n, is_dense(surrogate))
        return (total, spread), (statistics if keep_table else None, mine)

    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(block, jnp.zeros((), int))[0])

    def turn(carry: Any, k: Any) -> tuple:
        added, kept = block(k)
        return jax.tree.map(jnp.add, carry, added), kept

    (total, spread), stacked = jax.lax.scan(turn, zero, jnp.arange(num_blocks))
    table, chains = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], stacked)
    return Sweep(table, jax.tree.map(lambda x: x / n, total), chains, spread)


def _spread(parameters: Parameters, root: Array, prepared: Prepared, error: Summary, n: int, dense: bool) -> Spread:
    r"""The sum over rows of $d_id_i'$, where the errors of the summaries make those of the scores.

    $z$ is off by $d\,\Delta_u$ and $(z - \beta)(z - \beta)'$ by
    $(cd' + dc')\Delta_u + dd'\Delta_{u^2}$, $c = m - \beta$.
    """
    centred = prepared.filled - parameters.mean[None]
    first, second = error.first, error.second
    positive = (prepared.label + 1) / 2
    along, across = -error.sigmoid, positive * first - error.sigmoid_first
    rest = along[:, None] * prepared.filled + across[:, None] * prepared.direction
    scores = jnp.concatenate([along[:, None], rest], axis=1)
    left, right = (cho_solve((root, True), x.T).T for x in (centred, prepared.direction))  # K c and K d
    if dense:
        outer = (left * first[:, None] + right * second[:, None] / 2)[:, :, None] * right[:, None, :]
        scores = jnp.concatenate([scores, first[:, None] * right, fold_symmetric(outer)], axis=1)
        return Spread(scores.T @ scores, jnp.zeros((), scores.dtype))
    pairs = ((left, centred), (right, prepared.direction), (left, prepared.direction))
    alpha, gamma, kappa = (jnp.sum(x * y, axis=1) for x, y in pairs)  # c'Kc, d'Kd and c'Kd
    of_mean = gamma * first**2
    of_covariance = (
        (alpha * gamma + kappa**2) * first**2 + kappa * gamma * 2 * first * second + (gamma * second) ** 2 / 2
    )
    return Spread(scores.T @ scores, jnp.sum(of_mean + of_covariance) / n)


def complete_distance(surrogate: MissingSurrogate, mean: Statistics, old: Parameters, new: Parameters) -> Array:
    r"""Half the squared distance of two parameters in the complete information, in nats:

    $\frac n2[\Delta_\delta'(A + \Lambda/n)\Delta_\delta + \Delta_\beta'\Omega^{-1}\Delta_\beta +
    \frac12\mathrm{tr}(\Omega^{-1}\Delta_\Omega\Omega^{-1}\Delta_\Omega)]$, $\Lambda$ the penalty.
    """
    n, step = surrogate.num_terms, jax.tree.map(jnp.subtract, new, old)
    root = (jnp.linalg.cholesky(old.covariance), True)
    spread = cho_solve(root, step.covariance)
    total = step.coefficients @ (mean.curvature @ step.coefficients + surrogate.penalty / n * step.coefficients)
    return 0.5 * n * (total + step.mean @ cho_solve(root, step.mean) + 0.5 * jnp.sum(spread * spread.T))


@quick_jit
def assess(surrogate: MissingSurrogate, parameters: Parameters, mean: Statistics, spread: Spread) -> Assessment:
    """The verdict of a sweep at `parameters`; NaN where the information is not positive definite.

    Where the information is not formed (`is_dense`), all three are still to be divided by one minus EM's rate.
    """
    n, q = surrogate.num_terms, parameters.coefficients.shape[0]
    of_coefficients = n * (mean.slope - mean.curvature @ parameters.coefficients)
    of_coefficients = of_coefficients - surrogate.penalty * parameters.coefficients
    if not is_dense(surrogate):
        next_one = surrogate.minimise(mean, parameters, None)
        factor = (jnp.linalg.cholesky(n * mean.curvature + jnp.diag(surrogate.penalty)), True)
        noise = 0.5 * (jnp.trace(cho_solve(factor, spread.matrix)) + spread.gaussian)
        remaining = complete_distance(surrogate, mean, parameters, next_one)
        return Assessment(remaining, noise, _errors(factor, of_coefficients, spread.matrix))
    root = (jnp.linalg.cholesky(parameters.covariance), True)
    shift = mean.first - parameters.mean
    scatter = mean.second - mean.first[:, None] * mean.first[None] + shift[:, None] * shift[None]
    excess = cho_solve(root, cho_solve(root, scatter - parameters.covariance).T)
    score = jnp.concatenate([of_coefficients, n * cho_solve(root, shift), n * fold_symmetric(excess) / 2])
    penalty = jnp.concatenate([surrogate.penalty, jnp.zeros(score.shape[0] - q, score.dtype)])
    information = louis_information(parameters, surrogate.data) + jnp.diag(penalty)
    factor = (jnp.linalg.cholesky(information), True)
    remaining = 0.5 * score @ cho_solve(factor, score)
    noise = 0.5 * jnp.trace(cho_solve(factor, spread.matrix))
    return Assessment(remaining, noise, _errors(factor, score, spread.matrix)[:q])


def _errors(factor: Any, score: Array, covariance: Array) -> Array:
    r"""Roots of the diagonal of $I^{-1}(\hat g\hat g' + V)I^{-1}$: how far the maximum is, parameter by parameter."""
    spread = cho_solve(factor, cho_solve(factor, covariance).T)
    return jnp.sqrt(cho_solve(factor, score) ** 2 + jnp.maximum(jnp.diagonal(spread), 0))


@dataclasses.dataclass
class DrawCount:
    """How many draws a row the next pass makes, in calls of the surrogate's `draw`."""

    asked: Any
    block: int
    present: int = _FEWEST_DRAWS

    def calls(self, k: int) -> int:
        """For pass k, from 0."""
        if not isinstance(self.asked, str):
            self.present = int(as_batch_size(self.asked)(jnp.asarray(k)))
        return self.present // self.block

    def grow(self, remaining: float, noise: float, tol: float) -> None:
        """Fourfold at most, so that the noise comes to a quarter of what remains without it, or of `tol`."""
        wanted = 4 * noise / max(remaining - noise, tol)
        if isinstance(self.asked, str) and wanted > 1:
            self.present *= int(np.ceil(np.clip(wanted, 2, _LARGEST_GROWTH)))


class Watch:
    """When a check is due, and what the checks have said: the decisions of a run, made on the host."""

    def __init__(self, tol: float, dense: bool, incremental: bool) -> None:
        self.tol, self.dense, self.incremental = tol, dense, incremental
        self.waited, self.passes, self.step, self.step_before = 0, 0, np.inf, np.inf
        self.rate, self.signal, self.signal_at = _UNKNOWN_RATE, np.nan, 0
        self.remaining, self.noise, self.gap = np.nan, 0.0, np.nan
        self.errors: np.ndarray | None = None

    def due(self) -> bool:
        """Small steps, steps that no longer shrink (noise), or a long wait: never a verdict, only its occasion."""
        if self.tol <= 0 or self.waited < 1:
            return False
        stalled = self.waited > 1 and self.step > 0.5 * self.step_before
        return self.step <= 4 * max(self.tol, self.noise) or stalled or self.waited >= _LONGEST_WAIT

    def passed(self, step: float) -> None:
        """Take in a pass, of the length `step` in nats."""
        self.step_before, self.step = self.step, step
        self.waited, self.passes = self.waited + 1, self.passes + 1

    def checked(self, found: Assessment) -> bool:
        """Take in a check, before its own pass; whether it is good enough to stop."""
        remaining, noise, scale = float(found.remaining), float(found.noise), 1.0
        if not self.dense:
            signal = remaining - noise
            if signal > 4 * noise:  # otherwise the ratio of two signals says nothing
                ratio = signal / self.signal
                if np.isfinite(ratio):
                    self.rate = min(ratio ** (0.5 / (self.passes - self.signal_at)), 0.999)
                self.signal, self.signal_at = signal, self.passes
            scale = 1 / (1 - self.rate)
        # A check of MISSO costs a pass of its own, so that one of its passes is made before the next.
        self.waited = -1 if self.incremental else 0
        self.remaining, self.noise = scale * remaining, scale * noise
        self.gap, self.errors = self.remaining + self.noise, scale * np.asarray(found.coefficient_errors)
        # Half of `tol`: the gap is an estimate, from draws and from a quadratic at the present point.
        return self.gap <= self.tol / 2


def ending(watch: Watch, converged: bool, failed: bool, passes: int, num_draws: int) -> str:
    """How a run ended, in a sentence or two, with the remedy if it did not converge."""
    if failed:
        return (
            f"The parameters left the finite numbers at pass {passes}; the last finite ones are returned. "
            f"surrogate='jaakkola' cannot overshoot; separated classes need a penalty."
        )
    if np.isnan(watch.gap):
        known = "No check was made" if watch.errors is None else "The information is not positive definite there"
        return f"{passes} passes. {known}: nothing is known about the gap."
    verdict = (
        f"The estimated gap to the maximum is {watch.gap:.2g} nats, {watch.noise:.2g} of it Monte-Carlo error, "
        f"after {passes} passes and with {num_draws} draws a row."
    )
    if converged:
        return verdict
    remedy = "num_draws" if watch.noise > 0.5 * watch.gap else "max_passes"
    return f"Not converged: {verdict[0].lower()}{verdict[1:]} Raise {remedy}."
