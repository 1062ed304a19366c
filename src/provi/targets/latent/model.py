"""What a latent Gaussian model is, whatever says how its rows and priors depend on the hyperparameters."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.types import Scalar, Vector
from provi.targets.base import AbstractTarget, Constants, unknown
from provi.targets.latent.blocks import SparseRows
from provi.targets.latent.layout import Layout
from provi.targets.likelihoods.base import AbstractLikelihood


class AbstractLatentGaussian(AbstractTarget):
    r"""Hyperparameters theta, and effects that are Gaussian given them and seen by the data through single rows.

    The free coordinates are those of theta, and then latent ones v with $u = T(\theta)v + c(\theta)$ for the effects u
    in their own space.
    """

    layout: eqx.AbstractVar[Layout]
    likelihood: eqx.AbstractVar[AbstractLikelihood]
    """At any hyperparameters: its name, and whether its errors are proven, do not depend on them."""
    response: eqx.AbstractVar[Any]
    """As the likelihood takes it, at any hyperparameters; and so the `weights` of the rows, and a `constant`."""
    weights: eqx.AbstractVar[Any]
    constant: eqx.AbstractVar[Any]
    fixed_names: eqx.AbstractVar[tuple[str, ...]]
    """Of the first of the effects."""
    blocks: eqx.AbstractVar[tuple[Any, ...]]
    """The others: each with a `name`, an `effect_shape`, `levels`, `coefficients` and a `constraint`."""

    @property
    @abc.abstractmethod
    def num_hyperparameters(self) -> int:
        """D."""

    @property
    @abc.abstractmethod
    def num_effects(self) -> int:
        """The number of latent coordinates."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int:
        """Of the data."""

    @abc.abstractmethod
    def conditional(self, theta: Vector) -> Any:
        """The model given the free coordinates theta: a `provi.targets.latent_gaussian.Conditional`."""

    @abc.abstractmethod
    def log_hyperprior(self, theta: Any) -> Any:
        """The log density of the free coordinates, over the last axis of theta."""

    @abc.abstractmethod
    def reported(self, theta: Vector) -> dict[str, Any]:
        """The numbers that people want to see of the hyperparameters, by name."""

    @property
    @abc.abstractmethod
    def reported_names(self) -> tuple[str, ...]:
        """Of `reported`, in its order."""

    @abc.abstractmethod
    def effect_rows(self, theta: Any) -> SparseRows:
        """T: all effects in their own space as rows over v: fixed ones, then those of each block."""

    def effect_shift(self, theta: Any) -> Any:
        """c."""
        del theta
        return jnp.asarray(0.0)

    @property
    def own_places(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Where theta and u lie in the free coordinates of another target that this is a form of; or None."""
        return None

    def latent_gaussian(self) -> "AbstractLatentGaussian":
        """Itself."""
        return self

    @property
    def dim(self) -> int:
        """Hyperparameters and effects."""
        return self.num_hyperparameters + self.num_effects

    @property
    def dtype(self) -> Any:
        """float64."""
        return np.dtype(np.float64)

    @property
    def constants(self) -> Constants:
        """Nothing is known of the joint density; given the hyperparameters it is log-concave."""
        reason = "a latent Gaussian model: log-concave given its hyperparameters only"
        return Constants(unknown(reason), unknown(reason), unknown(reason))

    def split(self, effects: Any) -> tuple[Any, Any]:
        """The parts (n, b, ...) and (p, ...) of latent coordinates (d, ...)."""
        layout, shape = self.layout, jnp.shape(effects)[1:]
        padded = jnp.concatenate([jnp.asarray(effects), jnp.zeros((1, *shape))])
        inner = padded[jnp.asarray(layout.source)].reshape(layout.count, layout.width, *shape)
        outer = jnp.zeros((layout.border + 1, *shape)).at[jnp.asarray(layout.slot)].set(jnp.asarray(effects))
        return inner, outer[:-1] if layout.border else jnp.zeros((0, *shape))

    def join(self, inner: Any, outer: Any) -> Any:
        """The latent coordinates (d, ...) of such parts."""
        shape, place = jnp.shape(outer)[1:], jnp.asarray(self.layout.place)
        flat = jnp.concatenate([jnp.reshape(inner, (-1, *shape)), jnp.zeros((1, *shape))])
        rest = jnp.concatenate([outer, jnp.zeros((1, *shape))])
        held = (place >= 0).reshape(-1, *(1,) * len(shape))
        return jnp.where(held, flat[place], rest[jnp.asarray(self.layout.slot)])

    def potential(self, z: Vector) -> Scalar:
        """-log p(theta, effects, y). Directions that a constraint takes out have a standard normal law of their own."""
        theta, effects = z[: self.num_hyperparameters], z[self.num_hyperparameters :]
        given, extra = self.conditional(theta), jnp.asarray(0.0)
        inner, outer = self.split(effects)
        if given.null is not None:
            along = jnp.einsum("kbc,kb->c", given.null[0], inner) + given.null[1].T @ outer
            inner, outer = inner - given.null[0] @ along, outer - given.null[1] @ along
            extra = 0.5 * jnp.sum(along**2)
        top, bottom = given.prior.multiply(inner, outer)
        quadratic = jnp.sum(top * inner) + jnp.sum(bottom * outer)
        terms = given.likelihood.potential(given.predictor(inner, outer), given.response)
        terms = terms if given.weights is None else terms * given.weights
        normaliser = 0.5 * self.num_effects * jnp.log(2 * jnp.pi) - 0.5 * given.log_det
        likelihood = jnp.sum(terms) - given.constant
        return 0.5 * quadratic + extra + normaliser + likelihood - self.log_hyperprior(theta)
