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
from scipy.special import softmax

from provi.core.arguments import device_array
from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.families.base import AbstractFamily
from provi.families.bases import AbstractBase, Normal
from provi.families.conditional_gaussian import constrained_factor
from provi.targets.latent.blocks import SparseRows
from provi.targets.latent.model import AbstractLatentGaussian

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
    own: Any = {name: np.asarray(getattr(point, name))[place] for name in _EACH}
    return NestedPoint(**own, fine_nodes=np.zeros((0, 0)), fine_weights=np.zeros(0))


def selected(point: NestedPoint, kept: np.ndarray) -> NestedPoint:
    """Some of the nodes; the finer rule as it is."""
    own: Any = {name: np.asarray(getattr(point, name))[kept] for name in _EACH}
    return NestedPoint(**own, fine_nodes=point.fine_nodes, fine_weights=point.fine_weights)


def each_node(point: NestedPoint) -> NestedPoint:
    """What there is of every node, without the finer rule: for programs that go through the nodes."""
    own: Any = {name: jnp.asarray(getattr(point, name)) for name in _EACH}
    none = jnp.zeros((len(own["nodes"]), 0))
    return NestedPoint(**own, fine_nodes=none, fine_weights=none)


_EACH = ("nodes", "log_weights", "inner", "outer", "sites", "mean_shift", "scale")


class NestedGaussian(AbstractFamily):
    """The mixtures for one target, over its free coordinates: hyperparameters, then standardised effects.

    Where the target is a form of another one, with effects in their own space, all here is in the other's coordinates
    but for what is given node by node.
    """

    target: AbstractLatentGaussian
    dim: int = eqx.field(static=True)
    base: AbstractBase
    scale: ClassVar[str] = "nested"
    is_traceable: ClassVar[bool] = False
    has_density: ClassVar[bool] = False

    def __init__(self, target: AbstractLatentGaussian):
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
        means, _ = self.by_node(point)
        return jnp.asarray(point.weights @ means)

    def marginal_standard_deviation(self, point: NestedPoint) -> Vector:
        """Within the nodes and between them."""
        (means, spread), weights = self.by_node(point), point.weights
        return device_array(np.sqrt(weights @ (spread**2 + (means - weights @ means) ** 2)))

    def by_node(self, point: NestedPoint) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of all coordinates given each node, (K, dim)."""
        nodes, places = np.asarray(point.nodes), self.target.own_places
        if places is None:
            means, spread = self.conditional_means(point), np.asarray(self.conditional_deviations(point, None))
            return np.concatenate([nodes, means], axis=1), np.concatenate([np.zeros_like(nodes), spread], axis=1)
        means, spread = self.own_effects(point)
        every, deviations = np.zeros((len(nodes), self.dim)), np.zeros((len(nodes), self.dim))
        every[:, places[0]], every[:, places[1]], deviations[:, places[1]] = nodes, means, spread
        return every, deviations

    def own_effects(self, point: NestedPoint) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the effects in their own space given each node, (K, M)."""
        means = _own_means(self.target, np.asarray(point.nodes), self.conditional_means(point))
        rows = type(self.target).effect_rows
        return np.asarray(means), np.asarray(self.conditional_deviations(point, rows))

    def conditional_deviations(self, point: NestedPoint, rows: Any) -> Any:
        """Standard deviations given each node: of z, or of the rows a'z that `rows(theta)` gives, (K, M)."""
        return _deviations(self.target, point, rows)

    def conditional_covariances(self, point: NestedPoint) -> Any:
        """Of z given each node, (K, d, d): for small models."""
        return _covariances(self.target, point, False)

    def covariance(self, point: NestedPoint) -> Any:
        """By the law of total covariance; dense, so for small models only."""
        if self.dim > _LARGEST_DENSE:
            raise ValueError(f"The covariance of {self.dim} coordinates is too large; draws and deviations are not.")
        (means, _), weights, places = self.by_node(point), point.weights, self.target.own_places
        inside = jnp.einsum("k,kij->ij", weights, _covariances(self.target, point, places is not None))
        away = means - weights @ means
        found = jnp.einsum("k,ki,kj->ij", weights, away, away)
        effects = np.arange(np.shape(point.nodes)[1], self.dim) if places is None else places[1]
        return found.at[np.ix_(effects, effects)].add(inside)

    def sample(self, key: RandomKey, point: NestedPoint, num: int) -> Draws:
        """A node for each draw, in proportion (systematic), smoothed between the nodes, and a draw of its Gaussian."""
        seed = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
        nodes, fine = np.asarray(point.nodes), np.asarray(point.fine_nodes)
        theta = fine[_systematic(np.asarray(point.fine_weights), num, seed)]
        chosen = _systematic(point.weights, num, seed)
        if nodes.shape[1]:
            # The node of each draw is the nearest, in deviations of theta.
            from scipy.spatial import KDTree  # large, and no other fit needs it

            unit = np.sqrt(np.maximum(point.weights @ (nodes - point.weights @ nodes) ** 2, 1e-300))
            chosen = KDTree(nodes / unit).query(theta / unit)[1]
        layout = self.target.layout
        places, counts = np.unique(chosen, return_counts=True)
        effects = np.empty((num, self.target.num_effects))
        # One program for all nodes: as many numbers for each as for the heaviest.
        most = 2 ** math.ceil(math.log2(counts.max()))
        for place, count in zip(places, counts, strict=True):
            at = node_of(point, int(place))
            inner, outer = np.zeros((most, layout.count, layout.width)), np.zeros((most, layout.border))
            inner[:count] = seed.standard_normal((count, layout.count, layout.width))
            outer[:count] = seed.standard_normal((count, layout.border))
            effects[chosen == place] = np.asarray(_draw(self.target, at, inner, outer))[:count]
        order, places = seed.permutation(num), self.target.own_places
        if places is None:
            return device_array(np.concatenate([theta, effects], axis=1)[order])
        found = np.empty((num, self.dim))
        found[:, places[0]], found[:, places[1]] = theta, np.asarray(_own_means(self.target, theta, effects))
        return jnp.asarray(found[order])

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


