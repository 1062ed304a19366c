"""The corpora of paper 002's Figure 3: half of the documents to train on, the others in two halves of words to test."""

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse

from provi.data import load
from provi.models.topics.completion import split_tokens

AP, NIPS = "AP", "NIPS"
PAPER_TOPICS, BATCH_SIZE = 10, 128

_FILES = {AP: "ap_corpus", NIPS: "nips_corpus"}


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A corpus as all methods get it; sparse matrices of counts, one document a row, over the same vocabulary.

    - `train`: the training documents.
    - `observed`, `held_out`: of each test document a random half of the words to infer its topics from, and the words
      to predict; words that no training document has are left out of both, their share of the words is `unseen`.
    - `num_topics`, `batch_size`: of all fits. `vocabulary`: the words, None for their numbers.
    """

    title: str
    train: Any
    observed: Any
    held_out: Any
    unseen: float
    num_topics: int
    batch_size: int
    vocabulary: Any = None

    @property
    def test_words(self) -> np.ndarray:
        """The number of words to predict in each test document."""
        return np.asarray(self.held_out.sum(axis=1)).ravel()

    @property
    def unigram_loss(self) -> float:
        """Nats a word when each is predicted by its frequency in training: what a model without topics would have."""
        frequencies = np.asarray(self.train.sum(axis=0)).ravel()
        counts = np.asarray(self.held_out.sum(axis=0)).ravel()
        seen = counts > 0
        return float(-counts[seen] @ np.log(frequencies[seen] / frequencies.sum()) / counts.sum())


def corpus_problem(title: str, seed: int) -> Problem:
    """`AP` or `NIPS`, ten topics; the papers do not publish their split, so it is a random one."""
    arrays = load(_FILES[title]).arrays
    shape = (len(arrays["indptr"]) - 1, len(arrays["vocab"]))
    counts = scipy.sparse.csr_matrix(
        (arrays["count"].astype(np.float64), arrays["word_id"], arrays["indptr"]), shape=shape
    )
    problem = split_corpus(title, counts, PAPER_TOPICS, BATCH_SIZE, seed)
    return dataclasses.replace(problem, vocabulary=arrays["vocab"])


def synthetic_problem(
    seed: int, documents: int = 160, vocabulary: int = 16, topics: int = 3, words: int = 40
) -> Problem:
    """Documents drawn from the model itself; topics 0 and 1 are correlated."""
    rng = np.random.default_rng([seed, documents, vocabulary])
    rows = rng.dirichlet(np.full(vocabulary, 0.1), topics)
    covariance = np.eye(topics)
    covariance[0, 1] = covariance[1, 0] = 0.7
    weights = np.exp(rng.multivariate_normal(np.zeros(topics), covariance, size=documents))
    chances = weights / weights.sum(axis=1, keepdims=True) @ rows
    counts = np.stack([rng.multinomial(words, chance / chance.sum()) for chance in chances])
    matrix = scipy.sparse.csr_matrix(counts.astype(np.float64))
    return split_corpus("synthetic", matrix, topics, documents // 8, seed)


def split_corpus(title: str, counts: Any, num_topics: int, batch_size: int, seed: int) -> Problem:
    """A random half of the documents to train on, and the words of the others in two random halves."""
    rng = np.random.default_rng(seed)
    train, test = np.array_split(rng.permutation(counts.shape[0]), 2)
    train, test = counts[train], counts[test]
    seen = (np.asarray(train.sum(axis=0)).ravel() > 0).astype(counts.dtype)
    observed, held_out = (_only(half, seen) for half in split_tokens(test, rng))
    unseen = 1 - float((observed.sum() + held_out.sum()) / test.sum())
    return Problem(title, train, observed, held_out, unseen, num_topics, batch_size)


def _only(counts: Any, words: np.ndarray) -> Any:
    kept = scipy.sparse.csr_matrix(counts @ scipy.sparse.diags_array(words))
    kept.eliminate_zeros()
    return kept
