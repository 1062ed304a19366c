"""Stored corpora as count matrices, and how well words are predicted without topics."""

from typing import Any

import numpy as np
import scipy.sparse

from provi.data import load


def read_counts(name: str) -> tuple[Any, np.ndarray]:
    """The counts of a stored corpus, (documents, words), and its vocabulary."""
    arrays = load(name).arrays
    shape = (len(arrays["indptr"]) - 1, len(arrays["vocab"]))
    counts = (arrays["count"].astype(np.float64), arrays["word_id"], arrays["indptr"])
    return scipy.sparse.csr_matrix(counts, shape=shape), arrays["vocab"]


def unigram_loss(train: Any, held_out: Any) -> float:
    """Nats a word of `held_out` when each is predicted by its frequency in `train`: what topics must beat."""
    frequencies = np.asarray(train.sum(axis=0)).ravel()
    counts = np.asarray(held_out.sum(axis=0)).ravel()
    seen = counts > 0
    return float(-counts[seen] @ np.log(frequencies[seen] / frequencies.sum()) / counts.sum())
