r"""One step of the proximal-gradient iteration: $\arg\min_w\langle w, g\rangle + h(w) + D(w, w_{old})/\beta$.

In closed form where there is one (each line is the stationarity condition solved for the new point):

| divergence | coordinates | h | step |
| --- | --- | --- | --- |
| Euclidean | any | 0, or with `prox` | $w - \beta g$, or prox of it |
| quadratic symmetric KL | any | 0 | $w - \frac\beta2G^{-1}g$ (natural gradient) |
| KL | mean | 0 | $\lambda = \lambda_{old} - \beta g$ |
| KL | mean | KL to the prior | $\lambda = r\lambda_{old} + (1-r)(\lambda_{prior} - g)$, $r = 1/(1+\beta)$ |
| KL | moments | 0, KL to the prior | paper 002's step in (m, V), the 'B-form' |
| reverse KL | natural | 0 | $\mu = \mu_{old} - \beta g$ (mirror descent) |

Otherwise by Newton's method in unconstrained coordinates, with the bound of `AbstractDivergence.gap_bound` on what is
left above the minimum. That inner solve is a loop of its own, inside one step of the loop of `runtime`: it begins and
ends within the step, so there is nothing to record, to resume or to budget.

The fourth row is `towards`, natural parameters that move convexly. It is the step of every conditionally conjugate
model as well, whose q is a product of families and whose point is the pytree of its natural parameters.

A damped Newton method for the small smooth problem inside one proximal step.
"""

from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.algorithms.mirror.split import AbstractPenalty, KLToPrior, Penalty
from provi.core.types import Count, Flag, Scalar, Vector
from provi.families.base import AnyParameters
from provi.families.exponential import Coordinates
from provi.geometry.divergences import KL, AbstractDivergence, Euclidean, QuadraticSymmetricKL, ReverseKL

_MAX_STEPS, _MAX_HALVINGS, _ARMIJO = 80, 50, 1e-4


class NewtonAnswer(eqx.Module):
    """The last point; the squared Newton decrement g'|H|^-1 g there (twice the decrease still expected); whether it is
    small, below 1e3 rounding units of the value; the number of steps."""

    point: Vector
    decrement: Scalar
    solved: Flag
    steps: Count


class _State(eqx.Module):
    """A point, the decrement where it was last measured (before the last move), and whether to stop."""

    point: Vector
    decrement: Scalar
    small: Flag
    done: Flag
    steps: Count


def damped_newton(function: Callable[[Any], Any], start: Vector) -> NewtonAnswer:
    r"""A minimum of `function` near `start`: $u \leftarrow u - t|H|^{-1}g$, t halved until the value falls (Armijo).

    $|H|$ has the absolute eigenvalues of the Hessian, so that the direction goes down where the function is not convex
    (a convex function in other coordinates need not be). It ends when the decrement no longer falls at rounding level.
    A NaN or an infinity on the way only shortens the step; a NaN at the start ends with `solved` false.
    """
    precision, tiny = jnp.finfo(start.dtype).eps, jnp.finfo(start.dtype).tiny

    def value_and_gradients(point):
        value, gradient = jax.value_and_grad(function)(point)
        return gradient, (value, gradient)

    def step(state: _State) -> _State:
        # One program yields value, gradient and Hessian: what is compiled twice costs seconds.
        hessian, (value, gradient) = jax.jacfwd(value_and_gradients, has_aux=True)(state.point)
        eigenvalues, vectors = jnp.linalg.eigh(hessian)
        sizes = jnp.abs(eigenvalues)
        direction = -vectors @ ((vectors.T @ gradient) / jnp.maximum(sizes, precision * jnp.max(sizes) + tiny))
        decrement = -gradient @ direction
        small = decrement <= 1e3 * precision * (1 + jnp.abs(value))
        stalled = (small & (decrement >= state.decrement / 4)) | (decrement <= precision**2)
        stop = stalled | ~jnp.isfinite(decrement)
        slack = 4 * precision * (1 + jnp.abs(value))

        def too_long(trial):
            share, count = trial
            reached = function(state.point + share * direction)
            falls = reached <= value - _ARMIJO * share * decrement + slack
            return ~falls & (count < _MAX_HALVINGS)

        first = (jnp.ones_like(decrement), jnp.where(stop, _MAX_HALVINGS, 0))
        share, halvings = jax.lax.while_loop(too_long, lambda t: (t[0] / 2, t[1] + 1), first)
        stop = stop | (halvings >= _MAX_HALVINGS)
        point = jnp.where(stop, state.point, state.point + share * direction)
        return _State(point, decrement, small, stop, state.steps + 1)

    no, none = jnp.zeros((), bool), jnp.zeros((), jnp.int32)
    first = _State(start, jnp.asarray(jnp.inf, start.dtype), no, no, none)
    last = jax.lax.while_loop(lambda s: ~s.done & (s.steps < _MAX_STEPS), step, first)
    return NewtonAnswer(last.point, last.decrement, last.small, last.steps)


class StepAnswer(eqx.Module):
    """The new point; a bound on its value above the minimum of the step's problem; whether the step was solved.

    `gap_bound` is zero for a closed form and infinite where no bound is known; both up to rounding. An unsolved step
    (no minimum in the valid set, or Newton's method failed) leaves the point where it was.
    """

    w: Any
    gap_bound: Scalar
    solved: Flag


