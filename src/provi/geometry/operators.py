r"""What steps apply to scales: projections, the preconditioner of MPSGD, the proximal operator of the entropy.

The projection is on the non-degenerate scales W_M = {sigma_min(C) >= 1/sqrt(M)}.
Every optimum of an M-smooth target lies in W_M (Domke 2020, Theorem 7), and h is M-smooth there.

The proximal operator is that of the negative entropy h(w) = -log det C,
prox_{gamma h}(C) = argmin_X -log det X + |X - C|_F^2 / (2 gamma), X positive definite in the space of C.
"""

from functools import singledispatch
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.core.tree import scale, squared_norm
from provi.core.types import Scalar
from provi.families.location_scale import Point
from provi.families.scales import AbstractScale, Diagonal, LowRank, Symmetric, Triangular


@singledispatch
def project_nondegenerate(scale: AbstractScale, smallest: Any) -> AbstractScale:
    """The nearest scale (Frobenius norm) whose singular values are at least `smallest` = 1/sqrt(M).

    - symmetric: eigenvalues raised to `smallest`; O(dim^3), and only a Cholesky factorisation
      when nothing has to be raised;
    - diagonal: entries raised to `smallest`;
    - low rank: entries of the diagonal part raised (a sufficient condition; no theorem uses it).
    """
    raise TypeError(f"No projection for {type(scale).__name__}.")


@project_nondegenerate.register
def _(scale: Symmetric, smallest: Any) -> Symmetric:
    matrix = (scale.matrix + scale.matrix.T) / 2

    def clamp(matrix):
        values, vectors = jnp.linalg.eigh(matrix)
        # The margin covers the rounding of this product and of the Cholesky test below, so that the result
        # is feasible and a second projection leaves it alone.
        size = jnp.maximum(jnp.max(jnp.abs(values)), smallest)
        margin = 8 * matrix.shape[0] * jnp.finfo(matrix.dtype).eps * size
        raised = (vectors * jnp.maximum(values, smallest + margin)[None, :]) @ vectors.T
        return (raised + raised.T) / 2

    # Feasible points come back unchanged to the bit. Cholesky of C - smallest I is NaN when C is infeasible
    # and costs a small fraction of the eigendecomposition.
    excess = matrix - smallest * jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    feasible = jnp.all(jnp.isfinite(jnp.linalg.cholesky(excess)))
    return Symmetric(jax.lax.cond(feasible, lambda m: m, clamp, matrix))


@project_nondegenerate.register
def _(scale: Diagonal, smallest: Any) -> Diagonal:
    return Diagonal(jnp.maximum(scale.diagonal, smallest))


@project_nondegenerate.register
def _(scale: LowRank, smallest: Any) -> LowRank:
    return LowRank(jnp.maximum(scale.diagonal, smallest), scale.factor)


@project_nondegenerate.register
def _(scale: Triangular, smallest: Any) -> Triangular:
    raise TypeError(
        "The non-degenerate triangular matrices are not a convex set, so there is no projection on them: "
        "use scale='symmetric' or 'diagonal' with ProjSGD and MPSGD, or ProxSGD with scale='triangular'."
    )


def project_nondegenerate_ball(
    point: Point, smallest: Any, centre: Any, radius: Any, centre_scale: Any = 0.0, scale_factor: Any = 1.0
) -> Point:
    r"""The nearest point of $W_M \cap B$, $B = \{|m-c|^2+|C-c_CI|_F^2/\lambda \le R^2\}$; symmetric or diagonal scales.

    A bounded set for 004, Theorem 8, and for the uniform noise of 003. Distances are in the norm of $B$, that of
    $\Lambda^{-1}$, $\Lambda = (1, \lambda)$. **It is not one projection after the other:** minimising the Lagrangian
    $|w-w_0|^2+\beta(|w-c|^2-R^2)$ over $W_M$ gives $w = P_{W_M}(c+a(w_0-c))$, $a = 1/(1+\beta)$, so that the point is
    first drawn to the centre, *then* its eigenvalues are raised. With $v$ the eigenvalues of $C_0$, $y = v-c_C$,
    $\delta = 1/\sqrt M-c_C$, the condition that fixes $a$ is

    $$a^2|m_0-c|^2+\frac1\lambda\sum_i\max(\delta, ay_i)^2 = R^2,$$

    whose left side does not fall in $a$ and is a quadratic between the points $\delta/y_i$: solved exactly from the
    piece that holds the root, one eigendecomposition in all.

    **Arguments:** `smallest`: $1/\sqrt M$; `centre`: $c$; `radius`: $R$, at least $\delta\sqrt{d/\lambda}$ or the set
    is empty (an error, also in compiled code); `centre_scale`: $c_C$; `scale_factor`: $\lambda$.
    """
    if not isinstance(point.scale, Symmetric | Diagonal):
        raise TypeError(f"No projection on a ball of W_M for {type(point.scale).__name__}: use Symmetric or Diagonal.")
    dtype = point.loc.dtype
    smallest, radius, level, factor = (jnp.asarray(x, dtype) for x in (smallest, radius, centre_scale, scale_factor))
    if isinstance(point.scale, Symmetric):
        values, vectors = jnp.linalg.eigh((point.scale.matrix + point.scale.matrix.T) / 2)
    else:
        values, vectors = point.scale.diagonal, None
    offset = point.loc - jnp.asarray(centre, dtype)
    shrink = _shrink_to_ball(squared_norm(offset), values - level, smallest - level, radius, factor)
    loc = jnp.where(shrink < 1, point.loc - (1 - shrink) * offset, point.loc)
    raised = jnp.maximum(level + shrink * (values - level), smallest)
    if vectors is None:
        return Point(loc, Diagonal(raised))
    matrix = (vectors * raised[None, :]) @ vectors.T
    return Point(loc, Symmetric((matrix + matrix.T) / 2))


