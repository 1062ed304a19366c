"""Bijections from R^k onto the sets that parameters live in, with the logarithm of their Jacobian determinants."""

import abc
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.types import Scalar

Leaf: TypeAlias = Float[Array, "..."]
"""One array of the user's pytree, or its free coordinates."""


class AbstractBijection(eqx.Module):
    """A smooth bijection y = f(x) from free coordinates onto a set of arrays; leading axes are independent copies."""

    label: eqx.AbstractClassVar[str]
    """What the free coordinates are called: the first is `label(name)[0]`."""

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The set, for error messages: a value must be ..."""

    @abc.abstractmethod
    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of x for a y of this shape; a `ValueError` where there is no such y."""

    @abc.abstractmethod
    def forward(self, x: Leaf) -> Leaf:
        """y = f(x)."""

    @abc.abstractmethod
    def log_det(self, x: Leaf) -> Scalar:
        """log |det df/dx|, summed over all copies."""

    @abc.abstractmethod
    def inverse(self, y: Leaf) -> Leaf:
        """x with f(x) = y."""

    @abc.abstractmethod
    def contains(self, y: np.ndarray) -> bool:
        """Whether y, on the host, lies in the open set."""


class Real(AbstractBijection):
    """y = x: no constraint."""

    label: ClassVar[str] = ""

    @property
    def description(self) -> str:
        """In words."""
        return "real"

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same."""
        return shape

    def forward(self, x: Leaf) -> Leaf:
        """x."""
        return x

    def log_det(self, x: Leaf) -> Scalar:
        """0."""
        return jnp.zeros((), x.dtype)

    def inverse(self, y: Leaf) -> Leaf:
        """y."""
        return y

    def contains(self, y: np.ndarray) -> bool:
        """Always."""
        return True


class HalfLine(AbstractBijection):
    """y = bound + sign exp(x), above the bound (sign 1) or below it (-1); log |dy/dx| = x."""

    bound: np.ndarray
    sign: int = eqx.field(static=True)
    label: ClassVar[str] = "log"

    def __init__(self, bound: Any = 0.0, sign: int = 1):
        """`bound`: the end of the half-line; `sign`: 1 for what lies above it, -1 for what lies below."""
        self.bound, self.sign = np.asarray(bound, np.float64), sign

    @property
    def description(self) -> str:
        """In words."""
        return f"{'above' if self.sign > 0 else 'below'} {float(self.bound):g}"

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same."""
        return shape

    def forward(self, x: Leaf) -> Leaf:
        """bound + sign exp(x)."""
        return jnp.asarray(self.bound, x.dtype) + self.sign * jnp.exp(x)

    def log_det(self, x: Leaf) -> Scalar:
        """sum x."""
        return jnp.sum(x)

    def inverse(self, y: Leaf) -> Leaf:
        """log |y - bound|."""
        return jnp.log(self.sign * (y - jnp.asarray(self.bound, y.dtype)))

    def contains(self, y: np.ndarray) -> bool:
        """sign (y - bound) > 0."""
        return bool((self.sign * (y - self.bound) > 0).all())


class Interval(AbstractBijection):
    """y = a + (b - a) s(x), s the logistic function; log |dy/dx| = log(b - a) + log s(x) + log s(-x)."""

    lower: np.ndarray
    upper: np.ndarray
    label: ClassVar[str] = "logit"

    def __init__(self, lower: Any, upper: Any):
        """`lower` and `upper`: the ends, finite."""
        self.lower, self.upper = np.asarray(lower, np.float64), np.asarray(upper, np.float64)

    @property
    def description(self) -> str:
        """In words."""
        return f"strictly between {float(self.lower):g} and {float(self.upper):g}"

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same."""
        return shape

    def forward(self, x: Leaf) -> Leaf:
        """From the nearer end, so that small distances to either end of [a, b] are not lost before they must be."""
        lower, upper = jnp.asarray(self.lower, x.dtype), jnp.asarray(self.upper, x.dtype)
        width = upper - lower
        value = jnp.where(x < 0, lower + width * jax.nn.sigmoid(x), upper - width * jax.nn.sigmoid(-x))
        # Rounding may still reach an end, where the density of a Beta law, say, is zero or infinite.
        return jnp.clip(value, jnp.nextafter(lower, upper), jnp.nextafter(upper, lower))

    def log_det(self, x: Leaf) -> Scalar:
        """sum of log(b - a) + log s(x) + log s(-x)."""
        width = jnp.log(jnp.asarray(self.upper - self.lower, x.dtype))
        return jnp.sum(width + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x))

    def inverse(self, y: Leaf) -> Leaf:
        """log(y - a) - log(b - y)."""
        return jnp.log(y - jnp.asarray(self.lower, y.dtype)) - jnp.log(jnp.asarray(self.upper, y.dtype) - y)

    def contains(self, y: np.ndarray) -> bool:
        """a < y < b."""
        return bool(((y > self.lower) & (y < self.upper)).all())


def interval(lower: Any, upper: Any) -> AbstractBijection:
    """The constraint lower < y < upper; one of the two may be infinite.

    **Arguments:**

    - `lower`, `upper`: numbers; `-numpy.inf` or `numpy.inf` for a half-line.
    """
    if np.ndim(lower) or np.ndim(upper):
        raise ValueError(
            "interval: lower and upper must be numbers; give entries with other bounds leaves of their own."
        )
    low, high = float(lower), float(upper)
    if not low < high:
        raise ValueError(f"interval needs lower < upper, not {low} and {high}.")
    if np.isinf(low) and np.isinf(high):
        raise ValueError("interval has no finite end; pass None for a parameter without constraint.")
    if np.isinf(high):
        return HalfLine(low)
    return HalfLine(high, -1) if np.isinf(low) else Interval(low, high)
