"""Layers that an example uses more than once: local reparameterisation would be another model, so they are flipped."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.nets import Conv2d
from provi.nets.flat_network import flatten_network, used_once
from provi.nets.noise import noisy_outputs


class Doubled(eqx.nn.Linear):
    """A subclass that computes something else."""

    def __call__(self, x, *, key=None):
        return 2 * (self.weight @ x)


class Network(eqx.Module):
    layer: eqx.nn.Linear
    use: str = eqx.field(static=True)

    def __call__(self, x):
        match self.use:
            case "once":
                return self.layer(x)
            case "compiled":
                return eqx.filter_jit(lambda layer, x: layer(x))(self.layer, x)
            case "twice":
                return self.layer(self.layer(x))
            case "mapped":
                return jax.vmap(self.layer)(jnp.stack([x, x[::-1]])).sum(axis=0)
            case _:
                return jax.lax.scan(lambda x, _: (self.layer(x), None), x, None, length=2)[0]


X = jnp.asarray([[1.0, -0.5]])


def network(use, kind=eqx.nn.Linear):
    layer = kind(2, 2, use_bias=False, dtype=np.float64, key=jax.random.key(0))
    found, weights = flatten_network(Network(layer, use))
    return found, jnp.asarray(weights)


@pytest.mark.parametrize(
    ("use", "expected"), [("once", True), ("compiled", True), ("twice", False), ("mapped", False), ("looped", False)]
)
def test_uses_are_seen(use, expected):
    assert used_once(network(use)[0], X[0], float) == [expected]


@pytest.mark.parametrize(("use", "kind"), [("twice", eqx.nn.Linear), ("mapped", eqx.nn.Linear), ("once", Doubled)])
def test_the_law_of_one_example_is_that_of_plain_weights(use, kind):
    """Means and second moments of 2 outputs within 4.5 standard errors: false alarms 3 x 4 x 7e-6 (fixed seeds)."""
    found, mean = network(use, kind)
    keys = jax.random.split(jax.random.key(1), 20_000)

    @jax.jit
    def both(keys):
        def one(key):
            return [
                noisy_outputs(found, key, mean, 0.7 * jnp.ones_like(mean), X, how)[0] for how in ("weights", "local")
            ]

        return jax.lax.map(one, keys)

    plain, local = map(np.asarray, both(keys))
    for power in (1, 2):
        one, two = plain**power, local**power
        error = np.sqrt((one.var(axis=0) + two.var(axis=0)) / len(keys))
        assert (np.abs(one.mean(axis=0) - two.mean(axis=0)) < 4.5 * error).all()


def test_convolutions_in_a_sequence_and_wide_constants():
    made = eqx.nn.Sequential(
        [Conv2d(1, 2, 2, key=jax.random.key(0)), eqx.nn.Lambda(lambda x: np.float64(2.0) * jnp.ravel(x)[:3])]
    )
    found, weights = flatten_network(made)
    z, images = jnp.asarray(weights), jnp.ones((2, 3, 3, 1), jnp.float32)
    assert found.outputs(z, images).dtype == jnp.float32
    assert noisy_outputs(found, jax.random.key(0), z, z, images, "flipout").dtype == jnp.float32
