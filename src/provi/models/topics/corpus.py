"""Documents as padded arrays in a few buckets of like length, worked on in chunks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from provi.core.compilation import padded_size

MOST_BUCKETS = 4
"""Each bucket is a loop to compile; with four, the AP corpus takes 1.5 times its nonzero counts."""

CHUNK = 8
"""Documents that are iterated together: few, so that one slow document keeps few others waiting."""

_NARROWEST, _FEWEST_ROWS = 16, 64


class Documents(NamedTuple):
    """Word numbers and counts, (documents, widest); padding has the count zero, a padded document no words."""

    words: Any
    counts: Any


class Corpus(NamedTuple):
    """The buckets, the number of true documents in each, and the row of the count matrix of each of them."""

    buckets: tuple[Documents, ...]
    sizes: tuple[int, ...]
    rows: tuple[np.ndarray, ...]


def coarse_width(length: int) -> int:
    """`length` rounded up to a power of two or one and a half times one: few widths, which many corpora share."""
    power = max(_NARROWEST, 2 ** max(length - 1, 0).bit_length())
    return power * 3 // 4 if length <= power * 3 // 4 and power > _NARROWEST else power


def fine_width(length: int) -> int:
    """`length` rounded up by at most an eighth, or to a multiple of 16."""
    return padded_size(length, _NARROWEST)


def _bucket_sizes(lengths: np.ndarray, fewest: int, rounded: Callable[[int], int]) -> tuple[np.ndarray, np.ndarray]:
    """Widths and sizes of the buckets: from all rounded lengths, merge neighbours that cost least until few are left.

    A bucket of fewer than `fewest` documents is merged with the next wider one. The widest takes what it lacks from
    the longest documents of those below, and not all of these: one long document must not widen hundreds.
    """
    all_widths = np.asarray([rounded(int(length)) for length in lengths])
    widths, sizes = (list(part) for part in np.unique(all_widths, return_counts=True))
    while len(widths) > 1:
        costs = [sizes[i] * (widths[i + 1] - widths[i]) for i in range(len(widths) - 1)]
        small = int(np.argmin(sizes[:-1]))
        if len(widths) > MOST_BUCKETS:
            merged = int(np.argmin(costs))
        elif sizes[small] < fewest:
            merged = small
        else:
            break
        sizes[merged + 1] += sizes[merged]
        del widths[merged], sizes[merged]
    for i in range(len(sizes) - 1, 0, -1):
        lack = max(0, fewest - sizes[i])
        sizes[i], sizes[i - 1] = sizes[i] + lack, sizes[i - 1] - lack
    if len(sizes) > 1 and sizes[0] < fewest:
        sizes[1] += sizes[0]
        del widths[0], sizes[0]
    return np.asarray(widths), np.asarray(sizes)


def word_totals(counts: Any) -> np.ndarray:
    """The sum of each column of a dense or sparse matrix, in double precision; SciPy's own sorts a matrix in place."""
    if not scipy.sparse.issparse(counts):
        return np.asarray(counts).sum(axis=0, dtype=np.float64)
    matrix: Any = counts.tocsr()
    return np.bincount(matrix.indices, matrix.data, minlength=matrix.shape[1])


def with_words(counts: Any) -> Any:
    """The rows that have words."""
    if not scipy.sparse.issparse(counts):
        return counts[np.asarray(counts).any(axis=1)]
    matrix: Any = counts.tocsr()
    return matrix[np.add.reduceat(np.append(matrix.data, 0) != 0, matrix.indptr[:-1]) * np.diff(matrix.indptr) > 0]


def bucket_documents(counts: Any, fewest: int = 1, rounded: Callable[[int], int] = fine_width) -> Corpus:
    """The rows of a dense or sparse matrix of counts, in at most four buckets of at least `fewest` documents.

    The numbers of documents are padded too, so that corpora of like size share a compiled program. `rounded` gives the
    widths that there may be.
    """
    matrix = scipy.sparse.csr_matrix(counts, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    lengths = np.diff(matrix.indptr)
    widths, amounts = _bucket_sizes(lengths, fewest, rounded)
    bucket_of = np.empty(len(lengths), int)
    bucket_of[np.argsort(lengths, kind="stable")] = np.repeat(np.arange(len(widths)), amounts)
    buckets, sizes, rows = [], [], []
    for number, width in enumerate(widths):
        chosen = np.flatnonzero(bucket_of == number)
        shape = (padded_size(len(chosen), _FEWEST_ROWS), int(width))
        words, values = np.zeros(shape, np.int32), np.zeros(shape, matrix.dtype)
        part = matrix[chosen]
        filled = np.arange(width)[None, :] < lengths[chosen][:, None]
        words[: len(chosen)][filled] = part.indices
        values[: len(chosen)][filled] = part.data
        buckets.append(Documents(jnp.asarray(words), jnp.asarray(values)))
        sizes.append(len(chosen))
        rows.append(chosen)
    return Corpus(tuple(buckets), tuple(sizes), tuple(rows))


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
