"""GPflow: the model SVGP with NaturalGradient at the constant step `setting` on mini-batches; a snapshot a pass."""

import functools
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from provi.bench.gp_problem import SparseGPProblem
from provi.bench.peers.gpflow_model import VERSIONS, BernoulliLogit, squared_exponential
from provi.bench.protocol import Recorder, serve


@functools.cache
def _program(problem: SparseGPProblem, step_size: float) -> tuple[Any, Any]:
    """The model, and one step on it with the batch it is given."""
    gpflow.config.set_config(gpflow.config.Config(jitter=problem.jitter))
    kernel = squared_exponential(problem.length_scale, problem.amplitude)
    model = gpflow.models.SVGP(kernel, BernoulliLogit(), problem.inducing, num_data=len(problem.inputs), whiten=True)
    optimiser = gpflow.optimizers.NaturalGradient(step_size)

    @tf.function
    def step(inputs: Any, response: Any) -> None:
        optimiser.minimize(lambda: model.training_loss((inputs, response)), [(model.q_mu, model.q_sqrt)])

    return model, step


def solve(problem: SparseGPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the prior; the last iterate of each pass is the answer."""
    model, step = _program(problem, setting)
    model.q_mu.assign(np.zeros((len(problem.inducing), 1)))
    model.q_sqrt.assign(np.eye(len(problem.inducing))[None])
    for rows, passes, due in problem.schedule():
        step(tf.constant(problem.inputs[rows]), tf.constant(problem.response[rows][:, None]))
        if due:
            with record.off_the_clock():
                mean, root = model.q_mu.numpy()[:, 0], model.q_sqrt.numpy()[0]
                covariance = root @ root.T
            record(mean, covariance, passes)
            if record.done:
                break
    return {"versions": VERSIONS}


if __name__ == "__main__":
    serve(solve, SparseGPProblem.load)
