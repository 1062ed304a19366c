r"""Divergences between members of an exponential family: the distance term of the proximal-gradient iteration.

Each is seen in `Coordinates` of the family and has a value $D(w, w_{old})$, a gradient in its first argument, and
`gap_bound`: how far from the minimum of $\psi(w) = \langle w, g\rangle + h(w) + D(w, w_{old})/\beta$ a point can be.
For convex $h$ and a residual $e \in \partial\psi(w)$,

$$\psi(w) - \min\psi \le \sup_{w'}\,\langle e, w - w'\rangle - \tfrac1\beta B(w', w)$$

whenever $\psi - B$-generator$/\beta$ is convex, $B$ the Bregman divergence of that generator: $\psi$ is then strongly
convex relative to it. The supremum is a Bregman divergence of the dual generator, in closed form, so nothing about
eigenvalues is assumed. Where no such generator is known the bound is infinite.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.core.types import Scalar, Vector
from provi.families.exponential import Coordinates


class AbstractDivergence(eqx.Module):
    """D(w, old) >= 0, zero only for w = old."""

    @abstractmethod
    def between_members(self, coordinates: Coordinates, natural: Vector, old_natural: Vector) -> Scalar:
        """The divergence of two members given by their natural parameters."""

    def value(self, coordinates: Coordinates, w: Vector, old: Vector) -> Scalar:
        """D(w, old)."""
        return self.between_members(coordinates, coordinates.to_natural(w), coordinates.to_natural(old))

    def gradient(self, coordinates: Coordinates, w: Vector, old: Vector) -> Vector:
        """The gradient of D in its first argument, in the coordinates."""
        return jax.grad(lambda vector: self.value(coordinates, vector, old))(w)

    def gap_bound(
        self, coordinates: Coordinates, w: Vector, old: Vector, residual: Vector, step_size: Scalar
    ) -> Scalar:
        """A bound on psi(w) - min psi for convex h, `residual` a subgradient there; infinite where unknown."""
        del coordinates, old, residual, step_size
        return jnp.asarray(jnp.inf, w.dtype)


class Euclidean(AbstractDivergence):
    r"""$\frac12|w - w_{old}|^2$. Gap: $\frac\beta2|e|^2$ in all coordinates."""

    def between_members(self, coordinates, natural, old_natural):
        return self.value(coordinates, coordinates.from_natural(natural), coordinates.from_natural(old_natural))

    def value(self, coordinates, w, old):
        del coordinates
        return 0.5 * jnp.sum((w - old) ** 2)

    def gradient(self, coordinates, w, old):
        del coordinates
        return w - old

    def gap_bound(self, coordinates, w, old, residual, step_size):
        del coordinates, w, old
        return 0.5 * step_size * residual @ residual


class KL(AbstractDivergence):
    r"""$KL(q_w\|q_{old})$: the Bregman divergence of $A^*$ in mean parameters, where its gradient is
    $\lambda - \lambda_{old}$; jointly convex in the moments (m, V) of a Gaussian; not convex in natural parameters.

    Gap: in mean parameters $\frac1\beta KL(q_\lambda\|q_{\lambda - \beta e})$. In the moments the generator is
    $\frac12m'P_{old}m - \frac12\log\det V$: $\frac\beta2e_m'V_{old}e_m + \frac1\beta KL(N(0, V)\|N(0, V'))$ with
    $V'^{-1} = V^{-1} + 2\beta e_V$.
    """

    def between_members(self, coordinates, natural, old_natural):
        return coordinates.family.kl(natural, old_natural)

    def gradient(self, coordinates, w, old):
        if coordinates.name == "mean":
            return coordinates.to_natural(w) - coordinates.to_natural(old)
        return super().gradient(coordinates, w, old)

    def gap_bound(self, coordinates, w, old, residual, step_size):
        family: Any = coordinates.family
        shift = step_size * residual
        natural = coordinates.to_natural(w)
        if coordinates.name == "mean":
            return _kl_or_infinite(family, natural, natural - shift) / step_size
        if coordinates.name == "moments":
            is_location = jnp.arange(w.size) < family.dim
            old_natural = coordinates.to_natural(old)
            # A shift of the linear part alone moves the mean by V_old beta e_m: the divergence is the quadratic form.
            location = family.kl(old_natural, old_natural + jnp.where(is_location, shift, 0))
            centred = jnp.where(is_location, 0, natural)
            scale = _kl_or_infinite(family, centred, centred - jnp.where(is_location, 0, shift))
            return (location + scale) / step_size
        return super().gap_bound(coordinates, w, old, residual, step_size)


class ReverseKL(AbstractDivergence):
    r"""$KL(q_{old}\|q_w)$: the Bregman divergence of $A$ in natural parameters, with gradient $\mu - \mu_{old}$.

    Gap in natural parameters: $\frac1\beta KL(q_{\mu - \beta e}\|q_\mu)$.
    """

    def between_members(self, coordinates, natural, old_natural):
        return coordinates.family.kl(old_natural, natural)

    def gradient(self, coordinates, w, old):
        if coordinates.name == "natural":
            return coordinates.family.mean_from_natural(w) - coordinates.family.mean_from_natural(old)
        return super().gradient(coordinates, w, old)

    def gap_bound(self, coordinates, w, old, residual, step_size):
        if coordinates.name != "natural":
            return super().gap_bound(coordinates, w, old, residual, step_size)
        family = coordinates.family
        moved = family.natural_from_mean(family.mean_from_natural(w) - step_size * residual)
        return jnp.where(family.valid(moved), family.kl(moved, w), jnp.inf) / step_size


class SymmetricKL(AbstractDivergence):
    r"""$KL(q_w\|q_{old}) + KL(q_{old}\|q_w) = (\lambda - \lambda_{old})'(\mu - \mu_{old})$.

    Gap: that of `KL` in mean parameters, where the reverse part is convex too (Bernoulli, categorical).
    """

    def between_members(self, coordinates, natural, old_natural):
        family = coordinates.family
        return (natural - old_natural) @ (family.mean_from_natural(natural) - family.mean_from_natural(old_natural))

    def gap_bound(self, coordinates, w, old, residual, step_size):
        if coordinates.name == "mean" and coordinates.family.reverse_kl_convex_in_mean:
            return KL().gap_bound(coordinates, w, old, residual, step_size)
        return super().gap_bound(coordinates, w, old, residual, step_size)


class QuadraticSymmetricKL(AbstractDivergence):
    r"""The second-order model of the symmetric KL at the old point, $(w - w_{old})'G(w_{old})(w - w_{old})$, $G$ the
    Fisher matrix in the coordinates: its proximal step is the natural gradient, $w_{old} - \frac\beta2G^{-1}g$
    (errata 1: the papers lose the 2). Gap: $\frac\beta4e'G^{-1}e$.
    """

    def between_members(self, coordinates, natural, old_natural):
        return self.value(coordinates, coordinates.from_natural(natural), coordinates.from_natural(old_natural))

    def value(self, coordinates, w, old):
        change = w - old
        return change @ coordinates.metric(old) @ change

    def gradient(self, coordinates, w, old):
        return 2 * coordinates.metric(old) @ (w - old)

    def gap_bound(self, coordinates, w, old, residual, step_size):
        del w
        return 0.25 * step_size * residual @ jnp.linalg.solve(coordinates.metric(old), residual)


def _kl_or_infinite(family, natural, other):
    """KL(q_natural || q_other), infinite where `other` is not a member."""
    return jnp.where(family.valid(other), family.kl(natural, other), jnp.inf)
