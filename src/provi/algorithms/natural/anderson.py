r"""Anderson's acceleration of a damped fixed-point iteration $x_+ = x + \rho R(x)$, for a compiled loop.

The last residuals $R_i = R(x_i)$ are combined so that the least-squares residual
$|R - \sum_i\theta_i(R - R_i)|_M$ is smallest; the step is
$x_+ = x + \rho R - \sum_i\theta_i[(x - x_i) + \rho(R - R_i)]$. On a linear map it is GMRES in another guise.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Count, Scalar, Vector

MEMORY = 5
_REGULARISATION = 1e-10


class Memory(eqx.Module):
    """The last points and residuals, newest last, (MEMORY, size) each; `count` of them are real."""

    points: Any
    residuals: Any
    count: Count

    @staticmethod
    def empty(size: int, dtype: Any) -> "Memory":
        """Nothing remembered; made on the host."""
        zero = jnp.asarray(np.zeros((MEMORY, size), dtype))
        return Memory(zero, zero, jnp.asarray(np.asarray(0)))

    def remember(self, point: Vector, residual: Vector, real: Any = True) -> "Memory":
        """With one more, the oldest forgotten; nothing is remembered after one that is not `real`."""
        return Memory(
            jnp.concatenate([self.points[1:], point[None, :]]),
            jnp.concatenate([self.residuals[1:], residual[None, :]]),
            jnp.where(real, jnp.minimum(self.count + 1, MEMORY), 0),
        )

    def forget(self) -> "Memory":
        """Nothing remembered."""
        return Memory(self.points, self.residuals, jnp.zeros_like(self.count))

    def mixed(self, point: Vector, residual: Vector, share: Scalar, metric: Vector) -> Vector:
        """The accelerated step from `point`; the plain one when nothing is remembered.

        `metric`: M is the diagonal matrix of its squares.
        """
        real = jnp.arange(MEMORY) >= MEMORY - self.count
        steps = jnp.where(real[:, None], point[None, :] - self.points, 0)
        changes = jnp.where(real[:, None], residual[None, :] - self.residuals, 0)
        scaled = metric[None, :] * changes
        normal = scaled @ scaled.T
        ridge = _REGULARISATION * jnp.trace(normal) + ~real
        shares = jax.scipy.linalg.solve(normal + jnp.diag(ridge), scaled @ (metric * residual), assume_a="pos")
        return point + share * residual - shares @ (steps + share * changes)
