r"""The proximal operator of the negative entropy h(w) = -log det C.

prox_{gamma h}(C) = argmin_X -log det X + |X - C|_F^2 / (2 gamma), X positive definite in the space of C.
"""

from functools import singledispatch
from typing import Any

import jax.numpy as jnp

from provi.families.scales import AbstractScale, Diagonal, LowRank, Symmetric, Triangular


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
