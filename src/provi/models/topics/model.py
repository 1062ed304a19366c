"""The state of a correlated topic model: the prior of the documents' topic weights; documents and posteriors, kept."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.models.topics.corpus import Documents

BLOCK = 64
"""Documents handed to a compiled program at a time: always as many, so that there is one program for each width."""


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


def in_blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The row numbers, at most `BLOCK` at a time."""
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]


class Stratum:
    """The first `size` documents of a bucket on the host; with `warm` it keeps their posteriors, once they are stored.

    What is worked on is copied out, in blocks.
    """

    def __init__(self, documents: Documents, size: int, warm: bool = False):
        self.words, self.counts = np.asarray(documents.words)[:size], np.asarray(documents.counts)[:size]
        self.size, self.warm = size, warm
        self.mean: Any = None
        self.root: Any = None
        self.visited = np.zeros(size, bool)

    def documents(self, rows: np.ndarray) -> Documents:
        """A block of documents, filled up with some that have no words."""
        return Documents(*(jnp.asarray(_filled(part, rows)) for part in (self.words, self.counts)))

    def posterior(self, rows: np.ndarray) -> LocalPosterior | None:
        """The posteriors of a block as they were stored, or None if one of them never was."""
        if not self.warm or not self.visited[rows].all():
            return None
        return LocalPosterior(*(jnp.asarray(_filled(part, rows, rows[:1])) for part in (self.mean, self.root)))

    def store(self, rows: np.ndarray, posterior: LocalPosterior) -> None:
        """Keep the posteriors of a block, where they are kept."""
        if not self.warm:
            return
        mean, root = np.asarray(posterior.mean), np.asarray(posterior.root)
        if self.mean is None:
            self.mean, self.root = (np.zeros((self.size, *part.shape[1:]), part.dtype) for part in (mean, root))
        self.mean[rows], self.root[rows] = mean[: len(rows)], root[: len(rows)]
        self.visited[rows] = True


def _filled(array: Any, rows: np.ndarray, others: Any = None) -> np.ndarray:
    """The rows as a block; what is left of it is zero, or repeats one row, since a root must not be singular."""
    block = np.zeros((BLOCK, *array.shape[1:]), array.dtype)
    block[: len(rows)] = array[rows]
    if others is not None:
        block[len(rows) :] = array[others]
    return block
