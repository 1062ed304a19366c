"""A recognised model as a latent Gaussian model: what `provi.fit` integrates over its scales."""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.bordered import Bordered
from provi.core.types import Vector
from provi.frontends.recognise.conditional import ConditionalGLM, Entries
from provi.frontends.recognise.pattern import RowPattern
from provi.targets.latent.blocks import AbstractBlock, SparseRows
from provi.targets.latent.layout import Layout, choose_layout
from provi.targets.latent.model import AbstractLatentGaussian
from provi.targets.latent_gaussian import Conditional
from provi.targets.likelihoods.base import AbstractLikelihood
from provi.targets.parameters import element_names


class SiteBlock(AbstractBlock):
    """A site of effects: where its entries are in rows that have few of them, and its shape. It has no scale here."""

    name: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    pattern_of_rows: RowPattern | None

    @property
    def size(self) -> int:
        """Of all axes."""
        return math.prod(self.shape)

    @property
    def num_rows(self) -> int:
        """Of the pattern."""
        return 0 if self.pattern_of_rows is None else len(self.pattern_of_rows.index)

    @property
    def priors(self) -> dict[str, Any]:
        """None: the model has them."""
        return {}

    def rows(self, theta: Any) -> SparseRows:
        """The places; the entries are the model's."""
        del theta
        assert self.pattern_of_rows is not None
        return SparseRows(self.pattern_of_rows.index, np.zeros(self.pattern_of_rows.index.shape))

    def effect_rows(self, theta: Any) -> SparseRows:
        """The identity: how effects depend on one another, the model knows."""
        del theta
        return SparseRows(np.arange(self.size)[:, None], np.ones((self.size, 1)))

    @property
    def effect_shape(self) -> tuple[int, ...]:
        """The site's own."""
        return self.shape

    @property
    def coefficients(self) -> tuple[str, ...]:
        """Numbers along the second axis."""
        return tuple(map(str, range(self.shape[1]))) if len(self.shape) > 1 else ()


