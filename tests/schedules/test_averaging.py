"""Averaging rules, through a real algorithm, against the weighted sums that define them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import MPSGD, ProxSGD
from provi.families import Gaussian
from provi.schedules import (
    ConstantStep,
    GeometricAverage,
    LastIterate,
    NoiseWeightedAverage,
    PolynomialBatch,
    PolynomialStep,
)
from provi.targets import Gaussian as GaussianTarget
from support.members import FACTOR, LOC, flat
from support.trajectories import trajectory

TARGET = GaussianTarget(LOC, FACTOR @ FACTOR.T)
FAMILY = Gaussian(3, "diagonal")
START = FAMILY.point(np.zeros(3), 0.7)
STEP, BATCH = PolynomialStep(0.2, 0.6), PolynomialBatch(2, 0.7)
NUM_STEPS = 12


def run(averaging, kind=ProxSGD, step_size=STEP):
    algorithm = kind(step_size, BATCH, averaging=averaging)
    states, infos = trajectory(algorithm, TARGET, FAMILY, START, jax.random.key(3), NUM_STEPS)
    iterates = np.stack([flat(state.point) for state in states])
    assert np.ptp(iterates, axis=0).min() > 1e-3
    outputs = [flat(algorithm.output(state)) for state in states]
    return iterates, outputs, infos


@pytest.mark.parametrize("of", ["before", "after"])
@pytest.mark.parametrize("factor", [0.8, 1.0])
def test_geometric_average(of, factor):
    iterates, outputs, _ = run(GeometricAverage(factor, of=of))
    for steps in range(1, NUM_STEPS + 1):
        averaged = iterates[:steps] if of == "before" else iterates[1 : steps + 1]
        weights = np.array([factor ** (t + 1) for t in range(steps)])
        expected = (weights[:, None] * averaged).sum(axis=0) / weights.sum()
        np.testing.assert_allclose(outputs[steps], expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [ProxSGD, MPSGD])
def test_noise_weighted_average_with_changing_steps_and_batches(kind):
    slope = 40.0
    iterates, outputs, infos = run(NoiseWeightedAverage(slope), kind)
    discount, weights = 1.0, []
    for t in range(NUM_STEPS):
        gamma, draws = 0.2 / (t + 1) ** 0.6, int(np.ceil(2 * (t + 1) ** 0.7))
        assert float(infos[t].step_size) == pytest.approx(gamma, rel=1e-14)
        assert int(infos[t].cost) == draws
        discount /= 1 + slope * gamma**2 / draws
        weights.append(gamma * discount)
        expected = (np.array(weights)[:, None] * iterates[: t + 1]).sum(axis=0) / sum(weights)
        np.testing.assert_allclose(outputs[t + 1], expected, rtol=1e-12)
    assert weights[-1] < 0.3 * weights[0]


def test_last_iterate():
    iterates, outputs, _ = run(LastIterate())
    np.testing.assert_array_equal(outputs, iterates)


def test_before_the_first_step_the_output_is_the_start():
    for averaging in (GeometricAverage(0.5), GeometricAverage(0.5, of="after"), NoiseWeightedAverage(1.0)):
        algorithm = ProxSGD(ConstantStep(0.1), averaging=averaging)
        np.testing.assert_array_equal(flat(algorithm.output(algorithm.init(START))), flat(START))


def test_a_very_long_geometric_average_does_not_break():
    """Weights below the smallest number leave the average as it is."""
    rule = GeometricAverage(0.5)
    state = rule.init(START)
    one = jnp.asarray(1.0)
    state = jax.lax.fori_loop(0, 1200, lambda _, s: rule.update(s, START, START, one, one), state)
    assert float(state.discount) == 0
    np.testing.assert_array_equal(flat(rule.value(state, START)), flat(START))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="of must be"):
        GeometricAverage(0.5, of="during")
    for bad in (0.0, 1.5, -1.0, np.nan):
        with pytest.raises(ValueError, match="factor must lie in"):
            GeometricAverage(bad)
    with pytest.raises(ValueError, match="noise_slope"):
        NoiseWeightedAverage(-1.0)
