"""Run by `test_two_devices.py` in a process of its own, with two devices: one import and start for all checks."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from provi.algorithms import MISSO
from provi.algorithms.incremental.network_surrogate import network_surrogate
from provi.algorithms.incremental.quadratic_surrogate import AbstractQuadratic, Expansion
from provi.algorithms.incremental.surrogate_table import table_bytes
from provi.core.arguments import double_precision
from provi.families.base import AnyParameters
from provi.runtime import loop, minimise_sum
from provi.schedules import UniformSampling
from provi.targets import BayesianNetwork

TERMS, DIM = 24, 1000
RNG = np.random.default_rng(0)
DATA, START = RNG.normal(size=(TERMS, DIM)).astype(np.float32), np.zeros(DIM, np.float32)
ALGORITHM = MISSO(UniformSampling(2), num_draws=2)


class Divided(AbstractQuadratic):
    """Noisy terms whose table lies on the devices of `mesh`, each with some of the columns."""

    data: jax.Array
    curvature: jax.Array
    weights: jax.Array
    num_terms: int = eqx.field(static=True)
    table_dtype: str | None = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)

    def draw(self, key, parameters, rows, prepared, chains):
        def one(row):
            noise = jax.random.normal(jax.random.fold_in(key, row), parameters.shape, jnp.float32)

            def loss(theta):
                return jnp.mean(jnp.cosh(theta - self.data[row])) + 0.1 * jnp.mean(noise * theta)

            return jax.value_and_grad(loss)(parameters)

        return Expansion(*jax.vmap(one)(rows)), chains

    def place(self, x, *spec):
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P(*spec)))

    def arrange(self, table):
        return eqx.tree_at(lambda t: t.centre, table, self.place(table.centre, None, "devices"))

    def arrange_mean(self, mean):
        return eqx.tree_at(lambda m: m.centre, mean, self.place(mean.centre, "devices"))

    def arrange_parameters(self, parameters):
        return self.place(parameters)


def divided(mesh):
    return Divided(
        data=jnp.asarray(DATA),
        curvature=jnp.float32(3 / DIM),
        weights=jnp.ones(TERMS, jnp.float32),
        num_terms=TERMS,
        table_dtype=None,
        mesh=mesh,
    )


def go(surrogate, num_steps=40, **options):
    return minimise_sum(surrogate, START, ALGORITHM, seed=0, num_steps=num_steps, progress=False, **options).point


def check_runs(both, path):
    """The same parameters on two devices as on one, and after an interruption; one program more."""
    alone = go(divided(None))
    compiled = loop.donating_loop._cached._cache_size()
    whole = go(both)
    assert loop.donating_loop._cached._cache_size() == compiled + 1  # not again for arrays that lie elsewhere
    assert np.abs(alone).max() > 0.1
    np.testing.assert_allclose(whole, alone, atol=1e-5)
    go(both, 17, checkpoint=path)
    np.testing.assert_array_equal(go(both, checkpoint=path, resume=True), whole)


@double_precision
def check_places(both):
    """Each device has its half of the table, and it stays where it is."""
    resolved = ALGORITHM.resolve(both, AnyParameters())
    carry = loop.initial_carry(resolved, jnp.asarray(START))
    for until in (1, 5):
        place = [s.data.unsafe_buffer_pointer() for s in carry.state.table.centre.addressable_shards]
        limits = jnp.asarray(until), jnp.asarray(2**62)
        carry = loop.advance(jax.random.key(0), resolved, both, AnyParameters(), carry, *limits)
        shards = carry.state.table.centre.addressable_shards
        assert [s.data.shape for s in shards] == [(TERMS, DIM // 2)] * 2
        assert {s.device for s in shards} == set(jax.devices())
        assert [s.data.unsafe_buffer_pointer() for s in shards] == place  # in place on each device
    saved = table_bytes(divided(None), jnp.asarray(START)) - table_bytes(both, jnp.asarray(START))
    assert saved == TERMS * DIM // 2 * 4


def check_network():
    """A network's surrogate divides its table and blocks by itself."""
    X, y = RNG.normal(size=(64, 3)).astype(np.float32), RNG.integers(0, 4, 64)
    target = BayesianNetwork(eqx.nn.MLP(3, 4, 6, 1, key=jax.random.key(0)), X, y)
    found = []
    for number in (1, 2):
        surrogate = network_surrogate(target, block_size=16, rate=0.5, devices=jax.devices()[:number])
        algorithm = MISSO(1, num_draws=2)
        run = minimise_sum(surrogate, surrogate.start(), algorithm, seed=0, num_steps=40, num_records=1)
        found.append(run.point)
    state = MISSO(1, num_draws=1).resolve(surrogate, None).init(surrogate.start())
    shards = [s.data.shape for s in state.table.centre.mean.addressable_shards]
    assert shards == [(4, target.dim // 2)] * 2, shards
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=0, atol=1e-5), *found)
    assert np.abs(np.asarray(found[0].mean) - np.asarray(target.start)).max() > 0.01


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)  # quick compilation
    assert len(jax.devices()) == 2
    halves = divided(Mesh(np.asarray(jax.devices()), ("devices",)))
    check_runs(halves, f"{sys.argv[1]}/run.safetensors")
    check_places(halves)
    check_network()
    print("all checked")
