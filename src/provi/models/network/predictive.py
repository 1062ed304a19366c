"""Predictive distributions of a Bayesian network, and what is measured of them: accuracy, likelihood, calibration.

Draws come in blocks of rows, so that memory stays bounded.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import entr

from provi.core.arguments import as_array, check_count, check_length, device_array, double_precision
from provi.core.types import Count, RandomKey, Vector
from provi.nets.flat_network import FlatNetwork
from provi.targets.bayesian_network import BayesianNetwork

SMALL_BLOCK, BLOCK = 32, 256
"""Rows at once, of few rows and of many: all numbers of rows share two programs. LeNet-5's largest layer of one draw
is 20 MB for 256 images."""


@double_precision
def predict_draws(
    target: BayesianNetwork, mean: Any, sd: Any, inputs: Any, key: RandomKey, num_draws: int
) -> np.ndarray:
    r"""For S draws of the weights $w_s\sim N(\mu, \mathrm{diag}\,\sigma^2)$, the prediction of each row.

    Draw s has the same weights for all rows, whatever the blocks, so that rows may be compared within a draw.

    **Arguments:**

    - `target`: gives the network and the likelihood. - `mean`, `sd`: (dim,), of the weights.
    - `inputs`: (n, ...), scaled as those of the training.

    **Returns:** (S, n, k) in the target's type: class probabilities, or for a Gaussian likelihood the outputs, which
    are means of y.
    """
    num_draws, dtype = check_count("num_draws", num_draws), target.dtype
    mean, sd = device_array(np.asarray(mean), dtype), device_array(np.asarray(sd), dtype)
    rows = np.asarray(inputs)
    if rows.shape[1:] != target.inputs.shape[1:] or not len(rows):
        raise ValueError(f"inputs must be rows of shape {target.inputs.shape[1:]}, at least one, not {rows.shape}.")
    block = SMALL_BLOCK if len(rows) <= SMALL_BLOCK else BLOCK
    found = []
    for first in range(0, len(rows), block):
        part = rows[first : first + block]
        filled = np.zeros((block, *rows.shape[1:]), dtype)
        filled[: len(part)] = part
        drawn = _drawn(key, target.network, mean, sd, jnp.asarray(filled), num_draws, target.categorical)
        found.append(np.asarray(drawn)[:, : len(part)])
    return np.concatenate(found, axis=1)


@eqx.filter_jit
def _drawn(
    key: RandomKey,
    network: FlatNetwork,
    mean: Vector,
    sd: Vector,
    inputs: Array,
    num_draws: int,
    categorical: bool,
) -> Float[Array, "draws rows outputs"]:
    def one(s: Count) -> Array:
        weights = mean + sd * jax.random.normal(jax.random.fold_in(key, s), mean.shape, mean.dtype)
        outputs = network.outputs(weights, inputs)
        return jax.nn.softmax(outputs) if categorical else outputs

    return jax.lax.map(one, jnp.arange(num_draws))


def pack(target: BayesianNetwork) -> dict[str, Any]:
    """The network and the numbers of the target, and one row of the data, which is what predictions need.

    In a form that can be pickled: the structure of a pytree, which a target holds, cannot.
    """
    network = target.network.unravel(target.start)
    function = target.network.apply
    return {
        "network": network if function is None else function,
        "params": None if function is None else network,
        "X": np.asarray(target.inputs[:1]),
        "y": np.asarray(target.outputs[:1]),
        "likelihood": "categorical" if target.categorical else "gaussian",
        "noise_sd": float(target.noise_sd),
        "prior_sd": float(target.prior_sd),
    }


def unpack(packed: dict[str, Any]) -> BayesianNetwork:
    """The inverse of `pack`, but for the data: `num_terms` is 1."""
    return BayesianNetwork(**packed)


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
