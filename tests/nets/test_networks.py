"""LeNet-5, ResNet-18 and the perceptron: parameter counts, types, and values against Equinox's own layers."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.nets import LeNet5, Perceptron, ResNet18
from provi.nets.architectures import BasicBlock, GroupNorm, max_pool

pytestmark = pytest.mark.usefixtures("quick_compilation")


def channels_first(convolution):
    """The same convolution as a function of (C, H, W), by Equinox."""
    size, _, inputs, outputs = convolution.weight.shape
    bias = jnp.zeros(outputs, jnp.float32) if convolution.bias is None else convolution.bias
    layer = eqx.filter_eval_shape(
        eqx.nn.Conv2d, inputs, outputs, size, convolution.stride, convolution.padding, key=jax.random.key(0)
    )
    values = jnp.moveaxis(convolution.weight, (2, 3), (1, 0)), bias[:, None, None]
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, values)


def group_norm(norm, groups=32):
    layer = eqx.nn.GroupNorm(groups, norm.scale.size)
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (norm.scale, norm.shift))


def drawn(make, seed):
    """The network `make(key)` with parameters drawn by NumPy: matrices as He-normal, vectors around their start."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        fan_in = np.prod(leaf.shape[:-1]) if leaf.ndim == 4 else leaf.shape[-1]
        spread = np.sqrt(2 / fan_in) if leaf.ndim > 1 else 0.3
        return jnp.asarray(rng.normal(0 if leaf.ndim > 1 else 0.5, spread, leaf.shape), jnp.float32)

    return jax.tree.map(draw, eqx.filter_eval_shape(make, jax.random.key(0)))


@pytest.fixture(scope="module")
def lenet():
    return drawn(LeNet5, 0)


def test_lenet_is_the_textbook_network(lenet):
    images = np.random.default_rng(1).uniform(size=(3, 28, 28)).astype(np.float32)
    pool = eqx.nn.MaxPool2d(2, 2)

    @jax.jit
    @jax.vmap
    def textbook(image):
        x = image[None]
        for convolution in lenet.convolutions:
            x = pool(jax.nn.relu(channels_first(convolution)(x)))
        x = jnp.moveaxis(x, 0, -1).ravel()
        for layer in lenet.head.layers[:-1]:
            x = jax.nn.relu(layer.weight @ x + layer.bias)
        return lenet.head.layers[-1].weight @ x + lenet.head.layers[-1].bias

    # Float64 images, and a channel axis, change nothing.
    batches = images, images.astype(np.float64)[..., None]
    for outputs in jax.jit(lambda batches: [jax.vmap(lenet)(batch) for batch in batches])(batches):
        assert outputs.shape == (3, 10) and outputs.dtype == jnp.float32
        np.testing.assert_allclose(outputs, textbook(images), rtol=2e-5, atol=2e-5)


def test_parameter_counts_and_types():
    expected = {
        LeNet5: 61_706,
        functools.partial(LeNet5, num_classes=2): 61_706 - 8 * 85,
        ResNet18: 11_173_962,
        functools.partial(Perceptron, in_size=4, hidden_sizes=(3, 5), out_size=2): 4 * 3 + 3 + 3 * 5 + 5 + 5 * 2 + 2,
    }
    for make, number in expected.items():
        shapes = jax.tree.leaves(eqx.filter_eval_shape(make, jax.random.key(0)))
        assert sum(leaf.size for leaf in shapes) == number
        assert {str(leaf.dtype) for leaf in shapes} == {"float32"}


def test_gradients_of_lenet_are_float32(lenet):
    shapes = jax.eval_shape(jax.grad(lambda network: jnp.sum(network(np.zeros((28, 28))))), lenet)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(shapes)} == {"float32"}


def test_max_pool_by_hand():
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 3))
    expected = np.zeros((2, 2, 3, 3))
    for image, row, column, channel in np.ndindex(expected.shape):
        expected[image, row, column, channel] = x[
            image, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2, channel
        ].max()
    np.testing.assert_array_equal(max_pool(jnp.asarray(x)), expected)
    with pytest.raises(ValueError, match="^x must have even sides"):
        max_pool(jnp.zeros((3, 4, 1)))


