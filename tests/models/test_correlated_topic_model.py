"""The correlated topic model: planted topics and correlations, batches, halves, and checks of estimators."""

import copy

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment

from provi.models.correlated_topic_model import CorrelatedTopicModel
from provi.models.topics.completion import split_tokens

TOPICS, WORDS, DOCUMENTS = 4, 120, 600
# Topics 0 and 1 come together, 2 and 3 as well: for z less its mean the correlations are 0.64 in pairs, -0.82 across.
PLANTED_COVARIANCE = 4.0 * np.kron(np.eye(2), [[1.0, 0.8], [0.8, 1.0]])


def planted_corpus(seed=1, documents=DOCUMENTS):
    """Topics with 30 words of their own each and a common tenth; documents of 150 to 250 words from the model."""
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(TOPICS), np.ones(WORDS // TOPICS)) * rng.uniform(0.5, 1.5, WORDS)
    topics = 0.9 * topics / topics.sum(axis=1, keepdims=True) + 0.1 / WORDS
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal(np.zeros(TOPICS), PLANTED_COVARIANCE, documents)
    shares = np.exp(z - z.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    lengths = rng.integers(150, 251, documents)
    counts = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, shares @ topics, strict=True)])
    return sp.csr_matrix(counts.astype(float)), topics, shares


COUNTS, PLANTED, SHARES = planted_corpus()


LONG = dict(batch_size=100, max_iter=60, tol=1e-5)


@pytest.fixture(scope="module")
def fitted():
    return CorrelatedTopicModel(TOPICS, random_state=0, **LONG).fit(COUNTS)


def matched(components):
    """The planted topic of each found one, by the assignment with the largest overlap, and the overlaps."""
    overlap = np.minimum(components[:, None, :], PLANTED[None]).sum(axis=2)
    found, planted = linear_sum_assignment(-overlap)
    return planted, overlap[found, planted]


def contrast_correlation(covariance):
    """Correlations of z less its mean over topics: those of z itself depend on the shift, which the words do not."""
    centre = np.eye(TOPICS) - 1 / TOPICS
    inside = centre @ covariance @ centre
    return inside / np.sqrt(np.outer(np.diag(inside), np.diag(inside)))


def check_recovery(model):
    """Overlaps above 0.9, correlations in pairs above 0.3, across below -0.4.

    The topics that come together are told apart slowly: at the end of a fit the correlations in pairs are 0.38 to 0.41,
    after one that starts at the planted topics 0.51.
    """
    planted, overlaps = matched(model.components_)
    assert overlaps.min() > 0.9
    found = np.empty((TOPICS, TOPICS))
    found[np.ix_(planted, planted)] = contrast_correlation(model.topic_covariance_)
    assert found[0, 1] > 0.3 and found[2, 3] > 0.3
    assert max(found[i, j] for i in (0, 1) for j in (2, 3)) < -0.4


def test_planted_topics_and_correlations_are_found(fitted):
    check_recovery(fitted)
    check_recovery(CorrelatedTopicModel(TOPICS, random_state=1, **LONG).fit(COUNTS))


@pytest.mark.parametrize("options", [{"covariance": "diagonal"}, {"batch_size": DOCUMENTS, "max_iter": 30}])
def test_diagonal_posteriors_and_plain_em_find_the_topics(options):
    """From the same start as the others; with 10 passes, and 30 of plain EM, less sharply: overlaps above 0.7."""
    model = CorrelatedTopicModel(TOPICS, random_state=0, **({"batch_size": 100} | options)).fit(COUNTS)
    assert matched(model.components_)[1].min() > 0.7


def test_shares_of_documents_are_found(fitted):
    """Documents of about 200 words with topics of nearly disjoint words: errors of the order 1 / sqrt(200)."""
    planted, _ = matched(fitted.components_)
    shares = fitted.transform(COUNTS)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-12)
    error = np.abs(shares - SHARES[:, planted]).mean()
    assert error < 0.05


def test_the_elbo_rises_and_score_is_that_of_converged_documents(fitted):
    """After the first two passes a fall of more than 1e-3 nats per word would be no noise of the draws."""
    per_word = fitted.elbo_ / COUNTS.sum()
    assert fitted.n_iter_ == len(per_word) and (np.diff(per_word) > -1e-3).all() and per_word[-1] > per_word[0]
    score = fitted.score(COUNTS)
    assert abs(score - per_word[-1]) < 5e-3
    assert fitted.perplexity(COUNTS) == pytest.approx(np.exp(-score), rel=1e-12)
    # Below the entropy of a word given the planted topics and shares, above that of a word of the corpus as a whole.
    frequencies = np.asarray(COUNTS.sum(axis=0)).ravel() / COUNTS.sum()
    known = COUNTS.multiply(np.log(SHARES @ PLANTED)).sum() / COUNTS.sum()
    assert np.sum(frequencies * np.log(frequencies)) < score < known + 0.05


