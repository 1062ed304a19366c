"""The two parts of the objective of the proximal-gradient iteration."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.core.types import RandomKey, Scalar, Vector
from provi.families.exponential import AbstractExponentialFamily, Coordinates


class AbstractPenalty(eqx.Module):
    """The part h that the step treats exactly."""

    @abstractmethod
    def value(self, family: AbstractExponentialFamily, natural: Vector, w: Vector) -> Scalar:
        """h of the member with natural parameter `natural` and vector `w`."""

    @abstractmethod
    def convex_in(self, coordinates: Coordinates) -> bool:
        """Whether h is convex in the coordinates: without it a step's gap has no bound."""


class KLToPrior(AbstractPenalty):
    r"""$h = KL(q\|p)$, p the member of the same family with natural parameter `prior` (a pytree: of a product).

    Convex in the mean parameter and in the moments (m, V), not in the natural parameter (errata 4).
    """

    prior: Any

    def value(self, family, natural, w):
        del w
        return family.kl(natural, self.prior)

    def convex_in(self, coordinates):
        return coordinates.name != "natural"


class Penalty(AbstractPenalty):
    r"""$h(w)$ = `function(w)`, a function of the vector in the coordinates of the iteration.

    - `prox`: `prox(v, beta)` $= \arg\min_w h(w) + |w - v|^2/(2\beta)$, used with the Euclidean divergence. Without it,
      or with another divergence, `function` must be twice differentiable: the step is then found by Newton's method.
    - `convex`: your word that h is convex in these coordinates; with False no bound on a step's gap is given.

    Give data as leaves of an `eqx.Module` with `__call__`, or by `eqx.Partial`: a plain function that closes over
    arrays is compiled anew for each closure.
    """

    function: Callable[[Any], Any]
    prox: Callable[[Any, Any], Any] | None = None
    convex: bool = eqx.field(static=True, default=True)

    def value(self, family, natural, w):
        del family, natural
        return self.function(w)

    def convex_in(self, coordinates):
        del coordinates
        return self.convex


class AbstractSplit(eqx.Module):
    """-ELBO = f + h as the algorithms of this folder see it: f by its slope, h as a penalty of their steps."""

    @abstractmethod
    def exact_part(self) -> AbstractPenalty | None:
        """h; None for 0."""

    @property
    @abstractmethod
    def knows_objective(self) -> bool:
        """Whether f + h can be evaluated."""

    @abstractmethod
    def measure(self, space: Any, point: Any, key: RandomKey) -> tuple[Scalar, Any]:
        """f + h at `point`, NaN where it is not known, and the (estimated) gradient of f, a pytree like `point`."""


class Split(AbstractSplit):
    r"""-ELBO = f + h, in the coordinates of the iteration.

    - `smooth`: f(w), the part that is linearised; None for f = 0 or where only its gradient is known.
    - `gradient`: `gradient(w, key)`, an unbiased estimate of grad f; None for the exact gradient of `smooth`.
    - `penalty`: h; None for 0.
    """

    smooth: Callable[[Any], Any] | None = None
    gradient: Callable[[Any, Any], Any] | None = None
    penalty: AbstractPenalty | None = None

    def exact_part(self):
        return self.penalty

    @property
    def knows_objective(self):
        return self.smooth is not None or self.gradient is None

    def measure(self, space, point, key):
        value = self.objective(space, point) if self.knows_objective else jnp.asarray(jnp.nan, point.dtype)
        return value, self.slope(point, key)

    def slope(self, w: Vector, key: Any) -> Vector:
        """The (estimated) gradient of f."""
        if self.gradient is not None:
            return self.gradient(w, key)
        return jnp.zeros_like(w) if self.smooth is None else jax.grad(self.smooth)(w)

    def objective(self, coordinates: Coordinates, w: Vector) -> Scalar:
        """f + h at w, f = 0 where there is none."""
        value = jnp.zeros((), w.dtype) if self.smooth is None else self.smooth(w)
        if self.penalty is None:
            return value
        return value + self.penalty.value(coordinates.family, coordinates.to_natural(w), w)
