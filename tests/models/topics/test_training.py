"""Stochastic EM: what a pass visits, what EM must do, how it ends; and where it starts."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from provi.models.topics import training
from provi.models.topics.corpus import Documents, bucket_documents
from provi.models.topics.draws import no_draws
from provi.models.topics.e_step import INFERENCES, LocalSettings, contribute, document_elbos, find_posteriors
from provi.models.topics.global_steps import GlobalSettings, accumulate, empty_statistics, starting_topics, update
from provi.models.topics.model import BLOCK, TopicPrior
from provi.models.topics.training import PATIENCE, SETTLING, Passes, stochastic_em

TOPICS, WORDS, DOCUMENTS = 3, 60, 120
SIZES = (61, 59)
"""Documents of each bucket."""
PGSVI = LocalSettings("pgsvi", "full", 6, 1e-6, 200)


def corpus(seed=0):
    """Documents of a short and of a long kind, which come in two buckets, 16 and 48 words wide."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(WORDS, 0.1), TOPICS)
    lengths = np.where(np.arange(DOCUMENTS) % 2, 12, 150)
    shares = rng.dirichlet(np.full(TOPICS, 0.4), DOCUMENTS)
    return np.stack([rng.multinomial(n, p) for n, p in zip(lengths, shares @ topics, strict=True)]).astype(float)


def scalar(number):
    return jnp.asarray(np.asarray(float(number)))


def settings(total, word_prior=0.01, shrinkage=0.02):
    return GlobalSettings(*map(scalar, (word_prior, shrinkage, total)))


def standard_prior():
    return TopicPrior(jnp.asarray(np.zeros(TOPICS)), jnp.asarray(np.eye(TOPICS)))


def run(counts, batch_size, number, automatic=True, **options):
    topics = starting_topics(sp.csr_matrix(corpus()), TOPICS, 0.01, np.random.RandomState(0))
    passes = Passes(
        number=number,
        batch_size=batch_size,
        forgetting=(1.0, 0.7),
        automatic=automatic,
        tolerance=options.pop("tolerance", 0.0),
        progress=False,
        warm=options.pop("warm", True),
        fixed_topics=options.pop("fixed_topics", False),
    )
    parts = bucket_documents(counts, rounded=lambda length: 16 if length <= 16 else 48)
    assert parts.sizes == SIZES
    state = jnp.asarray(topics), standard_prior(), PGSVI._replace(max_steps=10), settings(len(counts))
    return stochastic_em(parts, *state, passes, np.random.default_rng(1), **options)


@pytest.mark.parametrize("inference", INFERENCES)
def test_em_raises_the_elbo(inference):
    """Four steps of EM from topics mixed half with uniform ones; each method gains, PG-SVI at each step.

    With the same draws in E- and M-step EM raises the sampled ELBO plus eta sum log B; the ELBOs here are of 2000 other
    draws a document, with standard errors of about 0.01 nats against gains of whole nats.
    """
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(WORDS, 0.3), TOPICS).T
    words, counts = np.zeros((BLOCK, 16), np.int32), np.zeros((BLOCK, 16))
    for d in range(40):
        sample = rng.multinomial(25, topics @ rng.dirichlet(np.ones(TOPICS)))
        used = np.argsort(-sample, kind="stable")[:16]
        words[d], counts[d] = used, sample[used]
    documents = Documents(jnp.asarray(words), jnp.asarray(counts))
    topics, prior = jnp.asarray((topics + 1 / WORDS) / 2), standard_prior()
    local = PGSVI._replace(inference=inference, covariance="diagonal" if inference == "mean-field" else "full")
    draws = local.draws(np.random.default_rng(1), TOPICS, np.float64)
    assert (len(draws.chances) == 7) == (inference == "pgsvi")
    values = []
    for _ in range(4):
        posterior = find_posteriors(documents, topics, prior, None, local, draws)
        elbos, _ = document_elbos(documents, topics, prior, posterior, 2000, np.random.default_rng(2))
        values.append(np.asarray(elbos)[:40].sum())
        part = contribute(documents, topics, posterior, draws)
        batch = accumulate((part, scalar(1 / 40)), empty_statistics(topics))
        _, topics, prior = update(empty_statistics(topics), batch, scalar(1), settings(40, 1e-3, 1e-3))
    assert values[-1] > values[0] + 5
    if inference == "pgsvi":
        assert (np.diff(values) > 0).all()


