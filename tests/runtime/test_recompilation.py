"""Plans from theorems share one compiled loop, and a run compiles it once; tests/laws has the rest, of every method."""

import numpy as np
import pytest

from provi.algorithms import MPSGD, ProxSGD
from provi.families import Gaussian
from provi.runtime import run
from provi.runtime.loop import optimised_loop
from provi.schedules import (
    GeometricAverage,
)
from provi.targets import LogisticRegression

SYMMETRIC = Gaussian(2, "symmetric")


def problem(prior_scale=1.0):
    rng = np.random.default_rng(0)
    return LogisticRegression(rng.normal(size=(20, 2)), rng.random(20) < 0.5, prior_scale)


def go(algorithm, target, family=SYMMETRIC, num_steps=12):
    start = family.point(np.zeros(2), 0.5)
    assert run(algorithm, target, family, start, seed=0, num_steps=num_steps, num_records=4).outcome.ok


@pytest.mark.parametrize("kind", [ProxSGD, MPSGD])
def test_plans_from_theorems_share_one_compilation(kind):
    sizes = []
    for target, budget in ((problem(), 1000), (problem(), 5000), (problem(2.0), 2000)):
        go(kind.from_theorem(target, SYMMETRIC, budget=budget), target)
        sizes.append(optimised_loop._cached._cache_size())
    assert sizes[0] == sizes[1] == sizes[2]


def test_one_run_compiles_the_loop_once():
    before = optimised_loop._cached._cache_size()
    go(ProxSGD(0.1, 2, averaging=GeometricAverage(0.7)), problem(), Gaussian(2, "diagonal"), 60)
    assert optimised_loop._cached._cache_size() == before + 1
