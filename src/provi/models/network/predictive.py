"""Draws of the predictive distribution of a Bayesian network, in blocks of rows, so that memory stays bounded."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import check_count, double_precision
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
    mean, sd = jnp.asarray(np.asarray(mean), dtype), jnp.asarray(np.asarray(sd), dtype)
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