def joined(target: AbstractLatentGaussian, inner: Any, outer: Any) -> np.ndarray:
    """Latent coordinates (K, d) of parts (K, n, b) and (K, p), on the host: compiles nothing."""
    layout, inner, outer = target.layout, np.asarray(inner), np.asarray(outer)
    found = np.empty((len(outer), target.num_effects))
    place, slot = np.asarray(layout.place), np.asarray(layout.slot)
    found[:, place >= 0] = inner.reshape(len(outer), -1)[:, place[place >= 0]]
    found[:, slot >= 0] = outer[:, slot[slot >= 0]]
    return found


@eqx.filter_jit
def _draw(target: AbstractLatentGaussian, at: NestedPoint, inner: Any, outer: Any) -> Any:
    given = target.conditional(at.nodes)
    covariance = constrained_factor(given, at.sites)
    mean, factor = target.join(at.inner, at.outer) + at.mean_shift, at.scale

    def one(pair: Any) -> Any:
        return mean + factor * target.join(*covariance.draw(*pair))

    return jax.lax.map(one, (inner, outer))


@eqx.filter_jit
def _own_means(target: AbstractLatentGaussian, nodes: Any, latent: Any) -> Any:
    """The effects in their own space, of rows of hyperparameters and latent coordinates."""

    def one(pair: Any) -> Any:
        rows = target.effect_rows(pair[0])
        return jnp.sum(rows.values * pair[1][rows.index], axis=1) + target.effect_shift(pair[0])

    return jax.lax.map(one, (nodes, latent))


@eqx.filter_jit
def _covariances(target: AbstractLatentGaussian, point: NestedPoint, own: bool) -> Any:
    """Of the latent coordinates given each node, or of the effects in their own space."""

    def one(at: NestedPoint) -> Any:
        covariance = constrained_factor(target.conditional(at.nodes), at.sites)
        inner, outer = target.split(jnp.eye(target.num_effects))
        columns = jax.vmap(lambda a, b: target.join(*covariance.solve(a, b)), (2, 1), 1)(inner, outer)
        columns = columns * at.scale[:, None] * at.scale[None, :]
        if not own:
            return columns
        rows = target.effect_rows(at.nodes)
        left = jnp.sum(rows.values[:, :, None] * columns[rows.index], axis=1)
        return jnp.sum(rows.values[:, :, None] * left.T[rows.index], axis=1)

    return jax.lax.map(one, each_node(point))


@eqx.filter_jit
def _deviations(target: AbstractLatentGaussian, point: NestedPoint, rows: Any) -> Any:
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


def _unit_rows(target: AbstractLatentGaussian) -> SparseRows:
    count = target.num_effects
    return SparseRows(jnp.arange(count)[:, None], jnp.ones((count, 1)))