def _shrink_to_ball(square: Scalar, y: Any, floor: Scalar, radius: Scalar, factor: Scalar) -> Scalar:
    """The largest a in [0, 1] with a^2 square + sum max(floor, a y)^2 / factor <= radius^2."""
    dim = y.shape[0]
    radius = eqx.error_if(
        radius, dim * jnp.maximum(floor, 0) ** 2 > radius**2 * factor, "radius is too small: no scale of W_M is inside."
    )

    def left(a: Any) -> Any:
        return a**2 * square + jnp.sum(jnp.maximum(floor, jnp.multiply.outer(a, y)) ** 2, axis=-1) / factor

    breaks = jnp.where(y * floor > 0, floor / jnp.where(y == 0, 1, y), jnp.inf)
    below = jnp.where((breaks <= 1) & (left(jnp.where(breaks <= 1, breaks, 0)) <= radius**2), breaks, 0)
    lowest = jnp.max(below)
    # On the piece just above `lowest` an entry is constant where floor > a y still holds there.
    constant = jnp.where(floor > 0, (y <= 0) | (breaks > lowest), (y < 0) & ((breaks <= lowest) | (floor == 0)))
    total = square + jnp.sum(jnp.where(constant, 0, y**2)) / factor
    rest = jnp.maximum(radius**2 - jnp.sum(constant) * floor**2 / factor, 0)
    root = jnp.sqrt(rest / jnp.where(total > 0, total, 1))
    inside = left(jnp.ones((), y.dtype)) <= radius**2
    return jnp.where(inside | (total == 0), 1, jnp.clip(root, 0, 1))


def _as_float(value: float) -> Scalar:
    return jnp.asarray(value, dtype=float)


class BlockPreconditioner(eqx.Module):
    """Lambda = (lambda_m I, lambda_C I) of paper 004.

    It multiplies the gradient's two blocks: location by `location`, scale by `scale`, both in (0, 1].
    """

    location: Scalar = eqx.field(converter=_as_float, default=1.0)
    scale: Scalar = eqx.field(converter=_as_float, default=1.0)

    def __call__(self, gradient: Point) -> Point:
        """Lambda g."""
        return Point(
            self.location.astype(gradient.loc.dtype) * gradient.loc,
            scale(self.scale.astype(gradient.loc.dtype), gradient.scale),
        )

    def inverse_squared_norm(self, difference: Point) -> Scalar:
        """|w|^2 in the Lambda^-1 norm, in which MPSGD's theorems measure distance."""
        return squared_norm(difference.loc) / self.location + squared_norm(difference.scale) / self.scale


def _prox_logarithm(x: Any, step_size: Any) -> Any:
    """argmin_t -log t + (t - x)^2 / (2 step_size): the positive root of t^2 - x t - step_size = 0.

    For x < 0 the textbook form (x + sqrt(x^2 + 4 gamma)) / 2 cancels; the other form of the root does not.
    """
    root = jnp.sqrt(x * x + 4 * step_size)
    return jnp.where(x >= 0, (x + root) / 2, 2 * step_size / (root - jnp.minimum(x, 0)))


@singledispatch
def prox_negative_entropy(scale: AbstractScale, step_size: Any) -> AbstractScale:
    """prox_{step_size h} of `scale`, in the scale's own space (paper 003, section 4).

    - triangular: off-diagonal entries unchanged, C_ii <- (C_ii + sqrt(C_ii^2 + 4 gamma)) / 2; O(dim)
      on top of the copy;
    - diagonal: the same, entry by entry;
    - symmetric: the same on the eigenvalues; O(dim^3).
    """
    raise TypeError(f"No proximal operator for {type(scale).__name__}.")


@prox_negative_entropy.register
def _(scale: Triangular, step_size: Any) -> Triangular:
    diagonal = jnp.diagonal(scale.matrix)
    index = jnp.arange(diagonal.shape[0])
    return Triangular(scale.matrix.at[index, index].set(_prox_logarithm(diagonal, step_size)))


@prox_negative_entropy.register
def _(scale: Diagonal, step_size: Any) -> Diagonal:
    return Diagonal(_prox_logarithm(scale.diagonal, step_size))


@prox_negative_entropy.register
def _(scale: Symmetric, step_size: Any) -> Symmetric:
    values, vectors = jnp.linalg.eigh(scale.matrix)
    matrix = (vectors * _prox_logarithm(values, step_size)[None, :]) @ vectors.T
    return Symmetric((matrix + matrix.T) / 2)


@prox_negative_entropy.register
def _(scale: LowRank, step_size: Any) -> LowRank:
    raise TypeError(
        "The negative entropy of a low-rank scale has no closed-form proximal operator: use ProjSGD or Optax, "
        "or a triangular, symmetric or diagonal scale."
    )
