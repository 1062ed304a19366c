"""Convolution of images, channels last: as matrix products on the CPU, as XLA's convolution elsewhere."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.arguments import check_count
from provi.core.types import RandomKey

Images = Float[Array, "*lead _ _ _"]
"""Images, channels last: any number of axes before height, width and channels."""

Kernel = Float[Array, "size size in_channels out_channels"]

_LARGE_KERNEL, _WIDE = 5, 32
"""Tiles pay for kernels from this size on, and below this many output channels: elsewhere their zeros cost more."""


class Conv2d(eqx.Module):
    r"""A convolution of one image, $y_{ijo} = b_o + \sum_{acm} w_{acmo}\, x_{si+a-p,\, sj+c-p,\, m}$.

    Stride s, padding p with zeros on each side. Weights start He-normal, $w \sim N(0, 2/(k^2 C))$, biases at 0; all
    are float32.

    **Arguments:**

    - `in_channels`, `out_channels`: C and O. - `kernel_size`: k, the side of the square kernel.
    - `use_bias`: whether b is there. - `key`: the random key of the weights.
    - `products`: whether to compute with matrix products; None leaves it to `convolve`.
    """

    weight: Kernel
    bias: Float[Array, " out_channels"] | None
    stride: int = eqx.field(static=True)
    padding: int = eqx.field(static=True)
    products: bool | None = eqx.field(static=True)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        use_bias: bool = True,
        products: bool | None = None,
        key: RandomKey,
    ):
        size = check_count("kernel_size", kernel_size)
        shape = (size, size, check_count("in_channels", in_channels), check_count("out_channels", out_channels))
        self.weight = he_normal(key, shape, fan_in=size * size * in_channels)
        self.bias = jnp.zeros(out_channels, jnp.float32) if use_bias else None
        self.stride = check_count("stride", stride)
        self.padding = check_count("padding", padding, 0)
        self.products = products

    def __call__(self, x: Images, *, key: Any = None) -> Images:
        """The image convolved; `key` is not used, but `eqx.nn.Sequential` passes one."""
        del key
        y = convolve(x, self.weight, self.stride, self.padding, self.products)
        return y if self.bias is None else y + jnp.broadcast_to(self.bias, y.shape)


def he_normal(key: RandomKey, shape: tuple[int, ...], fan_in: int) -> Any:
    """Float32 weights from N(0, 2 / fan_in), whatever JAX's default type is."""
    return jax.random.normal(key, shape, jnp.float32) * jnp.float32((2 / fan_in) ** 0.5)


def convolve(x: Images, weight: Kernel, stride: int = 1, padding: int = 0, products: bool | None = None) -> Images:
    r"""The images `x` convolved with `weight`, $y_{ijo} = \sum_{acm} w_{acmo}\, x_{si+a-p,\, sj+c-p,\, m}$.

    **Arguments:**

    - `x`: one image (H, W, C), or any number of leading axes before these.
    - `weight`: (k, k, C, O). - `stride`, `padding`: s and p, the same for both sides.
    - `products`: True for matrix products, False for XLA's convolution; None takes products on the CPU alone. XLA's
      CPU convolution is slow inside loops: 430 steps of LeNet-5 (128 images, value and gradient, in a `fori_loop`)
      cost 7.5 times the CPU seconds of the products below, and a product over all $k^2$ shifts of the image 1.9 times.

    **Returns:** images of side $\lfloor (H + 2p - k)/s \rfloor + 1$ with O channels.
    """
    size, _, channels, _ = weight.shape
    height, width = x.shape[-3] + 2 * padding, x.shape[-2] + 2 * padding
    if x.shape[-1] != channels or min(height, width) < size:
        raise ValueError(
            f"x must be images of {channels} channels, channels last, and at least {size} x {size} with their padding; "
            f"its shape is {x.shape}, padding {padding}."
        )
    if products is None:
        products = jax.default_backend() == "cpu"
    if products:
        return _as_products(x, weight, stride, padding)
    single = x.reshape((-1, *x.shape[-3:]))
    y = jax.lax.conv_general_dilated(
        single, weight, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y.reshape(x.shape[:-3] + y.shape[1:])


def _as_products(x: Any, weight: Any, stride: int, padding: int) -> Any:
    """One product of patches with a matrix that gives a tile of t x t outputs at once.

    The image is cut into blocks of side b = s t; a patch is the blocks that a tile of outputs sees. With t = 2 a patch
    of (k + 1)^2 entries serves four outputs, where one for each would copy 4 k^2 entries: less memory moved, and a
    product 4 O wide where O, 6 in LeNet-5, is too thin to be fast. Max pooling of 2 x 2 then reads whole tiles. For
    3 x 3 kernels tiles were slower, 1.5 times with 16 channels: there t = 1, a patch for each output.
    """
    size, _, channels, outputs = weight.shape
    lead, sides = x.shape[:-3], x.shape[-3:-1]
    tile = 2 if stride == 1 and size >= _LARGE_KERNEL and outputs < _WIDE else 1
    block = stride * tile
    reach = -(-(stride * (tile - 1) + size) // block)  # blocks that a tile sees, along a side
    out = [(side + 2 * padding - size) // stride + 1 for side in sides]
    tiles = [-(-length // tile) for length in out]
    blocks = [count + reach - 1 for count in tiles]
    ends = [count * block - side - padding for count, side in zip(blocks, sides, strict=True)]  # below 0: cut off
    edges = [(0, 0, 0)] * len(lead) + [(padding, end, 0) for end in ends] + [(0, 0, 0)]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)
    x = x.reshape(*lead, blocks[0], block, blocks[1], block, channels)
    x = jnp.swapaxes(x, -4, -3).reshape(*lead, *blocks, block * block * channels)
    places = [(i, j) for i in range(reach) for j in range(reach)]
    patches = [x[..., i : i + tiles[0], j : j + tiles[1], :] for i, j in places]
    y = jnp.concatenate(patches, axis=-1) @ _tile_matrix(weight, stride, tile, reach)
    y = jnp.swapaxes(y.reshape(*lead, *tiles, tile, tile, outputs), -4, -3)
    return y.reshape(*lead, tile * tiles[0], tile * tiles[1], outputs)[..., : out[0], : out[1], :]


def _tile_matrix(weight: Any, stride: int, tile: int, reach: int) -> Any:
    """The kernel, moved to each output of a tile, as a matrix (entries of a patch, outputs of a tile)."""
    size, _, channels, outputs = weight.shape
    block = stride * tile
    side = reach * block
    moved = [
        jnp.pad(weight, ((i, side - size - i), (j, side - size - j), (0, 0), (0, 0)))
        for i in range(0, block, stride)
        for j in range(0, block, stride)
    ]
    matrix = jnp.stack(moved, axis=3).reshape(reach, block, reach, block, channels, tile * tile * outputs)
    return jnp.swapaxes(matrix, 1, 2).reshape(side * side * channels, tile * tile * outputs)
