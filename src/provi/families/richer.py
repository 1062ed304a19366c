r"""Families that hold more than a Gaussian's two moments: what they share, and the Student-t with free tails.

A member is written in the frame of a Gaussian fit $N(c, FF')$: $z = c + F y$, so that y is of the size of a standard
normal whatever the units and correlations of z, and one step size suits every target. The frame is a constant, no
parameter: no gradient goes through it.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from provi.core.arguments import check_count
from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.families.base import AbstractFamily
from provi.families.bases import AbstractBase, Normal, gamma_draws

LARGEST_DIMENSION = 500
"""Their frames are full matrices."""

_MOMENT_DRAWS, _MOMENT_NUMBERS, _MOMENT_SEED = 2**15, 2**23, 0
_LEAST_DF, _MOST_DF, _FIRST_DF = 2.2, 1e3, 10.0


class Frame(eqx.Module):
    """The location c and the lower triangular factor F of a Gaussian fit."""

    loc: Vector
    factor: Float[Array, "dim dim"]

    def fixed(self) -> tuple[Vector, Float[Array, "dim dim"]]:
        """Both, as constants."""
        return jax.lax.stop_gradient((self.loc, self.factor))


class Affine(eqx.Module):
    """y = shift + T u with T lower triangular and positive on the diagonal, which is stored as its logarithm."""

    shift: Vector
    lower: Float[Array, "dim dim"]

    @classmethod
    def identity(cls, dim: int, dtype: Any) -> "Affine":
        """y = u."""
        return cls(jnp.zeros(dim, dtype), jnp.zeros((dim, dim), dtype))

    @property
    def matrix(self) -> Float[Array, "dim dim"]:
        """T."""
        return jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(jnp.diagonal(self.lower)))

    def push(self, u: Vector) -> Vector:
        """y."""
        return self.shift + self.matrix @ u

    def pull(self, y: Vector) -> tuple[Vector, Scalar]:
        """u, and log |det dy/du|."""
        return solve_triangular(self.matrix, y - self.shift, lower=True), jnp.trace(self.lower)


class AbstractRicher(AbstractFamily):
    """A family of which draws, with their gradients, and the density are known, and moments from draws.

    Mean, covariance and quantiles are those of 32,768 draws of a fixed seed unless a family knows better: their error
    is about 0.6% of a standard deviation.
    """

    exact_moments: ClassVar[bool] = False
    bounds_gap: ClassVar[bool] = False

    @abstractmethod
    def first_point(self, gaussians: tuple[Frame, ...], shares: Any) -> Any:
        """A member to begin with, near the Gaussians, of which the first has most of the evidence."""

    @abstractmethod
    def stratified(self, key: RandomKey, point: Any, num: int) -> tuple[Draws, Float[Array, " num"]]:
        """Draws that are smooth functions of the point, and weights: sum w f(z) is unbiased for E_q f, for every f."""

    def mean(self, point: Any) -> Vector:
        return jnp.mean(self._moment_draws(point), axis=0)

    def covariance(self, point: Any) -> Any:
        return jnp.atleast_2d(jnp.cov(self._moment_draws(point).T))

    def marginal_standard_deviation(self, point: Any) -> Vector:
        return jnp.std(self._moment_draws(point), axis=0, ddof=1)

    def marginal_quantiles(self, point: Any, levels: Any) -> Float[Array, "levels dim"]:
        return jnp.quantile(self._moment_draws(point), jnp.asarray(levels), axis=0)

    def entropy(self, point: Any) -> Scalar:
        draws = self._moment_draws(point)
        return -jnp.mean(jax.vmap(lambda z: self.log_prob(point, z))(draws))

    def _moment_draws(self, point: Any) -> Draws:
        num = int(np.clip(_MOMENT_NUMBERS // self.dim, 1024, _MOMENT_DRAWS))
        return self.sample(jax.random.key(_MOMENT_SEED), point, num)


def check_dimension(dim: Any) -> int:
    """A dimension that a full matrix can be made of."""
    dim = check_count("dim", dim)
    if dim > LARGEST_DIMENSION:
        raise ValueError(
            f"dim={dim} is above {LARGEST_DIMENSION}, up to which richer families are made: use Gaussian({dim}, "
            f"scale='low_rank') and fit.posterior.corrected()."
        )
    return dim


class StudentPoint(eqx.Module):
    """The frame, the affine map, and log(df - 2.2)."""

    frame: Frame
    affine: Affine
    tails: Scalar


class Student(AbstractRicher):
    r"""Student-t distributions with full covariance and free tails: $z = c + F(a + T u\sqrt{\nu/\chi^2_\nu})$.

    The degrees of freedom stay above 2.2, so that the covariance $\nu/(\nu-2)\,FTT'F'$ exists.
    """

    dim: int = eqx.field(static=True)
    base: AbstractBase
    scale: str = eqx.field(static=True)

    def __init__(self, dim: int) -> None:
        self.dim, self.base, self.scale = check_dimension(dim), Normal(), "student"

    def check_point(self, point: Any) -> None:
        if not isinstance(point, StudentPoint) or point.frame.loc.shape != (self.dim,):
            raise ValueError("start does not belong to the family Student: leave it out.")

    def first_point(self, gaussians: tuple[Frame, ...], shares: Any) -> StudentPoint:
        dtype = gaussians[0].loc.dtype
        return StudentPoint(
            gaussians[0], Affine.identity(self.dim, dtype), jnp.asarray(np.log(_FIRST_DF - _LEAST_DF), dtype)
        )

    def degrees_of_freedom(self, point: StudentPoint) -> Scalar:
        """nu."""
        return jnp.clip(_LEAST_DF + jnp.exp(point.tails), _LEAST_DF, _MOST_DF)

    def mean(self, point: StudentPoint) -> Vector:
        loc, factor = point.frame.fixed()
        return loc + factor @ point.affine.shift

    def covariance(self, point: StudentPoint) -> Any:
        df = self.degrees_of_freedom(point)
        root = point.frame.fixed()[1] @ point.affine.matrix
        return df / (df - 2) * root @ root.T

    def marginal_standard_deviation(self, point: StudentPoint) -> Vector:
        return jnp.sqrt(jnp.diagonal(self.covariance(point)))

    def sample(self, key: RandomKey, point: StudentPoint, num: int) -> Draws:
        return self.stratified(key, point, num)[0]

    def stratified(self, key: RandomKey, point: StudentPoint, num: int) -> tuple[Draws, Float[Array, " num"]]:
        normal_key, chi_key = jax.random.split(key)
        loc, factor = point.frame.fixed()
        df = self.degrees_of_freedom(point)
        half = _following(df / 2, gamma_draws(chi_key, jax.lax.stop_gradient(df / 2), num, loc.dtype))
        u = jax.random.normal(normal_key, (num, self.dim), loc.dtype) * jnp.sqrt(df / (2 * half))
        z = loc[None] + jax.vmap(point.affine.push)(u) @ factor.T
        return z, jnp.full(num, 1 / num, loc.dtype)

    def log_prob(self, point: StudentPoint, z: Vector) -> Scalar:
        loc, factor = point.frame.fixed()
        u, log_det = point.affine.pull(solve_triangular(factor, z - loc, lower=True))
        log_det = log_det + jnp.sum(jnp.log(jnp.diagonal(factor)))
        df, gammaln = self.degrees_of_freedom(point), jax.scipy.special.gammaln
        constant = gammaln((df + self.dim) / 2) - gammaln(df / 2) - self.dim / 2 * jnp.log(jnp.pi * df)
        return constant - (df + self.dim) / 2 * jnp.log1p(jnp.sum(u**2) / df) - log_det


@jax.custom_jvp
def _following(shape: Scalar, draws: Float[Array, "num 1"]) -> Float[Array, "num 1"]:
    """Draws of Gamma(shape, 1) that move with the shape so that each keeps its quantile: implicit differentiation.

    jax.random.gamma has the same derivative, and takes seconds to compile wherever draws are made.
    """
    del shape
    return draws


@_following.defjvp
def _derivative(primals: Any, tangents: Any) -> Any:
    shape, draws = primals
    slope = jax.lax.random_gamma_grad(jnp.broadcast_to(shape, draws.shape), draws)  # pyright: ignore[reportCallIssue]
    return draws, tangents[0] * slope
