"""The E-step: the documents' posteriors by one of four methods, and what the M-step needs of them."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from provi.models.corpus import Documents
from provi.models.topics.delta import infer_delta
from provi.models.topics.draws import base_draws
from provi.models.topics.elbo import expected_counts
from provi.models.topics.global_steps import TopicStatistics
from provi.models.topics.laplace import infer_laplace
from provi.models.topics.local_steps import infer
from provi.models.topics.mean_field import assigned_counts, infer_mean_field
from provi.models.topics.model import LocalPosterior, TopicPrior

_RIVALS = {"laplace": infer_laplace, "delta": infer_delta, "mean-field": infer_mean_field}

INFERENCES = ("pgsvi", *_RIVALS)
"""Ways to find the documents' posteriors."""


class LocalSettings(NamedTuple):
    """How the documents' posteriors are found; only `"pgsvi"` uses `num_draws`."""

    inference: str
    covariance: str
    num_draws: int
    tol: float
    max_steps: int


def find_posteriors(
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None,
    settings: LocalSettings,
    key: Any,
) -> LocalPosterior:
    """The documents' posteriors; `start` None is a cold start."""
    limits = {"tol": settings.tol, "max_steps": settings.max_steps}
    if settings.inference != "pgsvi":
        return _RIVALS[settings.inference](documents, topics, prior, start, **limits)[0]
    options: Any = {"covariance": settings.covariance, "num_draws": settings.num_draws, **limits}
    return infer(documents, topics, prior, start, key=key, **options)[0]


def visit_documents(
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None,
    settings: LocalSettings,
    key: Any,
) -> tuple[LocalPosterior, TopicStatistics]:
    """The documents' posteriors, and the *sums* of their statistics, for PG-SVI with the same draws."""
    posterior = find_posteriors(documents, topics, prior, start, settings, key)
    draws = settings.num_draws if settings.inference == "pgsvi" else 0
    return posterior, sum_statistics(documents, topics, posterior, draws, key)


@eqx.filter_jit
def sum_statistics(
    documents: Documents, topics: Any, posterior: LocalPosterior, num_draws: int, key: Any
) -> TopicStatistics:
    """The sums over documents; padded ones, and others without words, add nothing.

    Words are assigned to topics by the mean of their chances over `num_draws` draws from q, or, with none, by the
    chances at the mean of q, as the papers of the other methods do.
    """
    worded = (jnp.sum(documents.counts, axis=1) > 0).astype(topics.dtype)
    mean, root = worded[:, None] * posterior.mean, posterior.root
    if posterior.is_diagonal:
        spread = jnp.diag(worded @ root**2)
    else:
        spread = jnp.einsum("dij,dkj->ik", worded[:, None, None] * root, root)
    if num_draws:
        draws = base_draws(key, num_draws, topics.shape[1], topics.dtype)
        words = expected_counts(documents, topics, posterior, draws)
    else:
        words = assigned_counts(documents, topics, posterior)
    return TopicStatistics(words, jnp.sum(mean, axis=0), mean.T @ posterior.mean + spread, jnp.sum(worded))
