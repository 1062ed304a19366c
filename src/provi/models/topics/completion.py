r"""How good topics are: held-out words by document completion, and how well the first words of a topic go together.

**Completion.** Infer from one half of a document's words, predict the other half:

$$\frac1{\sum_{dv}c_{dv}}\sum_{dv}c_{dv}\log\sum_kE_{q_d}[softmax(z)_k]B_{vk},$$

c the counts of the held-out halves: the mean over words of the log of the predictive probability. The expectation is
inside the logarithm, and linear in the shares of topics: a large sample of these is all that is needed.

**Coherence.** With $D(v)$ the number of documents, of n, that have the word v, $D(v, w)$ of those that have both, and
$v_1, v_2, \dots$ the words of a topic, most probable first, two means over pairs $i<j$:

- UMass (Mimno et al. 2011): $\log\frac{D(v_i, v_j)+1}{D(v_i)}$;
- NPMI (Bouma 2009; Lau, Newman and Baldwin 2014): $\log\frac{p(v_i, v_j)}{p(v_i)p(v_j)}\big/-\log p(v_i, v_j)$ with
  $p = D/n$, in [-1, 1]: -1 for words never together, 0 for independent ones, 1 for words that only occur together.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from provi.core.arguments import available_bytes
from provi.core.compilation import lean_jit
from provi.models.topics.corpus import in_chunks, out_of_chunks
from provi.models.topics.draws import draws_from
from provi.models.topics.model import LocalPosterior

_ENTRIES, _BYTES_A_WORD = 2**16, 64


def split_tokens(counts: Any, generator: Any) -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    """The words of each document in two random halves, as count matrices; an odd word goes to the first.

    `generator` is a NumPy `Generator` or `RandomState`.
    """
    matrix: Any = scipy.sparse.csr_matrix(counts, copy=True)
    matrix.sum_duplicates()
    if not (np.isfinite(matrix.data) & (matrix.data >= 0) & (matrix.data == np.floor(matrix.data))).all():
        raise ValueError("counts must be whole numbers of words to be split in halves; round them, or split yourself.")
    needed, there = _BYTES_A_WORD * float(matrix.data.sum(dtype=np.float64)), available_bytes()
    if needed > there:
        raise MemoryError(
            f"To split counts, {needed / _BYTES_A_WORD:.3g} words in all, takes {needed / 2**30:.2g} GiB, but "
            f"{there / 2**30:.2g} GiB are free: split a part of the documents at a time."
        )
    numbers = matrix.data.astype(np.int64)
    entry = np.repeat(np.arange(len(numbers)), numbers)
    document = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))[entry]
    shuffled = np.lexsort((generator.permutation(len(entry)), document))
    sizes = np.bincount(document, minlength=matrix.shape[0])
    place = np.arange(len(entry)) - (np.cumsum(sizes) - sizes)[document]
    first = np.bincount(entry[shuffled[2 * place < sizes[document]]], minlength=len(numbers))
    return _with_data(matrix, first), _with_data(matrix, numbers - first)


def _with_data(matrix, data):
    part = scipy.sparse.csr_matrix((data.astype(matrix.dtype), matrix.indices, matrix.indptr), shape=matrix.shape)
    part = part.copy()
    part.eliminate_zeros()
    return part


@lean_jit
def mean_shares(posterior: LocalPosterior, points: Any) -> Any:
    """E softmax(z) of each document, (documents, topics), by `points` (draws, topics), the same for all documents."""

    def average(mean, root):
        return jnp.mean(jax.nn.softmax(draws_from(mean, root, points), axis=1), axis=0)

    chunks = in_chunks((posterior.mean, posterior.root))
    shares = jax.lax.map(lambda chunk: jax.vmap(average)(*chunk), chunks)
    return out_of_chunks(shares, posterior.mean.shape[0])


def token_log_probabilities(shares: np.ndarray, components: np.ndarray, counts: Any) -> tuple[float, float]:
    """The sum over words of the log probability, and the number of words.

    **Arguments:** `shares` (documents, topics); `components`, p(word | topic), (topics, vocabulary); `counts`
    (documents, vocabulary), dense or sparse, which stays sparse.
    """
    matrix: Any = scipy.sparse.coo_matrix(counts)
    total = 0.0
    for start in range(0, len(matrix.data), _ENTRIES):
        part = slice(start, start + _ENTRIES)
        chances = np.einsum("ik,ki->i", shares[matrix.row[part]], components[:, matrix.col[part]])
        total += float(np.sum(matrix.data[part] * np.log(chances)))
    return total, float(matrix.data.sum())


def umass_coherence(words: np.ndarray, counts: Any) -> float:
    """UMass of one topic's words (word numbers, most probable first) in a matrix of counts, one document a row.

    Pairs with a word that no document has are left out; nan if there are no others.
    """
    single, together, _ = _document_frequencies(words, counts)
    first, second = np.triu_indices(len(words), 1)
    known = (single[first] > 0) & (single[second] > 0)
    first, second = first[known], second[known]
    return float(np.mean(np.log((together[first, second] + 1) / single[first]))) if len(first) else float("nan")


def npmi_coherence(words: np.ndarray, counts: Any) -> float:
    """NPMI of one topic's words in a matrix of counts, one document a row; 0 for two words that all documents have.

    Pairs with a word that no document has are left out; nan if there are no others.
    """
    single, together, size = _document_frequencies(words, counts)
    first, second = np.triu_indices(len(words), 1)
    known = (single[first] > 0) & (single[second] > 0)
    first, second = first[known], second[known]
    if not len(first):
        return float("nan")
    joint = together[first, second] / size
    scores = np.full(len(joint), -1.0)
    scores[joint == 1] = 0.0
    inside = (joint > 0) & (joint < 1)
    independent = single[first] * single[second] / size**2
    scores[inside] = np.log(joint[inside] / independent[inside]) / -np.log(joint[inside])
    return float(np.mean(scores))


def _document_frequencies(words, counts):
    """D(v) and D(v, w) of the words of one topic, and n."""
    columns: Any = scipy.sparse.csc_matrix(counts)
    present: Any = scipy.sparse.csr_matrix(columns[:, words] > 0, dtype=np.float64)
    together = (present.T @ present).toarray()
    return np.diag(together), together, present.shape[0]
