"""What is measured of predicted probabilities, in NumPy: accuracy, likelihood, calibration, kinds of uncertainty."""

import dataclasses
from typing import Any

import numpy as np
from scipy.special import entr

from provi.core.arguments import as_array, check_count, check_length

SMALLEST = float(np.finfo(np.float32).tiny)
"""Below it float32 probabilities are rounded to 0; the negative log-likelihood of a label counts 87 nats at most."""

_ROUNDING = 1e-3  # of float32 probabilities, summed over a thousand classes


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Rows of predictions by bins of confidence: its mean, the share that is right and the number, NaN where empty."""

    edges: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray

    @property
    def expected_error(self) -> float:
        r"""$\sum_b\frac{n_b}{n}|\mathrm{acc}_b-\mathrm{conf}_b|$."""
        gaps = np.abs(self.accuracy - self.confidence)[self.count > 0]
        return float(gaps @ self.count[self.count > 0] / self.count.sum())


def accuracy(probabilities: Any, labels: Any) -> float:
    """The share of rows whose most probable class is the label; `labels` are columns of `probabilities` (n, k)."""
    table, columns = _read(probabilities, labels)
    return float(np.mean(table.argmax(axis=1) == columns))


def negative_log_likelihood(probabilities: Any, labels: Any) -> float:
    r"""$-\frac1n\sum_i\log p_i(y_i)$ in nats, with p at least `SMALLEST`."""
    table, columns = _read(probabilities, labels)
    chosen = table[np.arange(len(table)), columns]
    return float(-np.log(np.maximum(chosen, SMALLEST)).mean())


def brier_score(probabilities: Any, labels: Any) -> float:
    r"""$\frac1n\sum_i\sum_c(p_i(c)-1[y_i=c])^2$, summed over all classes: between 0 and 2."""
    table, columns = _read(probabilities, labels)
    table[np.arange(len(table)), columns] -= 1
    return float((table**2).sum(axis=1).mean())


def calibration(probabilities: Any, labels: Any, num_bins: int = 15) -> Calibration:
    r"""Confidence, the probability of the most probable class, against accuracy, in bins of equal width.

    Bin b holds confidences in $((b-1)/B, b/B]$, as in Guo, Pleiss, Sun and Weinberger, On calibration of modern
    neural networks, 2017.
    """
    table, columns = _read(probabilities, labels)
    num_bins = check_count("num_bins", num_bins)
    confidence, right = table.max(axis=1), table.argmax(axis=1) == columns
    edges = np.linspace(0, 1, num_bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    count = np.bincount(place, minlength=num_bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(place, weights, num_bins) / count for weights in (confidence, right)]
    return Calibration(edges, means[0], means[1], count)


def expected_calibration_error(probabilities: Any, labels: Any, num_bins: int = 15) -> float:
    """The mean gap between confidence and accuracy over 15 bins of equal width (Guo et al. 2017); see `calibration`.

    Biased upwards in small samples: a perfectly calibrated model has an expectation above zero.
    """
    return calibration(probabilities, labels, num_bins).expected_error


def entropy(probabilities: Any) -> np.ndarray:
    r"""$-\sum_cp(c)\log p(c)$ of each row, in nats: between 0 and $\log k$."""
    return entr(np.asarray(probabilities, dtype=np.float64)).sum(axis=-1)


def entropy_parts(draws: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""The entropy of the predictive distribution of each row, and its two parts, each (n,), in nats.

    $$H[E_wp(y\mid x,w)] = E_wH[p(y\mid x,w)] + I(y; w\mid x).$$

    **Arguments:** `draws`: probabilities (S, n, k) under S draws of the weights.

    **Returns:** the whole; the expected entropy, noise that more data would not remove; the mutual information, how
    far draws of the weights disagree. The latter's estimate from S draws is too low, and at most $\log S$.
    """
    table = as_array("draws", draws, ndim=3).astype(np.float64)
    whole, expected = entropy(table.mean(axis=0)), entropy(table).mean(axis=0)
    return whole, expected, np.maximum(whole - expected, 0)


def _read(probabilities: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Both in order and of the same length; probabilities a float64 copy."""
    table = as_array("probabilities", probabilities, ndim=2).astype(np.float64)
    if table.min() < 0 or np.abs(table.sum(axis=1) - 1).max() > _ROUNDING:
        raise ValueError("probabilities must be non-negative with rows that sum to 1; pass a softmax, not logits.")
    columns = as_array("labels", labels, ndim=1)
    check_length("labels", columns, len(table), "probabilities")
    whole = columns.astype(np.int64)
    if (whole != columns).any() or whole.min() < 0 or whole.max() >= table.shape[1]:
        raise ValueError(f"labels must be whole numbers from 0 to {table.shape[1] - 1}, the columns of probabilities.")
    return table, whole
