r"""The minimiser of $\frac12x^\top Ax-h^\top x$ over a box or a ball, $A$ symmetric and positive (semi)definite.

- No constraint: $A^{-1}h$. - $A$ a multiple $a$ of the identity: the projection of $h/a$.
- $A$ diagonal, a box: $h/A$ clipped, as the problem falls into one for each entry.
- Ball, centre $c$, radius $r$: with $y = x-c$, $b = h-Ac$ the conditions of optimality are $(A+\lambda I)y = b$,
  $\lambda \ge 0$, $|y| \le r$, one of the last two an equality. In the eigenvectors of $A$ this is one equation,
  $s(\lambda) = (\sum_i\beta_i^2/(a_i+\lambda)^2)^{-1/2} = r$. $s$ is concave and increasing (Reinsch), so that Newton's
  method from a $\lambda$ below the root rises to it and never passes it; $\max_i(|\beta_i|/r-a_i)$ is such a $\lambda$,
  as $1/s \ge |\beta_i|/(a_i+\lambda)$.
- $A$ full, a box: accelerated projected gradient, restarted when it turns uphill, with the entries scaled to
  $A_{ii} = 1$ (a box stays a box), until $|x-P(x-\nabla)|$ is $10^{-10}$ of the size of $x$ and $h$.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve

from provi.core.types import Scalar, Vector
from provi.geometry.constraints import AbstractConstraint, Ball, Box, is_number, spread

_TOLERANCE, _MOST_STEPS, _MOST_NEWTON_STEPS = 1e-10, 100_000, 100


def minimise_quadratic(
    curvature: Any, linear: Any, constraint: AbstractConstraint | None = None, start: Any = None
) -> Any:
    r"""$\arg\min_{x\in\Theta}\frac12x^\top Ax-h^\top x$.

    **Arguments:**

    - `curvature`: $A$: a number; numbers for each leaf or entry of `linear` (a diagonal); or, for `linear` a vector, a
      square matrix.
    - `linear`: $h$, a pytree. - `constraint`: a `Box`, a `Ball` or None. - `start`: where an iteration begins.
    """
    if constraint is not None and not isinstance(constraint, Box | Ball):
        raise TypeError(f"constraint must be a Box or a Ball, not {type(constraint).__name__}.")
    if _is_matrix(curvature, linear):
        return _with_matrix(curvature, linear, constraint, linear if start is None else start)
    quotient = jax.tree.map(jnp.divide, linear, spread(curvature, linear))
    if constraint is None:
        return quotient
    # A box needs a diagonal, a ball a multiple of the identity, to be projected on.
    if isinstance(constraint, Box) or is_number(curvature):
        return constraint.project(quotient)
    diagonal, _ = ravel_pytree(spread(curvature, linear))
    flat, unravel = ravel_pytree(linear)
    centre, _ = ravel_pytree(spread(constraint.centre, linear))
    offset = _in_ball(diagonal, flat - diagonal * centre, jnp.asarray(constraint.radius, flat.dtype))
    return unravel(centre + offset)


def _is_matrix(curvature: Any, linear: Any) -> bool:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(linear)]
    known = [jnp.shape(leaf) for leaf in jax.tree.leaves(curvature)]
    return len(shapes) == 1 and len(shapes[0]) == 1 and known == [shapes[0] * 2]


def _with_matrix(matrix: Any, linear: Vector, constraint: Box | Ball | None, start: Vector) -> Vector:
    matrix = jnp.asarray(matrix, linear.dtype)
    if constraint is None:
        return cho_solve(cho_factor(matrix), linear)
    if isinstance(constraint, Box):
        return _in_box(matrix, linear, spread(constraint.lower, linear), spread(constraint.upper, linear), start)
    centre = spread(constraint.centre, linear)
    values, vectors = jnp.linalg.eigh(matrix)
    pulled = vectors.T @ (linear - matrix @ centre)
    return centre + vectors @ _in_ball(jnp.maximum(values, 0), pulled, jnp.asarray(constraint.radius, linear.dtype))


def _in_ball(diagonal: Vector, linear: Vector, radius: Scalar) -> Vector:
    """The minimiser over |y| <= radius for the diagonal curvature given."""

    def solution(multiplier: Scalar) -> Vector:
        total = diagonal + multiplier
        return jnp.where(linear == 0, 0, linear / jnp.where(total > 0, total, 1))

    def newton(carry: Any) -> Any:
        multiplier, _, count = carry
        y = solution(multiplier)
        total = diagonal + multiplier
        length = jnp.sqrt(jnp.sum(y**2))
        # s = 1/|y| and s' = sum y^2/(a + lambda) / |y|^3, so that the step is (1/r - s)/s'.
        slope = jnp.sum(jnp.where(y == 0, 0, y**2 / jnp.where(total > 0, total, 1))) / length**3
        step = jnp.where(length > radius, (1 / radius - 1 / length) / slope, 0)
        return multiplier + step, step, count + 1

    def rising(carry: Any) -> Any:
        multiplier, step, count = carry
        return (step > 4 * jnp.finfo(linear.dtype).eps * multiplier) & (count < _MOST_NEWTON_STEPS)

    first = jnp.maximum(jnp.max(jnp.abs(linear) / radius - diagonal), 0)
    multiplier, *_ = jax.lax.while_loop(rising, newton, newton((first, first, 0)))
    y = solution(multiplier)
    # The last rounding must not leave the ball.
    return y * jnp.minimum(1, radius / jnp.maximum(jnp.sqrt(jnp.sum(y**2)), jnp.finfo(y.dtype).tiny))


def _in_box(matrix: Any, linear: Vector, lower: Vector, upper: Vector, start: Vector) -> Vector:
    root = jnp.sqrt(jnp.where(jnp.diagonal(matrix) > 0, jnp.diagonal(matrix), 1))
    scaled, h = matrix / (root[:, None] * root[None, :]), linear / root
    low, high = lower * root, upper * root
    step = 1 / jnp.linalg.eigvalsh(scaled)[-1]
    tolerance = max(_TOLERANCE, 64 * float(jnp.finfo(linear.dtype).eps))

    def project(x: Vector) -> Vector:
        return jnp.clip(x, low, high)

    def residual(x: Vector) -> Scalar:
        return jnp.max(jnp.abs(x - project(x - step * (scaled @ x - h))))

    def unfinished(carry: Any) -> Any:
        x, _, _, count = carry
        size = jnp.max(jnp.abs(x)) + step * jnp.max(jnp.abs(h))
        return (residual(x) > tolerance * size) & (count < _MOST_STEPS)

    def advance(carry: Any) -> Any:
        x, y, momentum, count = carry
        moved = project(y - step * (scaled @ y - h))
        # O'Donoghue and Candes: the momentum points uphill.
        uphill = jnp.sum((y - moved) * (moved - x)) > 0
        larger = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / larger * (moved - x)
        return moved, jnp.where(uphill, moved, ahead), jnp.where(uphill, 1, larger), count + 1

    first = project(start * root)
    x, *_ = jax.lax.while_loop(unfinished, advance, (first, first, jnp.ones((), h.dtype), 0))
    return jnp.clip(x / root, lower, upper)
