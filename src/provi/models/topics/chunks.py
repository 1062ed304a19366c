"""Documents in chunks that are worked on together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.models.corpus import CHUNK


def in_chunks(tree: Any) -> Any:
    """Leaves (documents, ...) as (chunks, CHUNK, ...); what is filled up repeats the last document."""
    size = jax.tree.leaves(tree)[0].shape[0]
    indices = np.minimum(np.arange(size + -size % CHUNK), size - 1).reshape(-1, CHUNK)
    return jax.tree.map(lambda leaf: leaf[indices], tree)


def out_of_chunks(leaf: Any, size: int) -> Any:
    """The inverse of `in_chunks` for one leaf of `size` documents."""
    return leaf.reshape(-1, *leaf.shape[2:])[:size]


def map_worded(function: Callable[[Any], Any], chunks: Any) -> Any:
    """function(chunk) of each of the `chunks` (words, counts, ...), and zeros for those that have no words at all.

    A block is filled up with documents without words: more than half of it where batches are small.
    """
    shape = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], chunks))

    def nothing(_):
        return jnp.zeros(shape.shape, shape.dtype)

    return jax.lax.map(lambda chunk: jax.lax.cond(jnp.any(chunk[1] > 0), function, nothing, chunk), chunks)
