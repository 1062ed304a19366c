r"""The best mean of a Gaussian in dual form at given variances: Newton's method with inner conjugate gradients.

$\Phi(a) = \sum_nE\ell_n(\mu_n + (Ka)_n; v_n) + \tfrac12a'Ka$ is convex for a log-concave likelihood. Its gradient is
$Kc$, $c = a + \alpha$, Newton's direction $-(I + \Gamma K)^{-1}c$, $\Gamma = \mathrm{diag}(\gamma)$: a few dozen
products with K in all, next to the N of them, or more, that variances cost.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from provi.core.types import Count, Scalar, Vector
from provi.families.site_solver import SiteSolver

_MOST_STEPS, _HALVINGS, _DESCENT = 50, 40, 1e-4


class MeanState(NamedTuple):
    """a, d = Ka, the moments at (mu + d, v), Phi, half of Newton's decrement, and the number of steps."""

    dual_mean: Vector
    deviation: Vector
    slope: Vector
    weight: Vector
    likelihood: Scalar
    remaining: Scalar
    steps: Count

    @property
    def value(self) -> Scalar:
        """Phi."""
        return self.likelihood + 0.5 * jnp.sum(self.dual_mean * self.deviation)


def best_mean(
    target: Any, site_mean: Vector, solver: SiteSolver, start: Vector, variance: Vector, goal: Any, residual: Any
) -> MeanState:
    """Minimise Phi from `start` until half of Newton's decrement, about what is left, is at most `goal` nats.

    `residual`: relative, of the inner solutions. A solution that cannot be reached (an infinite Phi at the start, or
    rounding) ends with the best point found.
    """

    def at(dual_mean: Vector, deviation: Vector, remaining: Any, steps: Any) -> MeanState:
        moments = target.likelihood.moments(site_mean + deviation, variance, target.response)
        return MeanState(dual_mean, deviation, moments.slope, moments.weight, jnp.sum(moments.value), remaining, steps)

    def proceed(here: MeanState) -> Any:
        return (here.remaining > goal) & (here.steps < _MOST_STEPS) & jnp.isfinite(here.value)

    def newton(here: MeanState) -> MeanState:
        gradient = here.dual_mean + here.slope
        change = -solver.apply_inverse(here.weight, gradient, residual)
        move = solver.gram @ change
        descent = jnp.sum(gradient * move)
        rounding = 16 * jnp.finfo(move.dtype).eps * (jnp.abs(here.value) + jnp.abs(here.likelihood))

        def trial(length: Any) -> MeanState:
            return at(here.dual_mean + length * change, here.deviation + length * move, -0.5 * descent, here.steps + 1)

        def too_long(carry: Any) -> Any:
            length, found, halvings = carry
            fine = found.value <= here.value + _DESCENT * length * descent + rounding
            return ~fine & (halvings < _HALVINGS)

        def halve(carry: Any) -> Any:
            length, _, halvings = carry
            return length / 2, trial(length / 2), halvings + 1

        one = jnp.ones((), move.dtype)
        _, found, halvings = jax.lax.while_loop(too_long, halve, (one, trial(one), jnp.zeros((), jnp.int32)))
        # No descent: rounding is all that is left, or the moments are not finite along the way.
        stuck = (halvings >= _HALVINGS) | ~(descent < 0)
        stopped = here._replace(remaining=jnp.zeros_like(here.remaining), steps=here.steps + 1)
        return jax.tree.map(lambda a, b: jnp.where(stuck, a, b), stopped, found)

    infinite = jnp.full((), jnp.inf, start.dtype)
    first = at(start, solver.gram @ start, infinite, jnp.zeros((), jnp.int32))
    found = jax.lax.while_loop(proceed, newton, first)
    # d is a sum of moves: once more from a, so that errors do not gather from step to step.
    return at(found.dual_mean, solver.gram @ found.dual_mean, found.remaining, found.steps)
