"""The estimator of the correlated topic model: ELBOs, batches, odd documents, words and precision."""

import copy

import numpy as np
import pytest

from provi.models import CorrelatedTopicModel
from support.planted_topics import TOPICS, WORDS, matched, planted_corpus, planted_topics

DOCUMENTS = 400
COUNTS, SHARES, _ = planted_corpus(DOCUMENTS)


@pytest.fixture(scope="module")
def fitted():
    return CorrelatedTopicModel(TOPICS, batch_size=100, random_state=0).fit(COUNTS)


def test_the_elbo_rises_and_score_is_that_of_converged_documents(fitted):
    """After the first two passes a fall of more than 1e-3 nats per word would be no noise of the draws."""
    per_word = fitted.elbo_ / COUNTS.sum()
    assert fitted.n_iter_ == len(per_word) and (np.diff(per_word) > -1e-3).all() and per_word[-1] > per_word[0]
    score = fitted.score(COUNTS)
    assert abs(score - per_word[-1]) < 5e-3
    assert fitted.perplexity(COUNTS) == pytest.approx(np.exp(-score), rel=1e-12)
    # Below the entropy of a word given the planted topics and shares, above that of a word of the corpus as a whole.
    frequencies = np.asarray(COUNTS.sum(axis=0)).ravel() / COUNTS.sum()
    known = COUNTS.multiply(np.log(SHARES @ planted_topics())).sum() / COUNTS.sum()
    assert np.sum(frequencies * np.log(frequencies)) < score < known + 0.05


def test_batches_come_close_to_fit(fitted):
    """Three passes by hand and by `fit`, from the same blurred topics and at the same rates."""
    blurred = (fitted.components_ + 1 / WORDS) / 2
    model = CorrelatedTopicModel(TOPICS, components_init=blurred, random_state=0, total_samples=DOCUMENTS)
    for _ in range(3):
        for start in range(0, DOCUMENTS, 100):
            model.partial_fit(COUNTS[start : start + 100])
    assert model.n_batch_iter_ == 12 and model.n_samples_seen_ == 3 * DOCUMENTS and model.seen_words_.all()
    assert matched(model)[1].min() > 0.7
    passes = CorrelatedTopicModel(
        TOPICS, components_init=blurred, batch_size=100, max_iter=3, learning_rate="decay", random_state=0
    ).fit(COUNTS)
    assert abs(model.score(COUNTS) - passes.score(COUNTS)) < 0.01
    again = copy.deepcopy(fitted).partial_fit(COUNTS[:100])
    assert 0 < np.abs(again.components_ - fitted.components_).max() < 0.01


def test_halves_of_different_documents_are_refused(fitted):
    with pytest.raises(ValueError, match="held_out 200"):
        fitted.log_predictive(COUNTS[:3], COUNTS[:200])


def test_empty_documents_unseen_words_and_one_topic():
    X = COUNTS[:60].toarray()
    X[:2] = 0
    X[:, 0] = 0
    model = CorrelatedTopicModel(TOPICS, max_iter=2, batch_size=60, topic_word_prior=0.5, random_state=0).fit(X)
    assert np.isfinite(model.elbo_).all() and not model.seen_words_[0] and model.seen_words_.sum() == WORDS - 1
    shares = model.transform(X)
    np.testing.assert_allclose(shares[0], shares[1], rtol=1e-12)
    unseen = np.zeros((1, WORDS))
    unseen[0, 0] = 4
    words = X.sum() + 0.5 * WORDS * TOPICS
    sizes = 0.5 / model.components_[:, 0]
    assert sizes.sum() == pytest.approx(words, rel=1e-9)
    assert np.isfinite(model.score(unseen)) and np.isfinite(model.log_predictive(X[:1], unseen))
    with pytest.raises(ValueError, match="held_out has no words"):
        model.log_predictive(X[:1], unseen, seen_only=True)
    with pytest.raises(ValueError, match="X has no words"):
        model.score(np.zeros((2, WORDS)))
    one = CorrelatedTopicModel(1, max_iter=2, topic_word_prior=0.5).fit(X)
    np.testing.assert_allclose(one.components_[0], (0.5 + X.sum(axis=0)) / (X.sum() + 0.5 * WORDS), rtol=1e-9)


def test_top_words_and_coherence(fitted):
    found, _ = matched(fitted)
    names = [f"word{i}" for i in range(WORDS)]
    best = fitted.top_words(5, names)
    for topic in range(TOPICS):
        assert {int(word[4:]) // (WORDS // TOPICS) for word in best[found[topic]]} == {topic}
    assert fitted.top_words(3)[0] == [int(w[4:]) for w in fitted.top_words(3, names)[0]]
    assert fitted.coherence(COUNTS).shape == fitted.coherence(COUNTS, measure="umass").shape == (TOPICS,)
    shuffled = CorrelatedTopicModel(TOPICS, batch_size=100, random_state=0)
    shuffled.__dict__.update(fitted.__dict__)
    shuffled.components_ = np.random.default_rng(0).permuted(fitted.components_, axis=1)
    assert fitted.coherence(COUNTS).min() > shuffled.coherence(COUNTS).max()
    assert fitted.coherence(COUNTS, measure="umass").min() > shuffled.coherence(COUNTS, measure="umass").max()
    with pytest.raises(ValueError, match="vocabulary has 2 words"):
        fitted.top_words(5, ["a", "b"])
    with pytest.raises(ValueError, match="measure must be"):
        fitted.coherence(COUNTS, measure="pmi")


@pytest.mark.parametrize("inference", ["laplace", "delta", "mean-field"])
def test_other_methods_run_in_the_same_estimator(inference):
    model = CorrelatedTopicModel(TOPICS, inference=inference, batch_size=100, max_iter=3, random_state=0).fit(COUNTS)
    assert (np.diff(model.elbo_) > 0).all() and np.isfinite(model.topic_covariance_).all()


def test_float32_stays_float32():
    """With the same draws in both precisions; measured are 5e-8 nats per word between the ELBOs."""
    options = dict(batch_size=100, max_iter=3, random_state=0)
    model = CorrelatedTopicModel(TOPICS, **options).fit(COUNTS.astype(np.float32))
    double = CorrelatedTopicModel(TOPICS, **options).fit(COUNTS)
    assert model.components_.dtype == model.topic_covariance_.dtype == np.float32
    assert model.transform(COUNTS[:9]).dtype == np.float32
    assert model.topic_correlation_.dtype == np.float32
    assert np.abs(model.elbo_ - double.elbo_).max() < 1e-5 * COUNTS.sum()
