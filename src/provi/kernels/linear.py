"""The linear kernel: Bayesian linear regression as a Gaussian process."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import Scalar
from provi.kernels.base import AbstractKernel
from provi.kernels.distances import (
    Gram,
    Points,
    as_columns,
    as_hyperparameter,
    as_point_pair,
    as_points,
    check_hyperparameter,
    per_column,
)


def _as_offset(value: Any) -> Any:
    # Without an offset there is no such hyperparameter, and so no logarithm of zero among the learnt ones.
    return None if value is None or (not eqx.is_array(value) and value == 0) else as_hyperparameter(value)


class Linear(AbstractKernel):
    r"""The linear kernel $\sum_j a_j^2 x_j x_j' + b^2$: weights $N(0, a_j^2)$ and an intercept $N(0, b^2)$.

    **Arguments:**

    - `amplitude`: $a$, one number for all columns or a vector with one for each.
    - `offset`: $b$; 0 or None for no intercept.
    - `columns`: the positions of the columns of X that the kernel sees; None for all.
    """

    amplitude: Float[Array, "..."] = eqx.field(converter=as_hyperparameter, default=1.0)
    offset: Scalar | None = eqx.field(converter=_as_offset, default=1.0)
    columns: tuple[int, ...] | None = eqx.field(converter=as_columns, static=True, default=None)

    def __check_init__(self) -> None:
        check_hyperparameter("amplitude", self.amplitude, self.columns, per_column=True)
        if self.offset is not None:
            check_hyperparameter("offset", self.offset)

    def matrix(self, X: Any, Z: Any = None) -> Gram:
        left, right = as_point_pair(X, Z, self.columns)
        products = self._weighted(left) @ self._weighted(right).T
        # Matrix products round (i, j) and (j, i) differently at the edges of their blocks; an average does not.
        gram = products if Z is not None else 0.5 * (products + products.T)
        return gram + self._intercept(left)

    def diagonal(self, X: Any) -> Float[Array, " points"]:
        points = as_points("X", X, self.columns)
        return jnp.sum(self._weighted(points) ** 2, axis=1) + self._intercept(points)

    def _weighted(self, points: Points) -> Points:
        return points * per_column("amplitude", self.amplitude, points)[None, :]

    def _intercept(self, points: Points) -> Scalar:
        return jnp.zeros((), points.dtype) if self.offset is None else self.offset.astype(points.dtype) ** 2
