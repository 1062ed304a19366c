"""What topics are worth: the mean log probability of the held-out words of documents that are known in part."""

from typing import Any

import numpy as np

from provi.bench.topics_problem import TopicsProblem
from provi.models.topics.completion import token_log_probabilities
from provi.models.topics.scoring import completion_score


def our_score(problem: TopicsProblem, components: np.ndarray) -> float:
    """Nats a held-out word by one program for all methods, which takes the topics alone.

    N(mu, Sigma) for the shares is fitted to the training documents with the topics held fixed, then the documents are
    completed under it.
    """
    return float(completion_score(components, problem.train, problem.observed, problem.held_out, problem.seed))


def own_score(problem: TopicsProblem, components: np.ndarray, shares: np.ndarray) -> float | None:
    r"""Nats a held-out word with the method's own mean shares $\theta_d$ of the observed halves.

    $$\frac1{\sum_{dv}c_{dv}}\sum_{dv}c_{dv}\log\sum_k\theta_{dk}B_{kv}.$$

    None where the method gave no shares.
    """
    if not np.isfinite(shares).all():
        return None
    topics = components / components.sum(axis=1, keepdims=True)
    total, words = token_log_probabilities(shares / shares.sum(axis=1, keepdims=True), topics, problem.held_out)
    return total / words


def unigram_score(problem: TopicsProblem) -> float:
    """The same with the words' frequencies in the training documents: what topics must beat."""
    frequencies: Any = np.asarray(problem.train.sum(axis=0)).ravel()
    held_out = np.asarray(problem.held_out.sum(axis=0)).ravel()
    return float(held_out @ np.log(frequencies / frequencies.sum()) / held_out.sum())
