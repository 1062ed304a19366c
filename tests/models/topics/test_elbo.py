"""The documents' ELBOs and expected counts against quadrature, closed forms and loops."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from provi.models.topics.corpus import Documents
from provi.models.topics.draws import base_draws
from provi.models.topics.e_step import document_elbos, expected_counts, quick_elbos
from provi.models.topics.local_steps import infer
from provi.models.topics.model import LocalPosterior, TopicPrior

ALARM = norm.isf(1e-6)
TOPICS, WORDS, DRAWS = 3, 12, 20_000


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


def any_posteriors(documents, diagonal, seed=1):
    """Posteriors of any shape."""
    rng = np.random.default_rng(seed)
    root = np.tril(rng.normal(size=(documents, TOPICS, TOPICS))) / 2
    root[:, range(TOPICS), range(TOPICS)] = 0.3 + rng.random((documents, TOPICS))
    mean = rng.normal(size=(documents, TOPICS))
    return mean, root[:, range(TOPICS), range(TOPICS)] if diagonal else root


def exact_elbos(documents, topics, prior, mean, root):
    """By quadrature, 24 nodes in each direction."""
    counts, values = np.asarray(documents.counts), []
    for d in range(len(mean)):
        factor = np.diag(root[d]) if root.ndim == 2 else root[d]
        z, weights = grid(mean[d], factor, 24)
        energy = weights @ log_likelihoods(z, np.asarray(topics), counts[d : d + 1])[:, 0]
        values.append(energy - divergence(mean[d], factor @ factor.T, prior))
    return np.asarray(values)


def elbos_by_many_draws(documents, topics, prior, posterior, seed=0):
    """Of ten documents, and their standard errors."""
    return map(np.asarray, document_elbos(documents, topics, prior, posterior, DRAWS, np.random.default_rng(seed)))


def quick_draws():
    """Seven points, zero and six more, a set for each of eight documents."""
    return base_draws(np.random.default_rng(5), 2 * TOPICS, TOPICS)


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


@pytest.mark.parametrize("diagonal", [False, True])
def test_estimates_agree_with_quadrature(diagonal):
    """z-tests of ten documents' estimates, false-alarm rate 2e-5 in all."""
    documents, topics, prior = problem()
    mean, root = any_posteriors(10, diagonal)
    posterior = LocalPosterior(jnp.asarray(mean), jnp.asarray(root))
    expected = exact_elbos(documents, topics, prior, mean, root)
    elbos, errors = elbos_by_many_draws(documents, topics, prior, posterior)
    assert (errors > 0).all() and (errors < 1).all()
    assert (np.abs(elbos - expected) < ALARM * errors).all()


@pytest.mark.parametrize("diagonal", [False, True])
def test_quick_estimates_are_the_weighted_sums_and_nearer_than_as_many_normal_draws(diagonal):
    """Written out with the same points; then, against quadrature, half the root mean square error of eight draws."""
    documents, topics, prior = problem()
    mean, root = any_posteriors(10, diagonal)
    posterior, draws = LocalPosterior(jnp.asarray(mean), jnp.asarray(root)), quick_draws()
    found = np.asarray(quick_elbos(documents, topics, prior, posterior, draws))
    points, chances, counts = (np.asarray(x) for x in (*draws, documents.counts))
    for d in range(10):
        factor = np.diag(root[d]) if diagonal else root[d]
        z = mean[d] + points[d % 8] @ factor.T
        energy = chances @ log_likelihoods(z, np.asarray(topics), counts[d : d + 1])[:, 0]
        np.testing.assert_allclose(found[d], energy - divergence(mean[d], factor @ factor.T, prior), rtol=1e-12)
    exact = exact_elbos(documents, topics, prior, mean, root)
    _, errors = elbos_by_many_draws(documents, topics, prior, posterior)
    with_eight = errors * np.sqrt(DRAWS / 8)
    assert np.sqrt(np.mean((found - exact) ** 2)) < np.sqrt(np.mean(with_eight**2)) / 2


