"""A corpus drawn from a correlated topic model whose topics and correlations are known."""

from functools import cache

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment

TOPICS, WORDS = 4, 120
PAIRS = 4.0 * np.kron(np.eye(2), [[1.0, 0.6], [0.6, 1.0]])
"""Topics 0 and 1 come together, 2 and 3 as well: for z less its mean the correlations are 1/3 in pairs, -2/3 across."""


@cache
def planted_topics():
    """30 words of its own for each topic, and a tenth that is the same for all."""
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(TOPICS), np.ones(WORDS // TOPICS)) * rng.uniform(0.5, 1.5, WORDS)
    return 0.9 * topics / topics.sum(axis=1, keepdims=True) + 0.1 / WORDS


@cache
def planted_corpus(documents, seed=1, correlated=True):
    """Documents of 150 to 250 words from the model, the shares of topics in them, and z."""
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal(np.zeros(TOPICS), PAIRS if correlated else np.diag(np.diag(PAIRS)), documents)
    shares = np.exp(z - z.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    lengths = rng.integers(150, 251, documents)
    counts = [rng.multinomial(n, p) for n, p in zip(lengths, shares @ planted_topics(), strict=True)]
    return sp.csr_matrix(np.stack(counts).astype(float)), shares, z


def matched(model):
    """The found topic of each planted one, by the assignment with the largest overlap, and the overlaps."""
    overlap = np.minimum(planted_topics()[:, None, :], model.components_[None]).sum(axis=2)
    planted, found = linear_sum_assignment(-overlap)
    return found, overlap[planted, found]
