"""Generalised EM in NumPy with quadrature for the E-step, stopped when `setting` nats or fewer seem to be left."""

from typing import Any

import numpy as np

from provi.bench.missing_numpy import em_step, moments, start
from provi.bench.missing_problem import MissingProblem
from provi.bench.protocol import Recorder, serve

LARGEST_NUMBER_OF_STEPS = 1000


def solve(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """EM's gains shrink geometrically at last: with the ratio r of the last two, gain r/(1 - r) is left."""
    parameters, gain, last, left, steps = start(problem.features, problem.response), np.inf, -np.inf, np.inf, 0
    while left > setting and steps < LARGEST_NUMBER_OF_STEPS:
        found = moments(problem.features, problem.response, parameters)
        # The first gain, from minus infinity, is infinite: two more are needed before anything can be said.
        gain, before = found.log_likelihood - last, gain
        ratio = gain / before if np.isfinite(before) else 1.0
        left = abs(gain) * ratio / (1 - ratio) if 0 <= ratio < 1 else np.inf
        parameters, last, steps = em_step(parameters, found, len(problem.features)), found.log_likelihood, steps + 1
    record(np.concatenate([parameters.coefficients, parameters.mean]), parameters.covariance, float(steps))
    return {"versions": {"numpy": np.__version__}, "passes": steps}


if __name__ == "__main__":
    serve(solve, MissingProblem.load)
