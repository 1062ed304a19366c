"""Fully connected networks."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.arguments import check_count
from provi.core.types import RandomKey
from provi.nets.convolution import he_normal


class Perceptron(eqx.Module):
    r"""A multilayer perceptron for one example: $x \mapsto A_L \mathrm{relu}(\dots \mathrm{relu}(A_1 x + b_1)) + b_L$.

    All weights are float32 and start He-normal, $N(0, 2/\text{inputs of the layer})$, biases at 0.

    **Arguments:**

    - `key`: the random key of the weights.
    - `in_size`: the number of entries of an example; of any shape, it is laid out as a vector.
    - `hidden_sizes`: the widths of the hidden layers; empty for a linear model. - `out_size`: the number of outputs.
    """

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, key: RandomKey, in_size: int, hidden_sizes: Sequence[int], out_size: int):
        sizes = [check_count("in_size", in_size)]
        sizes += [check_count("hidden_sizes", size) for size in hidden_sizes] + [check_count("out_size", out_size)]
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(
            dense(own, inputs, outputs) for own, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
        )

    def __call__(self, x: Any, *, key: Any = None) -> Float[Array, " outputs"]:
        del key  # `eqx.nn.Sequential` passes one
        x = jnp.asarray(x, jnp.float32)
        if x.size != self.layers[0].in_features:
            raise ValueError(
                f"x must be one example of {self.layers[0].in_features} entries; its shape is {x.shape}. For a batch "
                f"use jax.vmap."
            )
        x = x.reshape(-1)
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


def dense(key: RandomKey, in_size: int, out_size: int) -> eqx.nn.Linear:
    """An `eqx.nn.Linear` in float32, weights N(0, 2 / in_size), biases 0."""
    # Only the form of Equinox's layer is made: its own weights, drawn uniformly, would be thrown away.
    layer = eqx.filter_eval_shape(eqx.nn.Linear, in_size, out_size, key=key)
    start = he_normal(key, (out_size, in_size), fan_in=in_size), jnp.zeros(out_size, jnp.float32)
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, start)
