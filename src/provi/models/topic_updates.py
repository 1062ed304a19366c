r"""Latent Dirichlet allocation as a conditionally conjugate model.

Topics $\beta_k\sim Dir(\eta)$ over words; for each document $\theta\sim Dir(\alpha)$ over topics; each word has a topic
$z\sim\theta$ and is drawn from $\beta_z$. $q(\beta_k) = Dir(\lambda_k)$, $q(\theta) = Dir(\gamma)$, $q(z) = \phi$. With
$\phi_{wk}\propto e^{E\log\theta_k + E\log\beta_{kw}}$ put in, a document needs only $\gamma$, which solves

$$\gamma_k = \alpha + \sum_wc_w\phi_{wk} = \alpha + e_k\Big(\frac{c}{Be}\,B\Big)_k,\qquad
e = e^{E\log\theta},\; B_{wk} = e^{E\log\beta_{kw}}:$$

two products of a (words, topics) matrix with a vector for each iteration, and $\phi$ is never formed.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from provi.algorithms.conjugate_svi import AbstractConjugateModel, LocalAnswer
from provi.models.corpus import CHUNK, Documents
from provi.models.expectations import dirichlet_expected_log, dirichlet_kl


class ChunkAnswer(NamedTuple):
    """For a few documents: gamma, the expected counts c phi of each word and topic, and the local ELBO."""

    gamma: Any
    expected_counts: Any
    bound: Any


def _weights(gamma):
    """exp(E log theta) up to a factor, which cancels in phi; kept off zero, so that no word is ever lost."""
    expected = dirichlet_expected_log(gamma)
    return _bounded_exp(expected - jnp.max(expected, axis=-1, keepdims=True))


def _bounded_exp(exponent):
    """exp, but at least the fourth root of the smallest float: the product of two is far from underflow."""
    return jnp.exp(jnp.maximum(exponent, jnp.log(jnp.finfo(exponent.dtype).tiny) / 4))


class TopicModel(AbstractConjugateModel):
    """The prior eta as a (topics, words) array, alpha, and when the iteration for a document ends.

    It ends when gamma changes by less than `local_tolerance` on average over topics, or after `local_limit` updates.
    """

    prior: Any
    document_prior: Any
    local_tolerance: Any
    local_limit: Any

    def local_step(self, natural, rows):
        log_topics = dirichlet_expected_log(natural).T

        def visit(sums, documents):
            answer = self._documents(log_topics, documents)
            return sums.at[documents.words].add(answer.expected_counts), answer.bound

        sums, bounds = jax.lax.scan(visit, jnp.zeros_like(log_topics), _in_chunks(rows))
        return LocalAnswer(sums.T, jnp.sum(bounds))

    def divergence(self, natural):
        return jnp.sum(dirichlet_kl(natural, self.prior))

    def document_parameters(self, natural: Any, documents: Documents) -> Any:
        """gamma of each document, (documents, topics)."""
        log_topics = dirichlet_expected_log(natural).T
        gamma = jax.lax.map(lambda chunk: self._documents(log_topics, chunk).gamma, _in_chunks(documents))
        return gamma.reshape(-1, gamma.shape[-1])[: documents.words.shape[0]]

    def _documents(self, log_topics, documents):
        """The fixed point for one chunk; a document that has converged stays where it is."""
        matrices = _scaled_topics(log_topics, documents)
        transposed, counts = jnp.swapaxes(matrices, 1, 2), documents.counts

        def ratios(topics):
            return counts / _product(matrices, topics)

        def unfinished(carry):
            _, active, iteration = carry
            return jnp.any(active) & (iteration < self.local_limit)

        def iterate(carry):
            gamma, active, iteration = carry
            topics = _weights(gamma)
            new = self.document_prior + topics * _product(transposed, ratios(topics))
            change = jnp.mean(jnp.abs(new - gamma), axis=1)
            gamma = jnp.where(active[:, None], new, gamma)
            return gamma, active & (change >= self.local_tolerance), iteration + 1

        shape = (counts.shape[0], log_topics.shape[1])
        start = jnp.ones(shape, counts.dtype), jnp.ones(shape[0], bool), jnp.zeros((), self.local_limit.dtype)
        gamma, _, _ = jax.lax.while_loop(unfinished, iterate, start)
        topics = _weights(gamma)
        expected = ratios(topics)[:, :, None] * topics[:, None, :] * matrices
        return ChunkAnswer(gamma, expected, self._bound(log_topics, documents, gamma))

    def _bound(self, log_topics, documents, gamma):
        r"""$\sum_wc_w\log\sum_ke^{E\log\theta_k+E\log\beta_{kw}} - KL(Dir(\gamma)\|Dir(\alpha))$, for any gamma."""
        joint = dirichlet_expected_log(gamma)[:, None, :] + log_topics[documents.words]
        words = jnp.sum(documents.counts * logsumexp(joint, axis=2))
        return words - jnp.sum(dirichlet_kl(gamma, jnp.full_like(gamma, self.document_prior)))


def _scaled_topics(log_topics, documents):
    """B for the words of each document, (documents, words, topics), the largest entry of each word being one."""
    logs = log_topics[documents.words]
    return _bounded_exp(logs - jnp.max(logs, axis=2, keepdims=True))


def _product(matrices, vectors):
    """One matrix-vector product a document; as `dot_general` it was twice as fast as sums of products."""
    return jax.lax.dot_general(matrices, vectors[:, :, None], (((2,), (1,)), ((0,), (0,))))[:, :, 0]


def _in_chunks(documents):
    """Leaves (chunks, CHUNK, words), filled up with documents of no words."""
    count = documents.words.shape[0]
    extra = -count % CHUNK
    return jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, extra), (0, 0))).reshape(-1, CHUNK, leaf.shape[1]), documents)


@eqx.filter_jit
def document_parameters(model: TopicModel, natural: Any, buckets: tuple) -> tuple:
    """gamma of each document of each bucket."""
    return tuple(model.document_parameters(natural, documents) for documents in buckets)
