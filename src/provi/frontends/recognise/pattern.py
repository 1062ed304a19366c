"""Jacobians with few entries a row, from few directional derivatives.

Columns that no row has two of may share a direction: the derivative along the sum of them is then, row by row, the one
entry that is there (Curtis, Powell and Reid 1974). One direction serves all levels of a grouping, however many.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.frontends.recognise.sparsity import MOST_ENTRIES


class RowPattern(eqx.Module):
    """Where the rows over one site have entries: `index` (N, k), of which only those that are `real` count.

    `colour`: the direction that each column of the site belongs to.
    """

    index: np.ndarray
    real: np.ndarray
    colour: np.ndarray
    num_colours: int = eqx.field(static=True)

    def directions(self) -> Any:
        """(colours, size) one direction a row."""
        return jnp.asarray(np.arange(self.num_colours)[:, None] == self.colour[None, :], float)

    def values(self, derivatives: Any) -> Any:
        """The entries (N, k), from the derivatives (colours, N) along the directions."""
        rows = jnp.arange(self.index.shape[0])[:, None]
        return jnp.where(jnp.asarray(self.real), derivatives[jnp.asarray(self.colour)[self.index], rows], 0.0)


class AffineRows(eqx.Module):
    """How the rows of an affine function of several sites, one after another in a vector, are found.

    `patterns`: one a site; None where rows are full.
    """

    sizes: tuple[int, ...] = eqx.field(static=True)
    patterns: tuple[RowPattern | None, ...]

    def __call__(self, function: Callable[[Any], tuple[Any, Any]], zero: Any) -> tuple[Any, tuple[Any, ...], Any]:
        """Of a function that returns rows and something else, at `zero`: the rows, of each site entries, the else."""
        value, push, other = jax.linearize(function, zero, has_aux=True)
        found, start = [], 0
        for size, pattern in zip(self.sizes, self.patterns, strict=True):
            own = jnp.eye(size, dtype=zero.dtype) if pattern is None else pattern.directions().astype(zero.dtype)
            along = jnp.zeros((len(own), zero.size), zero.dtype).at[:, start : start + size].set(own)
            derivatives = jax.vmap(push)(along)
            found.append(derivatives.T if pattern is None else pattern.values(derivatives))
            start += size
        return value, tuple(found), other

    def index(self, length: int) -> tuple[Any, ...]:
        """Of each site, the places of the entries of `length` rows, counted from its own first."""
        pairs = zip(self.sizes, self.patterns, strict=True)
        return tuple(np.tile(np.arange(n), (length, 1)) if p is None else p.index for n, p in pairs)


def pattern_of(columns: np.ndarray | None, shape: tuple[int, ...]) -> RowPattern | None:
    """The pattern of rows with these columns of a site, filled up with -1; `None` where full rows are no worse."""
    size = math.prod(shape)
    if columns is None or size <= MOST_ENTRIES:
        return None
    real = columns >= 0
    for colour in _colourings(shape):
        seen = np.sort(np.where(real, colour[columns], -1 - np.arange(columns.shape[1])), axis=1)
        if not (seen[:, 1:] == seen[:, :-1]).any():
            # What is not real points where the row is already, so that it connects nothing.
            first = np.where(real[:, :1], columns[:, :1], 0)
            return RowPattern(np.where(real, columns, first), real, colour, int(colour.max()) + 1)
    return None


def _colourings(shape: tuple[int, ...]) -> Any:
    """Columns coloured by their places along some axes, or by the remainder of their place: few colours first."""
    axes = range(len(shape))
    chosen = [some for count in range(len(shape) + 1) for some in itertools.combinations(axes, count)]
    chosen = [some for some in chosen if math.prod(shape[axis] for axis in some) <= MOST_ENTRIES]
    places = np.indices(shape).reshape(len(shape), -1)
    for some in sorted(chosen, key=lambda some: math.prod(shape[axis] for axis in some)):
        colour = np.zeros(math.prod(shape), np.int32)
        for axis in some:
            colour = colour * shape[axis] + places[axis]
        yield colour
    for period in range(2, MOST_ENTRIES + 1):
        yield np.arange(math.prod(shape), dtype=np.int32) % period
