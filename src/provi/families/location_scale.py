"""Location-scale families z = m + C u with a spherical base u ~ s and a structured scale C."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import as_array, check_count, check_positive_definite, device_array, double_precision
from provi.core.limits import check_memory
from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.families.base import AbstractFamily
from provi.families.bases import AbstractBase, Normal, StudentT
from provi.families.scales import AbstractScale, Diagonal, LowRank, Symmetric, Triangular

SCALES = ("triangular", "symmetric", "diagonal", "low_rank")

_LARGE = 1000
"""Dimensions from which on the memory for a full scale is asked for: it is 24 MB below."""


class Point(eqx.Module):
    """A point w = (m, C) of the parameter space R^dim x V; gradients are points too."""

    loc: Vector
    scale: AbstractScale


class LocationScale(AbstractFamily):
    r"""The family of all q_w, w = (m, C): z = m + C u, u ~ base.

    log q_w(z) = log s(C^-1 (z - m)) - log det C, and the entropy is H(s) + log det C.

    **Arguments:**

    - `dim`: dimension of the latent space.
    - `base`: `Normal()`, `Laplace()`, `Uniform()` or `StudentT(df)`; spherical, E u u' = I.
    - `scale`: the space of C: "triangular", "symmetric", "diagonal" or "low_rank".
    - `rank`: number of columns of the low-rank factor.
    """

    dim: int = eqx.field(static=True)
    base: AbstractBase
    scale: str = eqx.field(static=True)
    rank: int = eqx.field(static=True)

    def __init__(self, dim: int, base: AbstractBase | None = None, scale: str = "triangular", *, rank: int = 5) -> None:
        self.dim = check_count("dim", dim)
        self.base = Normal() if base is None else base
        self.scale = scale
        self.rank = min(check_count("rank", rank), self.dim)
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, not {scale!r}.")
        if not isinstance(self.base, AbstractBase):
            raise TypeError(f"base must be a base such as provi.families.Laplace(), not {base!r}.")
        if scale == "low_rank" and not isinstance(self.base, Normal | StudentT):
            raise ValueError(
                f"scale='low_rank' needs a base that is closed under marginals (Normal, StudentT); "
                f"{self.base.name} is not. Use scale='diagonal' or 'triangular'."
            )

    def check_point(self, point: Any) -> None:
        if not isinstance(point, Point) or point.scale.kind != self.scale or point.loc.shape != (self.dim,):
            raise ValueError("start does not belong to the family; make it with family.point(loc, scale).")

    def mean(self, point: Point) -> Vector:
        """m."""
        return point.loc

    def covariance(self, point: Point) -> Any:
        """CC'."""
        return point.scale.covariance()

    @double_precision
    def point(self, loc: Any, scale: Any = 1.0, dtype: Any = None) -> Point:
        """The point with location `loc` and scale C, given as a number (times the identity), a
        vector (a diagonal) or a matrix of the family's own kind."""
        loc = as_array("loc", loc, ndim=1)
        if loc.shape[0] != self.dim:
            raise ValueError(f"loc has length {loc.shape[0]}, but the family has dimension {self.dim}.")
        dtype = dtype or (loc.dtype if np.issubdtype(loc.dtype, np.floating) else np.float64)
        if self.dim > _LARGE and self.scale in ("triangular", "symmetric"):
            remedy = "take scale='diagonal' or scale='low_rank'"
            check_memory(f"A full scale of {self.dim} dimensions", 3 * np.dtype(dtype).itemsize * self.dim**2, remedy)
        matrix = as_array("scale", scale)
        if matrix.ndim == 0:
            matrix = np.full(self.dim, float(matrix))
        return Point(jnp.asarray(loc, dtype), self._scale_from(matrix, dtype))

    def _scale_from(self, array: np.ndarray, dtype: Any) -> AbstractScale:
        if array.shape not in ((self.dim,), (self.dim, self.dim)):
            raise ValueError(f"scale has shape {array.shape}, but the family has dimension {self.dim}.")
        if array.ndim == 2 and self.scale in ("diagonal", "low_rank"):
            raise ValueError(f"A {self.scale} scale starts from a number or a vector, not a matrix.")
        diagonal = array if array.ndim == 1 else np.diagonal(array)
        if not (diagonal > 0).all():
            raise ValueError("scale must have a positive diagonal.")
        match self.scale:
            case "diagonal":
                return Diagonal(jnp.asarray(array, dtype))
            case "low_rank":
                # V = 0 is a saddle of the objective, so the start has small orthogonal columns.
                factor = np.zeros((self.dim, self.rank))
                factor[np.arange(self.dim), np.arange(self.dim) % self.rank] = 0.1 * array
                return LowRank(jnp.asarray(array, dtype), jnp.asarray(factor, dtype))
            case "triangular":
                if array.ndim == 2 and np.abs(np.triu(array, 1)).max(initial=0.0) > 0:
                    raise ValueError("scale must be lower triangular; use point_from_covariance instead.")
                return Triangular(device_array(np.diag(array) if array.ndim == 1 else array, dtype))
            case _:
                matrix = np.diag(array) if array.ndim == 1 else array
                check_positive_definite("scale", matrix)
                return Symmetric(jnp.asarray((matrix + matrix.T) / 2, dtype))

    @double_precision
    def point_from_covariance(self, loc: Any, covariance: Any, dtype: Any = None) -> Point:
        """The point with this mean and covariance CC' (its diagonal, for a diagonal scale)."""
        covariance = as_array("covariance", covariance, ndim=2)
        cholesky = check_positive_definite("covariance", covariance)
        match self.scale:
            case "triangular":
                return self.point(loc, cholesky, dtype)
            case "symmetric":
                values, vectors = np.linalg.eigh(np.asarray(covariance, np.float64))
                return self.point(loc, (vectors * np.sqrt(values)) @ vectors.T, dtype)
            case "diagonal":
                return self.point(loc, np.sqrt(np.diagonal(covariance)), dtype)
            case _:
                raise ValueError("A low-rank scale is not determined by a covariance; use point(loc, scale).")

    def sample_base(self, key: RandomKey, point: Point, num: int) -> Any:
        """`num` draws of u."""
        u = self.base.sample(key, num, point.scale.base_dim, point.loc.dtype)
        # Without the barrier XLA repeats the random numbers' arithmetic in each of the places that read u.
        return jax.lax.optimization_barrier(u)

    def transform(self, point: Point, u: Any) -> Draws:
        """z = m + C u for each row u."""
        return point.loc[None, :] + point.scale.apply(u)

    def sample(self, key: RandomKey, point: Point, num: int) -> Draws:
        """`num` exact draws of q_w."""
        return self.transform(point, self.sample_base(key, point, num))

    def log_prob(self, point: Point, z: Vector) -> Scalar:
        """log q_w(z), normalised."""
        return self.base.log_density(point.scale.standardise(z - point.loc)) - point.scale.log_det()

    def sample_and_log_prob(self, key: RandomKey, point: Point, num: int) -> tuple[Draws, Float[Array, " num"]]:
        """The draws of `sample`, and log q at each."""
        u = self.sample_base(key, point, num)
        z = self.transform(point, u)
        return z, self.log_prob_of_draws(point, u, z)

    def log_prob_of_draws(self, point: Point, u: Any, z: Draws) -> Float[Array, " num"]:
        """log q at z = m + C u, for each row.

        From u itself where C is square: solving C u = z - m for it loses every digit where C is nearly singular.
        """
        if isinstance(point.scale, LowRank):
            return jax.vmap(lambda row: self.log_prob(point, row))(z)
        return jax.vmap(self.base.log_density)(u) - point.scale.log_det()

    def score(self, point: Point, u: Any, factors: Any) -> Draws:
        """grad_z log q_w at z = m + C u, for each row u: -rho(r^2) (CC')^-1 C u."""
        precision, squared_radius = point.scale.precision_times(u, factors)
        return -self.base.radial_weight(squared_radius, self.dim)[:, None] * precision

    def negative_entropy(self, point: Point) -> Scalar:
        """h(w) = -log det C: the negative entropy up to the base's constant H(s)."""
        return -point.scale.log_det()

    def entropy(self, point: Point) -> Scalar:
        """H(q_w) = H(s) + log det C."""
        volume = point.scale.log_det()
        # The degrees of freedom of a Student-t are of double precision, whatever the point is.
        return jnp.asarray(self.base.entropy(self.dim), volume.dtype) + volume

    def marginal_standard_deviation(self, point: Point) -> Vector:
        """Square roots of the diagonal of CC'."""
        basis = jax.vmap(lambda row: jnp.sum(row**2))
        match point.scale:
            case Diagonal(diagonal=diagonal):
                return diagonal
            case LowRank(diagonal=diagonal, factor=factor):
                return jnp.sqrt(diagonal**2 + basis(factor))
            case Triangular(matrix=matrix) | Symmetric(matrix=matrix):
                return jnp.sqrt(basis(matrix))
            case _:
                return jnp.sqrt(jnp.diagonal(point.scale.covariance()))


def square_root(point: Point) -> np.ndarray:
    """A matrix C with CC' the covariance, on the host in float64."""
    match point.scale:
        case Diagonal(diagonal=diagonal):
            return np.diag(np.asarray(diagonal, np.float64))
        case Triangular(matrix=matrix) | Symmetric(matrix=matrix):
            return np.asarray(matrix, np.float64)
        case scale:
            return np.linalg.cholesky(np.asarray(scale.covariance(), np.float64))


def Gaussian(dim: int | None = None, scale: str = "triangular", *, rank: int = 5, base: Any = None) -> Any:
    """The Gaussian family of dimension `dim`; without a dimension, the standard normal base `Normal()`.

    `base`: a Gaussian has none to choose; a `TypeError` says which family has.
    """
    if base is not None:
        size = "dim" if dim is None else dim
        raise TypeError(
            f"base= is not for a Gaussian, whose base is normal: take provi.families.LocationScale({size}, base=...) "
            f'with provi.families.StudentT(df), say; or provi.fit(target, family="student"), which also fits the tails.'
        )
    if dim is None:
        return Normal()
    return LocationScale(dim, Normal(), scale, rank=rank)
