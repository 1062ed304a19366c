"""What documents contribute to the M-step, and the M-step, against loops written out and other parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.models.topics.corpus import Documents
from provi.models.topics.draws import base_draws, no_draws
from provi.models.topics.e_step import contribute
from provi.models.topics.global_steps import (
    GlobalSettings,
    TopicStatistics,
    accumulate,
    empty_statistics,
    maximise,
    update,
)
from provi.models.topics.model import LocalPosterior

TOPICS, WORDS = 3, 20
DRAWS = base_draws(np.random.default_rng(0), 6, TOPICS)


compiled_maximise = jax.jit(maximise)


def problem(seed=0, documents=11, words=25):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(WORDS, 0.3), TOPICS).T
    counts = np.stack([rng.multinomial(words, topics @ rng.dirichlet(np.ones(TOPICS))) for _ in range(documents)])
    counts[3] = 0
    numbers = np.broadcast_to(np.arange(WORDS, dtype=np.int32), counts.shape)
    numbers = np.where(np.arange(documents)[:, None] % 2, numbers[:, ::-1], numbers)
    counts = np.take_along_axis(counts, numbers, axis=1)
    return Documents(jnp.asarray(numbers), jnp.asarray(counts.astype(float))), jnp.asarray(topics)


def posteriors(size, diagonal, seed=1):
    rng = np.random.default_rng(seed)
    roots = np.tril(rng.normal(size=(size, TOPICS, TOPICS))) / 2 + np.eye(TOPICS)
    mean = jnp.asarray(rng.normal(size=(size, TOPICS)))
    return LocalPosterior(mean, jnp.asarray(np.abs(np.diagonal(roots, axis1=1, axis2=2)) if diagonal else roots))


def settings(total, word_prior=0.1, shrinkage=0.2):
    return GlobalSettings(*(jnp.asarray(np.asarray(float(x))) for x in (word_prior, shrinkage, total)))


def scalar(number):
    return jnp.asarray(np.asarray(number))


def sums(contribution, topics):
    """The contribution as `TopicStatistics`: accumulated on zeros with the weight one."""
    return accumulate((contribution, scalar(1.0)), empty_statistics(topics))


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("draws", [no_draws(TOPICS, np.float64), DRAWS])
def test_statistics_are_the_sums_written_out(diagonal, draws):
    """Document by document and draw by draw; the one without words adds nothing, and words stand in any order."""
    documents, topics = problem()
    posterior = posteriors(11, diagonal)
    found = sums(contribute(documents, topics, posterior, draws), topics)
    points, chances, numbers, counts, means, roots = (
        np.asarray(x) for x in (*draws, *documents, posterior.mean, posterior.root)
    )
    words, first, second = np.zeros((WORDS, TOPICS)), np.zeros(TOPICS), np.zeros((TOPICS, TOPICS))
    for d in set(range(11)) - {3}:
        root = np.diag(roots[d]) if diagonal else roots[d]
        for point, chance in zip(points[d % 8], chances, strict=True):
            shares = np.asarray(topics)[numbers[d]] * np.exp(means[d] + root @ point)
            words[numbers[d]] += chance * counts[d][:, None] * shares / shares.sum(axis=1, keepdims=True)
        first += means[d]
        second += root @ root.T + np.outer(means[d], means[d])
    for ours, theirs in zip(found, (words, first, second, 10.0), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


def test_the_m_step_maximises_the_expected_log_density():
    """Against random other parameters, without shrinkage: eta times the sum of log B belongs to the objective."""
    rng = np.random.default_rng(2)
    documents, topics = problem()
    total = TopicStatistics(*map(np.asarray, sums(contribute(documents, topics, posteriors(11, False), DRAWS), topics)))
    means = TopicStatistics(*(jnp.asarray(part / 11) for part in total))
    best, prior = compiled_maximise(means, settings(11, shrinkage=1e-12))

    def objective(topics, mean, covariance):
        precision, expected = np.linalg.inv(covariance), total.second
        cross = np.outer(total.first, mean)
        spread = expected - cross - cross.T + 10 * np.outer(mean, mean)
        words = np.sum((total.words + 0.1) * np.log(topics))
        return words - (np.trace(precision @ spread) + 10 * np.linalg.slogdet(covariance)[1]) / 2

    best, middle, spread = (np.asarray(x) for x in (best, prior.mean, prior.covariance))
    top = objective(best, middle, spread)
    for scale in (1e-1, 1e-3):
        for _ in range(5):
            other = best * np.exp(scale * rng.normal(size=best.shape))
            move = np.eye(TOPICS) + scale * rng.normal(size=(TOPICS, TOPICS))
            assert objective(other / other.sum(axis=0), middle, spread) < top
            assert objective(best, middle + scale * rng.normal(size=TOPICS), spread) < top
            assert objective(best, middle, move @ spread @ move.T) < top


def statistics(second):
    parts = np.ones((WORDS, TOPICS)), np.zeros(TOPICS), second, np.asarray(1.0)
    return TopicStatistics(*map(jnp.asarray, parts))


def test_shrinkage_keeps_the_trace_and_lifts_the_smallest_eigenvalue():
    _, prior = compiled_maximise(statistics(np.diag([3.0, 1.0, 0.0])), settings(5, shrinkage=0.3))
    np.testing.assert_allclose(prior.covariance, np.diag([2.5, 1.1, 0.4]), rtol=1e-12)


def test_documents_all_alike_do_not_take_the_covariance_to_zero():
    _, prior = compiled_maximise(statistics(np.zeros((TOPICS, TOPICS))), settings(5, shrinkage=0.02))
    np.testing.assert_allclose(prior.covariance, 2e-4 * np.eye(TOPICS), rtol=1e-12)


def test_an_update_mixes_weighted_parts():
    """(1 - rho) s + rho (w1 c1 + w2 c2) entry by entry, and the topics and prior of that."""
    documents, topics = problem()
    parts = [contribute(documents, topics, posteriors(11, False, seed), DRAWS) for seed in (1, 2)]
    one, two = (TopicStatistics(*map(np.asarray, sums(part, topics))) for part in parts)
    batch = empty_statistics(topics)
    for part, weight in zip(parts, (0.25, 0.5), strict=True):
        batch = accumulate((part, scalar(weight)), batch)
    old = TopicStatistics(*(jnp.asarray(np.asarray(leaf) + 1) for leaf in empty_statistics(topics)))
    mixed, new_topics, prior = update(old, batch, scalar(0.4), settings(11))
    for new, first, second in zip(mixed, one, two, strict=True):
        np.testing.assert_allclose(new, 0.6 + 0.4 * (0.25 * first + 0.5 * second), rtol=1e-12)
    words, first, second, worded = map(np.asarray, mixed)
    np.testing.assert_allclose(new_topics, (11 * words + 0.1) / (11 * words + 0.1).sum(axis=0), rtol=1e-12)
    mean = first / worded
    covariance = second / worded - np.outer(mean, mean)
    shrunk = 0.8 * covariance + 0.2 * np.trace(covariance) / TOPICS * np.eye(TOPICS)
    np.testing.assert_allclose(prior.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(prior.covariance, shrunk, rtol=1e-11, atol=1e-13)
