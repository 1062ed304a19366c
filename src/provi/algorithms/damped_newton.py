"""A damped Newton method for the small smooth problem inside one proximal step."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.core.types import Count, Flag, Scalar, Vector

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
