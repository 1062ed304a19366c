"""What holds for every algorithm on every scale it accepts: pure, batchable, repeatable, in its own precision."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from provi.algorithms import MPSGD, Optax, ProjSGD, ProxSGD
from provi.algorithms.base import without_guarantee
from provi.estimators import Entropy, ScoreFunction, StickingTheLanding
from provi.estimators import base as estimators_base
from provi.families import Gaussian, LocationScale, StudentT
from provi.schedules import (
    GeometricAverage,
    NoiseWeightedAverage,
    PolynomialBatch,
    PolynomialStep,
    ReshuffledSampling,
    StronglyConvexStep,
    UniformSampling,
)
from provi.targets import LogisticRegression
from support.members import RANK, dense, flat, point_of, quick_jit

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)), RNG.random(20) < 0.5
GROWING = {"num_draws": PolynomialBatch(1, 0.7)}
MEMBERS = {
    "prox": (ProxSGD(0.05, 3), ("triangular", "symmetric")),
    "prox_average": (ProxSGD(0.05, averaging=GeometricAverage(0.9, of="after"), anchored=True), ("triangular",)),
    "prox_score": (ProxSGD(0.01, 4, estimator=ScoreFunction(), data_sampling=UniformSampling(5)), ("triangular",)),
    "proj": (ProjSGD(StronglyConvexStep(0.1, 1.0), **GROWING), ("symmetric", "low_rank")),
    "proj_stl": (ProjSGD(0.05, estimator=StickingTheLanding(), data_sampling=ReshuffledSampling(4)), ("symmetric",)),
    "mpsgd": (MPSGD(PolynomialStep(0.05), averaging=NoiseWeightedAverage(5.0), **GROWING), ("symmetric", "diagonal")),
    "adam": (Optax(optax.adam(0.05), 2), ("triangular", "low_rank")),
    "momentum": (Optax(optax.sgd(0.01, 0.9), 2, Entropy(), GeometricAverage(0.5)), ("diagonal",)),
}
CASES = [(name, scale) for name, (_, scales) in MEMBERS.items() for scale in scales]
by_case = pytest.mark.parametrize(("name", "scale"), CASES)
NUM_STEPS = 3


@pytest.fixture(autouse=True)
def one_chunk(monkeypatch):
    """Compiles faster; nothing here depends on the chunks."""
    monkeypatch.setattr(estimators_base, "CHUNKS", (1,))


def problem(name, scale, dtype):
    target = LogisticRegression(X.astype(dtype), Y)
    # One member with a heavy-tailed base, whose degrees of freedom are a leaf.
    family = LocationScale(3, StudentT(9.0), scale) if name == "momentum" else Gaussian(3, scale, rank=RANK)
    algorithm = without_guarantee(MEMBERS[name][0].resolve(target, family))
    return algorithm, target, family, point_of(family, dtype)


def plain_steps(key, algorithm, target, family, start):
    def body(state, _):
        return algorithm.step(key, state, target, family, jnp.ones((), start.loc.dtype))

    state, infos = jax.lax.scan(body, algorithm.init(start), length=NUM_STEPS)
    return algorithm.output(state), state, infos


three_steps = quick_jit(plain_steps)


@by_case
def test_runs_inside_jit_vmap_and_scan_and_repeats_with_the_key(name, scale):
    parts = problem(name, scale, np.float64)
    keys = jax.random.split(jax.random.key(0), 3)
    together = quick_jit(jax.vmap(plain_steps, in_axes=(0, None, None, None, None)))(keys, *parts)
    output, state, infos = three_steps(keys[1], *parts)
    again = three_steps(keys[1], *parts)
    for a, b in zip(jax.tree.leaves((output, state, infos)), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(jax.tree.leaves((output, infos)), jax.tree.leaves((together[0], together[2])), strict=True):
        np.testing.assert_allclose(b[1], a, rtol=1e-9, atol=1e-11)
    assert np.abs(np.diff(np.asarray(together[0].loc), axis=0)).min(axis=1).max() > 1e-6
    assert int(state.step) == NUM_STEPS
    assert np.isfinite(flat((output, infos))).all()
    matrix = np.asarray(dense(output.scale))
    assert np.linalg.eigvalsh(matrix @ matrix.T)[0] > 0
    assert jax.tree.structure(output) == jax.tree.structure(parts[3])


@by_case
def test_float32_stays_float32(name, scale):
    parts = problem(name, scale, np.float32)
    output, state, infos = three_steps(jax.random.key(0), *parts)
    floating = [
        leaf.dtype for leaf in jax.tree.leaves((output, state, infos)) if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    assert set(floating) == {jnp.dtype("float32")}
    assert np.isfinite(flat(output)).all()


@pytest.mark.parametrize("name", ["prox", "prox_score"])
def test_a_float32_point_on_float64_data_stays_float32(name):
    algorithm, target, family, _ = problem(name, "triangular", np.float64)
    output, _, _ = three_steps(jax.random.key(0), algorithm, target, family, point_of(family, np.float32))
    assert output.loc.dtype == output.scale.matrix.dtype == jnp.float32


def test_triangular_scales_stay_triangular():
    for name in ("prox", "prox_score", "adam"):
        output, _, _ = three_steps(jax.random.key(1), *problem(name, "triangular", np.float64))
        assert not np.triu(np.asarray(output.scale.matrix), 1).any()


def test_symmetric_scales_stay_symmetric():
    for name in ("prox", "proj", "proj_stl", "mpsgd"):
        output, _, _ = three_steps(jax.random.key(1), *problem(name, "symmetric", np.float64))
        matrix = np.asarray(output.scale.matrix)
        np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-14)
