"""Plain NumPy: a natural gradient for Gaussian processes and EM for missing covariates, with no library's overhead."""

from typing import Any

import numpy as np

from provi_lab.bench.gp_oracle import DualState, logit_moments
from provi_lab.bench.missing_oracle import em_step, moments, start
from provi_lab.bench.problems import LAST_STEP, GPProblem, MissingProblem, snapshot_due
from provi_lab.bench.protocol import Recorder

_LARGEST_NUMBER_OF_STEPS = 1000


def natural_gradient(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Constant steps `setting` from the prior, with the eight-probit moments; the kernel matrix is made once."""
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


def missing_em(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Generalised EM with quadrature for the E-step, until `setting` nats or fewer seem to be left.

    EM's gains shrink geometrically at last: with the ratio r of the last two, gain r/(1 - r) is left.
    """
    parameters, gain, last, left, steps = start(problem.features, problem.response), np.inf, -np.inf, np.inf, 0
    while left > setting and steps < _LARGEST_NUMBER_OF_STEPS:
        found = moments(problem.features, problem.response, parameters)
        # The first gain, from minus infinity, is infinite: two more are needed before anything can be said.
        gain, before = found.log_likelihood - last, gain
        ratio = gain / before if np.isfinite(before) else 1.0
        left = abs(gain) * ratio / (1 - ratio) if 0 <= ratio < 1 else np.inf
        parameters, last, steps = em_step(parameters, found, len(problem.features)), found.log_likelihood, steps + 1
    record(np.concatenate([parameters.coefficients, parameters.mean]), parameters.covariance, float(steps))
    return {"versions": {"numpy": np.__version__}, "passes": steps}