def test_batches_come_close_to_fit(fitted):
    """Three passes by hand and by `fit`, from the same blurred topics and at the same rates."""
    blurred = (fitted.components_ + 1 / WORDS) / 2
    model = CorrelatedTopicModel(TOPICS, components_init=blurred, random_state=0, total_samples=DOCUMENTS)
    for _ in range(3):
        for start in range(0, DOCUMENTS, 100):
            model.partial_fit(COUNTS[start : start + 100])
    assert model.n_batch_iter_ == 18 and model.n_samples_seen_ == 3 * DOCUMENTS and model.seen_words_.all()
    assert matched(model.components_)[1].min() > 0.7
    passes = CorrelatedTopicModel(
        TOPICS, components_init=blurred, batch_size=100, max_iter=3, learning_rate="decay", random_state=0
    ).fit(COUNTS)
    assert abs(model.score(COUNTS) - passes.score(COUNTS)) < 0.01
    again = copy.deepcopy(fitted).partial_fit(COUNTS[:100])
    assert 0 < np.abs(again.components_ - fitted.components_).max() < 0.01


def test_held_out_halves_are_predicted(fitted):
    """Between the unigram and the planted model, by thresholds set beforehand; words not seen count with eta."""
    test, _, shares = planted_corpus(seed=2, documents=200)
    first, second = split_tokens(test, np.random.default_rng(0))
    value = fitted.log_predictive(first, second)
    frequencies = np.asarray(COUNTS.sum(axis=0)).ravel() / COUNTS.sum()
    unigram = second.multiply(np.log(frequencies)[None, :]).sum() / second.sum()
    best = second.multiply(np.log(shares @ PLANTED)).sum() / second.sum()
    assert unigram + 0.2 < value < best and value > best - 0.15
    assert fitted.log_predictive(first, second, seen_only=True) == pytest.approx(value, rel=1e-12)
    with pytest.raises(ValueError, match="held_out 200"):
        fitted.log_predictive(first[:3], second)


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
    planted, _ = matched(fitted.components_)
    names = [f"word{i}" for i in range(WORDS)]
    for topic, words in zip(planted, fitted.top_words(5, names), strict=True):
        assert {int(w[4:]) // (WORDS // TOPICS) for w in words} == {topic}
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
    """The draws differ between the precisions, so the ELBOs agree to 0.01 nats per word, not more."""
    options = dict(batch_size=100, max_iter=3, random_state=0)
    model = CorrelatedTopicModel(TOPICS, **options).fit(COUNTS.astype(np.float32))
    double = CorrelatedTopicModel(TOPICS, **options).fit(COUNTS)
    assert model.components_.dtype == model.topic_covariance_.dtype == np.float32
    assert model.transform(COUNTS[:9]).dtype == np.float32
    assert np.abs(model.elbo_ - double.elbo_).max() < 0.01 * COUNTS.sum()


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({}, np.full((4, 3), np.nan), "NaN"),
        ({}, -np.ones((4, 3)), "Negative values"),
        ({}, np.zeros((4, 3)), "X has no words"),
        ({"n_components": 0}, np.ones((4, 3)), "n_components must be at least 1"),
        ({"covariance": "spherical"}, np.ones((4, 3)), "covariance must be one of"),
        ({"inference": "gibbs"}, np.ones((4, 3)), "inference must be one of"),
        ({"learning_rate": "fast"}, np.ones((4, 3)), "learning_rate must be one of"),
        ({"topic_word_prior": 0.0}, np.ones((4, 3)), "topic_word_prior must be a positive"),
        ({"components_init": np.ones((2, 3))}, np.ones((4, 3)), "components_init must be positive"),
        ({"local_tol": -1.0}, np.ones((4, 3)), "local_tol must not be negative"),
        ({"tol": -1.0}, np.ones((4, 3)), "tol must not be negative"),
        ({"max_local_iter": 0}, np.ones((4, 3)), "max_local_iter must be at least 1"),
        ({"steps_per_visit": 0}, np.ones((4, 3)), "steps_per_visit must be at least 1"),
        ({"batch_size": 0}, np.ones((4, 3)), "batch_size must be at least 1"),
        ({"covariance_shrinkage": 0.0}, np.ones((4, 3)), "covariance_shrinkage must be in"),
        ({"learning_decay": 2.0}, np.ones((4, 3)), "learning_decay must be in"),
        ({"total_samples": 0}, np.ones((4, 3)), "total_samples must be a positive"),
    ],
)
def test_bad_arguments_are_named(options, data, message):
    with pytest.raises(ValueError, match=message):
        CorrelatedTopicModel(**options).fit(data)
