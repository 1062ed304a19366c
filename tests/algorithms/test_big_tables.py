"""Tables that are large: rounded rows, their exact mean, several devices, and a refusal of what does not fit."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import MISO, MISSO, QuadraticSurrogate, Surrogate
from provi.algorithms.surrogate_table import round_rows
from provi.algorithms.table_memory import table_bytes
from provi.families.parameters import AnyParameters
from provi.runtime import loop, minimise_sum
from support.statistics import assert_mean

TERMS, DIM = 30, 17
RNG = np.random.default_rng(1)
DATA = RNG.normal(1.0, 0.2, size=(TERMS, DIM)).astype(np.float32)
BFLOAT16 = jnp.dtype("bfloat16")


def loss(theta, row, draw):
    return jnp.sum(jnp.cosh(theta - row)) / 5 + draw @ theta


def draw_noise(key, row):
    return 0.1 * jax.random.normal(key, (DIM,), jnp.float32)


def surrogate_with(table_dtype):
    return QuadraticSurrogate(loss, DATA, np.float32(3.0), sample=draw_noise, table_dtype=table_dtype)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_mean_after_a_thousand_updates(dtype):
    """In single precision, never summed again, against a sum of the table in double precision."""
    surrogate = surrogate_with(dtype)
    algorithm = MISSO(1, num_draws=2, refresh_every=None).resolve(surrogate, AnyParameters())
    carry = loop.initial_carry(algorithm, jnp.asarray(np.ones(DIM, np.float32)))
    limits = (jnp.asarray(1000), jnp.asarray(10**9))
    state = loop.advance(jax.random.key(0), algorithm, surrogate, AnyParameters(), carry, *limits).state
    assert int(state.step) == 1000 and int(state.rejected) == 0
    table, mean = np.asarray(state.table.centre, np.float64), np.asarray(state.mean.centre)
    assert state.table.centre.dtype == (jnp.float32 if dtype is None else BFLOAT16)
    assert mean.dtype == np.float32 and len(np.unique(table[:, 0])) > 5
    assert np.linalg.norm(mean - table.mean(axis=0)) <= 1e-6 * np.linalg.norm(table.mean(axis=0))
    constants = np.asarray(state.table.constant, np.float64)
    assert float(state.mean.constant) == pytest.approx(constants.mean(), rel=1e-6)


def test_rounding_is_right_on_average_and_to_a_neighbour():
    """10^5 roundings of each value, by as many rows; NumPy's neighbours. False alarm 1e-6 a value."""
    value = np.asarray([1.002, -0.3333, 1e-20, 0.0, 1.0], np.float32)
    count, key = 100_000, jax.random.key(0)
    copies = jnp.asarray(np.broadcast_to(value, (count, value.size)))
    rounded = round_rows(key, copies, jnp.arange(count), "bfloat16")
    assert rounded.dtype == BFLOAT16
    wide = np.asarray(rounded, np.float64)
    down = (value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    up = ((value.view(np.uint32) & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
    assert ((wide == down) | (wide == up)).all()
    np.testing.assert_array_equal(wide[:, 3:], np.broadcast_to([0.0, 1.0], (count, 2)))  # exact ones stay
    assert_mean(wide[:, :3], value[:3].astype(np.float64))
    # Entries of a row are rounded each on its own, and so is one entry at many visits.
    exact = np.asarray([np.float64(np.float32(1.002))])
    entries = round_rows(key, jnp.full((1, count), 1.002), jnp.zeros(1, int), "bfloat16")
    assert_mean(np.asarray(entries, np.float64).reshape(-1, 1), exact)
    visit = jax.jit(jax.vmap(lambda key: round_rows(key, jnp.full((1, 1), 1.002), jnp.zeros(1, int), "bfloat16")))
    visits = visit(jax.random.split(key, 10_000))
    assert_mean(np.asarray(visits, np.float64).reshape(-1, 1), exact)


def test_rounding_to_nearest_and_not_at_all():
    rows = jnp.asarray(RNG.normal(size=(4, 3)))
    key, places = jax.random.key(0), jnp.arange(4)
    assert round_rows(key, rows, places, None) is rows
    single = round_rows(key, rows, places, "float32")
    np.testing.assert_array_equal(single, np.asarray(rows, np.float32))
    for bad in (jnp.nan, jnp.inf, -jnp.inf):  # a visit that is not finite must be seen to be that
        assert not np.isfinite(np.asarray(round_rows(key, jnp.full((4, 3), bad), places, "bfloat16"), float)).any()


def test_small_steps_are_not_rounded_away():
    """Steps of 1e-3 at values near 1, a quarter of bfloat16's distance to nearest, which would stay where it is."""
    starts, steps = np.ones(8, np.float32), 20
    surrogate = QuadraticSurrogate(constant_slope, np.zeros((200, 1), np.float32), 1.0, table_dtype="bfloat16")
    run = minimise_sum(surrogate, starts, MISO(200), seed=0, num_steps=steps, progress=False)
    # Each entry: 20 means of 200 roundings, each off by half a spacing of 2^-8 at most (2^-7 above 1).
    error = np.sqrt(steps / 200) * 2.0**-8
    np.testing.assert_allclose(run.point, 1 + 1e-3 * steps, atol=5.5 * error)  # 5e-7 for eight entries
    assert (np.asarray(run.point) > 1 + 1e-3 * steps / 2).all()


def constant_slope(theta, row):
    return -1e-3 * jnp.sum(theta) + jnp.sum(row)


def test_table_bytes_by_hand():
    surrogate = surrogate_with("bfloat16")
    parameters = jnp.zeros(DIM, jnp.float32)
    row, summary, data = 2 * DIM + 4, 4 * DIM + 4, 4 * DIM
    expected = TERMS * row + TERMS * (3 * row + data + 3 * summary) + 4 * (4 * DIM + 4 + 4 * DIM)
    assert table_bytes(surrogate, parameters) == expected
    chained = Surrogate(
        5,
        build=lambda theta, row, summary: summary,
        minimise=lambda mean, theta, constraint: mean,
        draw=lambda key, theta, row, chain: (theta, chain),
        start_chain=lambda key, theta, row: jnp.zeros(3, jnp.float32),
    )
    theta = jnp.zeros(2, jnp.float32)
    prepared = jnp.zeros(1, jnp.int32).nbytes
    assert table_bytes(chained, theta) == 5 * (8 + 12) + 5 * (3 * 8 + 2 * 12 + prepared + 3 * 8) + 4 * 16


def test_what_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    surrogate, start = surrogate_with(None), np.ones(DIM, np.float32)
    needed = table_bytes(surrogate, jnp.asarray(start))
    monkeypatch.setattr("provi.algorithms.table_memory.available_bytes", lambda devices: needed)
    assert minimise_sum(surrogate, start, MISSO(1, num_draws=1), seed=0, num_steps=1, progress=False).outcome.ok
    monkeypatch.setattr("provi.algorithms.table_memory.available_bytes", lambda devices: needed - 1)
    words = r"30 surrogates need .* GiB, .* GiB of it for the table, and .* GiB are there.*larger blocks.*bfloat16.*"
    with pytest.raises(ValueError, match=words + "devices.*BlockRule, or PacedMISSO with table=False"):
        minimise_sum(surrogate, start, MISSO(1, num_draws=1), seed=0, num_steps=1, progress=False)
    # A table of 12.5 TiB is refused, not tried.
    wide = QuadraticSurrogate(huge_loss, np.zeros(100_000, np.float32), 1.0)
    with pytest.raises(ValueError, match=r"need 1.25e\+04 GiB"):
        MISO(1).resolve(wide, AnyParameters()).init(jax.ShapeDtypeStruct((2**25,), jnp.float32))


def huge_loss(theta, row):
    return jnp.sum(theta) * row


def test_bad_table_types():
    for bad in ("float16", "int8", float, 8):
        with pytest.raises(ValueError, match="table_dtype must be None"):
            surrogate_with(bad)


TWO_DEVICES = textwrap.dedent(
    """
    import sys
    import equinox as eqx, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from provi.algorithms import MISSO
    from provi.algorithms.quadratic_surrogate import AbstractQuadratic, Expansion
    from provi.algorithms.table_memory import table_bytes
    from provi.core.precision import double_precision
    from provi.families.parameters import AnyParameters
    from provi.runtime import loop, minimise_sum
    from provi.schedules import UniformSampling

    jax.config.update("jax_disable_most_optimizations", True)  # quick compilation

    class Divided(AbstractQuadratic):
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

    TERMS, DIM = 24, 1000
    data = np.random.default_rng(0).normal(size=(TERMS, DIM)).astype(np.float32)
    start = np.zeros(DIM, np.float32)
    assert len(jax.devices()) == 2

    def surrogate(mesh, dtype=None):
        return Divided(
            data=jnp.asarray(data),
            curvature=jnp.float32(3 / DIM),
            weights=jnp.ones(TERMS, jnp.float32),
            num_terms=TERMS,
            table_dtype=dtype,
            mesh=mesh,
        )

    both = surrogate(Mesh(np.asarray(jax.devices()), ("devices",)))
    algorithm = MISSO(UniformSampling(2), num_draws=2)

    def go(surrogate, num_steps=40, **options):
        return minimise_sum(surrogate, start, algorithm, seed=0, num_steps=num_steps, progress=False, **options).point

    alone = go(surrogate(None))
    compiled = loop.donating_loop._cached._cache_size()
    whole = go(both)
    assert loop.donating_loop._cached._cache_size() == compiled + 1  # not again for arrays that lie elsewhere
    assert np.abs(alone).max() > 0.1
    np.testing.assert_allclose(whole, alone, atol=1e-5)

    path = sys.argv[1] + "/run.safetensors"
    go(both, 17, checkpoint=path)
    np.testing.assert_array_equal(go(both, checkpoint=path, resume=True), whole)

    @double_precision
    def look():
        resolved = algorithm.resolve(both, AnyParameters())
        carry = loop.initial_carry(resolved, jnp.asarray(start))
        for until in (1, 5):
            place = [s.data.unsafe_buffer_pointer() for s in carry.state.table.centre.addressable_shards]
            limits = jnp.asarray(until), jnp.asarray(2**62)
            carry = loop.advance(jax.random.key(0), resolved, both, AnyParameters(), carry, *limits)
            shards = carry.state.table.centre.addressable_shards
            assert [s.data.shape for s in shards] == [(TERMS, DIM // 2)] * 2
            assert {s.device for s in shards} == set(jax.devices())
            assert [s.data.unsafe_buffer_pointer() for s in shards] == place  # in place on each device
        saved = table_bytes(surrogate(None), jnp.asarray(start)) - table_bytes(both, jnp.asarray(start))
        assert saved == TERMS * DIM // 2 * 4

    look()
    """
)


def test_two_devices_give_the_parameters_of_one(tmp_path):
    flags = "--xla_force_host_platform_device_count=2"
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    }
    command = [sys.executable, "-c", TWO_DEVICES, str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-3000:]
