"""What a target is: a potential on R^d and what is known of its shape."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.types import Indices, Scalar, Vector
from provi.targets.constants import Constants


class AbstractTarget(eqx.Module):
    """A density on R^d, known through its potential -log p.

    Arrays that may change between runs are leaves, sizes and names are static: a function compiled
    for one target serves every other of the same shapes.
    """

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The length d of the parameter vector."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The floating type the potential is computed in."""

    @property
    @abc.abstractmethod
    def constants(self) -> Constants:
        """Log-concavity, strong convexity and smoothness, as host numbers with their grounds."""

    @property
    @abc.abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """A name for each of the d coordinates."""

    @abc.abstractmethod
    def potential(self, z: Vector) -> Scalar:
        """-log p(z), up to a constant."""

    @property
    def default_location(self) -> np.ndarray:
        """Where a run starts unless told otherwise: zero. A target whose density may not be finite there says where."""
        return np.zeros(self.dim)

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Proven matrices (low, high) with low <= Hessian of the potential <= high everywhere.

        Sharper than the two numbers in `constants`. This is the answer of a target that knows none;
        models that do, say so. `high` is `None` when the potential is not smooth. Host float64; the
        matrices include the rounding of their own computation.
        """
        return None

    def linear_model(self) -> Any:
        """The same density as a linear model (an `AbstractLinearModel`), if it is one; else `None`."""
        return None

    def curvature_lower_bound(self) -> np.ndarray | None:
        """The first of `curvature_bounds`, where it can be had for less than both."""
        bounds = self.curvature_bounds()
        return None if bounds is None else bounds[0]


class AbstractFiniteSum(AbstractTarget):
    """A target whose potential is a prior and a sum of data terms, prior(z) + sum_n term_n(z)."""

    @property
    @abc.abstractmethod
    def num_terms(self) -> int:
        """The number of data terms."""

    @abc.abstractmethod
    def prior_potential(self, z: Vector) -> Scalar:
        """The part that every mini-batch holds in full."""

    @abc.abstractmethod
    def term_potentials(self, z: Vector, indices: Indices | slice) -> Float[Array, " batch"]:
        """The data terms at `indices`, one an entry.

        Implementations index their data directly, `self.data[indices]`, so that a slice means a run of
        terms without a copy.
        """

    def potential(self, z: Vector) -> Scalar:
        """prior(z) + sum over all n of term_n(z)."""
        return self.prior_potential(z) + jnp.sum(self.term_potentials(z, slice(None)))

    def minibatch_potential(self, z: Vector, indices: Indices) -> Scalar:
        """prior(z) + num_terms * mean of the terms at `indices`: unbiased when they are drawn uniformly."""
        return self.prior_potential(z) + self.num_terms * jnp.mean(self.term_potentials(z, indices))
