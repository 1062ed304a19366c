"""Monte-Carlo estimates of the documents' ELBOs and of the expected counts of words by topic."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from provi.core.checks import check_count
from provi.models.corpus import CHUNK, Documents
from provi.models.topics import likelihood
from provi.models.topics.chunks import in_chunks, out_of_chunks
from provi.models.topics.draws import BaseDraws, draws_from
from provi.models.topics.model import LocalPosterior, TopicPrior


def document_elbos(
    documents: Documents, topics: Any, prior: TopicPrior, posterior: LocalPosterior, num_draws: int, key: Any
) -> tuple[Any, Any]:
    r"""$-E_qf - KL(q\|N(\mu,\Sigma))$ of each document in nats (documents,), and the standard errors of the estimates.

    Unbiased, with independent antithetic pairs of normal draws for each document: `num_draws` must be even, and at
    least four. The divergence is exact. The multinomial coefficient is left out, so that this is a lower bound of
    $\log\int\prod_u(B_u\cdot softmax(z))^{c_u}N(z;\mu,\Sigma)dz$, the probability of the words in a given order.
    """
    if check_count("num_draws", num_draws, minimum=4) % 2:
        raise ValueError(f"num_draws must be even, for antithetic pairs, not {num_draws}.")
    return _document_elbos(documents, topics, prior, posterior, num_draws, key)


@eqx.filter_jit
def _document_elbos(documents, topics, prior, posterior, num_draws, key):
    size, num_topics = posterior.mean.shape
    prior_root = jnp.linalg.cholesky(prior.covariance)

    def evaluate(document, key):
        words, counts, mean, root = document
        half = jax.random.normal(key, (num_draws // 2, num_topics), topics.dtype)
        points = jnp.concatenate([half, -half])
        scaled, logs = likelihood.scaled_rows(topics[words])
        weights = likelihood.word_weights(draws_from(mean, root, points), scaled, counts)
        pairs = jnp.mean(likelihood.values(weights, counts).reshape(2, -1), axis=0)
        estimate = (
            likelihood.log_scale(logs, counts) - jnp.mean(pairs) - _divergence(prior.mean, prior_root, mean, root)
        )
        return estimate, jnp.std(pairs, ddof=1) / jnp.sqrt(jnp.asarray(pairs.shape[0], pairs.dtype))

    chunks = in_chunks((documents.words, documents.counts.astype(topics.dtype), posterior.mean, posterior.root))
    keys = jax.random.split(key, chunks[0].shape[:2])
    elbos, errors = jax.lax.map(lambda chunk: jax.vmap(evaluate)(*chunk), (chunks, keys))
    return out_of_chunks(elbos, size), out_of_chunks(errors, size)


def _divergence(prior_mean, prior_root, mean, root):
    """KL(q || prior) of one document."""
    distance = solve_triangular(prior_root, mean - prior_mean, lower=True)
    spread = solve_triangular(prior_root, jnp.diag(root) if root.ndim == 1 else root, lower=True)
    log_det = jnp.sum(jnp.log(jnp.diagonal(spread)))
    return (jnp.sum(distance**2) + jnp.sum(spread**2) - mean.shape[0]) / 2 - log_det


@eqx.filter_jit
def expected_counts(documents: Documents, topics: Any, posterior: LocalPosterior, draws: BaseDraws) -> Any:
    r"""$\sum_dc_{dv}E_q\phi_{dvk}$ (vocabulary, topics), with $\phi_{dvk} = B_{vk}e^{z_k}/(B_v\cdot e^z)$.

    The chance, given the words, that a word v came from topic k, summed over the documents: what the topics are
    re-estimated from. `draws` come from `base_draws`. A word that no topic emits is shared out by softmax(z).
    """

    def count(document, points):
        words, counts, mean, root = document
        scaled, _ = likelihood.scaled_rows(topics[words])
        weights = likelihood.word_weights(draws_from(mean, root, points), scaled, counts)
        return scaled * (weights.ratios.T @ (draws.chances[:, None] * weights.topics))

    def visit(total, chunk):
        return total.at[chunk[0]].add(jax.vmap(count)(chunk, draws.points)), None

    size = documents.words.shape[0]
    # The last chunk is filled up with copies of a document, which must not be counted.
    chunks = in_chunks((documents.words, documents.counts.astype(topics.dtype), posterior.mean, posterior.root))
    filled = jnp.arange(chunks[0].shape[0] * CHUNK).reshape(-1, CHUNK, 1) < size
    chunks = (chunks[0], jnp.where(filled, chunks[1], 0), *chunks[2:])
    return jax.lax.scan(visit, jnp.zeros_like(topics), chunks)[0]
