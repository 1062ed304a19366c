r"""Mixtures of Gaussians over the effects of a latent Gaussian model, one at each node of its hyperparameters.

$q(\theta, z) = \sum_kw_k\,\delta_{\theta_k}(\theta)\,N(z; m_k, S_k)$: what nested integration gives. $S_k$ is known by
its sites (`conditional_gaussian`), so that a member takes $O(d + N)$ numbers a node. Draws of theta come from a finer
rule, an interpolation of the first, and the effects with them from the Gaussian of the nearest node.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from scipy.spatial import cKDTree
from scipy.special import softmax

from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.families.base import AbstractFamily
from provi.families.bases import AbstractBase, Normal
from provi.families.conditional_gaussian import constrained_factor
from provi.targets.latent.blocks import SparseRows
from provi.targets.latent_gaussian import LatentGaussian

_LARGEST_DENSE = 2000


class NestedPoint(eqx.Module):
    """Nodes (K, D), the logarithms of their weights, and of each the mean in the parts of the layout and the sites.

    - `mean_shift` (K, d) and `scale` (K, d): what corrects the means, and the standard deviations as factors.
    - `fine_nodes` (M, D), `fine_weights` (M,): the hyperparameters on a finer rule, for their marginals and draws.
    """

    nodes: Any
    log_weights: Any
    inner: Any
    outer: Any
    sites: Any
    mean_shift: Any
    scale: Any
    fine_nodes: Any
    fine_weights: Any

    @property
    def weights(self) -> np.ndarray:
        """Of the nodes; they sum to one."""
        return softmax(np.asarray(self.log_weights))


def node_of(point: NestedPoint, place: int) -> NestedPoint:
    """One node alone."""
    own = [np.asarray(getattr(point, name))[place] for name in _EACH]
    return NestedPoint(*own, np.zeros((0, 0)), np.zeros(0))


def selected(point: NestedPoint, kept: np.ndarray) -> NestedPoint:
    """Some of the nodes; the finer rule as it is."""
    own = [np.asarray(getattr(point, name))[kept] for name in _EACH]
    return NestedPoint(*own, point.fine_nodes, point.fine_weights)


def each_node(point: NestedPoint) -> NestedPoint:
    """What there is of every node, without the finer rule: for programs that go through the nodes."""
    own = [jnp.asarray(getattr(point, name)) for name in _EACH]
    return NestedPoint(*own, jnp.zeros((len(own[0]), 0)), jnp.zeros((len(own[0]), 0)))


_EACH = ("nodes", "log_weights", "inner", "outer", "sites", "mean_shift", "scale")


class NestedGaussian(AbstractFamily):
    """The mixtures for one target, over its free coordinates: hyperparameters, then standardised effects."""

    target: LatentGaussian
    dim: int = eqx.field(static=True)
    base: AbstractBase
    scale: ClassVar[str] = "nested"
    has_density: ClassVar[bool] = False

    def __init__(self, target: LatentGaussian):
        self.target, self.dim, self.base = target, target.dim, Normal()

    def check_point(self, point: Any) -> None:
        """`ValueError` unless it is a `NestedPoint`."""
        if not isinstance(point, NestedPoint):
            raise ValueError("A latent Gaussian model is fitted by nested integration: it has no start of its own.")

    def conditional_means(self, point: NestedPoint) -> np.ndarray:
        """E[z | theta_k], (K, d)."""
        return joined(self.target, point.inner, point.outer) + np.asarray(point.mean_shift)

    def mean(self, point: NestedPoint) -> Vector:
        """Weighted means."""
        weights = point.weights
        return jnp.asarray(np.concatenate([weights @ np.asarray(point.nodes), weights @ self.conditional_means(point)]))

    def marginal_standard_deviation(self, point: NestedPoint) -> Vector:
        """Within the nodes and between them."""
        means, within = self.conditional_means(point), np.asarray(self.conditional_deviations(point, None))
        nodes, weights = np.asarray(point.nodes), point.weights
        every = np.concatenate([nodes, means], axis=1)
        spread = np.concatenate([np.zeros_like(nodes), within], axis=1)
        centre = weights @ every
        return jnp.asarray(np.sqrt(weights @ (spread**2 + (every - centre) ** 2)))

    def conditional_deviations(self, point: NestedPoint, rows: Any) -> Any:
        """Standard deviations given each node: of z, or of the rows a'z that `rows(theta)` gives, (K, M)."""
        return _deviations(self.target, point, rows)

    def covariance(self, point: NestedPoint) -> Any:
        """By the law of total covariance; dense, so for small models only."""
        if self.dim > _LARGEST_DENSE:
            raise ValueError(f"The covariance of {self.dim} coordinates is too large; draws and deviations are not.")
        means, inside = self.conditional_means(point), _covariances(self.target, point)
        nodes, weights = jnp.asarray(point.nodes), point.weights
        every = jnp.concatenate([nodes, means], axis=1)
        away = every - weights @ every
        found = jnp.einsum("k,ki,kj->ij", weights, away, away)
        start = nodes.shape[1]
        return found.at[start:, start:].add(jnp.einsum("k,kij->ij", weights, inside))

    def sample(self, key: RandomKey, point: NestedPoint, num: int) -> Draws:
        """A node for each draw, in proportion (systematic), smoothed between the nodes, and a draw of its Gaussian."""
        seed = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
        nodes, fine = np.asarray(point.nodes), np.asarray(point.fine_nodes)
        theta = fine[_systematic(np.asarray(point.fine_weights), num, seed)]
        chosen = _systematic(point.weights, num, seed)
        if nodes.shape[1]:
            # The node of each draw is the nearest, in deviations of theta.
            unit = np.sqrt(np.maximum(point.weights @ (nodes - point.weights @ nodes) ** 2, 1e-300))
            chosen = cKDTree(nodes / unit).query(theta / unit)[1]
        layout = self.target.layout
        places, counts = np.unique(chosen, return_counts=True)
        effects = np.empty((num, self.target.num_effects))
        # One program for all nodes: as many numbers for each as for the heaviest.
        most = 2 ** math.ceil(math.log2(counts.max()))
        for place, count in zip(places, counts, strict=True):
            at = node_of(point, place)
            inner, outer = np.zeros((most, layout.count, layout.width)), np.zeros((most, layout.border))
            inner[:count] = seed.standard_normal((count, layout.count, layout.width))
            outer[:count] = seed.standard_normal((count, layout.border))
            effects[chosen == place] = np.asarray(_draw(self.target, at, inner, outer))[:count]
        order = seed.permutation(num)
        return jnp.asarray(np.concatenate([theta, effects], axis=1)[order])

    def log_prob(self, point: NestedPoint, z: Vector) -> Scalar:
        """There is none: the hyperparameters sit on nodes."""
        raise ValueError(
            "A nested fit has no density over its hyperparameters, which are integrated on nodes: "
            "fit.evidence and fit.certificate say how far it is from the posterior."
        )

    def entropy(self, point: NestedPoint) -> Scalar:
        """There is none, as there is no density."""
        return self.log_prob(point, jnp.zeros(self.dim))


