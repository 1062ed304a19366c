"""The M-step and stochastic EM against loops written out, and against what EM must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from provi.models.corpus import Documents, bucket_documents
from provi.models.topics.draws import base_draws
from provi.models.topics.e_step import INFERENCES, LocalSettings, sum_statistics, visit_documents
from provi.models.topics.elbo import document_elbos
from provi.models.topics.global_steps import GlobalSettings, TopicStatistics, empty_statistics, maximise, update
from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.models.topics.start import starting_topics
from provi.models.topics.training import Passes, stochastic_em

KEY = jax.random.key(0)
TOPICS, WORDS = 3, 20
PGSVI = LocalSettings("pgsvi", "full", 6, 1e-6, 200)


def problem(seed=0, documents=11, words=25):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(WORDS, 0.3), TOPICS).T
    counts = np.stack([rng.multinomial(words, topics @ rng.dirichlet(np.ones(TOPICS))) for _ in range(documents)])
    counts[3] = 0
    numbers = np.broadcast_to(np.arange(WORDS, dtype=np.int32), counts.shape)
    prior = TopicPrior(jnp.asarray(rng.normal(size=TOPICS)), jnp.asarray(np.diag([0.5, 1.0, 2.0])))
    return Documents(jnp.asarray(numbers), jnp.asarray(counts.astype(float))), jnp.asarray(topics), prior


def posteriors(size, diagonal, seed=1):
    rng = np.random.default_rng(seed)
    roots = np.tril(rng.normal(size=(size, TOPICS, TOPICS))) / 2 + np.eye(TOPICS)
    mean = jnp.asarray(rng.normal(size=(size, TOPICS)))
    return LocalPosterior(mean, jnp.asarray(np.abs(np.diagonal(roots, axis1=1, axis2=2)) if diagonal else roots))


def settings(total, word_prior=0.1, shrinkage=0.2):
    return GlobalSettings(*(jnp.asarray(float(x)) for x in (word_prior, shrinkage, total)))


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("num_draws", [0, 6])
def test_statistics_are_the_sums_written_out(diagonal, num_draws):
    """Document by document and draw by draw; the one without words adds nothing."""
    documents, topics, _ = problem()
    posterior = posteriors(11, diagonal)
    found = sum_statistics(documents, topics, posterior, num_draws, KEY)
    points, chances = (np.zeros((8, 1, TOPICS)), np.ones(1)) if num_draws == 0 else base_draws(KEY, num_draws, TOPICS)
    words, first, second = np.zeros((WORDS, TOPICS)), np.zeros(TOPICS), np.zeros((TOPICS, TOPICS))
    for d in set(range(11)) - {3}:
        mean, root = np.asarray(posterior.mean[d]), np.asarray(posterior.root[d])
        root = np.diag(root) if diagonal else root
        for point, chance in zip(np.asarray(points[d % 8]), np.asarray(chances), strict=True):
            shares = np.asarray(topics) * np.exp(mean + root @ point)
            words += chance * np.asarray(documents.counts[d])[:, None] * shares / shares.sum(axis=1, keepdims=True)
        first += mean
        second += root @ root.T + np.outer(mean, mean)
    for ours, theirs in zip(found, (words, first, second, 10.0), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


def test_the_m_step_maximises_the_expected_log_density():
    """Against random other parameters, without shrinkage: eta times the sum of log B belongs to the objective."""
    rng = np.random.default_rng(2)
    documents, topics, _ = problem()
    sums = sum_statistics(documents, topics, posteriors(11, False), 6, KEY)
    means = TopicStatistics(*(part / 11 for part in sums))
    best, prior = maximise(means, settings(11, shrinkage=1e-12))

    def objective(topics, mean, covariance):
        precision, expected = np.linalg.inv(covariance), np.asarray(sums.second)
        cross = np.outer(np.asarray(sums.first), mean)
        spread = expected - cross - cross.T + 10 * np.outer(mean, mean)
        words = np.sum((np.asarray(sums.words) + 0.1) * np.log(topics))
        return words - (np.trace(precision @ spread) + 10 * np.linalg.slogdet(covariance)[1]) / 2

    top = objective(*(np.asarray(x) for x in (best, prior.mean, prior.covariance)))
    for scale in (1e-1, 1e-3):
        for _ in range(5):
            other = np.asarray(best) * np.exp(scale * rng.normal(size=best.shape))
            move = np.eye(TOPICS) + scale * rng.normal(size=(TOPICS, TOPICS))
            covariance = move @ np.asarray(prior.covariance) @ move.T
            mean = np.asarray(prior.mean) + scale * rng.normal(size=TOPICS)
            assert objective(other / other.sum(axis=0), np.asarray(prior.mean), np.asarray(prior.covariance)) < top
            assert objective(np.asarray(best), mean, np.asarray(prior.covariance)) < top
            assert objective(np.asarray(best), np.asarray(prior.mean), covariance) < top


def test_shrinkage_keeps_the_trace_and_lifts_the_smallest_eigenvalue():
    second = jnp.asarray(np.diag([3.0, 1.0, 0.0]))
    statistics = TopicStatistics(jnp.ones((WORDS, TOPICS)), jnp.zeros(TOPICS), second, jnp.asarray(1.0))
    _, prior = maximise(statistics, settings(5, shrinkage=0.3))
    np.testing.assert_allclose(prior.covariance, np.diag([2.5, 1.1, 0.4]), rtol=1e-12)


def test_documents_all_alike_do_not_take_the_covariance_to_zero():
    zero = TopicStatistics(jnp.ones((WORDS, TOPICS)), jnp.zeros(TOPICS), jnp.zeros((TOPICS, TOPICS)), jnp.asarray(1.0))
    _, prior = maximise(zero, settings(5, shrinkage=0.02))
    np.testing.assert_allclose(prior.covariance, 2e-4 * np.eye(TOPICS), rtol=1e-12)


def test_an_update_mixes_weighted_parts():
    documents, topics, _ = problem()
    sums = sum_statistics(documents, topics, posteriors(11, False), 6, KEY)
    weights, rate = (jnp.asarray(0.25), jnp.asarray(0.5)), jnp.asarray(0.4)
    old = jax.tree.map(lambda leaf: leaf + 1, empty_statistics(topics))
    mixed, _, _ = update(old, (sums, sums), weights, rate, settings(11))
    for new, part in zip(mixed, sums, strict=True):
        np.testing.assert_allclose(new, 0.6 + 0.4 * 0.75 * np.asarray(part), rtol=1e-12)


@pytest.mark.parametrize("inference", INFERENCES)
def test_em_raises_the_elbo(inference):
    """Four steps of EM from topics mixed half with uniform ones; each method gains, PG-SVI at each step.

    With the same draws in E- and M-step EM raises the sampled ELBO plus eta sum log B; the ELBOs here are of 2000 other
    draws a document, with standard errors of about 0.01 nats against gains of whole nats.
    """
    documents, topics, prior = problem(documents=40)
    topics = (topics + 1 / WORDS) / 2
    local = PGSVI._replace(inference=inference, covariance="diagonal" if inference == "mean-field" else "full")
    values = []
    for _ in range(4):
        posterior, sums = visit_documents(documents, topics, prior, None, local, KEY)
        values.append(float(jnp.sum(document_elbos(documents, topics, prior, posterior, 2000, KEY)[0])))
        one = jnp.asarray(1.0)
        _, topics, prior = update(empty_statistics(topics), (sums,), (one / 40,), one, settings(40, 1e-3, 1e-3))
    assert values[-1] > values[0] + 5
    if inference == "pgsvi":
        assert (np.diff(values) > 0).all()


def corpus(seed=0, documents=120):
    """Documents of a short and of a long kind, in two buckets."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(60, 0.1), TOPICS)
    lengths = np.where(np.arange(documents) % 2, 12, 150)
    shares = rng.dirichlet(np.full(TOPICS, 0.4), documents)
    return np.stack([rng.multinomial(n, p) for n, p in zip(lengths, shares @ topics, strict=True)]).astype(float)


