"""Noisy layers: the three noises have the same law for one example, and differ in what the batch shares."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.nets import Conv2d
from provi.nets.flat_network import flatten_network
from provi.nets.noise import noisy_outputs

pytestmark = pytest.mark.usefixtures("quick_compilation")

DRAWS = 20_000


class Small(eqx.Module):
    """A convolution, a scale that is no layer, and a linear layer."""

    convolution: Conv2d
    scale: jax.Array
    linear: eqx.nn.Linear

    def __init__(self):
        first, second = jax.random.split(jax.random.key(3))
        self.convolution = Conv2d(2, 3, 2, key=first)
        self.scale = jnp.asarray([1.0, 0.5, 2.0])
        self.linear = eqx.nn.Linear(12, 2, key=second)

    def __call__(self, x):
        return self.linear((self.scale[None, None, :] * self.convolution(x)).reshape(-1))


@pytest.fixture(scope="module")
def drawn():
    """Outputs (draws, batch, 2) of the same random network by each of the noises, float64."""
    network, weights = flatten_network(Small())
    rng = np.random.default_rng(0)
    mean, sd = jnp.asarray(weights, float), jnp.asarray(0.1 + 0.3 * rng.random(weights.size))
    x = jnp.asarray(rng.random((3, 3, 3, 2)))  # grey values: examples that are alike
    keys = jax.random.split(jax.random.key(5), DRAWS)

    def one(noise):
        return jax.jit(lambda keys: jax.lax.map(lambda k: noisy_outputs(network, k, mean, sd, x, noise), keys))(keys)

    return {noise: np.asarray(one(noise)) for noise in ("weights", "flipout", "local")}


@pytest.mark.parametrize("noise", ["flipout", "local"])
def test_each_example_has_the_law_of_plain_weights(drawn, noise):
    """Means and variances of 6 outputs within 4.5 standard errors: false alarms 24 x 7e-6 = 2e-4 (fixed seeds)."""
    plain, other = drawn["weights"], drawn[noise]
    for moment in (lambda x: x, lambda x: (x - plain.mean(axis=0)) ** 2):
        one, two = moment(plain), moment(other)
        error = np.sqrt((one.var(axis=0) + two.var(axis=0)) / DRAWS)
        assert (np.abs(one.mean(axis=0) - two.mean(axis=0)) < 4.5 * error).all()


def test_what_examples_share(drawn):
    """Plain weights tie the examples together; flipped ones only through the scale, which is no layer."""

    def shared(x):
        return np.abs(np.corrcoef(x[:, 0, 0], x[:, 1, 0])[0, 1])

    assert shared(drawn["weights"]) > 0.15
    assert shared(drawn["flipout"]) < 0.7 * shared(drawn["weights"])
    assert shared(drawn["local"]) < 0.7 * shared(drawn["weights"])


def test_the_mean_over_a_batch_has_less_noise(drawn):
    plain, flipped, local = (drawn[noise].mean(axis=1).var(axis=0).sum() for noise in ("weights", "flipout", "local"))
    assert flipped < plain and local < plain


def test_gradients_are_finite_where_the_input_is_zero():
    network, weights = flatten_network(eqx.nn.Linear(2, 1, use_bias=False, key=jax.random.key(0)))
    mean = jnp.asarray(weights)

    def total(sd):
        return jnp.sum(noisy_outputs(network, jax.random.key(1), mean, sd, jnp.zeros((2, 2), mean.dtype), "local"))

    assert np.isfinite(jax.grad(total)(jnp.ones_like(mean))).all()
