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
