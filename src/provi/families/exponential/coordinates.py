"""The coordinates in which an iteration sees a family."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.core.types import Flag, Matrix, Scalar, Vector
from provi.families.exponential.base import AbstractExponentialFamily

COORDINATES = ("natural", "mean", "moments")


class Coordinates(eqx.Module):
    """A family seen through flat vectors w: its `natural` or `mean` parameter, or a Gaussian's `moments` (m, V)."""

    family: AbstractExponentialFamily
    name: str = eqx.field(static=True, default="mean")

    def __check_init__(self):
        if self.name not in COORDINATES:
            raise ValueError(f"coordinates must be one of {', '.join(COORDINATES)}, not {self.name!r}.")
        if self.name == "moments" and not hasattr(self.family, "moments_from_natural"):
            raise ValueError(
                f"coordinates='moments' (mean and variance) exist for DiagonalGaussian and FullGaussian, not for "
                f"{type(self.family).__name__}: use 'mean' or 'natural'."
            )

    def to_natural(self, w: Vector) -> Vector:
        """The natural parameter of the member at w; NaN where there is none."""
        family: Any = self.family
        if self.name == "natural":
            return w
        return family.natural_from_mean(w) if self.name == "mean" else family.natural_from_moments(w)

    def from_natural(self, natural: Vector) -> Vector:
        """The vector w of a member."""
        family: Any = self.family
        if self.name == "natural":
            return natural
        return family.mean_from_natural(natural) if self.name == "mean" else family.moments_from_natural(natural)

    def valid(self, w: Vector) -> Flag:
        """Whether w names a member."""
        return self.family.valid(self.to_natural(w))

    def metric(self, w: Vector) -> Matrix:
        r"""The Fisher matrix in these coordinates, $J'\nabla^2A\,J$ with $J = d\lambda/dw$."""
        if self.name == "natural":
            return self.family.fisher(w)
        jacobian = jax.jacfwd(self.to_natural)(w)
        return jacobian.T @ self.family.fisher(self.to_natural(w)) @ jacobian


def least_fisher_eigenvalue(family: AbstractExponentialFamily, first: Vector, second: Vector, points: int) -> Scalar:
    r"""The least eigenvalue of $\nabla^2A$ at `points` equally spaced points of the segment of natural parameters.

    By the mean value theorem $(\lambda - \lambda')'(\mu - \mu') \ge \alpha|\lambda - \lambda'|^2$ with its minimum over
    the whole segment: alpha of KL(old || new) in natural coordinates (papers 000 and 002). There is no alpha for all
    pairs: the eigenvalues go to zero at the edge of the family. Between the points nothing is checked.
    """
    shares = jnp.linspace(0.0, 1.0, points, dtype=first.dtype)

    def at(share):
        return jnp.linalg.eigvalsh(family.fisher(first + share * (second - first)))[0]

    return jnp.min(jax.lax.map(at, shares))
