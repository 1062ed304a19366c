"""What a family of approximations is to the loop, the result and the certificate."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from equinox import AbstractVar
from jaxtyping import Array, Float

from provi.core.interpreter import instant_jit
from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.families.bases import AbstractBase


class AbstractFamily(eqx.Module):
    """Distributions on R^dim, each given by a point (a pytree of arrays) of the parameter space."""

    dim: AbstractVar[int]
    base: AbstractVar[AbstractBase]
    """The law of a standardised coordinate."""

    scale: AbstractVar[str]
    """The kind of covariance, in one word."""

    has_density: ClassVar[bool] = True
    """Whether `log_prob` is known; a mixture on nodes has none, and its draws count alike."""

    is_traceable: ClassVar[bool] = True
    """Whether moments and draws are programs of JAX; those of a mixture on nodes are put together on the host."""

    exact_moments: ClassVar[bool] = True
    """Whether mean, covariance and quantiles are exact, and not from draws of a fixed seed."""

    bounds_gap: ClassVar[bool] = True
    """Whether the distance to the best member can be bounded: the objective is convex in the parameters."""

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


def moment_of(family: AbstractFamily, point: Any, name: str) -> Any:
    """The method `name` of the family at `point`, as one program: outside of one each operation is compiled alone."""
    return (_moment if family.is_traceable else _moment.__wrapped__)(family, point, name)


def draws_of(family: AbstractFamily, key: RandomKey, point: Any, num: int) -> Any:
    """`family.sample`, as one program."""
    return (_draws if family.is_traceable else _draws.__wrapped__)(family, key, point, num)


@instant_jit
def log_probs_of(family: AbstractFamily, point: Any, rows: Any) -> Any:
    """`family.log_prob` of each row, as one program."""
    return jax.vmap(lambda row: family.log_prob(point, row))(rows)


@instant_jit
def _moment(family: AbstractFamily, point: Any, name: str) -> Any:
    return getattr(family, name)(point)


@instant_jit
def _draws(family: AbstractFamily, key: RandomKey, point: Any, num: int) -> Any:
    return family.sample(key, point, num)


class AnyParameters(eqx.Module):
    """Parameters that are no distribution's: any pytree of finite floating arrays.

    It stands in a family's place when a plain sum is minimised.
    """

    def check_point(self, point: Any) -> None:
        """`ValueError` unless every leaf of `point` is a floating array without NaN or infinity."""
        leaves = jax.tree_util.tree_leaves_with_path(point)
        if not leaves:
            raise ValueError("start holds no arrays: pass a pytree of floating arrays.")
        for path, leaf in leaves:
            name = "start" + jax.tree_util.keystr(path)
            if not eqx.is_inexact_array(leaf):
                raise ValueError(f"{name} must be a floating array, not {leaf!r}. Use jax.numpy.asarray(x, float).")
            if not np.isfinite(np.asarray(leaf)).all():
                raise ValueError(f"{name} has entries that are NaN or infinite; begin at finite parameters.")
