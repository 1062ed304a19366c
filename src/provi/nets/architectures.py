"""Perceptrons, LeNet-5 for images of 28 x 28 pixels, and ResNet-18 for 32 x 32, with group normalisation."""

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


class ResNet18(eqx.Module):
    """ResNet-18 for one image (H, W, 3), as used for CIFAR: 11,173,962 float32 parameters with ten classes.

    A 3 x 3 convolution to 64 channels; four stages of two basic blocks with 64, 128, 256 and 512 channels, the last
    three halving the sides (He et al. 2016); the average over pixels; a linear layer. Convolutions have no bias and
    weights start He-normal. Group normalisation (Wu and He 2018, 32 groups) stands in the place of batch normalisation:
    statistics of a batch would make the likelihood of an image depend on the other images, and on a running state, so
    that there is no posterior over the weights to approximate. It has as many parameters.

    **Arguments:**

    - `key`: the random key of the weights. - `num_classes`: the number of outputs, which are logits.
    - `compute_dtype`: the type to compute in, such as `jnp.bfloat16`; parameters are kept, normalisations computed and
      outputs returned in float32.
    """

    stem: Conv2d
    stem_norm: "GroupNorm"
    blocks: tuple["BasicBlock", ...]
    head: eqx.nn.Linear
    compute_dtype: Any = eqx.field(static=True)

    def __init__(self, key: RandomKey, num_classes: int = 10, compute_dtype: Any = jnp.float32):
        stem, head, *keys = jax.random.split(key, 10)
        self.stem = Conv2d(3, 64, 3, padding=1, use_bias=False, key=stem)
        self.stem_norm = GroupNorm(64)
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        strides = (1, 1, 2, 1, 2, 1, 2, 1)
        self.blocks = tuple(
            BasicBlock(own, before, after, stride)
            for own, before, after, stride in zip(keys, widths[:-1], widths[1:], strides, strict=True)
        )
        self.head = dense(head, 512, num_classes)
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(self, x: Any) -> Float[Array, " num_classes"]:
        x = jnp.asarray(x, jnp.float32)
        if x.ndim != 3 or x.shape[-1] != 3:
            raise ValueError(f"x must be one image of shape (H, W, 3), not {x.shape}. For a batch use jax.vmap.")
        arrays, rest = eqx.partition(self, eqx.is_inexact_array)
        net = eqx.combine(jax.tree.map(lambda array: array.astype(self.compute_dtype), arrays), rest)
        x = jax.nn.relu(net.stem_norm(net.stem(x.astype(self.compute_dtype))))
        for block in net.blocks:
            x = block(x)
        return net.head(x.mean(axis=(0, 1))).astype(jnp.float32)


class BasicBlock(eqx.Module):
    """Two 3 x 3 convolutions with normalisations and a shortcut: relu(x' + norm(conv(relu(norm(conv(x)))))).

    x' is x, or a normalised 1 x 1 convolution of it where the number of channels or the sides change.
    """

    convolutions: tuple[Conv2d, Conv2d]
    norms: tuple["GroupNorm", "GroupNorm"]
    shortcut: Conv2d | None
    shortcut_norm: "GroupNorm | None"

    def __init__(self, key: RandomKey, in_channels: int, out_channels: int, stride: int):
        first, second, third = jax.random.split(key, 3)
        self.convolutions = (
            Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, use_bias=False, key=first),
            Conv2d(out_channels, out_channels, 3, padding=1, use_bias=False, key=second),
        )
        self.norms = (GroupNorm(out_channels), GroupNorm(out_channels))
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = (
            Conv2d(in_channels, out_channels, 1, stride=stride, use_bias=False, key=third) if changes else None
        )
        self.shortcut_norm = GroupNorm(out_channels) if changes else None

    def __call__(self, x: Images) -> Images:
        y = jax.nn.relu(self.norms[0](self.convolutions[0](x)))
        y = self.norms[1](self.convolutions[1](y))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return jax.nn.relu(y + x)


class GroupNorm(eqx.Module):
    r"""Group normalisation of one image (H, W, C): $y = a_c (x - m_g)/\sqrt{v_g + 10^{-5}} + b_c$ in group g.

    Scale a and shift b start at 1 and 0; $m_g$ and $v_g$ are mean and variance over the pixels and the C / `groups`
    channels of a group, in float32.

    **Arguments:**

    - `channels`: C. - `groups`: the number of groups, which divides C.
    """

    scale: Float[Array, " channels"]
    shift: Float[Array, " channels"]
    groups: int = eqx.field(static=True)

    def __init__(self, channels: int, groups: int = 32):
        if channels % groups:
            raise ValueError(f"groups must divide the number of channels, {channels}; it is {groups}.")
        self.scale = jnp.ones(channels, jnp.float32)
        self.shift = jnp.zeros(channels, jnp.float32)
        self.groups = groups

    def __call__(self, x: Images) -> Images:
        # Both sums run along pixels only, in one pass over x without a reshape of it; groups are formed from C numbers.
        exact = x.astype(jnp.float32)
        mean, square = (self._by_group(moment.mean(axis=(0, 1))) for moment in (exact, exact**2))
        # The difference may round below 0 when all of a group is nearly equal.
        factor = self.scale * jax.lax.rsqrt(jnp.maximum(square - mean**2, 0) + 1e-5)
        shift = self.shift - mean * factor
        return (exact * factor[None, None, :] + shift[None, None, :]).astype(x.dtype)

    def _by_group(self, moments: Array) -> Array:
        groups = moments.reshape(self.groups, -1)
        return jnp.broadcast_to(groups.mean(axis=1, keepdims=True), groups.shape).reshape(-1)
