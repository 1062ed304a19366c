"""The corpora of `provi bench topics`: one half of the documents to learn from, the other to be completed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from provi.bench.topics_problem import TopicsProblem
from provi.data import load
from provi.models.topics.completion import split_tokens

NUM_SEEDS, NUM_TOPICS = 3, 10


def split_corpus(name: str, counts: Any, num_topics: int, seed: int) -> TopicsProblem:
    """Half of the documents, by a random permutation, to learn from; the words of the others in two random halves.

    The vocabulary is that of the first half of the documents: of a word that it does not have, nothing can be learnt.
    Documents with fewer than two words of this vocabulary cannot be completed and are left out.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(counts.shape[0])
    train, test = counts[order[: len(order) // 2]], counts[order[len(order) // 2 :]]
    seen = _sums(train, 0) > 0
    train, test = train[_sums(train, 1) > 0][:, seen], test[:, seen]
    observed, held_out = split_tokens(test[_sums(test, 1) > 1], generator)
    return TopicsProblem(name, num_topics, train, observed, held_out, seed)


def resampled(counts: Any, num_documents: int, num_topics: int, seed: int = 0) -> TopicsProblem:
    """Documents drawn with replacement, nothing held out: for timing alone."""
    rows = np.random.default_rng(seed).integers(counts.shape[0], size=num_documents)
    drawn = counts[rows]
    drawn = drawn[:, _sums(drawn, 0) > 0]
    return TopicsProblem(f"{num_documents} documents, {num_topics} topics", num_topics, drawn, drawn[:0], seed=seed)


def read_corpus(name: str) -> Any:
    """The counts of a stored corpus, (documents, words), without empty documents."""
    arrays = load(name).arrays
    shape = (len(arrays["indptr"]) - 1, len(arrays["vocab"]))
    counts: Any = scipy.sparse.csr_matrix((arrays["count"].astype(float), arrays["word_id"], arrays["indptr"]), shape)
    return counts[_sums(counts, 1) > 0]


def _problems(title: str, name: str) -> Callable[[], list[TopicsProblem]]:
    def make() -> list[TopicsProblem]:
        counts = read_corpus(name)
        return [split_corpus(title, counts, NUM_TOPICS, seed) for seed in range(NUM_SEEDS)]

    return make


TOPICS_PROBLEMS: dict[str, Callable[[], list[TopicsProblem]]] = {
    "ap": _problems(f"Associated Press, {NUM_TOPICS} topics", "ap_corpus"),
    "nips": _problems(f"NIPS, {NUM_TOPICS} topics", "nips_corpus"),
}


def _sums(counts, axis):
    return np.asarray(counts.sum(axis=axis)).ravel()
