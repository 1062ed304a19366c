"""Small networks: fully connected ones, and LeNet-5 for images of 28 x 28 pixels."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.arguments import check_count
from provi.core.types import RandomKey
from provi.nets.convolution import Conv2d, Images, he_normal


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


class LeNet5(eqx.Module):
    """LeNet-5 for one image (28, 28) or (28, 28, 1): 61,706 float32 parameters with ten classes.

    Convolution 5 x 5 from 1 to 6 channels (padding 2), ReLU, 2 x 2 max pooling; convolution 5 x 5 from 6 to 16, ReLU,
    pooling; fully connected layers 400-120-84-classes with ReLU between. This is the form in use today; LeCun et al.
    (1998) had averages, sigmoids, and sparse connections in the second convolution.

    **Arguments:**

    - `key`: the random key of the weights, which start He-normal, biases at 0.
    - `num_classes`: the number of outputs, which are logits.
    """

    convolutions: tuple[Conv2d, Conv2d]
    head: Perceptron

    def __init__(self, key: RandomKey, num_classes: int = 10):
        first, second, last = jax.random.split(key, 3)
        self.convolutions = (Conv2d(1, 6, 5, padding=2, key=first), Conv2d(6, 16, 5, key=second))
        self.head = Perceptron(last, 400, (120, 84), num_classes)

    def __call__(self, x: Any) -> Float[Array, " num_classes"]:
        x = jnp.asarray(x, jnp.float32)
        if x.shape not in ((28, 28), (28, 28, 1)):
            raise ValueError(
                f"x must be one image of shape (28, 28) or (28, 28, 1), not {x.shape}. For a batch use jax.vmap."
            )
        x = x.reshape(28, 28, 1)
        for convolution in self.convolutions:
            # ReLU and maximum commute; in this order ReLU and its gradient run over a quarter of the entries.
            x = jax.nn.relu(max_pool(convolution(x)))
        return self.head(x)


def max_pool(x: Images) -> Images:
    """The largest entry of each 2 x 2 square of the images (..., H, W, C), both sides even.

    As a reshape and a maximum: its gradient is then elementwise, where that of a reduce-window is a scatter.
    """
    *lead, height, width, channels = x.shape
    if height % 2 or width % 2:
        raise ValueError(f"x must have even sides; its shape is {x.shape}.")
    return x.reshape(*lead, height // 2, 2, width // 2, 2, channels).max(axis=(-4, -2))
