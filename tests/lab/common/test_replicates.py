"""The measuring instrument itself: replicates are plain runs with independent keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import ProxSGD
from provi.schedules import GeometricAverage
from provi_lab.common.replicates import replicate
from soundness.problems import problem

CHOSEN = problem("gaussian", "normal", "diagonal")
ALGORITHM = ProxSGD(0.05, 3, averaging=GeometricAverage(0.9, of="after"))


def _replicate(steps, num_replicates=2):
    return replicate(
        ALGORITHM,
        CHOSEN.target,
        CHOSEN.family,
        CHOSEN.start,
        seed=4,
        num_replicates=num_replicates,
        record_steps=steps,
    )


def test_replicates_are_single_runs():
    recorded = _replicate([0, 1, 4])
    step = jax.jit(lambda key, state: ALGORITHM.step(key, state, CHOSEN.target, CHOSEN.family, jnp.ones(()))[0])
    for index, key in enumerate(jax.random.split(jax.random.key(4), 2)):
        state = ALGORITHM.init(CHOSEN.start)
        for count in range(5):
            if count in (0, 1, 4):
                record = (0, 1, 4).index(count)
                for found, expected in (
                    (recorded.iterates, state.point),
                    (recorded.outputs, ALGORITHM.output(state)),
                ):
                    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                        np.testing.assert_allclose(a[index, record], b, rtol=1e-12)
            state = step(key, state)
    assert not np.allclose(recorded.iterates.loc[0, 2], recorded.iterates.loc[1, 2])


def test_records_do_not_depend_on_what_else_is_recorded():
    np.testing.assert_allclose(
        _replicate([0, 1, 4]).outputs.loc[:, 2], _replicate([2, 3, 4]).outputs.loc[:, 2], rtol=1e-12
    )


@pytest.mark.parametrize("steps", [[2, 2], [3, 1], [-1, 2], [0.5]])
def test_refuses(steps):
    with pytest.raises(ValueError, match="record_steps"):
        _replicate(steps)
