r"""What every exponential family here offers, on flat vectors.

$q_\lambda(x) = b(x)\exp(\lambda'T(x) - A(\lambda))$, with the natural parameter $\lambda$, the mean parameter
$\mu = E T(x) = \nabla A(\lambda)$ and the Fisher matrix $\nabla^2A(\lambda)$, all minimal: $\lambda$ and $\mu$
determine each other. The layout of $\lambda$ is in the docstring of each family. $b = 1$ except where
a family says otherwise.

The coordinates in which an iteration sees a family.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Flag, Matrix, RandomKey, Scalar, Vector


class AbstractExponentialFamily(eqx.Module):
    """Functions of the natural parameter; a family holds sizes only, so that it is static under `jit`."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Length of the natural parameter."""

    @abstractmethod
    def statistic(self, x: Any) -> Vector:
        """T(x) of one outcome."""

    @abstractmethod
    def log_partition(self, natural: Vector) -> Scalar:
        """A(lambda): convex, its gradient is the mean parameter."""

    @abstractmethod
    def natural_from_mean(self, mean: Vector) -> Vector:
        """The inverse of `mean_from_natural`, NaN where `mean` is no mean parameter; differentiable to any order."""

    @abstractmethod
    def valid(self, natural: Vector) -> Flag:
        """Whether `natural` is finite and names a member of the family."""

    @abstractmethod
    def sample(self, key: RandomKey, natural: Vector, count: int) -> Any:
        """`count` independent outcomes, along the first axis."""

    @abstractmethod
    def to_unconstrained(self, natural: Vector) -> Vector:
        """Coordinates in which every real vector names a member: what a numerical minimiser walks in."""

    @abstractmethod
    def from_unconstrained(self, free: Vector) -> Vector:
        """The inverse of `to_unconstrained`."""

    @property
    def reverse_kl_convex_in_mean(self) -> bool:
        """Whether KL(old || new) is convex in the mean parameter of `new`."""
        return False

    def log_base(self, x: Any) -> Scalar:
        """log b(x)."""
        return jnp.zeros((), jnp.result_type(self.statistic(x)))

    def mean_log_base(self, mean: Vector) -> Scalar:
        """E log b(x) under the member with that mean parameter."""
        return jnp.zeros((), mean.dtype)

    def mean_from_natural(self, natural: Vector) -> Vector:
        """mu = grad A(lambda)."""
        return jax.grad(self.log_partition)(natural)

    def fisher(self, natural: Vector) -> Matrix:
        """The Fisher matrix in natural parameters, the Hessian of A = d mu / d lambda."""
        return jax.jacfwd(self.mean_from_natural)(natural)

    def log_prob(self, natural: Vector, x: Any) -> Scalar:
        """log q(x) of one outcome."""
        # The outcomes may be whole numbers: the floating type is that of the parameter.
        statistic, base = (value.astype(natural.dtype) for value in (self.statistic(x), self.log_base(x)))
        return natural @ statistic - self.log_partition(natural) + base

    def conjugate(self, mean: Vector) -> Scalar:
        r"""The convex dual $A^*(\mu) = \lambda'\mu - A(\lambda)$; its gradient is $\lambda$."""
        natural = self.natural_from_mean(mean)
        return natural @ mean - self.log_partition(natural)

    def entropy(self, natural: Vector) -> Scalar:
        r"""$-E\log q = A(\lambda) - \lambda'\mu - E\log b = -A^*(\mu) - E\log b$."""
        mean = self.mean_from_natural(natural)
        return self.log_partition(natural) - natural @ mean - self.mean_log_base(mean)

    def kl(self, first: Vector, second: Vector) -> Scalar:
        r"""$KL(q_1\|q_2) = A(\lambda_2) - A(\lambda_1) - (\lambda_2 - \lambda_1)'\mu_1$.

        It is the Bregman divergence of $A$ at $(\lambda_2, \lambda_1)$, and that of $A^*$ at $(\mu_1, \mu_2)$.
        """
        change = self.log_partition(second) - self.log_partition(first)
        return change - (second - first) @ self.mean_from_natural(first)


def as_floating(x: Any) -> Any:
    """Outcomes as floating numbers: of their own type, or of the default one for whole numbers."""
    array = jnp.asarray(x)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))


def all_finite(vector: Vector) -> Flag:
    """Whether no entry is NaN or infinite."""
    return jnp.all(jnp.isfinite(vector))


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

    def check_point(self, point: Any) -> None:
        """`ValueError` unless `point` is a vector of the right length that names a member."""
        if np.shape(point) != (self.family.size,):
            raise ValueError(f"w0 has {np.size(point)} entries; {self.family} has {self.family.size} parameters.")
        if not bool(_valid(self, point)):
            raise ValueError(f"w0 is not a member of {self.family} in {self.name} coordinates.")

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


@eqx.filter_jit
def _valid(coordinates: Coordinates, w: Vector) -> Flag:
    return coordinates.valid(w)


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
