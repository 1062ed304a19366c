"""The data and networks of paper 001's Figure 2, and small ones of the same kind."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from provi.core.types import RandomKey
from provi.data.loaders import load, local_copy
from provi.nets.convolution import Conv2d
from provi.nets.flat_network import flatten_network
from provi.nets.lenet import LeNet5
from provi.nets.perceptron import Perceptron
from provi.nets.resnet import ResNet18
from provi.targets.bayesian_network import BayesianNetwork

_LEFT_OUT = 5000  # of MNIST's training images, the first: the paper's n is 55,000


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A network that `make` initialises from a key, its target on the training images, and the test images."""

    title: str
    make: Callable[[RandomKey], eqx.Module]
    target: BayesianNetwork
    test_images: np.ndarray
    test_labels: np.ndarray

    def means(self, seeds: Sequence[int]) -> np.ndarray:
        """The initial weights of each seed, (seeds, dim)."""
        return np.stack([flatten_network(self.make(jax.random.key(seed)))[1] for seed in seeds])


def mnist_problem() -> Problem:
    """LeNet-5 on MNIST, pixels between 0 and 1, the prior N(0, I)."""
    arrays = load("mnist").arrays
    images, labels = arrays["X_train"][_LEFT_OUT:], arrays["y_train"][_LEFT_OUT:]

    def make(key: RandomKey) -> eqx.Module:
        return in_products(LeNet5(key))

    target = BayesianNetwork(make(jax.random.key(0)), _scaled(images), labels.astype(np.int32))
    return Problem("LeNet-5 on MNIST", make, target, _scaled(arrays["X_test"]), arrays["y_test"])


def cifar_problem() -> Problem:
    """ResNet-18 on CIFAR-10, channels standardised; on the balanced subset where the full set is not at hand."""
    name = "cifar10" if local_copy("cifar10") is not None else "cifar10_10k"
    arrays = load(name).arrays
    train, test = (_scaled(arrays[key]) for key in ("X_train", "X_test"))
    mean, sd = train.mean(axis=(0, 1, 2), dtype=np.float64), train.std(axis=(0, 1, 2), dtype=np.float64)
    train, test = (((images - mean) / sd).astype(np.float32) for images in (train, test))
    target = BayesianNetwork(ResNet18(jax.random.key(0)), train, arrays["y_train"].astype(np.int32))
    words = "CIFAR-10" if name == "cifar10" else "a balanced fifth of CIFAR-10 (cifar10_10k)"
    return Problem(f"ResNet-18, with group normalisation, on {words}", ResNet18, target, test, arrays["y_test"])


def small_problem(seed: int, rows: int = 640) -> Problem:
    """A perceptron on made-up images of 8 x 8 pixels: four shapes, each a smooth blob, and noise."""
    generator = np.random.default_rng([seed, rows])
    places = np.array([[2, 2], [2, 5], [5, 2], [5, 5]])
    labels = generator.integers(0, 4, rows + 200)
    distance = ((np.indices((8, 8)).T[None, ...] - places[labels][:, None, None, :]) ** 2).sum(axis=-1)
    images = (np.exp(-distance / 6) + generator.normal(0, 0.5, (rows + 200, 8, 8))).astype(np.float32)

    def make(key: RandomKey) -> eqx.Module:
        return Perceptron(key, 64, (8,), 4)

    target = BayesianNetwork(make(jax.random.key(0)), images[:rows], labels[:rows])
    return Problem("A perceptron on made-up images", make, target, images[rows:], labels[rows:])


def in_products(network: Any) -> Any:
    """The network with its convolutions as matrix products on every machine.

    With weights of its own for each lane a convolution becomes a grouped one, which GPUs are slow at; a product becomes
    a batched product.
    """

    def convert(node: Any) -> Any:
        if not isinstance(node, Conv2d):
            return node
        size, _, into, out = node.weight.shape
        key, biased = jax.random.key(0), node.bias is not None
        made = Conv2d(
            into, out, size, stride=node.stride, padding=node.padding, use_bias=biased, products=True, key=key
        )
        made = eqx.tree_at(lambda layer: layer.weight, made, node.weight)
        return eqx.tree_at(lambda layer: layer.bias, made, node.bias) if biased else made

    return jax.tree.map(convert, network, is_leaf=lambda node: isinstance(node, Conv2d))


def _scaled(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(np.float32) / 255
