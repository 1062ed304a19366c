"""What paper 001's Figure 2 trains and how: data and networks, and the methods, each an algorithm for a rate."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.incremental.block_descent import adagrad, adam, bayes_by_backprop, momentum
from provi.algorithms.incremental.misso import MISSO as MISSOAlgorithm
from provi.algorithms.incremental.paced_misso import PacedMISSO
from provi.algorithms.incremental.sag import SAG as SAGAlgorithm
from provi.core.types import RandomKey
from provi.data.loaders import load, local_copy
from provi.nets.architectures import LeNet5, Perceptron, ResNet18
from provi.nets.convolution import Conv2d
from provi.nets.flat_network import flatten_network
from provi.schedules.batch_sizes import PolynomialBatch
from provi.targets.bayesian_network import BayesianNetwork

_LEFT_OUT = 5000  # of MNIST's training images, the first: the paper's n is 55,000


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkProblem:
    """A network that `make` initialises from a key, its target on the training images, and the test images."""

    title: str
    make: Callable[[RandomKey], eqx.Module]
    target: BayesianNetwork
    test_images: np.ndarray
    test_labels: np.ndarray

    def means(self, seeds: Sequence[int]) -> np.ndarray:
        """The initial weights of each seed, (seeds, dim)."""
        return np.stack([flatten_network(self.make(jax.random.key(seed)))[1] for seed in seeds])


def mnist_problem() -> NetworkProblem:
    """LeNet-5 on MNIST, pixels between 0 and 1, the prior N(0, I)."""
    arrays = load("mnist").arrays
    images, labels = arrays["X_train"][_LEFT_OUT:], arrays["y_train"][_LEFT_OUT:]

    def make(key: RandomKey) -> eqx.Module:
        return in_products(LeNet5(key))

    target = BayesianNetwork(make(jax.random.key(0)), _scaled(images), labels.astype(np.int32))
    return NetworkProblem("LeNet-5 on MNIST", make, target, _scaled(arrays["X_test"]), arrays["y_test"])


def cifar_problem(compute_dtype: Any = np.float32) -> NetworkProblem:
    """ResNet-18 on CIFAR-10, channels standardised; on the balanced subset where the full set is not at hand."""
    name = "cifar10" if local_copy("cifar10") is not None else "cifar10_10k"
    arrays = load(name).arrays
    train, test = (_scaled(arrays[key]) for key in ("X_train", "X_test"))
    mean, sd = train.mean(axis=(0, 1, 2), dtype=np.float64), train.std(axis=(0, 1, 2), dtype=np.float64)
    train, test = (((images - mean) / sd).astype(np.float32) for images in (train, test))

    def make(key: RandomKey) -> eqx.Module:
        return ResNet18(key, compute_dtype=compute_dtype)

    target = BayesianNetwork(make(jax.random.key(0)), train, arrays["y_train"].astype(np.int32))
    words = "CIFAR-10" if name == "cifar10" else "a balanced fifth of CIFAR-10 (cifar10_10k)"
    return NetworkProblem(f"ResNet-18, with group normalisation, on {words}", make, target, test, arrays["y_test"])


def small_problem(seed: int, rows: int = 640) -> NetworkProblem:
    """A perceptron on made-up images of 8 x 8 pixels: four shapes, each a smooth blob, and noise."""
    generator = np.random.default_rng([seed, rows])
    places = np.array([[2, 2], [2, 5], [5, 2], [5, 5]])
    labels = generator.integers(0, 4, rows + 200)
    distance = ((np.indices((8, 8)).T[None, ...] - places[labels][:, None, None, :]) ** 2).sum(axis=-1)
    images = (np.exp(-distance / 6) + generator.normal(0, 0.5, (rows + 200, 8, 8))).astype(np.float32)

    def make(key: RandomKey) -> eqx.Module:
        return Perceptron(key, 64, (8,), 4)

    target = BayesianNetwork(make(jax.random.key(0)), images[:rows], labels[:rows])
    return NetworkProblem("A perceptron on made-up images", make, target, images[rows:], labels[rows:])


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


MISSO, BBB, MOMENTUM, ADAM, SAG, ADAGRAD = "MISSO", "BBB", "Momentum", "Adam", "SAG", "Adagrad"
GROWING, PACED, AVERAGED = "MISSO, M = k", "PacedMISSO(Adam)", "Adam, averaged"

MOST_DRAWS = 4
"""Where M_k = k, with k the epoch from 1 on, stops growing: the paper's has no end, and costs k draws a step."""

Make = Callable[[Any], AbstractAlgorithm]

_ADAM_RULE = adam(1.0).rule


@dataclasses.dataclass(frozen=True)
class Method:
    """A method: its name, and the algorithm that it is for a rate, which may be a traced number."""

    name: str
    make: Make


def _misso(rate: Any) -> AbstractAlgorithm:
    del rate  # the curvature of the surrogates has it
    return MISSOAlgorithm(sampling=1, num_draws=1)


def _growing(rate: Any) -> AbstractAlgorithm:
    del rate
    return MISSOAlgorithm(sampling=1, num_draws=PolynomialBatch(1, 1, largest=MOST_DRAWS))


def _sag(rate: Any) -> AbstractAlgorithm:
    return SAGAlgorithm(rate=rate)


def _paced(rate: Any) -> AbstractAlgorithm:
    return PacedMISSO(rule=_ADAM_RULE, rate=rate)


def _averaged(rate: Any) -> AbstractAlgorithm:
    return PacedMISSO(rule=_ADAM_RULE, rate=rate, table=False)


METHODS = {
    name: Method(name, make)
    for name, make in (
        (MISSO, _misso),
        (BBB, bayes_by_backprop),
        (MOMENTUM, momentum),
        (ADAM, adam),
        (SAG, _sag),
        (ADAGRAD, adagrad),
        (PACED, _paced),
        (AVERAGED, _averaged),
        (GROWING, _growing),
    )
}
"""By name; in this order they run and are shown. A program is compiled once for each, whatever the rates."""


def geometric(first: float, ratio: float, count: int = 5) -> tuple[float, ...]:
    """`count` rates, each `ratio` times the one before, to three digits."""
    return tuple(float(f"{first * ratio**k:.3g}") for k in range(count))


def beyond(rates: tuple[float, ...], best: float) -> tuple[float, ...]:
    """As many further rates on the side of `best`, the smallest or the largest of `rates`; none if it is neither."""
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return ()
    ratio = ordered[-1] / ordered[-2] if best == ordered[-1] else ordered[0] / ordered[1]
    return tuple(float(f"{best * ratio ** (k + 1):.3g}") for k in range(len(rates)))
