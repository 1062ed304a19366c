r"""The M-step of the correlated topic model, from statistics that mini-batches of documents update.

Given $q(z_d) = N(m_d, V_d)$, what the topics and the prior need of the documents are the means over documents

$$\bar c_{vk} = \tfrac1D\sum_dc_{dv}E_q\phi_{dvk},\qquad \bar m = \tfrac1{D'}\sum_dm_d,\qquad
\bar S = \tfrac1{D'}\sum_d(V_d + m_dm_d'),$$

the last two over the $D'$ documents that have words: one without says nothing of $\mu$ and $\Sigma$. A batch that
stands for the corpus moves them by $s\leftarrow(1-\rho)s+\rho\hat s$ (stochastic EM: Cappe and Moulines 2009, "On-line
expectation-maximization algorithm for latent data models"), and then

$$B_{vk}\propto N\bar c_{vk} + \eta,\qquad \mu = \bar m,\qquad
\Sigma = (1-\lambda)(\bar S - \mu\mu') + \lambda\tfrac{tr(\bar S - \mu\mu')}KI.$$

B is the mode under a Dirichlet prior with parameters $1+\eta$: no word is impossible. The shrinkage $\lambda$ is needed
because the words do not depend on $\sum_kz_k$, and say little of topics that are rare.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.models.topics.model import TopicPrior

_SMALLEST_VARIANCE = 1e-2


class TopicStatistics(NamedTuple):
    """Sums or means over documents: `words` (vocabulary, topics), `first` (topics,), `second` (topics, topics), and
    `worded` (), the number or part of the documents that have words."""

    words: Any
    first: Any
    second: Any
    worded: Any


class GlobalSettings(NamedTuple):
    """eta, the shrinkage of the covariance, and the number N of documents that the statistics stand for; arrays."""

    word_prior: Any
    shrinkage: Any
    total: Any


def empty_statistics(topics: Any) -> TopicStatistics:
    """Zeros, for topics (vocabulary, topics)."""
    size = topics.shape[1]
    return TopicStatistics(*(jnp.zeros(s, topics.dtype) for s in (topics.shape, (size,), (size, size), ())))


@eqx.filter_jit
def update(
    statistics: TopicStatistics, sums: tuple, weights: tuple, rate: Any, settings: GlobalSettings
) -> tuple[TopicStatistics, Any, TopicPrior]:
    r"""$(1-\rho)s + \rho\sum_iw_is_i$ for the parts i of a batch, and the topics and the prior that follow.

    With $w_i = N_i/(NM_i)$ for $M_i$ documents out of $N_i$ the sum is an unbiased estimate of the mean over documents.
    """

    def mix(old, *parts):
        return (1 - rate) * old + rate * sum(weight * part for weight, part in zip(weights, parts, strict=True))

    statistics = jax.tree.map(mix, statistics, *sums)
    return statistics, *maximise(statistics, settings)


def maximise(statistics: TopicStatistics, settings: GlobalSettings) -> tuple[Any, TopicPrior]:
    """B (vocabulary, topics) and N(mu, Sigma) given the means over documents: the formulae at the top."""
    words = settings.total * statistics.words + settings.word_prior
    mean = statistics.first / statistics.worded
    covariance = statistics.second / statistics.worded - mean[:, None] * mean[None, :]
    # Documents that are all alike would take Sigma to zero, and its inverse with it.
    scale = jnp.maximum(jnp.mean(jnp.diagonal(covariance)), _SMALLEST_VARIANCE)
    target = scale * jnp.eye(mean.shape[0], dtype=mean.dtype)
    covariance = (1 - settings.shrinkage) * (covariance + covariance.T) / 2 + settings.shrinkage * target
    return words / jnp.sum(words, axis=0, keepdims=True), TopicPrior(mean, covariance)
