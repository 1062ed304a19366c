"""Where the fit of a topic model starts: clusters of documents."""

from typing import Any

import numpy as np
import scipy.sparse

from provi.models.corpus import word_totals

_MOST_DOCUMENTS, _ROUNDS, _CORPUS_SHARE, _NOISE_SHAPE = 4000, 10, 0.1, 100.0


def starting_topics(counts: Any, num_topics: int, word_prior: float, generator: Any) -> np.ndarray:
    """p(word | topic), (vocabulary, topics): the words of clusters of documents, mixed with those of all documents.

    The clusters are those of spherical k-means (Dhillon and Modha 2001), from seeds far from each other, on log counts
    weighted against words that many documents have, of at most 4000 documents. A tenth of each topic is the
    frequency of the word in all documents plus `word_prior`, and each entry has 10% noise: no word is impossible, and
    no two topics are the same.
    """
    matrix = scipy.sparse.csr_matrix(counts, dtype=np.float64)
    corpus = word_totals(matrix) + word_prior
    chosen = np.flatnonzero(np.diff(matrix.indptr) > 0)
    if len(chosen) > _MOST_DOCUMENTS:
        chosen = np.sort(generator.choice(chosen, _MOST_DOCUMENTS, replace=False))
    matrix = matrix[chosen]
    cluster = _spherical_clusters(_directions(matrix), num_topics, generator)
    members = scipy.sparse.csr_matrix(
        (np.ones(len(cluster)), (cluster, np.arange(len(cluster)))), shape=(num_topics, len(cluster))
    )
    topics = (members @ matrix).toarray()
    sizes = topics.sum(axis=1, keepdims=True)
    frequencies = (corpus / corpus.sum())[None, :]
    topics = np.where(sizes > 0, topics / np.where(sizes > 0, sizes, 1), frequencies)
    topics = (1 - _CORPUS_SHARE) * topics + _CORPUS_SHARE * frequencies
    topics *= generator.gamma(_NOISE_SHAPE, 1 / _NOISE_SHAPE, topics.shape)
    return (topics / topics.sum(axis=1, keepdims=True)).T


def _directions(matrix):
    """Rows log(1 + count) log(1 + documents / documents with the word), of length one."""
    documents_with = np.bincount(matrix.indices, minlength=matrix.shape[1])
    rarity = np.log1p(matrix.shape[0] / np.maximum(documents_with, 1))
    weighted = scipy.sparse.csr_matrix(
        (np.log1p(matrix.data) * rarity[matrix.indices], matrix.indices, matrix.indptr), shape=matrix.shape
    )
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return scipy.sparse.diags(1 / np.where(lengths > 0, lengths, 1)) @ weighted


def _spherical_clusters(rows, number, generator):
    """The cluster of each row; seeds are drawn with chances that grow with the distance from those before."""
    if rows.shape[0] == 0:
        return np.zeros(0, int)
    nearest = np.full(rows.shape[0], -np.inf)
    seeds = []
    for _ in range(number):
        distances = np.maximum(1 - nearest, 0) if seeds else np.ones(rows.shape[0])
        chances = distances / distances.sum() if distances.sum() > 0 else None
        seeds.append(generator.choice(rows.shape[0], p=chances))
        nearest = np.maximum(nearest, (rows @ rows[[seeds[-1]]].T).toarray().ravel())
    centres = rows[seeds].toarray()
    for _ in range(_ROUNDS):
        cluster = np.argmax(rows @ centres.T, axis=1)
        members = scipy.sparse.csr_matrix(
            (np.ones(len(cluster)), (cluster, np.arange(len(cluster)))), shape=(number, len(cluster))
        )
        sums = (members @ rows).toarray()
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > 0, sums / np.where(lengths > 0, lengths, 1), centres)
    return np.argmax(rows @ centres.T, axis=1)
