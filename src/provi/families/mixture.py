r"""Mixtures of Gaussians with full covariances, over the modes of a density."""

from typing import Any, ClassVar

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

_WIDTHS = (1.0, 2.0, 0.6)
"""Of components that no mode was found for, in deviations of the first Gaussian: the tails, the core."""

_SHARE_OF_COPIES, _FEWEST = 0.1, 3


class MixturePoint(eqx.Module):
    """Weights as logits; frames and affine maps with the component in front."""

    logits: Float[Array, " K"]
    frames: Frame
    affines: Affine


class GaussianMixture(AbstractRicher):
    r"""$q = \sum_k w_k N(m_k, C_kC_k')$, each part in the frame of the Gaussian that it began at.

    `components`: how many parts; None is one for each mode that was found, and at least three.

    Mean and covariance are exact. `stratified` draws alike from all parts, so that also the weights have gradients of
    low variance: $E_q f = \sum_k w_k E_k f$.
    """

    dim: int = eqx.field(static=True)
    components: int | None = eqx.field(static=True)
    base: AbstractBase
    scale: str = eqx.field(static=True)
    exact_moments: ClassVar[bool] = False  # quantiles are from draws

    def __init__(self, dim: int, components: int | None = None) -> None:
        self.dim = check_dimension(dim)
        self.components = None if components is None else check_count("components", components)
        self.base, self.scale = Normal(), "mixture"

    def check_point(self, point: Any) -> None:
        if not isinstance(point, MixturePoint) or point.frames.loc.shape[1:] != (self.dim,):
            raise ValueError("start does not belong to this family of mixtures: leave it out.")

    def first_point(self, gaussians: tuple[Frame, ...], shares: Any) -> MixturePoint:
        """One component at each Gaussian; those that are left begin as wider and narrower copies of the first."""
        number = max(len(gaussians), _FEWEST) if self.components is None else self.components
        dtype = gaussians[0].loc.dtype
        parts, weights = list(gaussians[:number]), list(np.asarray(shares, float)[:number])
        for k in range(number - len(parts)):
            width = _WIDTHS[1 + k % (len(_WIDTHS) - 1)]
            # Not at the same place: equal components would have equal gradients.
            nudge = 0.1 * np.random.default_rng(k).normal(size=self.dim)
            first = gaussians[0]
            parts.append(Frame(first.loc + first.factor @ jnp.asarray(nudge, dtype), width * first.factor))
            weights.append(_SHARE_OF_COPIES * weights[0])
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
        logits = np.log(np.maximum(weights, 1e-6))
        affines = jax.tree.map(lambda leaf: jnp.stack([leaf] * number), Affine.identity(self.dim, dtype))
        return MixturePoint(jnp.asarray(logits - logits.max(), dtype), stacked, affines)

    def weights(self, point: MixturePoint) -> Float[Array, " K"]:
        """w, which sum to one."""
        return jax.nn.softmax(point.logits)

    def moments(self, point: MixturePoint) -> tuple[Float[Array, "K dim"], Float[Array, "K dim dim"]]:
        """The means m_k and the roots C_k of the parts."""

        def one(frame: Frame, affine: Affine) -> tuple[Vector, Any]:
            loc, factor = frame.fixed()
            return loc + factor @ affine.shift, factor @ affine.matrix

        return jax.vmap(one)(point.frames, point.affines)

    def mean(self, point: MixturePoint) -> Vector:
        return self.weights(point) @ self.moments(point)[0]

    def covariance(self, point: MixturePoint) -> Any:
        (means, roots), weights = self.moments(point), self.weights(point)
        away = means - (weights @ means)[None]
        within = jnp.einsum("k,kij,klj->il", weights, roots, roots)
        return within + jnp.einsum("k,ki,kj->ij", weights, away, away)

    def marginal_standard_deviation(self, point: MixturePoint) -> Vector:
        return jnp.sqrt(jnp.diagonal(self.covariance(point)))

    def sample(self, key: RandomKey, point: MixturePoint, num: int) -> Draws:
        which_key, normal_key = jax.random.split(key)
        means, roots = self.moments(point)
        which = jax.random.categorical(which_key, point.logits, shape=(num,))
        u = jax.random.normal(normal_key, (num, self.dim), means.dtype)
        every = means[None] + jnp.einsum("kij,nj->nki", roots, u)
        return every[jnp.arange(num), which]

    def stratified(self, key: RandomKey, point: MixturePoint, num: int) -> tuple[Draws, Float[Array, " num"]]:
        means, roots = self.moments(point)
        each = max(num // len(means), 1)
        u = jax.random.normal(key, (len(means), each, self.dim), means.dtype)
        z = means[:, None, :] + jnp.einsum("kij,knj->kni", roots, u)
        return z.reshape(-1, self.dim), jnp.repeat(self.weights(point) / each, each)

    def log_prob(self, point: MixturePoint, z: Vector) -> Scalar:
        means, roots = self.moments(point)

        def one(mean: Vector, root: Any) -> Scalar:
            u = solve_triangular(root, z - mean, lower=True)
            return self.base.log_density(u) - jnp.sum(jnp.log(jnp.diagonal(root)))

        return jax.nn.logsumexp(jax.nn.log_softmax(point.logits) + jax.vmap(one)(means, roots))
