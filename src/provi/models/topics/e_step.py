"""The E-step: the documents' posteriors by one of four methods, their ELBOs, and what the M-step needs of them."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from provi.core.arguments import check_count
from provi.core.compilation import lean_jit
from provi.models.topics import likelihood
from provi.models.topics.corpus import Documents, in_chunks, map_worded, out_of_chunks
from provi.models.topics.draws import BaseDraws, base_draws, draws_from, no_draws, normal_pairs
from provi.models.topics.global_steps import Contribution
from provi.models.topics.local_steps import infer
from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.models.topics.newton import infer_delta, infer_laplace, infer_mean_field

_RIVALS = {
    "laplace": partial(infer_laplace, curvature="assigned"),
    "delta": infer_delta,
    "mean-field": infer_mean_field,
}

INFERENCES = ("pgsvi", *_RIVALS)
"""Ways to find the documents' posteriors."""


class LocalSettings(NamedTuple):
    """How the documents' posteriors are found; only `"pgsvi"` uses `num_draws`."""

    inference: str
    covariance: str
    num_draws: int
    tol: float
    max_steps: int

    def draws(self, generator: np.random.Generator, num_topics: int, dtype: Any, *, shared: bool = False) -> BaseDraws:
        r"""Draws for PG-SVI; for the others the means, at which their papers assign words to topics.

        There $\phi_{dvk}\propto B_{vk}e^{m_{dk}}$: in Blei and Lafferty's paper and, since $E_q\log\pi_k$ is $m_k$ plus
        the same number for all topics, in both methods of Wang and Blei's.
        """
        if self.inference != "pgsvi":
            return no_draws(num_topics, dtype)
        return base_draws(generator, self.num_draws, num_topics, dtype, shared=shared)


def find_posteriors(
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None,
    settings: LocalSettings,
    draws: BaseDraws,
) -> LocalPosterior:
    """The documents' posteriors; `start` None is a cold start."""
    limits: Any = {"tol": settings.tol, "max_steps": settings.max_steps}
    if settings.inference != "pgsvi":
        return _RIVALS[settings.inference](documents, topics, prior, start, **limits)[0]
    return infer(documents, topics, prior, start, draws=draws, covariance=settings.covariance, **limits)[0]


@lean_jit
def contribute(documents: Documents, topics: Any, posterior: LocalPosterior, draws: BaseDraws) -> Contribution:
    """What the M-step needs of the documents; padded ones, and others without words, add nothing."""
    worded = (jnp.sum(documents.counts, axis=1) > 0).astype(topics.dtype)
    mean, root = worded[:, None] * posterior.mean, posterior.root
    if posterior.is_diagonal:
        spread = jnp.diag(worded @ root**2)
    else:
        spread = jnp.einsum("dij,dkj->ik", worded[:, None, None] * root, root)
    counts = expected_counts(documents, topics, posterior, draws)
    return Contribution(
        documents.words, counts, jnp.sum(mean, axis=0), mean.T @ posterior.mean + spread, jnp.sum(worded)
    )


def document_elbos(
    documents: Documents, topics: Any, prior: TopicPrior, posterior: LocalPosterior, num_draws: int, generator: Any
) -> tuple[Any, Any]:
    r"""$-E_qf - KL(q\|N(\mu,\Sigma))$ of each document in nats (documents,), and the standard errors of the estimates.

    Unbiased, with independent antithetic pairs of normal draws for each document: `num_draws` must be even, and at
    least four. The divergence is exact. The multinomial coefficient is left out, so that this is a lower bound of
    $\log\int\prod_u(B_u\cdot softmax(z))^{c_u}N(z;\mu,\Sigma)dz$, the probability of the words in a given order.

    **Arguments:** `generator`: NumPy's, of the draws.
    """
    if check_count("num_draws", num_draws, minimum=4) % 2:
        raise ValueError(f"num_draws must be even, for antithetic pairs, not {num_draws}.")
    points = normal_pairs(generator, (posterior.mean.shape[0], num_draws, posterior.mean.shape[1]), topics.dtype)
    return _document_elbos(documents, topics, prior, posterior, points)


