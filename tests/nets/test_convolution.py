"""Convolution as matrix products and as XLA's convolution, against SciPy and Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate

from provi.nets import Conv2d
from provi.nets.convolution import convolve
from support.statistics import assert_mean

pytestmark = pytest.mark.usefixtures("quick_compilation")

# (kernel size, stride, padding, height, width, channels, outputs): tiles of 2 x 2 are used from size 5 on, below 32
# outputs, with stride 1. Sides leave odd numbers of outputs, rows that no output reads, and a single output.
CASES = [
    (5, 1, 2, 6, 9, 2, 3),
    (5, 1, 0, 5, 8, 1, 4),
    (6, 1, 1, 9, 7, 1, 2),
    (5, 1, 0, 6, 6, 1, 32),
    (3, 1, 1, 5, 4, 3, 2),
    (3, 2, 1, 8, 7, 2, 3),
    (1, 2, 0, 6, 5, 2, 3),
    (2, 3, 0, 10, 9, 2, 2),
]


def by_scipy(x, weight, stride, padding):
    padded = np.pad(np.asarray(x), ((padding, padding), (padding, padding), (0, 0)))
    full = [
        correlate(padded, np.asarray(weight)[..., output], mode="valid")[..., 0] for output in range(weight.shape[-1])
    ]
    return np.stack(full, axis=-1)[::stride, ::stride]


def draws(case):
    size, _, _, height, width, channels, outputs = case
    rng = np.random.default_rng(sum(case))
    x = rng.normal(size=(2, height, width, channels))
    return jnp.asarray(x), jnp.asarray(rng.normal(size=(size, size, channels, outputs)))


@pytest.mark.parametrize("case", CASES)
def test_products_and_xla_are_the_convolution_of_scipy(case):
    size, stride, padding, *_ = case
    x, weight = draws(case)
    expected = np.stack([by_scipy(image, weight, stride, padding) for image in x])
    both = jax.jit(lambda x, weight: [convolve(x, weight, stride, padding, products) for products in (True, False)])
    for y in both(x, weight):
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12 * size**2 * 30)


@pytest.mark.parametrize("case", [CASES[0], CASES[5]])
def test_gradients_of_products_are_those_of_xla(case):
    _, stride, padding, *_ = case

    @jax.jit
    def gradients(x, weight):
        def energy(products):
            return lambda x, weight: jnp.sum(jnp.sin(convolve(x, weight, stride, padding, products)))

        return [jax.grad(energy(products), (0, 1))(x, weight) for products in (True, False)]

    for ours, other in zip(*gradients(*draws(case)), strict=True):
        np.testing.assert_allclose(ours, other, rtol=0, atol=1e-11)


def test_module_is_that_of_equinox_with_channels_last():
    layer = Conv2d(2, 3, 5, padding=2, key=jax.random.key(0))
    layer = eqx.tree_at(lambda layer: layer.bias, layer, jnp.arange(3, dtype=jnp.float32))
    bare = eqx.tree_at(lambda layer: layer.bias, layer, None)
    other = eqx.filter_eval_shape(eqx.nn.Conv2d, 2, 3, 5, padding=2, key=jax.random.key(0))
    kernel = jnp.moveaxis(layer.weight, (2, 3), (1, 0))
    other = eqx.tree_at(lambda other: (other.weight, other.bias), other, (kernel, layer.bias[:, None, None]))
    x = np.random.default_rng(0).normal(size=(4, 8, 6, 2)).astype(np.float32)

    @jax.jit
    def outputs(x):
        expected = jnp.moveaxis(jax.vmap(other)(jnp.moveaxis(x, -1, 1)), 1, -1)
        return expected, [jax.vmap(layer)(x), layer(x), bare(x) + layer.bias[None, None, None, :]]

    expected, ours = outputs(x)
    for y in ours:
        assert y.dtype == jnp.float32
        np.testing.assert_allclose(y, expected, atol=1e-5)


def test_weights_may_be_mapped_over():
    x, _ = draws(CASES[0])
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 5, 2, 3)))
    mapped = jax.jit(jax.vmap(lambda weight: convolve(x, weight, 1, 2, True)))(weights)
    for y, weight in zip(mapped, weights, strict=True):
        np.testing.assert_allclose(y[1], by_scipy(x[1], weight, 1, 2), atol=1e-12)


@pytest.mark.parametrize(
    ("backend", "products", "xla"),
    [("cpu", None, False), ("gpu", None, True), ("gpu", True, False), ("cpu", False, True)],
)
def test_the_platform_chooses_unless_told(monkeypatch, backend, products, xla):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    # A new function each time: JAX would find the program of another backend again otherwise.
    weight = jnp.zeros((5, 5, 1, 2))
    program = str(jax.make_jaxpr(lambda x: convolve(x, weight, 1, 0, products))(jnp.zeros((8, 8, 1))))
    assert ("conv_general_dilated" in program) == xla and ("dot_general" in program) != xla


def test_weights_start_he_normal_in_float32():
    layer = Conv2d(8, 50, 5, key=jax.random.key(3))
    assert layer.weight.shape == (5, 5, 8, 50) and layer.weight.dtype == layer.bias.dtype == jnp.float32
    assert not layer.bias.any()
    scaled = np.asarray(layer.weight, float).ravel() * np.sqrt(5 * 5 * 8 / 2)
    assert_mean(scaled, 0.0)
    assert_mean(scaled**2, 1.0)


def test_bad_arguments_are_named():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="^kernel_size must be at least 1"):
        Conv2d(1, 2, 0, key=key)
    with pytest.raises(ValueError, match="^stride must be at least 1"):
        Conv2d(1, 2, 3, stride=0, key=key)
    with pytest.raises(ValueError, match="^padding must be at least 0"):
        Conv2d(1, 2, 3, padding=-1, key=key)
    for shape in ((4, 4, 2), (2, 4, 1)):  # other channels; too small
        with pytest.raises(ValueError, match="^x must be images of 1 channels, channels last, and at least 3 x 3"):
            Conv2d(1, 2, 3, key=key)(jnp.zeros(shape))