def test_without_words_the_elbo_is_minus_the_divergence():
    documents, topics, prior = problem()
    empty = Documents(documents.words, jnp.asarray(np.zeros(documents.counts.shape)))
    mean, root = np.full((10, TOPICS), 0.3), np.full((10, TOPICS), 0.7)
    posterior = LocalPosterior(*map(jnp.asarray, (mean, root)))
    elbos, errors = elbos_by_many_draws(empty, topics, prior, posterior)
    np.testing.assert_allclose(elbos, -divergence(mean[0], 0.49 * np.eye(TOPICS), prior), rtol=1e-12)
    np.testing.assert_array_equal(errors, 0)


def test_bounds_of_the_evidence_the_full_one_the_better():
    """log evidence by 27,000 nodes >= ELBO of the full q >= ELBO of the diagonal q; margins of alarm rate 1e-6 each.

    The second has 0.01 nats more, ten times the tolerance of the iterations.
    """
    documents, topics, prior = problem(2)
    counts = np.asarray(documents.counts)
    draws = base_draws(np.random.default_rng(0), 60, TOPICS)
    full, _ = infer(documents, topics, prior, draws=draws)
    diagonal, _ = infer(documents, topics, prior, draws=draws, covariance="diagonal")
    best, error = elbos_by_many_draws(documents, topics, prior, full)
    less, other_error = elbos_by_many_draws(documents, topics, prior, diagonal, 1)
    evidence = np.array([log_evidence(np.asarray(topics), counts, prior, full, d) for d in range(10)])
    assert (best <= evidence + ALARM * error).all()
    assert (evidence - best < 0.25).all(), evidence - best
    assert (less <= best + ALARM * np.hypot(error, other_error) + 1e-2).all()
    assert (best - less).sum() > 1


def test_quick_estimates_of_fitted_posteriors():
    """Seven points are within 0.1 nats of the quadrature for each document, and their sum within 0.1 of many draws'.

    The latter with a false-alarm rate of 1e-6.
    """
    documents, topics, prior = problem(2)
    full, _ = infer(documents, topics, prior, draws=base_draws(np.random.default_rng(0), 60, TOPICS))
    found = np.asarray(quick_elbos(documents, topics, prior, full, quick_draws()))
    exact = exact_elbos(documents, topics, prior, np.asarray(full.mean), np.asarray(full.root))
    assert np.abs(found - exact).max() < 0.1
    estimates, errors = elbos_by_many_draws(documents, topics, prior, full)
    assert abs(np.sum(found - estimates)) < ALARM * np.sqrt(np.sum(errors**2)) + 0.1


def test_expected_counts_are_the_sums_written_out():
    documents, topics, _ = problem(3, documents=3)
    words = np.asarray(documents.words).copy()
    words[1] = words[1][::-1]
    rng = np.random.default_rng(4)
    documents = Documents(jnp.asarray(words), documents.counts)
    mean, root = rng.normal(size=(3, TOPICS)), np.tril(rng.normal(size=(3, TOPICS, TOPICS)))
    draws = base_draws(np.random.default_rng(0), 12, TOPICS)
    answer = expected_counts(documents, topics, LocalPosterior(jnp.asarray(mean), jnp.asarray(root)), draws)
    answer, points, counts = (np.asarray(x) for x in (answer, draws.points, documents.counts))
    expected, rows = np.zeros((3, WORDS, TOPICS)), np.asarray(topics)
    for d in range(3):
        for point, chance in zip(points[d], np.asarray(draws.chances), strict=True):
            z = mean[d] + root[d] @ point
            for u, (word, count) in enumerate(zip(words[d], counts[d], strict=True)):
                phi = rows[word] * np.exp(z)
                expected[d, u] += chance * count * phi / phi.sum()
    np.testing.assert_allclose(answer, expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(answer.sum(axis=2), counts, rtol=1e-12)


def test_an_odd_number_of_draws_is_refused():
    documents, topics, prior = problem(documents=1)
    posterior = LocalPosterior(jnp.asarray(np.zeros((1, TOPICS))), jnp.asarray(np.ones((1, TOPICS))))
    with pytest.raises(ValueError, match="num_draws must be even"):
        document_elbos(documents, topics, prior, posterior, 5, np.random.default_rng(0))
