r"""The M-step of the correlated topic model, from statistics that mini-batches of documents update.

Given $q(z_d) = N(m_d, V_d)$, what the topics and the prior need of the documents are the means over documents

$$\bar c_{vk} = \tfrac1D\sum_dc_{dv}E_q\phi_{dvk},\qquad \bar m = \tfrac1{D'}\sum_dm_d,\qquad
\bar S = \tfrac1{D'}\sum_d(V_d + m_dm_d'),$$

the last two over the $D'$ documents that have words: one without says nothing of $\mu$ and $\Sigma$. A batch that
stands for the corpus moves them by $s\leftarrow(1-\rho)s+\rho\hat s$ (stochastic EM: Cappe and Moulines 2009, "On-line
expectation-maximization algorithm for latent data models"), and then

$$B_{vk}\propto N\bar c_{vk} + \eta,\qquad \mu = \bar m,\qquad
\Sigma = (1-\lambda)(\bar S - \mu\mu') + \lambda\tfrac{tr(\bar S - \mu\mu')}KI.$$

B is the mode under a Dirichlet prior with parameters $1+\eta$: no word is impossible. The shrinkage $\lambda$ is needed
because the words do not depend on $\sum_kz_k$, and say little of topics that are rare.

A fit starts from clusters of documents (`starting_topics`).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from provi.core.arguments import device_array
from provi.core.compilation import lean_jit
from provi.models.topics.corpus import word_totals
from provi.models.topics.model import TopicPrior

_SMALLEST_VARIANCE = 1e-2

_MOST_DOCUMENTS, _ROUNDS, _CORPUS_SHARE, _NOISE_SHAPE = 4000, 10, 0.1, 100.0


class TopicStatistics(NamedTuple):
    """Means over documents: `words` (vocabulary, topics), `first` (topics,), `second` (topics, topics), and `worded`
    (), the part of the documents that have words."""

    words: Any
    first: Any
    second: Any
    worded: Any


class Contribution(NamedTuple):
    """The same as sums over some documents, but the counts of their words by topic (documents, width, topics) still
    stand with the words' numbers (documents, width): nothing here has the size of the vocabulary."""

    words: Any
    counts: Any
    first: Any
    second: Any
    worded: Any


class GlobalSettings(NamedTuple):
    """eta, the shrinkage of the covariance, and the number N of documents that the statistics stand for; arrays."""

    word_prior: Any
    shrinkage: Any
    total: Any


def empty_statistics(topics: Any) -> TopicStatistics:
    """Zeros, for topics (vocabulary, topics)."""
    size = topics.shape[1]
    return TopicStatistics(
        *(device_array(np.zeros(s, topics.dtype)) for s in (topics.shape, (size,), (size, size), ()))
    )


@partial(lean_jit, donate="all-except-first")
def accumulate(added: tuple[Contribution, Any], total: TopicStatistics) -> TopicStatistics:
    """`total` plus a contribution times its weight, (contribution, weight); `total` is overwritten."""
    part, weight = added
    return TopicStatistics(
        total.words.at[part.words].add(weight * part.counts),
        total.first + weight * part.first,
        total.second + weight * part.second,
        total.worded + weight * part.worded,
    )


@lean_jit
def update(
    statistics: TopicStatistics, batch: TopicStatistics, rate: Any, settings: GlobalSettings
) -> tuple[TopicStatistics, Any, TopicPrior]:
    r"""$(1-\rho)s + \rho\hat s$, and the topics and the prior that follow."""
    statistics = jax.tree.map(lambda old, new: (1 - rate) * old + rate * new, statistics, batch)
    return statistics, *maximise(statistics, settings)


def maximise(statistics: TopicStatistics, settings: GlobalSettings) -> tuple[Any, TopicPrior]:
    """B (vocabulary, topics) and N(mu, Sigma) given the means over documents: the formulae at the top."""
    words = settings.total * statistics.words + settings.word_prior
    mean = statistics.first / statistics.worded
    covariance = statistics.second / statistics.worded - mean[:, None] * mean[None, :]
    # Documents that are all alike would take Sigma to zero, and its inverse with it.
    scale = jnp.maximum(jnp.mean(jnp.diagonal(covariance)), _SMALLEST_VARIANCE)
    target = scale * jnp.eye(mean.shape[0], dtype=mean.dtype)
    covariance = (1 - settings.shrinkage) * (covariance + covariance.T) / 2 + settings.shrinkage * target
    return words / jnp.sum(words, axis=0, keepdims=True), TopicPrior(mean, covariance)


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