def run(counts, batch_size, number, automatic):
    topics = starting_topics(sp.csr_matrix(counts), TOPICS, 0.01, np.random.RandomState(0))
    prior = TopicPrior(jnp.zeros(TOPICS), jnp.eye(TOPICS))
    passes = Passes(number, batch_size, (1.0, 0.7), automatic, 0.0, False)
    parts = bucket_documents(counts, fewest=len(counts) // batch_size)
    local = PGSVI._replace(max_steps=10)
    generator = np.random.RandomState(1)
    total = settings(len(counts), 0.01, 0.02)
    return stochastic_em(parts, jnp.asarray(topics), prior, local, total, passes, generator, KEY)


def test_batches_reach_the_elbo_of_em_in_fewer_passes():
    """EM from the same start: never falls by more than the error of the draws; batches are ahead after three passes."""
    counts = corpus()
    exact = run(counts, 120, 12, True)
    assert exact.num_batches == 12 and (np.diff(exact.elbo) > -2).all()
    assert exact.elbo[-1] > exact.elbo[0] + 50
    for automatic in (False, True):
        stochastic = run(counts, 20, 6, automatic)
        assert stochastic.num_batches == 36
        assert stochastic.elbo[2] > exact.elbo[2] and stochastic.elbo[-1] > exact.elbo[-1] - 0.005 * abs(exact.elbo[-1])
    assert (np.diff(stochastic.elbo) >= 0).all()


def test_the_start_finds_clusters_and_survives_bad_corpora():
    counts = np.kron(np.eye(TOPICS), np.ones((20, 5)))
    topics = starting_topics(counts, TOPICS, 0.01, np.random.RandomState(0))
    np.testing.assert_allclose(topics.sum(axis=0), 1, rtol=1e-12)
    blocks = topics.reshape(TOPICS, 5, TOPICS).sum(axis=1)
    assert sorted(blocks.argmax(axis=0)) == list(range(TOPICS)) and blocks.max(axis=0).min() > 0.6
    for bad in (counts[:1], np.zeros((4, 7)), np.ones((5, 1))):
        topics = starting_topics(bad, TOPICS, 0.01, np.random.RandomState(0))
        assert topics.shape == (bad.shape[1], TOPICS) and (topics > 0).all()
