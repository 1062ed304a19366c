"""The block preconditioner Lambda = (lambda_m I, lambda_C I) of paper 004."""

import equinox as eqx
import jax.numpy as jnp

from provi.core.tree import scale, squared_norm
from provi.core.types import Scalar
from provi.families.location_scale import Point


def _as_float(value: float) -> Scalar:
    return jnp.asarray(value, dtype=float)


class BlockPreconditioner(eqx.Module):
    """Multiplies the gradient's two blocks: location by `location`, scale by `scale`, both in (0, 1]."""

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