@lean_jit
def _document_elbos(documents, topics, prior, posterior, points):
    inverse_root = _inverse_root(prior)

    def evaluate(words, counts, mean, root, points):
        values, rest = _terms(topics[words], counts, prior.mean, inverse_root, mean, root, points)
        pairs = jnp.mean(values.reshape(2, -1), axis=0)
        return rest - jnp.mean(pairs), jnp.std(pairs, ddof=1) / jnp.sqrt(jnp.asarray(pairs.shape[0], pairs.dtype))

    counts = documents.counts.astype(topics.dtype)
    chunks = in_chunks((documents.words, counts, posterior.mean, posterior.root, points))
    elbos, errors = jax.lax.map(lambda chunk: jax.vmap(evaluate)(*chunk), chunks)
    return out_of_chunks(elbos, counts.shape[0]), out_of_chunks(errors, counts.shape[0])


@lean_jit
def quick_elbos(documents: Documents, topics: Any, prior: TopicPrior, posterior: LocalPosterior, draws: BaseDraws):
    """The ELBOs (documents,) by the few points of `base_draws`: with less noise than `document_elbos`, not unbiased.

    The points must not be those by which the posteriors were found, which know them. Zero for a document without
    words: its ELBO if its posterior is the prior, as `infer` has it.
    """
    inverse_root = _inverse_root(prior)

    def evaluate(document, points):
        words, counts, mean, root = document
        values, rest = _terms(topics[words], counts, prior.mean, inverse_root, mean, root, points)
        return rest - draws.chances @ values

    counts = documents.counts.astype(topics.dtype)
    chunks = in_chunks((documents.words, counts, posterior.mean, posterior.root))
    return out_of_chunks(map_worded(lambda chunk: jax.vmap(evaluate)(chunk, draws.points), chunks), counts.shape[0])


def _terms(rows, counts, prior_mean, inverse_root, mean, root, points):
    """f at the draws of one document, and what of the ELBO does not depend on them."""
    scaled, logs = likelihood.scaled_rows(rows)
    weights = likelihood.word_weights(draws_from(mean, root, points), scaled, counts)
    rest = likelihood.log_scale(logs, counts) - _divergence(prior_mean, inverse_root, mean, root)
    return likelihood.values(weights, counts), rest


def _inverse_root(prior):
    """The inverse of the lower Cholesky factor of Sigma."""
    identity = jnp.eye(prior.mean.shape[0], dtype=prior.mean.dtype)
    return solve_triangular(jnp.linalg.cholesky(prior.covariance), identity, lower=True)


def _divergence(prior_mean, inverse_root, mean, root):
    """KL(q || prior) of one document."""
    distance = inverse_root @ (mean - prior_mean)
    spread = inverse_root * root[None, :] if root.ndim == 1 else inverse_root @ root
    log_det = jnp.sum(jnp.log(jnp.diagonal(spread)))
    return (jnp.sum(distance**2) + jnp.sum(spread**2) - mean.shape[0]) / 2 - log_det


@lean_jit
def expected_counts(documents: Documents, topics: Any, posterior: LocalPosterior, draws: BaseDraws) -> Any:
    r"""$c_{dv}E_q\phi_{dvk}$ (documents, words, topics), with $\phi_{dvk} = B_{vk}e^{z_k}/(B_v\cdot e^z)$.

    The chance, given the words, that a word v came from topic k: what the topics are re-estimated from. A word that
    no topic emits is shared out by softmax(z).
    """

    def count(document, points):
        words, counts, mean, root = document
        scaled, _ = likelihood.scaled_rows(topics[words])
        weights = likelihood.word_weights(draws_from(mean, root, points), scaled, counts)
        return scaled * (weights.ratios.T @ (draws.chances[:, None] * weights.topics))

    counts = documents.counts.astype(topics.dtype)
    chunks = in_chunks((documents.words, counts, posterior.mean, posterior.root))
    return out_of_chunks(map_worded(lambda chunk: jax.vmap(count)(chunk, draws.points), chunks), counts.shape[0])
