r"""What every exponential family here offers, on flat vectors.

$q_\lambda(x) = b(x)\exp(\lambda'T(x) - A(\lambda))$, with the natural parameter $\lambda$, the mean parameter
$\mu = E T(x) = \nabla A(\lambda)$ and the Fisher matrix $\nabla^2A(\lambda)$, all minimal: $\lambda$ and $\mu$
determine each other. The layout of $\lambda$ is in the docstring of each family. $b = 1$ except where
a family says otherwise.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

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
        return natural @ self.statistic(x) - self.log_partition(natural) + self.log_base(x)

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


def all_finite(vector: Vector) -> Flag:
    """Whether no entry is NaN or infinite."""
    return jnp.all(jnp.isfinite(vector))
