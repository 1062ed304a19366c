"""`monte_carlo/batch_sums.py`: the draws made again, and every mean and test a pair at a time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.certificates.monte_carlo import batch_sums as sums
from provi.certificates.monte_carlo.batch_sums import NUM_BATCHES, Frame
from provi.families import Normal, StudentT, Uniform
from provi.targets import LogDensity, LogisticRegression
from support.formulas import fresh

EPS, ONES, ZEROS = 2.0**-52, np.ones(2), np.zeros(2)


def wavy(z):
    return 0.5 * jnp.sum(z**2) + 0.4 * jnp.sum(jnp.sin(z + jnp.asarray([0.3, -0.2]))) + 0.2 * z[0]


TARGET = LogDensity(lambda z: -wavy(z), 2)
LOC = np.array([0.4, -0.3])


def frame(full, whitener=True, claimed=0.1):
    factor = np.array([[0.8, 0.0], [0.3, 0.6]]) if full else np.array([0.8, 0.6])
    white = (np.array([[1.1, 0.0], [0.2, 0.7]]) if full else np.array([1.1, 0.7])) if whitener else None
    return Frame(
        *(jnp.asarray(x) for x in (LOC, factor)), None if white is None else jnp.asarray(white), jnp.asarray(claimed)
    )


def matrix_of(entry):
    entry = np.asarray(entry)
    return entry if entry.ndim == 2 else np.diag(entry)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("base", [Normal(), StudentT(7.0), Uniform()])
def test_every_mean_is_one_over_pairs(full, base):
    held, chunk, key = frame(full), 2, jax.random.key(1)
    shifts = 0.1 * np.random.default_rng(0).normal(size=(NUM_BATCHES, 2))
    centre = np.array([[0.1, 0.05], [0.05, -0.2]]) if full else np.array([0.1, -0.2])
    given = (key, TARGET, base, held, jnp.asarray(centre), jnp.asarray(shifts), jnp.asarray(5), jnp.asarray(3), chunk)
    found = fresh(sums.batch_means)(*given, jnp.asarray(True))
    plain = fresh(sums.batch_means)(*given, jnp.asarray(False))
    factor, white, spin = (matrix_of(x) for x in (held.factor, held.whitener, centre))
    both = jax.jit(jax.vmap(jax.value_and_grad(wavy)))
    pairs = [[] for _ in range(NUM_BATCHES)]
    for index in (5, 6, 7):
        u = np.asarray(base.sample(jax.random.fold_in(key, index), NUM_BATCHES * chunk, 2, jnp.float64))
        u = u.reshape(NUM_BATCHES, chunk, 2)
        ends = []
        for sign in (1, -1):
            z = LOC + (shifts[:, None] + sign * u) @ factor.T
            value, slope = (np.asarray(x) for x in both(z.reshape(-1, 2)))
            ends.append((value.reshape(NUM_BATCHES, chunk), slope.reshape(NUM_BATCHES, chunk, 2) @ factor))
        for b in range(NUM_BATCHES):
            pairs[b] += [(u[b, i], *(x[b, i] for end in ends for x in end)) for i in range(chunk)]
    hessian, count, excesses = np.zeros((2, 2)), 0, fresh(sums.curvature_excess)

    def score(x):
        """-grad log of the base's density."""
        match base:
            case StudentT():
                return (7 + 2) * x / (5 + x @ x)  # of unit variance
            case _:
                return x

    for b, rows in enumerate(pairs):
        mean = dict(value=0, magnitude=0, gradient=0, moment=0, fisher=0, relative_fisher=0)
        for u, above, plus, below, minus in rows:
            mean["value"] += (above + below) / 2
            mean["magnitude"] += (abs(above) + abs(below)) / 2
            mean["gradient"] += (plus + minus) / 2
            for w, x in ((plus, u), (minus, -u)):
                # The even part of w meets u in no product: the mean of both signs is that of the odd part.
                outer = np.outer(w - x - spin @ x, x) / 2
                mean["moment"] += outer if full else np.diag(outer)
                hessian, count = hessian + np.outer(w - x, x) / 2, count + 0.5
                mean["fisher"] += (w - x) @ (w - x) / 2
                mean["relative_fisher"] += np.sum((white @ (w - score(x))) ** 2) / 2
        for name, total in mean.items():
            if name == "relative_fisher" and not base.has_score:
                assert np.array_equal(found.relative_fisher, np.zeros(NUM_BATCHES))
                continue
            assert np.allclose(getattr(found, name)[b], total / len(rows), rtol=1e-9, atol=1e-12), name
        u, above, plus, below, minus = (np.stack(x)[None] for x in zip(*rows, strict=True))
        excess = excesses(held, *(jnp.asarray(x) for x in (u, np.stack([above, below]), plus, minus)))[0]
        assert float(found.least[b]) == pytest.approx(min(float(np.min(excess)), 0.0), abs=1e-9)
    if full:
        assert found.hessian is None
    else:
        assert np.allclose(found.hessian, hessian / count, rtol=1e-9, atol=1e-12)
    assert not np.any(plain.fisher) and not np.any(plain.relative_fisher) and np.allclose(plain.value, found.value)
    assert found.value.dtype == jnp.float64


def test_what_is_not_asked_for(monkeypatch):
    given = (jax.random.key(1), TARGET, Normal())
    rest = (jnp.zeros(2), jnp.zeros((NUM_BATCHES, 2)), jnp.asarray(0), jnp.asarray(1), 2, jnp.asarray(True))
    found = fresh(sums.batch_means)(*given, frame(False, whitener=False), *rest)
    assert not np.any(found.relative_fisher) and np.all(found.fisher > 0)
    monkeypatch.setattr(sums, "LARGEST_DENSE", 1)
    assert fresh(sums.batch_means)(*given, frame(False), *rest).hessian is None


