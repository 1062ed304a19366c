"""The state of a correlated topic model: the prior of the documents' topic weights, and their posteriors."""

from typing import Any

import equinox as eqx


class TopicPrior(eqx.Module):
    r"""$z\sim N(\mu, \Sigma)$ for each document; its topic shares are $softmax(z)$.

    `mean` has shape (topics,), `covariance` (topics, topics).
    """

    mean: Any
    covariance: Any


class LocalPosterior(eqx.Module):
    r"""$q(z_d) = N(m_d, V_d)$ for each document.

    `mean` has shape (documents, topics). `root` is the lower Cholesky factor of $V_d$, (documents, topics, topics), or,
    where q is diagonal, the standard deviations, (documents, topics).
    """

    mean: Any
    root: Any

    @property
    def is_diagonal(self) -> bool:
        """Whether the topics are independent under q."""
        return self.root.ndim == self.mean.ndim