def test_rivals_assign_words_at_the_means():
    for inference in set(INFERENCES) - {"pgsvi"}:
        draws = PGSVI._replace(inference=inference).draws(np.random.default_rng(0), TOPICS, np.float64)
        for found, expected in zip(draws, no_draws(TOPICS, np.float64), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_batches_reach_the_elbo_of_em_in_fewer_passes():
    """EM from the same start: never falls by more than the error of the draws; batches are ahead after three passes."""
    counts = corpus()
    exact = run(counts, DOCUMENTS, 12)
    assert exact.num_batches == 12 and (np.diff(exact.elbo) > -2).all()
    assert exact.elbo[-1] > exact.elbo[0] + 50
    for automatic in (False, True):
        stochastic = run(counts, 20, 6, automatic)
        assert stochastic.num_batches == 36
        assert stochastic.elbo[2] > exact.elbo[2] and stochastic.elbo[-1] > exact.elbo[-1] - 0.005 * abs(exact.elbo[-1])
    assert (np.diff(stochastic.elbo) >= 0).all()


def test_each_pass_visits_every_document_once(monkeypatch):
    visit, visited = training.visit_batch, []

    def watched(strata, rows, *rest):
        visited.append([np.asarray(part) for part in rows])
        return visit(strata, rows, *rest)

    monkeypatch.setattr(training, "visit_batch", watched)
    fitted = run(corpus(), 40, 2)
    assert len(visited) == fitted.num_batches == 6
    orders = []
    for batches in (visited[:3], visited[3:]):
        for part, size in zip(zip(*batches, strict=True), SIZES, strict=True):
            np.testing.assert_array_equal(np.sort(np.concatenate(part)), np.arange(size))
            # Stratified: each batch has its share of each kind.
            assert {len(rows) for rows in part} <= {size // 3, size // 3 + 1}
        orders.append(np.concatenate(batches[0]))
    assert (orders[0] != orders[1]).any()


def test_warm_starts_are_ahead_of_cold_ones():
    """With ten steps a visit a document that was visited before gets further."""
    counts = corpus()
    warm, cold = (run(counts, DOCUMENTS, 4, warm=warm).elbo for warm in (True, False))
    np.testing.assert_allclose(warm[0], cold[0], rtol=1e-12)
    assert warm[-1] > cold[-1]


def test_on_pass_is_told_each_state_and_can_end_the_fit():
    told = []

    def on_pass(fitted):
        told.append(fitted)
        return len(told) == 2

    fitted = run(corpus(), DOCUMENTS, 5, on_pass=on_pass)
    assert fitted is told[-1] and len(told) == 2 and not fitted.converged
    assert [len(state.elbo) for state in told] == [state.num_batches for state in told] == [1, 2]
    assert np.abs(np.asarray(told[0].topics) - np.asarray(told[1].topics)).max() > 1e-6
    np.testing.assert_allclose(np.asarray(told[0].topics).sum(axis=0), 1, rtol=1e-12)


def test_fixed_topics_leave_the_prior_to_be_learned():
    told = []
    fitted = run(corpus(), 60, 3, fixed_topics=True, on_pass=told.append)
    start = starting_topics(sp.csr_matrix(corpus()), TOPICS, 0.01, np.random.RandomState(0))
    for state in told:
        np.testing.assert_array_equal(state.topics, start)
    assert (np.diff(fitted.elbo) > 0).all()
    assert np.abs(np.asarray(fitted.prior.covariance) - np.eye(TOPICS)).max() > 0.1


@pytest.mark.parametrize("automatic", [False, True])
def test_passes_without_gain_end_the_fit(automatic):
    """At once, or with the automatic rate after the passes in which it settles."""
    fitted = run(corpus(), DOCUMENTS, 10, automatic, tolerance=1e9)
    assert fitted.converged and len(fitted.elbo) == PATIENCE + 1 + automatic * SETTLING
    assert not run(corpus(), DOCUMENTS, PATIENCE, automatic, tolerance=1e9).converged


def test_a_first_pass_that_is_not_finite_is_an_error():
    counts = corpus()
    counts[1, np.argmax(counts[1])] = 1e308
    counts[3, np.argmax(counts[3])] = 1e308
    with pytest.raises(FloatingPointError, match="In the first pass a document's ELBO is not finite"):
        run(counts, DOCUMENTS, 3)


def test_a_later_pass_that_is_not_finite_keeps_the_state_before(monkeypatch):
    """Two batches a pass, of two strata each: the sixth call belongs to the second pass."""
    before, calls, told = run(corpus(), 60, 5, on_pass=lambda fitted: True), itertools.count(1), []
    estimate = training.quick_elbos

    def spoilt(*arguments):
        return (np.nan if next(calls) == 6 else 1.0) * np.asarray(estimate(*arguments))

    monkeypatch.setattr(training, "quick_elbos", spoilt)
    with pytest.warns(RuntimeWarning, match=r"In pass 2 .* The state after pass 1 is kept"):
        fitted = run(corpus(), 60, 5, on_pass=told.append)
    assert next(calls) == 9 and len(told) == 1 and not fitted.converged
    np.testing.assert_array_equal(fitted.elbo, before.elbo)
    for new, old in ((fitted.topics, before.topics), (fitted.prior.covariance, before.prior.covariance)):
        np.testing.assert_array_equal(new, old)


def test_the_start_finds_clusters_and_survives_bad_corpora():
    counts = np.kron(np.eye(TOPICS), np.ones((20, 5)))
    topics = starting_topics(counts, TOPICS, 0.01, np.random.RandomState(0))
    np.testing.assert_allclose(topics.sum(axis=0), 1, rtol=1e-12)
    blocks = topics.reshape(TOPICS, 5, TOPICS).sum(axis=1)
    assert sorted(blocks.argmax(axis=0)) == list(range(TOPICS)) and blocks.max(axis=0).min() > 0.6
    for bad in (counts[:1], np.zeros((4, 7)), np.ones((5, 1))):
        topics = starting_topics(bad, TOPICS, 0.01, np.random.RandomState(0))
        assert topics.shape == (bad.shape[1], TOPICS) and (topics > 0).all()