def towards(natural: Any, prior: Any, gradient: Any, rate: Any) -> Any:
    r"""$(1-\rho)\lambda + \rho(\lambda_{prior} - g)$, leaf by leaf: the step with KL and KL to the prior.

    $g$ is the gradient of f in the mean parameter and $\rho = \beta/(1+\beta)$: stationarity in $\mu$ reads
    $g + (\lambda_{new} - \lambda_{prior}) + (\lambda_{new} - \lambda)/\beta = 0$.
    """
    return jax.tree.map(lambda old, start, slope: (1 - rate) * old + rate * (start - slope), natural, prior, gradient)


def rate_of(step_size: Scalar) -> Scalar:
    r"""$\rho = \beta/(1+\beta)$, which is 1 for an infinite step."""
    return 1 / (1 + 1 / step_size)


def has_step(space: Coordinates | AnyParameters, divergence: AbstractDivergence, penalty: Any) -> bool:
    """Whether `proximal_step` knows how: a pytree of natural parameters has the step of `towards` only."""
    return isinstance(space, Coordinates) or (isinstance(divergence, KL) and isinstance(penalty, KLToPrior))


def proximal_step(
    coordinates: Coordinates | AnyParameters,
    divergence: AbstractDivergence,
    penalty: AbstractPenalty | None,
    old: Any,
    gradient: Any,
    step_size: Scalar,
) -> StepAnswer:
    """The step from `old` along `gradient`, exact or with a bound on its error.

    `AnyParameters` in place of coordinates says that `old` is a pytree of natural parameters, each leaf those of a
    family or of many, and `gradient` the one in the mean parameters.
    """
    if isinstance(coordinates, AnyParameters):
        w = towards(old, cast(KLToPrior, penalty).prior, gradient, rate_of(step_size))
        return StepAnswer(w, jnp.zeros_like(step_size), jnp.ones((), bool))
    closed = _closed_form(coordinates, divergence, penalty, old, gradient, step_size)
    if closed is None:
        return _numerical(coordinates, divergence, penalty, old, gradient, step_size)
    w, solved = closed
    return StepAnswer(jnp.where(solved, w, old), jnp.where(solved, 0, jnp.inf).astype(old.dtype), solved)


def _closed_form(coordinates, divergence, penalty, old, gradient, step_size) -> tuple[Vector, Flag] | None:
    """The minimiser and whether it is a member of the family; None where there is no closed form."""
    family: Any = coordinates.family
    w, natural = None, None
    if isinstance(divergence, Euclidean) and penalty is None:
        w = old - step_size * gradient
    elif isinstance(divergence, Euclidean) and isinstance(penalty, Penalty) and penalty.prox is not None:
        w = penalty.prox(old - step_size * gradient, step_size)
    elif isinstance(divergence, QuadraticSymmetricKL) and penalty is None:
        w = old - step_size / 2 * jnp.linalg.solve(coordinates.metric(old), gradient)
    elif isinstance(divergence, ReverseKL) and penalty is None and coordinates.name == "natural":
        natural = family.natural_from_mean(family.mean_from_natural(old) - step_size * gradient)
    elif isinstance(divergence, KL) and coordinates.name != "natural" and isinstance(penalty, KLToPrior | None):
        natural = coordinates.to_natural(old)
        if coordinates.name == "moments":
            # The sum of the divergences' weights 1/beta and 1, and of their natural parameters with these weights.
            total, weight = natural / step_size, 1 / step_size
            if penalty is not None:
                total, weight = total + penalty.prior, weight + 1
            natural = family.minimise_in_moments(gradient, total, weight)
        elif penalty is None:
            natural = natural - step_size * gradient
        else:
            natural = towards(natural, penalty.prior, gradient, rate_of(step_size))
    if natural is not None:
        return coordinates.from_natural(natural), family.valid(natural)
    return None if w is None else (w, coordinates.valid(w) & jnp.all(jnp.isfinite(w)))


def _numerical(coordinates, divergence, penalty, old, gradient, step_size) -> StepAnswer:
    family = coordinates.family
    old_natural = coordinates.to_natural(old)

    def in_members(natural, w):
        h = 0 if penalty is None else penalty.value(family, natural, w)
        # Relative to the old point: a large constant <old, g> would only cost digits.
        return (w - old) @ gradient + h + divergence.between_members(coordinates, natural, old_natural) / step_size

    def problem(free):
        natural = family.from_unconstrained(free)
        return in_members(natural, coordinates.from_natural(natural))

    answer = damped_newton(problem, family.to_unconstrained(old_natural))
    w = coordinates.from_natural(family.from_unconstrained(answer.point))
    residual = gradient + divergence.gradient(coordinates, w, old) / step_size
    if penalty is not None:
        residual = residual + jax.grad(lambda v: penalty.value(family, coordinates.to_natural(v), v))(w)
    solved = answer.solved & coordinates.valid(w)
    bounded = penalty is None or penalty.convex_in(coordinates)
    bound = divergence.gap_bound(coordinates, w, old, residual, step_size) if bounded else jnp.inf
    # At the minimum the bound is a divergence of two equal members, which rounding can make negative.
    bound = jnp.where(solved & ~jnp.isnan(bound), jnp.maximum(bound, 0), jnp.inf).astype(old.dtype)
    return StepAnswer(jnp.where(solved, w, old), bound, solved)
