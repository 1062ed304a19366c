"""GPflow: the model VGP with the optimiser NaturalGradient at the constant step `setting`, compiled by tf.function."""

import functools
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from provi.bench.gp_problem import LAST_STEP, GPProblem, snapshot_due
from provi.bench.peers.gpflow_model import VERSIONS, BernoulliLogit, squared_exponential
from provi.bench.protocol import Recorder, serve


@functools.cache
def _program(problem: GPProblem, step_size: float) -> tuple[Any, Any]:
    """The model, and one step on it."""
    # VGP adds this jitter to its kernel matrix.
    gpflow.config.set_config(gpflow.config.Config(jitter=problem.jitter))
    kernel = squared_exponential(problem.length_scale, problem.amplitude)
    model = gpflow.models.VGP((problem.inputs, problem.response[:, None]), kernel, BernoulliLogit())
    optimiser = gpflow.optimizers.NaturalGradient(step_size)

    @tf.function
    def step() -> None:
        optimiser.minimize(model.training_loss, [(model.q_mu, model.q_sqrt)])

    return model, step


def solve(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the prior, which is N(0, I) in GPflow's whitened parameters."""
    model, step = _program(problem, setting)
    model.q_mu.assign(np.zeros((len(problem.inputs), 1)))
    model.q_sqrt.assign(np.eye(len(problem.inputs))[None])
    with record.off_the_clock():
        factor = np.linalg.cholesky(problem.covariance())
    steps = 0
    while not record.done and steps < LAST_STEP:
        step()
        steps += 1
        if snapshot_due(steps):
            with record.off_the_clock():
                root = factor @ model.q_sqrt.numpy()[0]
                mean, covariance = factor @ model.q_mu.numpy()[:, 0], root @ root.T
            record(mean, covariance, steps)
    return {"versions": VERSIONS, "steps": steps}


if __name__ == "__main__":
    serve(solve, GPProblem.load)