class RecognisedLatentGaussian(AbstractLatentGaussian):
    """A model of another package that is linear given a few scales.

    The free coordinates are theta, those of the scales in the package's own, and u, N(0, I) given theta. The effects in
    their own space are the other coordinates of the package: `own_places` says where all of them lie.
    """

    glm: ConditionalGLM
    start: Any
    labels: tuple[tuple[str, str], ...] = eqx.field(static=True)
    """Of each scale: what its free coordinates are called."""
    layout: Layout
    likelihood: AbstractLikelihood
    response: Any
    weights: None
    constant: Any
    fixed_names: tuple[str, ...] = eqx.field(static=True)
    blocks: tuple[SiteBlock, ...]

    def __init__(self, glm: ConditionalGLM, start: Vector, labels: Mapping[str, str]):
        """`start`: in the package's free coordinates. `labels`: of the scales, such as "log" where one is positive."""
        self.glm, self.start = glm, np.asarray(start, np.float64)[_places(glm, glm.scales.names)]
        self.labels = tuple((name, labels[name]) for name in glm.scales.names)
        self.likelihood, response = _likelihood(glm, jnp.asarray(self.start, start.dtype))
        self.response = np.asarray(response, np.float64)
        self.weights, self.constant = None, np.asarray(0.0)
        sites = list(zip(glm.effects.names, glm.effects.shapes, glm.predictor_rows.patterns, strict=True))
        few = tuple(SiteBlock(name, shape, pattern) for name, shape, pattern in sites if pattern is not None)
        full = sum(math.prod(shape) for _, shape, pattern in sites if pattern is None)
        self.layout = choose_layout(full, few, len(self.response))
        self.fixed_names = tuple(name for name, shape, _ in sites if shape == ())
        self.blocks = tuple(SiteBlock(name, shape, None) for name, shape, _ in sites if shape != ())

    @property
    def num_hyperparameters(self) -> int:
        """Free coordinates of the scales."""
        return self.glm.scales.size

    @property
    def num_effects(self) -> int:
        """All other free coordinates."""
        return self.glm.effects.size

    @property
    def num_rows(self) -> int:
        """Of the data."""
        return len(self.response)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Those of the scales with their labels, and of the effects."""
        scales, effects = self.glm.scales(jnp.asarray(self.start)), self.glm.effects(jnp.zeros(self.num_effects))
        first = [name for stem, label in self.labels for name in element_names({stem: scales[stem]}, [label])]
        return (*first, *(name for stem in effects for name in element_names({stem: effects[stem]})))

    @property
    def default_location(self) -> np.ndarray:
        """The package's own first scales, no effects."""
        return np.concatenate([self.start, np.zeros(self.num_effects)])

    def log_hyperprior(self, theta: Any) -> Any:
        """Of the free coordinates, and what the rows have of constants that depend on them."""

        def one(theta: Vector) -> Any:
            return self.glm.log_prior(theta) + self.glm.conditional(theta).constant

        return jnp.vectorize(one, signature="(d)->()")(theta)

    def reported(self, theta: Vector) -> dict[str, Any]:
        """The scales in their own space, entry by entry."""
        zero = self.glm.effects(jnp.zeros(self.num_effects, theta.dtype))
        values = self.glm.anatomy(self.glm.sites(theta, zero)[0]).values
        found = {}
        for name in self.glm.scales.names:
            found |= dict(zip(element_names({name: values[name]}), jnp.ravel(values[name]), strict=True))
        return found

    @property
    def reported_names(self) -> tuple[str, ...]:
        """Their entries."""
        found: list[str] = []
        jax.eval_shape(lambda theta: found.extend(self.reported(theta)), jnp.asarray(self.start))
        return tuple(found)

    @property
    def own_places(self) -> tuple[np.ndarray, np.ndarray]:
        """In the package's free coordinates."""
        names = (*self.fixed_names, *(block.name for block in self.blocks))
        return _places(self.glm, self.glm.scales.names), _places(self.glm, names)

    def effect_rows(self, theta: Any) -> SparseRows:
        """Single numbers first, then the other sites."""
        entries, order = self.glm.own_effects(theta), self._order()
        starts = np.cumsum([0, *self.glm.effect_rows.sizes[:-1]])
        index = [start + part for start, part in zip(starts, self.glm.effect_rows.index(len(order)), strict=True)]
        return SparseRows(jnp.concatenate(index, axis=1)[order], jnp.concatenate(entries.values, 1)[order])

    def effect_shift(self, theta: Any) -> Any:
        """The prior means of the effects given theta."""
        return self.glm.own_effects(theta).offset[self._order()]

    def _order(self) -> np.ndarray:
        """Of the effects as they are reported, in the order of u."""
        names, sizes = self.glm.effects.names, self.glm.effect_rows.sizes
        starts = dict(zip(names, np.cumsum([0, *sizes[:-1]]), strict=True))
        first = [[starts[name]] for name in self.fixed_names]
        return np.concatenate([*first, *(starts[block.name] + np.arange(block.size) for block in self.blocks)]).astype(
            int
        )

    def conditional(self, theta: Vector) -> Conditional:
        """The rows at theta in the places of the layout, under N(0, I)."""
        given, layout = self.glm.conditional(theta), self.layout
        index, values, border = self._arranged(given.rows)
        count, width, outer = layout.count, layout.width, layout.border
        return Conditional(
            index=index,
            values=values,
            border=border,
            prior=Bordered(
                jnp.tile(jnp.eye(width), (count, 1, 1)),
                jnp.zeros((count - 1, width, width)) if layout.chained else None,
                jnp.zeros((count, width, outer)),
                jnp.eye(outer),
            ),
            log_det=jnp.asarray(0.0),
            null=None,
            likelihood=given.likelihood,
            response=given.response,
            offset=given.rows.offset,
            weights=None,
            constant=jnp.asarray(self.constant),
        )

    def _arranged(self, rows: Entries) -> tuple[Any, Any, Any]:
        """Entries of sites inside the layout's blocks, and columns of all others."""
        length, inside = self.num_rows, iter(self.layout.inside)
        index, values, slabs, start = [jnp.zeros((length, 0), int)], [jnp.zeros((length, 0))], [], 0
        for pattern, part, size in zip(
            self.glm.predictor_rows.patterns, rows.values, self.glm.predictor_rows.sizes, strict=True
        ):
            if pattern is None:
                slabs.append(part)
            elif next(inside):
                index.append(jnp.asarray(self.layout.place)[start + pattern.index])
                values.append(part)
            else:
                table = jnp.zeros((length, size))
                slabs.append(table.at[jnp.arange(length)[:, None], pattern.index].add(part))
            start += size
        border = jnp.concatenate(slabs, axis=1) if slabs else jnp.zeros((length, 0))
        return jnp.concatenate(index, axis=1), jnp.concatenate(values, axis=1), border


@eqx.filter_jit
def _likelihood(glm: ConditionalGLM, theta: Vector) -> tuple[AbstractLikelihood, Any]:
    given = glm.conditional(theta)
    return given.likelihood, given.response


def _places(glm: ConditionalGLM, names: tuple[str, ...]) -> np.ndarray:
    """Where the entries of these sites lie in the package's free coordinates, in the order of the names."""
    sizes = [math.prod(shape) for shape in glm.unravel.shapes]
    ends = dict(zip(glm.unravel.names, np.cumsum(sizes), strict=True))
    spans = dict(zip(glm.unravel.names, sizes, strict=True))
    return np.concatenate([np.arange(ends[name] - spans[name], ends[name]) for name in names])
