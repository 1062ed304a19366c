r"""How well the first words of a topic go together, from the documents in which they occur.

With $D(v)$ the number of documents, of n, that have the word v, $D(v, w)$ of those that have both, and $v_1,
v_2, \dots$ the words of a topic, most probable first, two means over pairs $i<j$:

- UMass (Mimno et al. 2011): $\log\frac{D(v_i, v_j)+1}{D(v_i)}$;
- NPMI (Bouma 2009; Lau, Newman and Baldwin 2014): $\log\frac{p(v_i, v_j)}{p(v_i)p(v_j)}\big/-\log p(v_i, v_j)$ with
  $p = D/n$, in [-1, 1]: -1 for words never together, 0 for independent ones, 1 for words that only occur together.
"""

from typing import Any

import numpy as np
import scipy.sparse


def _document_frequencies(words, counts):
    """D(v) and D(v, w) of the words of one topic, and n."""
    columns: Any = scipy.sparse.csc_matrix(counts)
    present: Any = scipy.sparse.csr_matrix(columns[:, words] > 0, dtype=np.float64)
    together = (present.T @ present).toarray()
    return np.diag(together), together, present.shape[0]


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
