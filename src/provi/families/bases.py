r"""Spherical base distributions $s$ of a location-scale family $z = m + C u$, $u \sim s$.

Every base is standardised, $E u = 0$ and $E u u' = I$, so that $CC'$ is the covariance of $z$. A spherical
law is a direction, uniform on the sphere, times an independent radius $r = |u|$ with $E r^2 = d$; its
kurtosis is $E u_i^4 = 3 E r^4 / (d (d + 2))$.
"""

import abc
import functools
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float
from scipy import special

from provi.core.arguments import double_precision
from provi.core.types import Draws, RandomKey, Scalar, Vector


class AbstractBase(eqx.Module):
    """A standardised spherical distribution, in any dimension.

    `log_concave` says whether the density is log-concave. `has_score` is False when the density jumps, so
    that the score misses the jump and estimators built on it are biased.
    """

    name: eqx.AbstractClassVar[str]
    log_concave: eqx.AbstractClassVar[bool]
    has_score: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def sample(self, key: RandomKey, num: int, dim: int, dtype: Any) -> Draws:
        """`num` independent draws, one a row."""

    @abc.abstractmethod
    def log_density(self, u: Vector) -> Scalar:
        """log s(u), normalised."""

    @abc.abstractmethod
    def radial_weight(self, squared_radius: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        """The weight rho in grad log s(u) = -rho(|u|^2) u."""

    @abc.abstractmethod
    def kurtosis(self, dim: int) -> float:
        """E u_i^4, the same for every coordinate."""

    @abc.abstractmethod
    def entropy(self, dim: int) -> float:
        """The differential entropy -E log s(u), exact."""

    def has_fourth_moment(self, dim: int) -> bool:
        """Whether E u_i^4 is finite: without it, means of gradients times draws need not have a variance."""
        try:
            return math.isfinite(self.kurtosis(dim))
        except ValueError:
            return False


class Normal(AbstractBase):
    r"""The standard normal base, $s(u) = (2\pi)^{-d/2} e^{-|u|^2/2}$."""

    name: ClassVar[str] = "normal"
    log_concave: ClassVar[bool] = True
    has_score: ClassVar[bool] = True

    def sample(self, key: RandomKey, num: int, dim: int, dtype: Any) -> Draws:
        return jax.random.normal(key, (num, dim), dtype)

    def log_density(self, u: Vector) -> Scalar:
        return -0.5 * jnp.sum(u**2) - 0.5 * u.shape[0] * math.log(2 * math.pi)

    def radial_weight(self, squared_radius: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        return jnp.ones_like(squared_radius)

    def kurtosis(self, dim: int) -> float:
        return 3.0

    def entropy(self, dim: int) -> float:
        return 0.5 * dim * (1 + math.log(2 * math.pi))


class Laplace(AbstractBase):
    r"""The spherical Laplace base, $s(u) \propto e^{-\sqrt{d+1}\,|u|}$.

    Its radius is Gamma with shape $d$ and rate $\sqrt{d+1}$. Its coordinates are dependent for $d > 1$:
    it is not a product of one-dimensional Laplace laws.
    """

    name: ClassVar[str] = "laplace"
    log_concave: ClassVar[bool] = True
    has_score: ClassVar[bool] = True

    def sample(self, key: RandomKey, num: int, dim: int, dtype: Any) -> Draws:
        direction_key, radius_key = jax.random.split(key)
        radius = gamma_draws(radius_key, jnp.asarray(dim, dtype), num, dtype) / math.sqrt(dim + 1)
        return radius * directions(direction_key, num, dim, dtype)

    def log_density(self, u: Vector) -> Scalar:
        dim = u.shape[0]
        return self._log_normaliser(dim) - math.sqrt(dim + 1) * safe_sqrt(jnp.sum(u**2))

    def radial_weight(self, squared_radius: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        """sqrt(d+1) / r; zero at the origin, where zero is a subgradient."""
        radius = safe_sqrt(squared_radius)
        return jnp.where(radius > 0, math.sqrt(dim + 1) / jnp.where(radius > 0, radius, 1), 0)

    def kurtosis(self, dim: int) -> float:
        return 3 * (dim + 3) / (dim + 1)

    def entropy(self, dim: int) -> float:
        return dim - self._log_normaliser(dim)

    def _log_normaliser(self, dim: int) -> float:
        return 0.5 * dim * math.log(dim + 1) - math.lgamma(dim) - log_sphere_area(dim)


class Uniform(AbstractBase):
    r"""The uniform base on the ball of radius $\sqrt{d+2}$; its radius is $\sqrt{d+2}\,U^{1/d}$."""

    name: ClassVar[str] = "uniform"
    log_concave: ClassVar[bool] = True
    has_score: ClassVar[bool] = False

    def sample(self, key: RandomKey, num: int, dim: int, dtype: Any) -> Draws:
        direction_key, radius_key = jax.random.split(key)
        radius = math.sqrt(dim + 2) * jax.random.uniform(radius_key, (num, 1), dtype) ** (1 / dim)
        return radius * directions(direction_key, num, dim, dtype)

    def log_density(self, u: Vector) -> Scalar:
        """-log volume inside the ball, -infinity outside.

        The edge is widened by the square root of the machine precision: in high dimension draws crowd at the
        edge, and rounding, also that of C^-1 C u, must not put a draw outside its own support.
        """
        dim = u.shape[0]
        edge = (dim + 2) * (1 + math.sqrt(jnp.finfo(u.dtype).eps))
        return jnp.where(jnp.sum(u**2) <= edge, jnp.asarray(-self.entropy(dim), u.dtype), -jnp.inf)

    def radial_weight(self, squared_radius: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        return jnp.zeros_like(squared_radius)

    def kurtosis(self, dim: int) -> float:
        return 3 * (dim + 2) / (dim + 4)

    def entropy(self, dim: int) -> float:
        return log_sphere_area(dim) - math.log(dim) + 0.5 * dim * math.log(dim + 2)


def _as_degrees_of_freedom(df: Any) -> Array:
    # Always float64, so that 4.1 degrees of freedom are 4.1 also for a user who has not enabled 64 bits.
    return double_precision(jnp.asarray)(df, jnp.float64)


class StudentT(AbstractBase):
    r"""The multivariate Student-t base with `df` $= \nu > 2$ degrees of freedom, scaled to unit covariance.

    $u = g \sqrt{(\nu-2)/\chi^2_\nu}$ with $g$ standard normal:
    $s(u) \propto (1 + |u|^2/(\nu-2))^{-(\nu+d)/2}$. It is not log-concave.
    """

    df: Scalar = eqx.field(converter=_as_degrees_of_freedom)
    name: ClassVar[str] = "student_t"
    log_concave: ClassVar[bool] = False
    has_score: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.df.shape != ():
            raise ValueError(f"df must be one number; its shape is {self.df.shape}.")
        # Inside a compiled function the value is not known; the number was checked outside.
        if not isinstance(self.df, Tracer) and not 2 < float(self.df) < math.inf:
            raise ValueError(
                f"df must be finite and above 2, not {float(self.df):g}: the base needs a variance. "
                f"Use Normal() for infinitely many degrees of freedom."
            )

    def sample(self, key: RandomKey, num: int, dim: int, dtype: Any) -> Draws:
        normal_key, chi_key = jax.random.split(key)
        df = self.df.astype(dtype)
        chi_squared = 2 * gamma_draws(chi_key, df / 2, num, dtype)
        return jax.random.normal(normal_key, (num, dim), dtype) * jnp.sqrt((df - 2) / chi_squared)

    def log_density(self, u: Vector) -> Scalar:
        dim, df = u.shape[0], self.df.astype(u.dtype)
        gammas = jax.scipy.special.gammaln((df + dim) / 2) - jax.scipy.special.gammaln(df / 2)
        log_normaliser = gammas - 0.5 * dim * jnp.log(math.pi * (df - 2))
        return log_normaliser - 0.5 * (df + dim) * jnp.log1p(jnp.sum(u**2) / (df - 2))

    def radial_weight(self, squared_radius: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        df = self.df.astype(squared_radius.dtype)
        return (df + dim) / (df - 2 + squared_radius)

    def kurtosis(self, dim: int) -> float:
        df = float(self.df)
        if df <= 4:
            raise ValueError(f"The kurtosis of StudentT(df={df:g}) is infinite; use df above 4.")
        return 3 * (df - 2) / (df - 4)

    def entropy(self, dim: int) -> Any:
        # In jax.numpy, because `df` is a leaf and the ELBO is estimated inside compiled functions.
        df, gammaln = self.df, jax.scipy.special.gammaln
        log_normaliser = gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * dim * jnp.log(math.pi * (df - 2))
        # 1 + |u|^2/(df-2) = (chi2_df + chi2_d)/chi2_df, and E log chi2_n = digamma(n/2) + log 2.
        mean_log = jax.scipy.special.digamma((df + dim) / 2) - jax.scipy.special.digamma(df / 2)
        return 0.5 * (df + dim) * mean_log - log_normaliser


def directions(key: RandomKey, num: int, dim: int, dtype: Any) -> Draws:
    """Uniform draws on the unit sphere."""
    normal = jax.random.normal(key, (num, dim), dtype)
    # In one dimension a float32 draw is exactly zero about once in 2^24, and has no direction.
    normal = jnp.where(normal == 0, jnp.finfo(dtype).eps, normal)
    return normal / jnp.sqrt(jnp.sum(normal**2, axis=1, keepdims=True))


_MOST_PROPOSALS = 1000
"""A proposal is accepted with a probability above 0.95 for every shape from 1 on."""


def gamma_draws(key: RandomKey, shape: Scalar, num: int, dtype: Any) -> Float[Array, "num 1"]:
    """Exact draws of Gamma(shape, 1), shape >= 1, by Marsaglia and Tsang's rejection method.

    jax.random.gamma does the same for every shape with a loop per element, and its compilation takes longer than
    that of everything else in a step; here one loop proposes for all draws until each has been accepted.
    """
    offset = shape - 1 / 3
    spread = 1 / jnp.sqrt(9 * offset)

    def propose(carry: Any) -> Any:
        round_number, values, done = carry
        normal_key, uniform_key = jax.random.split(jax.random.fold_in(key, round_number))
        normal = jax.random.normal(normal_key, (num, 1), dtype)
        cube = (1 + spread * normal) ** 3
        log_cube = jnp.log(jnp.where(cube > 0, cube, 1))
        threshold = 0.5 * normal**2 + offset * (1 - cube + log_cube)
        # log of a uniform draw on (0, 1]
        log_uniform = -jax.random.exponential(uniform_key, (num, 1), dtype)
        accepted = (cube > 0) & (log_uniform < threshold)
        return round_number + 1, jnp.where(accepted & ~done, offset * cube, values), done | accepted

    start = (jnp.zeros((), jnp.int32), jnp.zeros((num, 1), dtype), jnp.zeros((num, 1), bool))
    # Of a shape that is no number nothing is ever accepted: then the draws are none, either.
    going = lambda carry: ~jnp.all(carry[2]) & (carry[0] < _MOST_PROPOSALS)  # noqa: E731
    _, values, done = jax.lax.while_loop(going, propose, start)
    return jnp.where(done, values, jnp.nan)


def safe_sqrt(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """sqrt(x) whose derivative at zero is zero, not infinite."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


def log_sphere_area(dim: int) -> float:
    """log of the surface area of the unit sphere, 2 pi^(d/2) / Gamma(d/2)."""
    return math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)


@functools.singledispatch
def marginal_quantile(base: AbstractBase, dim: int, probability: float) -> float:
    """The value x with P(u_1 <= x) = `probability`, u_1 a coordinate of `base` in `dim` dimensions: for intervals."""
    raise TypeError(f"There is no quantile function for {type(base).__name__}.")


@marginal_quantile.register(Normal)
def _normal(base: Normal, dim: int, probability: float) -> float:
    return float(special.ndtri(probability))


@marginal_quantile.register(StudentT)
def _student_t(base: StudentT, dim: int, probability: float) -> float:
    df = float(base.df)
    return float(special.stdtrit(df, probability) * np.sqrt((df - 2) / df))


@marginal_quantile.register(Uniform)
def _uniform(base: Uniform, dim: int, probability: float) -> float:
    """The density (1 - x^2/(d+2))^((d-1)/2) is that of a beta variable stretched to [-R, R]."""
    half = (dim + 1) / 2
    return float(np.sqrt(dim + 2) * (2 * special.betaincinv(half, half, probability) - 1))


@marginal_quantile.register(Laplace)
def _laplace(base: Laplace, dim: int, probability: float) -> float:
    """u_1 = sqrt(G) g with G ~ Gamma(k, rate k), k = (d+1)/2, so P(u_1 <= x) = E Phi(x / sqrt(G))."""
    shape = (dim + 1) / 2
    levels = (np.arange(4000) + 0.5) / 4000
    deviation = np.sqrt(special.gammaincinv(shape, levels) / shape)

    def excess(x: float) -> float:
        return float(special.ndtr(x / deviation).mean()) - probability

    from scipy import optimize  # large, and a default fit has no need of it

    return float(optimize.brentq(excess, -60, 60, xtol=1e-12))  # pyright: ignore[reportArgumentType]
