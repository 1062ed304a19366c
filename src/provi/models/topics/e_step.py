"""The E-step: the documents' posteriors by one of four methods, and what the M-step needs of them."""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from provi.core.compilation import lean_jit
from provi.models.topics.corpus import Documents
from provi.models.topics.draws import BaseDraws, base_draws, no_draws
from provi.models.topics.elbo import expected_counts
from provi.models.topics.global_steps import Contribution
from provi.models.topics.local_steps import infer
from provi.models.topics.mean_field import infer_mean_field
from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.models.topics.newton import infer_delta, infer_laplace

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