def _systematic(weights: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """`num` places, each as often as its weight says up to one."""
    found = np.searchsorted(np.cumsum(weights) / weights.sum(), (np.arange(num) + rng.random()) / num, side="right")
    return np.minimum(found, len(weights) - 1)


def joined(target: LatentGaussian, inner: Any, outer: Any) -> np.ndarray:
    """Latent coordinates (K, d) of parts (K, n, b) and (K, p), on the host: compiles nothing."""
    layout, inner, outer = target.layout, np.asarray(inner), np.asarray(outer)
    found = np.empty((len(outer), target.num_effects))
    place, slot = np.asarray(layout.place), np.asarray(layout.slot)
    found[:, place >= 0] = inner.reshape(len(outer), -1)[:, place[place >= 0]]
    found[:, slot >= 0] = outer[:, slot[slot >= 0]]
    return found


@eqx.filter_jit
def _draw(target: LatentGaussian, at: NestedPoint, inner: Any, outer: Any) -> Any:
    given = target.conditional(at.nodes)
    covariance = constrained_factor(given, at.sites)
    mean, factor = target.join(at.inner, at.outer) + at.mean_shift, at.scale

    def one(pair: Any) -> Any:
        return mean + factor * target.join(*covariance.draw(*pair))

    return jax.lax.map(one, (inner, outer))


@eqx.filter_jit
def _covariances(target: LatentGaussian, point: NestedPoint) -> Any:
    def one(at: NestedPoint) -> Any:
        covariance = constrained_factor(target.conditional(at.nodes), at.sites)
        inner, outer = target.split(jnp.eye(target.num_effects))
        columns = jax.vmap(lambda a, b: target.join(*covariance.solve(a, b)), (2, 1), 1)(inner, outer)
        return columns * at.scale[:, None] * at.scale[None, :]

    return jax.lax.map(one, each_node(point))


@eqx.filter_jit
def _deviations(target: LatentGaussian, point: NestedPoint, rows: Any) -> Any:
    layout = target.layout

    def one(at: NestedPoint) -> Any:
        covariance = constrained_factor(target.conditional(at.nodes), at.sites)
        chosen = _unit_rows(target) if rows is None else rows(target, at.nodes)
        place, slot = jnp.asarray(layout.place)[chosen.index], jnp.asarray(layout.slot)[chosen.index]
        scaled = chosen.values * at.scale[chosen.index]
        held = jnp.where(place >= 0, scaled, 0.0)
        if not layout.count:
            place, held = jnp.zeros((len(slot), 0), jnp.int32), jnp.zeros((len(slot), 0))
        border = jnp.zeros((len(slot), layout.border + 1))
        border = border.at[jnp.arange(len(slot))[:, None], slot].add(jnp.where(slot >= 0, scaled, 0.0))
        variance = covariance.row_variances(jnp.maximum(place, 0), held, border[:, : layout.border])
        return jnp.sqrt(jnp.maximum(variance, 0.0))

    return jax.lax.map(one, each_node(point))


def _unit_rows(target: LatentGaussian) -> SparseRows:
    count = target.num_effects
    return SparseRows(jnp.arange(count)[:, None], jnp.ones((count, 1)))


def effect_rows(target: LatentGaussian, theta: Any) -> SparseRows:
    """All effects in their own space as rows over z: fixed ones, then those of each block."""
    values, start, first = target.hyperparameters(theta), target.fixed.shape[1], 0
    parts = [SparseRows(jnp.arange(start)[:, None], jnp.ones((start, 1)))]
    for block in target.blocks:
        own = values[first : first + len(block.priors)]
        rows = block.effect_rows(own)
        parts.append(SparseRows(start + rows.index, rows.values))
        start, first = start + block.size, first + len(block.priors)
    widest = max(part.index.shape[1] for part in parts)

    def padded(part: SparseRows) -> SparseRows:
        extra = widest - part.index.shape[1]
        return SparseRows(jnp.pad(part.index, ((0, 0), (0, extra))), jnp.pad(part.values, ((0, 0), (0, extra))))

    wide = [padded(part) for part in parts]
    return SparseRows(jnp.concatenate([p.index for p in wide]), jnp.concatenate([p.values for p in wide]))