def test_group_norm_is_that_of_equinox():
    norm = drawn(lambda key: GroupNorm(6, groups=3), 0)
    x = jnp.asarray(np.random.default_rng(1).normal(3, 2, (4, 5, 6)), jnp.float32)
    flat = jnp.full((4, 5, 6), 0.1, jnp.float32)  # no variance at all, up to rounding

    @jax.jit
    def outputs(x, flat):
        expected = jnp.moveaxis(group_norm(norm, 3)(jnp.moveaxis(x, -1, 0)), 0, -1)
        return expected, norm(x), norm(x.astype(jnp.bfloat16)), norm(flat)

    expected, exact, rounded, level = outputs(x, flat)
    np.testing.assert_allclose(exact, expected, atol=2e-5)
    assert rounded.dtype == jnp.bfloat16
    # Entries up to 10 with 8 bits, divided by a deviation of 2; the outputs, below 4, are rounded once more.
    np.testing.assert_allclose(np.asarray(rounded, np.float32), expected, atol=0.03)
    np.testing.assert_allclose(level, np.broadcast_to(norm.shift, flat.shape), atol=1e-2)
    with pytest.raises(ValueError, match="^groups must divide the number of channels, 6; it is 4"):
        GroupNorm(6, groups=4)


@pytest.mark.parametrize(("channels", "stride"), [(32, 1), (64, 2)])
def test_basic_block_by_layers_of_equinox(channels, stride):
    block = drawn(lambda key: BasicBlock(key, 32, channels, stride), 1)
    assert (block.shortcut is None) == (stride == 1)
    x = np.random.default_rng(2).normal(size=(6, 4, 32)).astype(np.float32)

    @jax.jit
    def textbook(x):
        first, second = (channels_first(convolution) for convolution in block.convolutions)
        y = jax.nn.relu(group_norm(block.norms[0])(first(x)))
        y = group_norm(block.norms[1])(second(y))
        if block.shortcut is not None:
            x = group_norm(block.shortcut_norm)(channels_first(block.shortcut)(x))
        return jax.nn.relu(y + x)

    y = eqx.filter_jit(block)(x)
    assert y.shape == (6 // stride, 4 // stride, channels) and y.dtype == jnp.float32
    np.testing.assert_allclose(y, jnp.moveaxis(textbook(jnp.moveaxis(x, -1, 0)), 0, -1), atol=1e-4)


def test_resnet_runs_in_float32_and_in_bfloat16():
    network = drawn(ResNet18, 0)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3))
    outputs = eqx.filter_jit(lambda network, x: jax.vmap(network)(x))(network, x)
    assert outputs.shape == (2, 10) and outputs.dtype == jnp.float32
    assert 0.1 < np.std(outputs) < 100 and np.abs(outputs[0] - outputs[1]).max() > 0.1
    features = jax.ShapeDtypeStruct((32, 32, 64), jnp.float32)
    sides = [(features := jax.eval_shape(block, features)).shape[0] for block in network.blocks]
    assert sides == [32, 32, 16, 16, 8, 8, 4, 4] and features.shape == (4, 4, 512)
    half = drawn(functools.partial(ResNet18, compute_dtype=jnp.bfloat16), 0)
    program = jax.make_jaxpr(lambda x: half(x))(x[0])
    assert program.out_avals[0].dtype == jnp.float32
    products = [equation for equation in program.eqns if equation.primitive.name == "dot_general"]
    assert len(products) == 21  # 17 convolutions, 3 shortcuts, the linear layer
    assert all(variable.aval.dtype == jnp.bfloat16 for equation in products for variable in equation.invars)


def test_perceptron_by_hand():
    network = drawn(lambda key: Perceptron(key, 6, (4,), 2), 2)
    first, second = network.layers
    x = np.random.default_rng(0).normal(size=(2, 3))
    hidden = np.maximum(np.asarray(first.weight) @ x.ravel() + np.asarray(first.bias), 0)
    y = network(x)
    np.testing.assert_allclose(y, np.asarray(second.weight) @ hidden + np.asarray(second.bias), atol=1e-5)
    assert y.dtype == jnp.float32
    assert len(eqx.filter_eval_shape(Perceptron, jax.random.key(0), 6, (), 2).layers) == 1


def test_wrong_examples_and_sizes_are_named(lenet):
    with pytest.raises(ValueError, match=r"^x must be one image of shape \(28, 28\) .* not \(3, 28, 28\).*jax.vmap"):
        lenet(np.zeros((3, 28, 28)))
    with pytest.raises(ValueError, match=r"^x must be one example of 6 entries; its shape is \(2, 6\)"):
        drawn(lambda key: Perceptron(key, 6, (4,), 2), 2)(np.zeros((2, 6)))
    with pytest.raises(ValueError, match="^hidden_sizes must be at least 1"):
        Perceptron(jax.random.key(0), 6, (0,), 2)
    network = eqx.filter_eval_shape(ResNet18, jax.random.key(0))
    with pytest.raises(ValueError, match=r"^x must be one image of shape \(H, W, 3\), not \(32, 32\)"):
        network(np.zeros((32, 32)))
