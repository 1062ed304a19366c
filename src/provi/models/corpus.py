"""Documents as padded arrays in a few buckets of like length."""

from collections.abc import Callable
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


def coarse_width(length: int) -> int:
    """`length` rounded up to a power of two or one and a half times one: few widths, which many corpora share."""
    power = max(_NARROWEST, 2 ** max(length - 1, 0).bit_length())
    return power * 3 // 4 if length <= power * 3 // 4 and power > _NARROWEST else power


def fine_width(length: int) -> int:
    """`length` rounded up by at most an eighth, or to a multiple of 16."""
    return padded_size(length, _NARROWEST)


def _bucket_widths(lengths: np.ndarray, fewest: int, rounded: Callable[[int], int]) -> np.ndarray:
    """Widths of the buckets: from all rounded lengths, merge the neighbours that cost least until few are left.

    A bucket of fewer than `fewest` documents is merged as well.
    """
    all_widths = np.asarray([rounded(int(length)) for length in lengths])
    widths, sizes = (list(part) for part in np.unique(all_widths, return_counts=True))
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


def bucket_documents(counts: Any, fewest: int = 1, rounded: Callable[[int], int] = fine_width) -> Corpus:
    """The rows of a dense or sparse matrix of counts, in at most four buckets of at least `fewest` documents.

    The numbers of documents are padded too, so that corpora of like size share a compiled program. `rounded` gives the
    widths that there may be.
    """
    matrix = scipy.sparse.csr_matrix(counts, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    lengths = np.diff(matrix.indptr)
    widths = _bucket_widths(lengths, fewest, rounded)
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
