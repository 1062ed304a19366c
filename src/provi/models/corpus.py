"""Documents as padded arrays in a few buckets of like length."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from provi.models.padding import padded_size

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


def _bucket_widths(lengths: np.ndarray, fewest: int) -> np.ndarray:
    """Widths of the buckets: from all rounded lengths, merge the neighbours that cost least until few are left.

    A bucket of fewer than `fewest` documents is merged as well.
    """
    rounded = np.asarray([padded_size(int(length), _NARROWEST) for length in lengths])
    widths, sizes = (list(part) for part in np.unique(rounded, return_counts=True))
    while len(widths) > 1:
        costs = [sizes[i] * (widths[i + 1] - widths[i]) for i in range(len(widths) - 1)]
        small = int(np.argmin(sizes))
        if len(widths) > MOST_BUCKETS:
            merged = int(np.argmin(costs))
        elif sizes[small] < fewest:
            merged = min(small, len(costs) - 1)
        else:
            break
        sizes[merged + 1] += sizes[merged]
        del widths[merged], sizes[merged]
    return np.asarray(widths)


def bucket_documents(counts: Any, fewest: int = 1) -> Corpus:
    """The rows of a dense or sparse matrix of counts, in at most four buckets of at least `fewest` documents.

    The numbers of documents are padded too, so that corpora of like size share a compiled program.
    """
    matrix = scipy.sparse.csr_matrix(counts, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    lengths = np.diff(matrix.indptr)
    widths = _bucket_widths(lengths, fewest)
    bucket_of = np.searchsorted(widths, lengths)
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
