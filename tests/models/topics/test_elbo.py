"""The documents' ELBOs and expected counts against quadrature, closed forms and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from provi.models.corpus import Documents
from provi.models.topics.draws import base_draws
from provi.models.topics.elbo import document_elbos, expected_counts
from provi.models.topics.local_steps import infer
from provi.models.topics.model import LocalPosterior, TopicPrior

KEY = jax.random.key(0)
ALARM = norm.isf(1e-6)
TOPICS, WORDS = 3, 12


def problem(seed=0, documents=10, words=30):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(WORDS, 0.3), TOPICS).T
    factor = rng.normal(size=(TOPICS, TOPICS))
    prior = TopicPrior(jnp.asarray(rng.normal(size=TOPICS)), jnp.asarray(factor @ factor.T / 2 + np.eye(TOPICS) / 2))
    counts = np.stack([rng.multinomial(words, topics @ rng.dirichlet(np.ones(TOPICS))) for _ in range(documents)])
    numbers = np.broadcast_to(np.arange(WORDS, dtype=np.int32), counts.shape)
    return Documents(jnp.asarray(numbers), jnp.asarray(counts.astype(float))), jnp.asarray(topics), prior


def log_likelihoods(z, topics, counts):
    """log p(counts | z) for z (points, topics) and counts (documents, words): (points, documents)."""
    shares = z - logsumexp(z, axis=1, keepdims=True)
    return logsumexp(shares[:, None, :] + np.log(topics), axis=2) @ counts.T


def grid(mean, root, nodes=30):
    """Gauss-Hermite points of N(mean, root root') in three dimensions, and their weights."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.stack(np.meshgrid(x, x, x, indexing="ij"), axis=-1).reshape(-1, 3)
    weights = (w[:, None, None] * w[None, :, None] * w[None, None, :]).ravel() / (2 * np.pi) ** 1.5
    return mean + points @ root.T, weights


def divergence(mean, covariance, prior):
    precision, difference = np.linalg.inv(prior.covariance), mean - np.asarray(prior.mean)
    log_det = np.linalg.slogdet(prior.covariance)[1] - np.linalg.slogdet(covariance)[1]
    return (np.trace(precision @ covariance) + difference @ precision @ difference - TOPICS + log_det) / 2


def log_evidence(topics, counts, prior, posterior, d):
    """The log of the integral of the likelihood times the prior, the nodes placed by q with its deviations doubled."""
    root = 2 * np.asarray(posterior.root[d])
    z, weights = grid(np.asarray(posterior.mean[d]), root)

    def log_density(z, mean, root):
        white = np.linalg.solve(root, (z - mean).T)
        return -np.sum(white**2, axis=0) / 2 - np.log(np.diag(root)).sum()

    prior_root = np.linalg.cholesky(prior.covariance)
    ratio = log_density(z, np.asarray(prior.mean), prior_root) - log_density(z, np.asarray(posterior.mean[d]), root)
    return logsumexp(log_likelihoods(z, topics, counts[d : d + 1])[:, 0] + ratio, b=weights)


def test_estimates_agree_with_quadrature():
    """z-tests of 20 documents' estimates, false-alarm rate 4e-5 in all; full and diagonal posteriors of any shape."""
    documents, topics, prior = problem()
    rng = np.random.default_rng(1)
    for diagonal in (False, True):
        root = np.tril(rng.normal(size=(10, TOPICS, TOPICS))) / 2
        root[:, range(TOPICS), range(TOPICS)] = 0.3 + rng.random((10, TOPICS))
        mean = rng.normal(size=(10, TOPICS))
        given = root[:, range(TOPICS), range(TOPICS)] if diagonal else root
        posterior = LocalPosterior(jnp.asarray(mean), jnp.asarray(given))
        elbos, errors = document_elbos(documents, topics, prior, posterior, 2000, KEY)
        for d in range(10):
            factor = np.diag(given[d]) if diagonal else root[d]
            z, weights = grid(mean[d], factor, 24)
            energy = weights @ log_likelihoods(z, topics, np.asarray(documents.counts[d : d + 1]))[:, 0]
            expected = energy - divergence(mean[d], factor @ factor.T, prior)
            assert 0 < errors[d] < 1
            assert abs(elbos[d] - expected) < ALARM * errors[d], (diagonal, d)


def test_without_words_the_elbo_is_minus_the_divergence():
    documents, topics, prior = problem(documents=3)
    empty = Documents(documents.words, 0 * documents.counts)
    mean, root = np.full((3, TOPICS), 0.3), np.full((3, TOPICS), 0.7)
    elbos, errors = document_elbos(empty, topics, prior, LocalPosterior(*map(jnp.asarray, (mean, root))), 4, KEY)
    np.testing.assert_allclose(elbos, -divergence(mean[0], 0.49 * np.eye(TOPICS), prior), rtol=1e-12)
    np.testing.assert_array_equal(errors, 0)


def test_bounds_of_the_evidence_the_full_one_the_better():
    """log evidence by 27,000 nodes >= ELBO of the full q >= ELBO of the diagonal q; margins of alarm rate 1e-6 each.

    The second has 0.01 nats more, ten times the tolerance of the iterations.
    """
    documents, topics, prior = problem(2, documents=6)
    counts = np.asarray(documents.counts)
    full, _ = infer(documents, topics, prior, covariance="full", num_draws=60, key=KEY)
    diagonal, _ = infer(documents, topics, prior, covariance="diagonal", num_draws=60, key=KEY)
    best, error = document_elbos(documents, topics, prior, full, 20_000, KEY)
    less, other_error = document_elbos(documents, topics, prior, diagonal, 20_000, KEY)
    evidence = np.array([log_evidence(np.asarray(topics), counts, prior, full, d) for d in range(6)])
    assert (best <= evidence + ALARM * error).all()
    assert (evidence - best < 0.25).all(), evidence - best
    assert (less <= best + ALARM * np.hypot(error, other_error) + 1e-2).all()
    assert (best - less).sum() > 1


def test_expected_counts_are_the_sums_written_out():
    documents, topics, _ = problem(3, documents=3)
    words = np.asarray(documents.words).copy()
    words[1] = words[1][::-1]
    rng = np.random.default_rng(4)
    documents = Documents(jnp.asarray(words), documents.counts)
    mean, root = rng.normal(size=(3, TOPICS)), np.tril(rng.normal(size=(3, TOPICS, TOPICS)))
    draws = base_draws(KEY, 12, TOPICS)
    answer = expected_counts(documents, topics, LocalPosterior(jnp.asarray(mean), jnp.asarray(root)), draws)
    expected, rows = np.zeros((WORDS, TOPICS)), np.asarray(topics)
    for d in range(3):
        for point, chance in zip(np.asarray(draws.points[d]), np.asarray(draws.chances), strict=True):
            z = mean[d] + root[d] @ point
            for word, count in zip(words[d], np.asarray(documents.counts[d]), strict=True):
                phi = rows[word] * np.exp(z)
                expected[word] += chance * count * phi / phi.sum()
    np.testing.assert_allclose(answer, expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(np.sum(answer), np.sum(documents.counts), rtol=1e-12)


def test_an_odd_number_of_draws_is_refused():
    documents, topics, prior = problem(documents=1)
    posterior = LocalPosterior(jnp.zeros((1, TOPICS)), jnp.ones((1, TOPICS)))
    with pytest.raises(ValueError, match="num_draws must be even"):
        document_elbos(documents, topics, prior, posterior, 5, KEY)
