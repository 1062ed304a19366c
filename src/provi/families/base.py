"""What a family of approximations is to the loop, the result and the certificate."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
from equinox import AbstractVar
from jaxtyping import Array, Float

from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.families.bases import AbstractBase


class AbstractFamily(eqx.Module):
    """Distributions on R^dim, each given by a point (a pytree of arrays) of the parameter space."""

    dim: AbstractVar[int]
    base: AbstractVar[AbstractBase]
    """The law of a standardised coordinate."""

    scale: AbstractVar[str]
    """The kind of covariance, in one word."""

    @abstractmethod
    def check_point(self, point: Any) -> None:
        """`ValueError` unless `point` belongs to the family."""

    @abstractmethod
    def mean(self, point: Any) -> Vector:
        """E_q[z]."""

    @abstractmethod
    def covariance(self, point: Any) -> Any:
        """Cov_q[z], (dim, dim)."""

    @abstractmethod
    def marginal_standard_deviation(self, point: Any) -> Vector:
        """Square roots of the diagonal of the covariance."""

    @abstractmethod
    def sample(self, key: RandomKey, point: Any, num: int) -> Draws:
        """`num` exact draws, one a row."""

    @abstractmethod
    def log_prob(self, point: Any, z: Vector) -> Scalar:
        """log q(z), normalised."""

    def sample_and_log_prob(self, key: RandomKey, point: Any, num: int) -> tuple[Draws, Float[Array, " num"]]:
        """The draws of `sample`, and log q at each."""
        z = self.sample(key, point, num)
        return z, jax.vmap(lambda row: self.log_prob(point, row))(z)

    @abstractmethod
    def entropy(self, point: Any) -> Scalar:
        """H(q)."""
