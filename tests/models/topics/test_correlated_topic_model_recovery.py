"""Planted topics and correlations of topics are found again, by all ways to fit."""

from functools import cache

import numpy as np
import pytest

from provi.models import CorrelatedTopicModel
from provi.models.topics.completion import split_tokens
from provi.models.topics.scoring import completion_score
from support.planted_topics import TOPICS, WORDS, matched, planted_corpus, planted_topics

DOCUMENTS, BATCH = 1000, 100
OPTIONS = dict(batch_size=BATCH, tol=None)


def check_correlations(model, z):
    """All within 0.15 of those of the planted z, which are drawn with standard errors of 0.03.

    Fits attenuate positive correlations: given the planted topics EM ends at 0.29 in pairs where z has 0.33 (q is a
    Gaussian, Sigma is shrunk), and with topics to be learned, from the planted ones, at 0.26.
    """
    found, overlaps = matched(model)
    assert overlaps.min() > 0.9
    expected = np.corrcoef((z - z.mean(axis=1, keepdims=True)).T)
    np.testing.assert_allclose(model.topic_correlation_[np.ix_(found, found)], expected, atol=0.15)


@cache
def fitted(seed=0):
    return CorrelatedTopicModel(TOPICS, max_iter=40, random_state=seed, **OPTIONS).fit(planted_corpus(DOCUMENTS)[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_topics_and_correlations_are_found(seed):
    check_correlations(fitted(seed), planted_corpus(DOCUMENTS)[2])


def test_topics_that_have_nothing_to_do_with_each_other_are_not_correlated():
    """For z less its mean that is a correlation of -1/3."""
    counts, _, z = planted_corpus(DOCUMENTS, correlated=False)
    check_correlations(CorrelatedTopicModel(TOPICS, max_iter=20, random_state=0, **OPTIONS).fit(counts), z)


@pytest.mark.parametrize("options", [{"covariance": "diagonal"}, {"warm_starts": False}, {"batch_size": DOCUMENTS}])
def test_other_ways_to_fit_find_the_topics(options):
    model = CorrelatedTopicModel(TOPICS, max_iter=10, random_state=0, **(OPTIONS | options)).fit(
        planted_corpus(DOCUMENTS)[0]
    )
    assert matched(model)[1].min() > 0.8


def test_a_stream_of_batches_finds_the_topics():
    """`partial_fit` over two passes, the documents in order."""
    counts, _, _ = planted_corpus(DOCUMENTS)
    model = CorrelatedTopicModel(TOPICS, random_state=0, total_samples=DOCUMENTS)
    for start in [*range(0, DOCUMENTS, BATCH)] * 2:
        model.partial_fit(counts[start : start + BATCH])
    assert model.n_batch_iter_ == 20 and model.n_samples_seen_ == 2 * DOCUMENTS
    assert matched(model)[1].min() > 0.8


def test_shares_of_documents_are_found():
    """Documents of about 200 words with topics of nearly disjoint words: errors of the order 1 / sqrt(200)."""
    counts, shares, _ = planted_corpus(DOCUMENTS)
    found, _ = matched(fitted())
    assert np.abs(fitted().transform(counts)[:, found] - shares).mean() < 0.05


def test_held_out_halves_are_predicted_and_the_scorer_agrees():
    """Between the unigram and the planted model; `completion_score` learns mu and Sigma again, given the topics."""
    counts, _, _ = planted_corpus(DOCUMENTS)
    test, shares, _ = planted_corpus(200, seed=2)
    first, second = split_tokens(test, np.random.default_rng(0))
    value = fitted().log_predictive(first, second)
    frequencies = np.asarray(counts.sum(axis=0)).ravel() / counts.sum()
    unigram = second.multiply(np.log(frequencies)[None, :]).sum() / second.sum()
    best = second.multiply(np.log(shares @ planted_topics())).sum() / second.sum()
    assert unigram + 0.2 < value < best and value > best - 0.15
    assert fitted().log_predictive(first, second, seen_only=True) == pytest.approx(value, rel=1e-12)
    assert completion_score(fitted().components_, counts, first, second) == pytest.approx(value, abs=0.005)
    blurred = (fitted().components_ + 1 / WORDS) / 2
    assert completion_score(blurred, counts, first, second) < value - 0.02
