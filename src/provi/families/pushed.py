r"""A Gaussian pushed through learnt monotone maps: skew and tails of each coordinate, and couplings between them.

From standard normal u to z, every step with a closed inverse and Jacobian:

$$ v = S_1(u),\quad w = f_K\circ\dots\circ f_1(v),\quad x = R(a + T w),\quad z_i = c_i + s_i S_{2,i}(x_i) $$

with $S(x) = \sinh(\delta\,\mathrm{asinh}\,x + \epsilon)$ in every coordinate ($\epsilon$ skews, $\delta > 1$ makes
tails heavier), T lower triangular, $R = \mathrm{diag}(1/s) F$ from the frame $N(c, FF')$ of a Gaussian fit whose
deviations are s, and f affine couplings: half of the coordinates are shifted and scaled by a small network of the
other half. All begin at the identity, so the first member is the Gaussian of the frame.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from provi.core.arguments import check_count
from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.families.bases import AbstractBase, Normal
from provi.families.richer import AbstractRicher, Affine, Frame, check_dimension

_LARGEST_LOG_SCALE = 3.0
_NETWORK_SEED = 0


class SinhArcsinh(eqx.Module):
    """S(x) = sinh(exp(tail) asinh(x) + skew), a coordinate at a time; the identity at zero."""

    skew: Vector
    tail: Vector

    @classmethod
    def identity(cls, dim: int, dtype: Any) -> "SinhArcsinh":
        """S(x) = x."""
        return cls(jnp.zeros(dim, dtype), jnp.zeros(dim, dtype))

    def push(self, x: Vector) -> Vector:
        """S(x)."""
        return jnp.sinh(jnp.exp(self.tail) * jnp.arcsinh(x) + self.skew)

    def pull(self, y: Vector) -> tuple[Vector, Scalar]:
        """x, and log |det dy/dx|."""
        inner = (jnp.arcsinh(y) - self.skew) * jnp.exp(-self.tail)
        x = jnp.sinh(inner)
        # dy/dx = cosh(asinh y) exp(tail) / sqrt(1 + x^2), and cosh(asinh y) = sqrt(1 + y^2).
        return x, jnp.sum(0.5 * jnp.log1p(y**2) + self.tail - _log_cosh(inner))


def _log_cosh(x: Vector) -> Vector:
    return jnp.logaddexp(x, -x) - jnp.log(2.0)


class Couplings(eqx.Module):
    """K affine couplings; the last layer of each network begins at zero, so that the map begins at the identity."""

    inner: Float[Array, "K dim width"]
    inner_bias: Float[Array, "K width"]
    outer: Float[Array, "K width two_dim"]
    outer_bias: Float[Array, "K two_dim"]

    @classmethod
    def identity(cls, dim: int, number: int, width: int, dtype: Any) -> "Couplings":
        """w = v, with networks whose first layer is random."""
        inner = np.random.default_rng(_NETWORK_SEED).normal(size=(number, dim, width)) / np.sqrt(max(dim, 1))
        zeros = jnp.zeros((number, width, 2 * dim), dtype)
        biases = jnp.zeros((number, width), dtype), jnp.zeros((number, 2 * dim), dtype)
        return cls(jnp.asarray(inner, dtype), biases[0], zeros, biases[1])

    def push(self, v: Vector) -> Vector:
        """w."""

        def layer(value: Vector, part: Any) -> tuple[Vector, None]:
            kept, network = part
            shift, log_scale = _conditioned(network, kept, value)
            return value * jnp.exp(log_scale) + shift, None

        return jax.lax.scan(layer, v, self._layers())[0]

    def pull(self, w: Vector) -> tuple[Vector, Scalar]:
        """v, and log |det dw/dv|."""

        def layer(carry: Any, part: Any) -> tuple[Any, None]:
            value, log_det = carry
            kept, network = part
            shift, log_scale = _conditioned(network, kept, value)
            return ((value - shift) * jnp.exp(-log_scale), log_det + jnp.sum(log_scale)), None

        (v, log_det), _ = jax.lax.scan(layer, (w, jnp.zeros((), w.dtype)), self._layers(), reverse=True)
        return v, log_det

    def _layers(self) -> Any:
        """Which coordinates each layer leaves alone, and its network: odd ones, even ones, first half, second half."""
        number, dim = self.inner.shape[:2]
        index = np.arange(dim)
        patterns = [index % 2 == 0, index % 2 == 1, index < (dim + 1) // 2, index >= (dim + 1) // 2]
        kept = jnp.asarray(np.stack([patterns[k % 4] for k in range(number)]), self.inner.dtype)
        return kept, (self.inner, self.inner_bias, self.outer, self.outer_bias)


def _conditioned(network: Any, kept: Vector, value: Vector) -> tuple[Vector, Vector]:
    """Shift and log-scale of the coordinates that are not kept, zero for those that are."""
    inner, inner_bias, outer, outer_bias = network
    hidden = jnp.tanh((kept * value) @ inner + inner_bias)
    shift, raw = jnp.split(hidden @ outer + outer_bias, 2)
    log_scale = _LARGEST_LOG_SCALE * jnp.tanh(raw / _LARGEST_LOG_SCALE)
    return (1 - kept) * shift, (1 - kept) * log_scale


class PushedPoint(eqx.Module):
    """The frame and the maps; `couplings` is None where there are none."""

    frame: Frame
    first: SinhArcsinh
    couplings: Couplings | None
    affine: Affine
    last: SinhArcsinh


class Pushed(AbstractRicher):
    """Gaussians pushed through the maps above, with `couplings` of them between the coordinates.

    `Skewed(dim)` has none, `Flow(dim)` eight with networks of 32 units.
    """

    dim: int = eqx.field(static=True)
    couplings: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    base: AbstractBase
    scale: str = eqx.field(static=True)

    def __init__(self, dim: int, couplings: int = 0, width: int = 32) -> None:
        self.dim = check_dimension(dim)
        # One coordinate has no other half.
        self.couplings = check_count("couplings", couplings, minimum=0) if self.dim > 1 else 0
        self.width = check_count("width", width)
        self.base, self.scale = Normal(), "flow" if self.couplings else "skewed"

    def check_point(self, point: Any) -> None:
        if not isinstance(point, PushedPoint) or point.frame.loc.shape != (self.dim,):
            raise ValueError("start does not belong to this family of pushed Gaussians: leave it out.")

    def first_point(self, gaussians: tuple[Frame, ...], shares: Any) -> PushedPoint:
        frame, dtype = gaussians[0], gaussians[0].loc.dtype
        between = Couplings.identity(self.dim, self.couplings, self.width, dtype) if self.couplings else None
        maps = SinhArcsinh.identity(self.dim, dtype), between, Affine.identity(self.dim, dtype)
        return PushedPoint(frame, *maps, SinhArcsinh.identity(self.dim, dtype))

    def push(self, point: PushedPoint, u: Vector) -> Vector:
        """z."""
        loc, factor = point.frame.fixed()
        spread = jnp.sqrt(jnp.sum(factor**2, axis=1))
        y = point.first.push(u)
        if point.couplings is not None:
            y = point.couplings.push(y)
        return loc + spread * point.last.push(factor @ point.affine.push(y) / spread)

    def pull(self, point: PushedPoint, z: Vector) -> tuple[Vector, Scalar]:
        """u, and log |det dz/du|."""
        loc, factor = point.frame.fixed()
        spread = jnp.sqrt(jnp.sum(factor**2, axis=1))
        x, total = point.last.pull((z - loc) / spread)
        y, log_det = point.affine.pull(solve_triangular(factor, spread * x, lower=True))
        total = total + log_det + jnp.sum(jnp.log(jnp.diagonal(factor)))
        if point.couplings is not None:
            y, log_det = point.couplings.pull(y)
            total = total + log_det
        u, log_det = point.first.pull(y)
        return u, total + log_det

    def sample(self, key: RandomKey, point: PushedPoint, num: int) -> Draws:
        u = jax.random.normal(key, (num, self.dim), point.frame.loc.dtype)
        return jax.vmap(lambda row: self.push(point, row))(u)

    def stratified(self, key: RandomKey, point: PushedPoint, num: int) -> tuple[Draws, Float[Array, " num"]]:
        return self.sample(key, point, num), jnp.full(num, 1 / num, point.frame.loc.dtype)

    def log_prob(self, point: PushedPoint, z: Vector) -> Scalar:
        u, log_det = self.pull(point, z)
        return self.base.log_density(u) - log_det


def Skewed(dim: int) -> Pushed:
    """Gaussians with skew and tails of their own in every coordinate."""
    return Pushed(dim, 0)


def Flow(dim: int, couplings: int = 8, width: int = 32) -> Pushed:
    """A normalising flow: skew, tails, and couplings by small networks."""
    return Pushed(dim, check_count("couplings", couplings), width)
