"""Numbers that change between runs do not recompile: the potential is traced anew only when a shape changes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from provi.algorithms import MPSGD, Optax, ProjSGD, ProxSGD
from provi.estimators import Entropy
from provi.families import Gaussian, LocationScale, StudentT
from provi.geometry import BlockPreconditioner
from provi.runtime import Budget, run
from provi.runtime.loop import optimised_loop
from provi.schedules import (
    GeometricAverage,
    NoiseWeightedAverage,
    PolynomialBatch,
    PolynomialStep,
    StronglyConvexStep,
    UniformSampling,
)
from provi.targets import AbstractFiniteSum, LogisticRegression
from provi.targets.base import Constants, proven

TRACES = []


class Counted(AbstractFiniteSum):
    """Least squares with a Gaussian prior, which counts how often it is traced."""

    design: jax.Array
    response: jax.Array
    prior_scale: jax.Array

    @property
    def dim(self):
        return self.design.shape[1]

    @property
    def dtype(self):
        return self.design.dtype

    @property
    def num_terms(self):
        return self.design.shape[0]

    @property
    def parameter_names(self):
        return ("a", "b")

    @property
    def constants(self):
        return Constants(proven(True, "quadratic"), proven(1.0, "prior"), proven(20.0, "data"))

    def prior_potential(self, z):
        TRACES.append(1)
        return jnp.sum(z**2) / (2 * self.prior_scale**2)

    def term_potentials(self, z, indices):
        return 0.5 * (self.response[indices] - self.design[indices] @ z) ** 2


def target(seed=0, prior_scale=1.0, rows=5):
    rng = np.random.default_rng(seed)
    design, response = (jnp.asarray(rng.normal(size=shape)) for shape in ((rows, 2), (rows,)))
    return Counted(design, response, jnp.asarray(prior_scale))


SYMMETRIC = Gaussian(2, "symmetric")


def go(algorithm, problem=None, family=SYMMETRIC, seed=0, num_steps=12, loc=0.0, scale=0.5, **options):
    before = len(TRACES)
    problem = target() if problem is None else problem
    start = family.point(np.full(2, loc), scale)
    result = run(algorithm, problem, family, start, seed=seed, num_steps=num_steps, num_records=4, **options)
    assert result.outcome.ok
    return len(TRACES) - before


def mpsgd(step=0.05, exponent=0.5, batch=2, growth=0.5, largest=30, blocks=(1.0, 0.5), slope=3.0, floor=0.2):
    return MPSGD(
        PolynomialStep(step, exponent),
        PolynomialBatch(batch, growth, largest),
        BlockPreconditioner(*blocks),
        averaging=NoiseWeightedAverage(slope),
        smallest_scale=floor,
    )


def test_prox_sgd():
    def algorithm(step=0.1, draws=3, factor=0.9):
        return ProxSGD(step, draws, averaging=GeometricAverage(factor, of="after"))

    assert go(algorithm()) > 0
    for change in ({"step": 0.01}, {"draws": 50}, {"factor": 1.0}, {"step": 1, "draws": 7, "factor": 0.1}):
        assert go(algorithm(**change)) == 0, change
    assert go(algorithm(), target(1)) == 0
    assert go(algorithm(), target(0, 3.0)) == 0
    for change in ({"num_steps": 37}, {"seed": 5}, {"loc": 1.0}, {"scale": 2.0}, {"budget": Budget(gradients=20)}):
        assert go(algorithm(), **change) == 0, change
    assert go(algorithm(), target(rows=6)) > 0


def test_mpsgd():
    assert go(mpsgd()) > 0
    for change in (
        {"step": 0.01},
        {"exponent": 0.7},
        {"batch": 5},
        {"growth": 1.5},
        {"largest": 3},
        {"blocks": (0.3, 0.1)},
        {"slope": 50.0},
        {"floor": 0.01},
    ):
        assert go(mpsgd(**change)) == 0, change
    assert go(mpsgd(), budget=Budget(gradients=11)) == 0


def test_data_sampling_and_the_strongly_convex_schedule():
    def algorithm(largest=0.1, convexity=1.0, floor=0.2):
        return ProjSGD(
            StronglyConvexStep(largest, convexity), 2, smallest_scale=floor, data_sampling=UniformSampling(3)
        )

    assert go(algorithm()) > 0
    assert go(algorithm(0.3, 2.0, 0.5), target(2), num_steps=40) == 0


def test_optax_with_a_schedule_in_its_state():
    rule = optax.inject_hyperparams(optax.sgd)(0.05)
    assert go(Optax(rule, 2, Entropy())) > 0
    assert go(Optax(rule, 9, Entropy(), smallest_scale=0.1)) == 0


def test_degrees_of_freedom():
    families = [LocationScale(2, StudentT(df), "diagonal") for df in (5.0, 9.0)]
    assert go(ProxSGD(0.1), family=families[0]) > 0
    assert go(ProxSGD(0.1), family=families[1]) == 0


@pytest.mark.parametrize("kind", [ProxSGD, MPSGD])
def test_plans_from_theorems_share_one_compilation(kind):
    rng = np.random.default_rng(0)
    problems = [LogisticRegression(rng.normal(size=(20, 2)), rng.random(20) < 0.5, scale) for scale in (1.0, 2.0)]
    sizes = []
    for problem, budget in ((problems[0], 1000), (problems[0], 5000), (problems[1], 2000)):
        algorithm = kind.from_theorem(problem, SYMMETRIC, budget=budget)
        go(algorithm, problem)
        sizes.append(optimised_loop._cached._cache_size())
    assert sizes[0] == sizes[1] == sizes[2]


def test_one_run_compiles_the_loop_once():
    before = optimised_loop._cached._cache_size()
    go(ProxSGD(0.1, 2, averaging=GeometricAverage(0.7)), family=Gaussian(2, "diagonal"), num_steps=60)
    assert optimised_loop._cached._cache_size() == before + 1
