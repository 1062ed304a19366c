"""Documents in chunks that are worked on together."""

from typing import Any

import jax
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
