r"""Networks with random weights $w = \mu+\sigma\odot\varepsilon$ on a batch: which noise the examples share.

The gradient of an expectation over the weights is estimated from one forward pass. All three ways below have the same
expectation; they differ in how much the examples of a batch have in common, so in variance.

- *Plain weights*: one draw for the whole batch. Its noise does not shrink as the batch grows.
- *Flipout* (Wen, Vicol, Ba, Tran and Grosse 2018): one perturbation $\Delta = \sigma\odot\varepsilon$ for the batch,
  multiplied for example n by random signs, $\Delta\odot r_ns_n^\top$: of the same law, as $\Delta$ is symmetric with
  independent entries, and uncorrelated between examples. Two products a layer instead of one.
- *Local reparameterisation* (Kingma, Salimans and Welling 2015): the output of a linear layer is Gaussian given its
  input, $Wx+b\sim N(\bar Wx+\bar b,\ \sigma_W^2x^2+\sigma_b^2)$, and is drawn itself, anew for each example: exact
  for a layer that an example uses *once*. A convolution uses its weights at every place, where independent draws would
  be another model, so convolutions are flipped instead, and so are linear layers that are called several times, or
  mapped over the parts of an example (`provi.nets.flat_network` finds them).

Layers that take part are `equinox.nn.Linear` and `provi.nets.Conv2d`, but for subclasses, stacks of layers and layers
of "scalar" size; all other weights are drawn once for the batch.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import RandomKey, Vector
from provi.nets.convolution import Conv2d, convolve
from provi.nets.flat_network import FlatNetwork, used_once

NOISES = ("weights", "flipout", "local")


def noisy_outputs(
    network: FlatNetwork, key: RandomKey, mean: Vector, sd: Vector, inputs: Array, noise: str
) -> Float[Array, "batch outputs"]:
    """The outputs on a batch for random weights N(mean, diag(sd^2)); `noise` says what the examples share."""
    weights_key, examples_key = jax.random.split(key)
    if noise == "weights" or network.apply is not None:
        return network.outputs(mean + sd * jax.random.normal(weights_key, mean.shape, mean.dtype), inputs)
    centre, spread = network.unravel(mean), network.unravel(sd)
    change = network.unravel(sd * jax.random.normal(weights_key, mean.shape, mean.dtype))
    local = used_once(network, inputs[0], mean.dtype) if noise == "local" else [False] * len(network.shapes)
    local = network.assembled(local)

    def one(key: RandomKey, x: Array) -> Array:
        return _noisy(key, centre, spread, change, local)(x)

    return jax.vmap(one)(jax.random.split(examples_key, inputs.shape[0]), inputs).astype(mean.dtype)


def _is_layer(node: Any) -> bool:
    """Not a subclass, which may compute something else; not a stack of layers, which is not called by itself."""
    if type(node) is Conv2d:
        return eqx.is_inexact_array(node.weight) and node.weight.ndim == 4
    if type(node) is not eqx.nn.Linear or "scalar" in (node.in_features, node.out_features):
        return False
    return eqx.is_inexact_array(node.weight) and node.weight.ndim == 2


def _noisy(key: RandomKey, centre: Any, spread: Any, change: Any, local: Any) -> Any:
    """The network of one example: its layers replaced by noisy ones, all other weights changed as for the batch.

    `local` is a network with a flag for each tensor, whether it may be integrated out.
    """
    number = iter(range(1_000_000))

    def replace(centre: Any, spread: Any, change: Any, local: Any) -> Any:
        if not _is_layer(centre):
            return centre + change if eqx.is_inexact_array(centre) else centre
        own = jax.random.fold_in(key, next(number))
        if isinstance(centre, Conv2d):
            return _FlippedConvolution(centre, change, own)
        if local.weight:
            return _LocalLinear(centre, spread, own)
        return _FlippedLinear(centre, change, own)

    return jax.tree.map(replace, centre, spread, change, local, is_leaf=_is_layer)


def _signs(key: RandomKey, shape: tuple[int, ...], dtype: Any) -> Array:
    # jax.random.rademacher compares float64 numbers where these are allowed.
    return 2 * (jax.random.bits(key, shape, jnp.uint8) & 1).astype(dtype) - 1


class _NoisyLinear(eqx.Module):
    """What a linear layer says of itself, since networks may ask."""

    centre: eqx.nn.Linear

    @property
    def in_features(self) -> Any:
        return self.centre.in_features

    @property
    def out_features(self) -> Any:
        return self.centre.out_features


class _FlippedLinear(_NoisyLinear):
    change: eqx.nn.Linear
    key: RandomKey

    def __call__(self, x: Array, *, key: Any = None) -> Array:
        del key
        out, into = jax.random.split(self.key)
        outward = _signs(out, (self.centre.weight.shape[0],), x.dtype)
        inward = _signs(into, (self.centre.weight.shape[1],), x.dtype)
        flipped = self.change.weight @ (inward * x)
        if self.change.bias is not None:
            flipped = flipped + self.change.bias
        return self.centre(x) + outward * flipped


class _LocalLinear(_NoisyLinear):
    spread: eqx.nn.Linear
    key: RandomKey

    def __call__(self, x: Array, *, key: Any = None) -> Array:
        del key
        variance = self.spread.weight**2 @ x**2
        if self.spread.bias is not None:
            variance = variance + self.spread.bias**2
        centre = self.centre(x)
        # An input of zeros and no bias give variance 0, where the square root has no derivative.
        tiny = jnp.finfo(variance.dtype).tiny
        return centre + jnp.sqrt(jnp.maximum(variance, tiny)) * jax.random.normal(self.key, centre.shape, centre.dtype)


class _FlippedConvolution(eqx.Module):
    centre: Conv2d
    change: Conv2d
    key: RandomKey

    def __call__(self, x: Array, *, key: Any = None) -> Array:
        del key
        out, into = jax.random.split(self.key)
        weight = self.change.weight
        outward = _signs(out, (1, 1, weight.shape[-1]), x.dtype)
        inward = _signs(into, (1, 1, weight.shape[-2]), x.dtype)
        layer = self.change
        flipped = convolve(inward * x, weight, layer.stride, layer.padding, layer.products)
        if layer.bias is not None:
            flipped = flipped + layer.bias[None, None, :]
        return self.centre(x) + outward * flipped
