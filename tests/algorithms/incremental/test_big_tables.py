"""Tables that are large: rounded rows, their exact mean, and a refusal of what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import MISO, MISSO, QuadraticSurrogate, Surrogate
from provi.algorithms.incremental.surrogate_table import round_rows, table_bytes
from provi.families.base import AnyParameters
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
    monkeypatch.setattr("provi.algorithms.incremental.surrogate_table.available_bytes", lambda devices: needed)
    assert minimise_sum(surrogate, start, MISSO(1, num_draws=1), seed=0, num_steps=1, progress=False).outcome.ok
    monkeypatch.setattr("provi.algorithms.incremental.surrogate_table.available_bytes", lambda devices: needed - 1)
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