def excess_of(values, plus, minus, u, claimed=0.0, factor=ONES, loc=ZEROS):
    """One pair: the excess and the curvature."""
    held = Frame(jnp.asarray(loc), jnp.asarray(factor), None, jnp.asarray(claimed))
    arrays = [np.asarray(u, float)[None, None], np.asarray(values, float)[:, None, None]]
    arrays += [np.asarray(x, float)[None, None] for x in (plus, minus)]
    return tuple(float(np.asarray(x)[0, 0]) for x in sums.curvature_excess(held, *(jnp.asarray(x) for x in arrays)))


def test_the_excess_of_a_pair_by_hand():
    """Slopes refute, values below a tangent refute, and what rounding may have done is granted."""
    u, factor, loc = np.array([0.5, -1.0]), np.array([2.0, 0.5]), np.array([1e5, 3.0])
    plus, minus, values = np.array([1.0, -2.0]), np.array([-0.5, 1.0]), (2.0, 1.5)
    root, moved = math.sqrt(EPS), 4 * EPS * 5e4
    length = (0.5 * 2) ** 2 + 0.5**2
    inner = ((plus - minus) @ u) / 2
    for claimed in (0.0, 0.3):
        size = np.sum((np.abs(plus) + np.abs(minus)) * np.abs(u)) + claimed * length
        size += moved / root * np.sum(np.abs(plus) + np.abs(minus) + np.abs(u))
        found, curvature = excess_of(values, plus, minus, u, claimed, factor, loc)
        assert curvature == pytest.approx(inner / length, rel=1e-12)
        assert found == pytest.approx(inner - claimed * length + root * size, rel=1e-12)
    # Convex slopes, and a value below the tangent at the other end.
    for values in ((2.0, 60.0), (60.0, 2.0), (2.0, 1.5 - 1e-9)):
        rise = values[0] - values[1]
        above = min(rise - 2 * minus @ u, 2 * plus @ u - rise) / 2
        granted = root * (np.sum((np.abs(plus) + np.abs(minus)) * np.abs(u)) + abs(values[0]) + abs(values[1]))
        granted += 4 * EPS * np.sum(np.abs(plus) + np.abs(minus) + np.abs(u)) * 0
        found, curvature = excess_of(values, plus, minus, u)
        if above + granted < 0:
            moved_none = excess_of(values, plus, minus, u)
            assert found == pytest.approx(1e-9 * (above + granted), rel=1e-6) and moved_none[0] == found
            assert curvature == pytest.approx(above / (u @ u), rel=1e-12)
        else:
            assert found > 0
    with_claim, _ = excess_of((2.0, 60.0), plus, minus, u, 0.2)
    assert with_claim < excess_of((2.0, 60.0), plus, minus, u)[0] < 0
    concave, curvature = excess_of((2.0, 60.0), minus, plus, u)  # slopes that refute come first
    assert concave == pytest.approx(-((plus - minus) @ u) / 2, rel=1e-6) and curvature == pytest.approx(
        concave / (u @ u), rel=1e-6
    )
    for bad in (np.inf, np.nan):
        assert excess_of((bad, 1.0), plus, minus, u)[0] > 0
    # Linear to rounding: neither slopes nor tangents refute.
    assert excess_of((1.0, -1.0), [1.0, 0.0], [1.0, 0.0], [1.0, 0.0])[0] > 0
    tiny = excess_of((1.0, -1.0), [1.0, 0.0], [1.0 + 3 * root, 0.0], [1.0, 0.0])[0]
    assert tiny > 0 > excess_of((1.0, -1.0), [1.0, 0.0], [1.0 + 5 * root, 0.0], [1.0, 0.0])[0]


def test_the_displacement_of_points():
    full = np.array([[3.0, 4.0], [0.0, 2.0]])
    for loc, factor, expected in (([5.0, 1.0], full, 1.0), ([5.0, 1.0], np.array([-2.0, 0.1]), 10.0)):
        for xp in (np, jnp):
            found = sums.displacement(xp.asarray(loc), xp.asarray(factor))
            assert float(found) == pytest.approx(EPS * expected, rel=1e-14)


def test_times_and_rows_at_once(monkeypatch):
    rows = np.arange(12.0).reshape(2, 3, 2)
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert np.allclose(sums.times(jnp.asarray(matrix), jnp.asarray(rows)), np.einsum("ij,abj->abi", matrix, rows))
    assert np.allclose(sums.times(jnp.asarray([2.0, 3.0]), jnp.asarray(rows)), rows * [2, 3])
    regression = LogisticRegression(np.eye(3)[:, :2], [0, 1, 1])
    for most, expected in ((3 * 256, 256), (3 * 256 - 1, 128), (3 * 100, 64), (1, 16)):
        monkeypatch.setattr(sums, "NUMBERS_AT_ONCE", most)
        assert sums._rows_at_once(regression, 256) == expected
    monkeypatch.setattr(sums, "NUMBERS_AT_ONCE", 2 * 64)
    assert sums._rows_at_once(TARGET, 256) == 64 and sums._rows_at_once(TARGET, 8) == 8
    assert (sums.NUM_BATCHES, sums.LARGEST_DENSE) == (32, 1000)


def test_points_in_blocks_are_the_same(monkeypatch):
    given = (jax.random.key(1), TARGET, Normal(), frame(True), jnp.zeros((NUM_BATCHES, 2)), 2)
    whole = fresh(sums.pair_gradients)(*given)
    monkeypatch.setattr(sums, "NUMBERS_AT_ONCE", 40)
    parts = fresh(sums.pair_gradients)(*given)
    assert all(np.allclose(x, y) for x, y in zip(whole, parts, strict=True))
