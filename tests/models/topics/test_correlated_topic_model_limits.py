"""The correlated topic model at its limits: bad arguments, too little memory, odd sizes, streams and interruptions."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from provi.models import CorrelatedTopicModel
from provi.models.topics import completion, options
from provi.models.topics.completion import split_tokens

WORDS, TOPICS = 12, 3
COUNTS = np.random.default_rng(0).poisson(0.9, (60, WORDS)).astype(float)
QUICK = dict(max_iter=2, random_state=0)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """What is compiled here is used a few times: most optimisations are left out."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def model(**more):
    return CorrelatedTopicModel(**({"n_components": TOPICS} | QUICK | more))


def check_finite(fitted, X):
    """Proper topics, shares and a finite score."""
    np.testing.assert_allclose(fitted.components_.sum(axis=1), 1, rtol=1e-5)
    shares = fitted.transform(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    assert np.isfinite(shares).all() and np.isfinite(fitted.score(X)) and np.isfinite(fitted.topic_covariance_).all()
    assert np.linalg.eigvalsh(fitted.topic_covariance_)[0] > 0


@pytest.mark.parametrize(
    ("arguments", "data", "message"),
    [
        ({}, np.full((4, 3), np.nan), "NaN"),
        ({}, -np.ones((4, 3)), "Negative values"),
        ({}, np.zeros((4, 3)), "X has no words"),
        ({"n_components": 0}, np.ones((4, 3)), "n_components must be at least 1"),
        ({"n_components": "3"}, np.ones((4, 3)), "n_components must be a number, not '3'"),
        ({"covariance": "spherical"}, np.ones((4, 3)), "covariance must be one of"),
        ({"inference": "gibbs"}, np.ones((4, 3)), "inference must be one of"),
        ({"learning_rate": "fast"}, np.ones((4, 3)), "learning_rate must be one of"),
        ({"topic_word_prior": 0.0}, np.ones((4, 3)), "topic_word_prior must be a positive"),
        ({"components_init": np.ones((2, 3))}, np.ones((4, 3)), r"components_init must have the shape \(10, 3\)"),
        ({"components_init": np.eye(10, 3)}, np.ones((4, 3)), "components_init must be positive, but its least entry"),
        ({"components_init": [[1, 2], [3]]}, np.ones((4, 3)), "components_init is not a rectangular array"),
        ({"components_init": "k-means"}, np.ones((4, 3)), "components_init must hold numbers"),
        ({"local_tol": -1.0}, np.ones((4, 3)), "local_tol must not be negative"),
        ({"tol": -1.0}, np.ones((4, 3)), "tol must not be negative"),
        ({"tol": "small"}, np.ones((4, 3)), "tol must be a number, not 'small'"),
        ({"max_iter": 1.5}, np.ones((4, 3)), "max_iter must be a whole number"),
        ({"max_local_iter": 0}, np.ones((4, 3)), "max_local_iter must be at least 1"),
        ({"steps_per_visit": 0}, np.ones((4, 3)), "steps_per_visit must be at least 1"),
        ({"batch_size": 0}, np.ones((4, 3)), "batch_size must be at least 1"),
        ({"num_draws": 0}, np.ones((4, 3)), "num_draws must be at least 1"),
        ({"covariance_shrinkage": 0.0}, np.ones((4, 3)), "covariance_shrinkage must be in"),
        ({"learning_decay": 2.0}, np.ones((4, 3)), "learning_decay must be in"),
        ({"total_samples": 0}, np.ones((4, 3)), "total_samples must be a positive"),
        ({"callback": "stop"}, np.ones((4, 3)), "callback must be None or a function of the model"),
    ],
)
def test_bad_arguments_are_named(arguments, data, message):
    with pytest.raises(ValueError, match=message):
        CorrelatedTopicModel(**arguments).fit(data)
    with pytest.raises(ValueError, match=message):
        CorrelatedTopicModel(**arguments).partial_fit(data)


def test_methods_before_fit_and_other_widths_are_refused():
    for method in ("transform", "score", "perplexity", "coherence"):
        with pytest.raises(NotFittedError):
            getattr(model(), method)(COUNTS)
    for method in ("top_words", "plot_topics", "plot_correlations"):
        with pytest.raises(NotFittedError):
            getattr(model(), method)()
    fitted = model().fit(COUNTS)
    for method in (fitted.transform, fitted.score, fitted.partial_fit):
        with pytest.raises(ValueError, match="X has 5 features, but CorrelatedTopicModel is expecting 12"):
            method(COUNTS[:, :5])


def test_what_does_not_fit_in_memory_is_refused_before_any_work(monkeypatch):
    """1000 documents with K = 50: 8 * 1000 * (50 + 2500) bytes for the posteriors, which 2e7 bytes do not hold."""
    X = sp.random(1000, 30, density=0.1, random_state=0, format="csr")
    monkeypatch.setattr(options, "available_bytes", lambda: 20_000_000)
    with pytest.raises(MemoryError, match="the posteriors of 1000 documents") as refused:
        model(n_components=50, components_init="not looked at").fit(X)
    assert all(fix in str(refused.value) for fix in ("warm_starts=False", "covariance='diagonal'", "partial_fit"))
    for arguments in ({"warm_starts": False}, {"covariance": "diagonal"}, {"inference": "mean-field"}):
        with pytest.raises(ValueError, match="components_init"):  # the memory suffices: the next check
            model(n_components=50, components_init="looked at", **arguments).fit(X)
    with pytest.raises(ValueError, match="components_init"):
        model(n_components=50, components_init="looked at").fit(X.astype(np.float32))
    monkeypatch.setattr(options, "available_bytes", lambda: 10_000)
    with pytest.raises(MemoryError, match="30 words in 50 topics.*fewer words or topics"):
        model(n_components=50).partial_fit(X[:1])
    with pytest.raises(MemoryError, match="a batch of 1000.*batch_size below 1000"):
        model(n_components=50, warm_starts=False, batch_size=5000).fit(X)


def test_weights_are_counts_but_not_for_halves(monkeypatch):
    check_finite(model().fit(0.37 * COUNTS), 0.37 * COUNTS)
    for bad in (0.37 * COUNTS, COUNTS - 5, np.where(COUNTS > 2, np.nan, 1.0)):
        with pytest.raises(ValueError, match="counts must be whole numbers"):
            split_tokens(bad, np.random.default_rng(0))
    monkeypatch.setattr(completion, "available_bytes", lambda: 10**9)
    with pytest.raises(MemoryError, match="split a part of the documents"):
        split_tokens(1e9 * COUNTS, np.random.default_rng(0))


def test_huge_counts_do_no_harm_in_single_precision():
    """A billion times the counts, and 1e35 times: against double precision, with the same draws."""
    double = model().fit(1e9 * COUNTS)
    for scale in (1e9, 1e35):
        single = model().fit((scale * COUNTS).astype(np.float32))
        check_finite(single, (scale * COUNTS).astype(np.float32))
        np.testing.assert_allclose(single.elbo_ / scale, double.elbo_ / 1e9, rtol=1e-5)
    for method in (model().fit, model().partial_fit):
        for size, message in ((1e37, "topics are not finite"), (2e37, "ELBO is not finite")):
            with pytest.raises(FloatingPointError, match=message):
                method(np.full((4, WORDS), size, np.float32))


@pytest.mark.parametrize("shape", [(5, WORDS, WORDS + 1), (1, WORDS, TOPICS), (1, 1, 2)])
def test_more_topics_than_documents_or_words_one_document_one_word(shape):
    documents, words, topics = shape
    X = 1 + COUNTS[:documents, :words]
    check_finite(model(n_components=topics).fit(X), X)


def test_a_callback_that_raises_leaves_the_last_pass_and_true_ends_the_fit():
    def fail_later(fitted):
        if fitted.n_iter_ == 2:
            raise KeyboardInterrupt

    interrupted = model(callback=fail_later, max_iter=5, batch_size=20, tol=0)
    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(COUNTS)
    stopped = model(callback=lambda fitted: fitted.n_iter_ == 2, max_iter=5, batch_size=20, tol=0).fit(COUNTS)
    assert interrupted.n_iter_ == stopped.n_iter_ == 2 and not stopped.converged_
    np.testing.assert_array_equal(interrupted.components_, stopped.components_)
    np.testing.assert_array_equal(interrupted.transform(COUNTS), stopped.transform(COUNTS))


def test_a_batch_that_is_refused_changes_nothing_and_words_may_turn_up_later():
    early, late = COUNTS[:30].copy(), COUNTS[30:]
    early[:, :4] = 0
    streamed, other = (model().partial_fit(early.astype(np.float32)) for _ in range(2))
    assert list(np.flatnonzero(~streamed.seen_words_)) == [0, 1, 2, 3]
    refusals = [
        (0 * early, ValueError, "X has no words"),
        (early[:0], ValueError, "0 sample"),
        (np.full((4, WORDS), 1e37), FloatingPointError, "not finite"),
    ]
    for batch, kind, message in refusals:
        with pytest.raises(kind, match=message):
            streamed.partial_fit(batch)
    streamed.set_params(n_components=2)
    with pytest.raises(ValueError, match="n_components is 2, but the model has 3"):
        streamed.partial_fit(late)
    streamed.set_params(n_components=TOPICS)
    unseen = streamed.components_[:, :4].copy()
    for fitted in (streamed, other):
        fitted.partial_fit(late)
    np.testing.assert_array_equal(streamed.components_, other.components_)
    assert streamed.seen_words_.all() and (streamed.components_[:, :4].sum() > 10 * unseen.sum())
    assert streamed.n_batch_iter_ == 2 and streamed.n_samples_seen_ == 60
