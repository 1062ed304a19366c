"""Small documents of a correlated topic model, and what their posteriors are made of, written out."""

import jax
import jax.numpy as jnp
import numpy as np

from provi.models.topics.corpus import Documents
from provi.models.topics.model import TopicPrior

LENGTHS = (0, 1, 12, 60, 20_000)
"""An empty document, one word, two of the usual kind and a long one."""


def small_corpus(topics=4, lengths=LENGTHS, vocabulary=20, seed=0, dtype=np.float64):
    """Documents from the model itself, the topics and the prior."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(vocabulary, 0.5), topics).T
    factor = rng.normal(size=(topics, topics))
    covariance = factor @ factor.T / topics + 0.5 * np.eye(topics)
    mean = rng.normal(size=topics) / 2
    weights = np.exp(rng.multivariate_normal(mean, covariance, size=len(lengths)))
    chances = weights / weights.sum(axis=1, keepdims=True) @ rows.T
    counts = np.stack([rng.multinomial(n, p / p.sum()) for n, p in zip(lengths, chances, strict=True)])
    words = np.broadcast_to(np.arange(vocabulary, dtype=np.int32), counts.shape)
    counts, rows, mean, covariance = (jnp.asarray(x.astype(dtype)) for x in (counts, rows, mean, covariance))
    return Documents(jnp.asarray(words), counts), rows, TopicPrior(mean, covariance)


def padded(documents):
    """The same documents, the words that do not occur replaced by padding."""
    words, counts = (np.asarray(part) for part in documents)
    return Documents(jnp.asarray(np.where(counts > 0, words, 0)), documents.counts)


# Compiled, since outside of a compiled function each operation is compiled by itself.
@jax.jit
def negative_log_likelihood(z, rows, counts):
    """-log p(words in their order | z) of one document."""
    return -counts @ jax.nn.logsumexp(jax.nn.log_softmax(z)[None, :] + jnp.log(rows), axis=1)


@jax.jit
def negative_log_prior(z, prior):
    """-log N(z; mu, Sigma), without the constant."""
    return (z - prior.mean) @ jnp.linalg.solve(prior.covariance, z - prior.mean) / 2


@jax.jit
def divergence(mean, covariance, prior):
    """KL(N(mean, covariance) || prior)."""
    log_det = jnp.linalg.slogdet(prior.covariance)[1] - jnp.linalg.slogdet(covariance)[1]
    trace = jnp.trace(jnp.linalg.solve(prior.covariance, covariance))
    return negative_log_prior(mean, prior) + (trace - mean.shape[0] + log_det) / 2


def parameters(mean, root):
    """One document's mean and Cholesky factor as a vector, with the logarithms of its diagonal."""
    lower = np.tril(root, -1) + np.diag(np.log(np.diagonal(root)))
    return np.concatenate([mean, lower[np.tril_indices(len(mean))]])


def mean_and_root(x, size):
    """The inverse of `parameters`, for compiled functions."""
    lower = jnp.zeros((size, size)).at[np.tril_indices(size)].set(x[size:])
    return x[:size], jnp.tril(lower, -1) + jnp.diag(jnp.exp(jnp.diagonal(lower)))


def covariances(posterior):
    """V of each document, (documents, topics, topics)."""
    roots = np.asarray(posterior.root)
    roots = roots[:, :, None] * np.eye(roots.shape[1]) if posterior.is_diagonal else roots
    return roots @ roots.swapaxes(1, 2)


def assert_close_posteriors(one, other, tolerance):
    """Means within `tolerance` standard deviations of `other`, and those within `tolerance` relatively."""
    deviations = np.sqrt(np.diagonal(covariances(other), axis1=1, axis2=2))
    assert (np.abs(np.asarray(one.mean) - np.asarray(other.mean)) / deviations).max() < tolerance
    answers = np.sqrt(np.diagonal(covariances(one), axis1=1, axis2=2))
    np.testing.assert_allclose(answers, deviations, rtol=tolerance)
