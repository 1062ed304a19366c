"""Latent Dirichlet allocation against scikit-learn's, sums written out, planted topics, and checks of estimators."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import digamma, gammaln
from sklearn.decomposition import LatentDirichletAllocation as TheirAllocation
from sklearn.utils.estimator_checks import check_estimator

from provi.models import LatentDirichletAllocation
from provi.models.topics.corpus import MOST_BUCKETS, bucket_documents

TOPICS, WORDS, DOCUMENTS = 3, 30, 90
PRIORS = dict(doc_topic_prior=0.2, topic_word_prior=0.05)
# The stop at a change of 1e-11 with a linear rate of at most 0.999 leaves an error below 1e-8 in gamma.
EXACT = dict(local_tol=1e-11, max_local_iter=100_000)
THEIR_EXACT = dict(mean_change_tol=1e-11, max_doc_update_iter=100_000)


def planted_corpus(seed=0):
    """Topics on disjoint thirds of the words; documents of 5 to 120 words."""
    rng = np.random.default_rng(seed)
    topics = np.kron(np.eye(TOPICS), np.ones(WORDS // TOPICS)) * rng.uniform(0.5, 1.5, WORDS)
    topics /= topics.sum(axis=1, keepdims=True)
    weights = rng.dirichlet(np.full(TOPICS, 0.3), DOCUMENTS)
    lengths = rng.integers(5, 120, DOCUMENTS)
    return np.stack([rng.multinomial(n, p) for n, p in zip(lengths, weights @ topics, strict=True)]).astype(
        float
    ), topics


COUNTS, PLANTED = planted_corpus()
START = np.random.default_rng(1).gamma(100.0, 0.01, (TOPICS, WORDS))


def scikit_learn_from_start(**options):
    theirs = TheirAllocation(TOPICS, random_state=0, **PRIORS, **THEIR_EXACT, **options)
    theirs._init_latent_vars(WORDS)
    set_components(theirs, START)
    return theirs


def set_components(theirs, components):
    theirs.components_ = components.copy()
    expected = digamma(components) - digamma(components.sum(axis=1, keepdims=True))
    theirs.exp_dirichlet_component_ = np.exp(expected)


def written_out_bound(model, X):
    """Every term of E log p - E log q with phi formed, document by document, in NumPy."""
    components, alpha, eta = model.components_, PRIORS["doc_topic_prior"], PRIORS["topic_word_prior"]

    def expected_log(c):
        return digamma(c) - digamma(c.sum(axis=-1, keepdims=True))

    def log_density(c, expected):
        return gammaln(c.sum()) - gammaln(c).sum() + ((c - 1) * expected).sum()

    topics, total = expected_log(components), 0.0
    for row in components:
        expected = expected_log(row)
        total += log_density(np.full(len(row), eta), expected) - log_density(row, expected)
    for counts, gamma in zip(X, model.transform(X, normalize=False), strict=True):
        expected = expected_log(gamma)
        total += log_density(np.full(len(gamma), alpha), expected) - log_density(gamma, expected)
        phi = np.exp(expected[:, None] + topics)
        phi /= phi.sum(axis=0)
        total += (counts * phi * (expected[:, None] + topics - np.log(phi))).sum()
    return total


def test_batch_passes_the_bound_and_the_perplexity_equal_scikit_learns():
    passes = 6
    ours = LatentDirichletAllocation(
        TOPICS, max_iter=passes, tol=0, components_init=START, **PRIORS, **EXACT
    ).fit(sp.csr_matrix(COUNTS))  # fmt: skip
    theirs = scikit_learn_from_start()
    for _ in range(passes):
        # Document 73, of six words, has two fixed points: theirs must start from ones too, not at random.
        _, sums = theirs._e_step(COUNTS, cal_sstats=True, random_init=False)
        set_components(theirs, PRIORS["topic_word_prior"] + sums)
    assert ours.n_iter_ == passes and (np.diff(ours.elbo_) > 0).all()
    np.testing.assert_allclose(ours.components_, theirs.components_, rtol=1e-6)
    np.testing.assert_allclose(ours.transform(COUNTS), theirs.transform(COUNTS), atol=1e-8)
    score = ours.score(COUNTS)
    assert score == pytest.approx(ours.elbo_[-1], rel=1e-12)
    assert score == pytest.approx(written_out_bound(ours, COUNTS), rel=1e-10)
    assert score == pytest.approx(theirs.score(COUNTS), rel=1e-8)
    assert ours.perplexity(COUNTS) == pytest.approx(theirs.perplexity(COUNTS), rel=1e-8)


def test_the_bound_holds_for_documents_that_have_not_converged():
    """After one local update as after many: the same formula, written out, and never above the converged one."""
    early = LatentDirichletAllocation(TOPICS, max_iter=2, components_init=START, **PRIORS, max_local_iter=1).fit(COUNTS)
    late = LatentDirichletAllocation(TOPICS, **PRIORS, **EXACT)
    late.components_, late.n_features_in_ = early.components_, WORDS
    assert early.score(COUNTS) == pytest.approx(written_out_bound(early, COUNTS), rel=1e-10)
    assert early.score(COUNTS) < late.score(COUNTS) - 1


def test_partial_fit_equals_scikit_learns_online_step():
    rates = dict(learning_offset=3.0, learning_decay=0.6, total_samples=500)
    ours = LatentDirichletAllocation(TOPICS, components_init=START, **PRIORS, **EXACT, **rates)
    theirs = scikit_learn_from_start(batch_size=DOCUMENTS, **rates)
    for part in (COUNTS[:40], COUNTS[40:80], COUNTS[50:90]):
        ours.partial_fit(part)
        theirs.partial_fit(part)
    np.testing.assert_allclose(ours.components_, theirs.components_, rtol=1e-6)
    assert ours.n_batch_iter_ == 3 and ours.n_samples_seen_ == 120


def test_planted_topics_are_found_and_batches_reach_the_same_elbo():
    settings = dict(components_init=START, max_iter=60, **PRIORS)
    exact = LatentDirichletAllocation(TOPICS, **settings).fit(COUNTS)
    assert exact.converged_
    found = exact.components_ / exact.components_.sum(axis=1, keepdims=True)
    overlap = np.minimum(found[:, None, :], PLANTED[None]).sum(axis=2)
    assert sorted(overlap.argmax(axis=1)) == [0, 1, 2] and overlap.max(axis=1).min() > 0.9
    automatic = LatentDirichletAllocation(TOPICS, solver="stochastic", batch_size=15, random_state=0, **settings)
    automatic.fit(COUNTS)
    assert (np.diff(automatic.elbo_) >= 0).all()
    # One-sided: batches may also find a better local optimum than coordinate ascent, and do here.
    assert automatic.elbo_[-1] > exact.elbo_[-1] - 1e-3 * abs(exact.elbo_[-1])
    decaying = LatentDirichletAllocation(
        TOPICS, solver="stochastic", learning_rate="decay", batch_size=15, random_state=0, **settings
    ).fit(COUNTS)
    assert decaying.elbo_[-1] > exact.elbo_[-1] - 1e-2 * abs(exact.elbo_[-1])
    assert exact.elbo_[-1] - exact.elbo_[0] > 3e-2 * abs(exact.elbo_[-1])


def test_buckets_hold_every_count_once():
    rng = np.random.default_rng(2)
    matrix = sp.random(300, 400, density=0.2, random_state=0, format="csr")
    matrix = sp.csr_matrix(matrix.multiply(rng.uniform(size=(300, 1)) < np.linspace(0, 1.2, 400)[None]))
    for fewest in (1, 70):
        corpus = bucket_documents(matrix, fewest)
        assert 1 < len(corpus.buckets) <= MOST_BUCKETS and min(corpus.sizes) >= fewest
        assert sorted(np.concatenate(corpus.rows)) == list(range(300))
        again = np.zeros(matrix.shape)
        for rows, bucket in zip(corpus.rows, corpus.buckets, strict=True):
            words, counts = np.asarray(bucket.words), np.asarray(bucket.counts)
            assert (counts[len(rows) :] == 0).all()
            np.add.at(again, (rows[:, None], words[: len(rows)]), counts[: len(rows)])
        np.testing.assert_array_equal(again, matrix.toarray())


def test_empty_documents_unseen_words_and_one_topic():
    X = COUNTS.copy()
    X[:2] = 0
    X[:, 0] = 0
    model = LatentDirichletAllocation(TOPICS, components_init=START, max_iter=3, tol=0, **PRIORS).fit(X)
    without = LatentDirichletAllocation(TOPICS, components_init=START, max_iter=3, tol=0, **PRIORS).fit(X[2:])
    np.testing.assert_allclose(model.transform(X[:2]), 1 / TOPICS, rtol=1e-12)
    np.testing.assert_allclose(model.components_, without.components_, rtol=1e-12)
    np.testing.assert_allclose(model.elbo_, without.elbo_, rtol=1e-12)
    np.testing.assert_allclose(model.components_[:, 0], PRIORS["topic_word_prior"], rtol=1e-14)
    unseen = np.zeros((1, WORDS))
    unseen[0, 0] = 4
    assert np.isfinite(model.score(unseen)) and np.isfinite(model.transform(unseen)).all()
    with pytest.raises(ValueError, match="X has no words"):
        model.perplexity(np.zeros((2, WORDS)))
    one = LatentDirichletAllocation(1, topic_word_prior=0.05).fit(X)
    np.testing.assert_allclose(one.components_[0], 0.05 + X.sum(axis=0), rtol=1e-12)


def test_tiny_priors_lose_no_word_and_float32_stays_float32():
    """exp(E log) of a prior of 1e-3 is e^-1000: not a number of either precision."""
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-4)):
        model = LatentDirichletAllocation(
            TOPICS, doc_topic_prior=1e-3, topic_word_prior=1e-3, components_init=START, max_iter=5, tol=0
        ).fit(COUNTS.astype(dtype))
        assert model.components_.dtype == dtype and model.transform(COUNTS).dtype == dtype
        assert np.isfinite(model.elbo_).all()
        total = COUNTS.sum() + 1e-3 * TOPICS * WORDS
        assert model.components_.sum(dtype=np.float64) == pytest.approx(total, rel=tolerance)


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({}, np.full((4, 3), np.nan), "NaN"),
        ({}, -np.ones((4, 3)), "Negative values"),
        ({"n_components": 0}, np.ones((4, 3)), "n_components must be at least 1"),
        ({"doc_topic_prior": 0.0}, np.ones((4, 3)), "doc_topic_prior must be a positive"),
        ({"topic_word_prior": -1.0}, np.ones((4, 3)), "topic_word_prior must be a positive"),
        ({"components_init": np.ones((2, 3))}, np.ones((4, 3)), "components_init must be positive"),
        ({"local_tol": -1.0}, np.ones((4, 3)), "local_tol must not be negative"),
        ({"tol": -1.0}, np.ones((4, 3)), "tol must not be negative"),
        ({"max_local_iter": 0}, np.ones((4, 3)), "max_local_iter must be at least 1"),
        ({"total_samples": 0}, np.ones((4, 3)), "total_samples must be a positive"),
        ({"learning_offset": -1.0}, np.ones((4, 3)), "learning_offset must not be negative"),
    ],
)
def test_bad_arguments_are_named(options, data, message):
    with pytest.raises(ValueError, match=message):
        LatentDirichletAllocation(**options).fit(data)


@pytest.mark.slow
def test_scikit_learns_checks_of_estimators():
    """All of them; what each compiles is used once, so most optimisations are left out."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        results = check_estimator(LatentDirichletAllocation(2, max_iter=5), on_skip=None)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= {"check_array_api_input"}
