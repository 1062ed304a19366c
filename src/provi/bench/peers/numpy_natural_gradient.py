"""Natural gradient at the constant step `setting` in NumPy, with the eight-probit moments: no library's overhead."""

from typing import Any

import numpy as np

from provi.bench.gp_numpy import DualState, logit_moments
from provi.bench.gp_problem import LAST_STEP, GPProblem, snapshot_due
from provi.bench.protocol import Recorder, serve


def solve(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the prior; the kernel matrix is made once."""
    K = problem.covariance()
    state, steps = DualState.prior(K), 0
    while not record.done and steps < LAST_STEP:
        _, slope, weight = logit_moments(state.mean, state.variance, problem.response)
        state, steps = state.step(K, slope, weight, setting), steps + 1
        if snapshot_due(steps):
            with record.off_the_clock():
                covariance = state.covariance(K)
            record(state.mean, covariance, steps)
    return {"versions": {"numpy": np.__version__}, "steps": steps}


if __name__ == "__main__":
    serve(solve, GPProblem.load)
