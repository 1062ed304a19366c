"""GPflow: its dense and its sparse model, with one thread, in double precision, and a Bernoulli-logit likelihood.

GPflow's own Bernoulli with a sigmoid takes log(1 - p), which is minus infinity from a logit of 37 on; at these priors
its Gauss-Hermite nodes lie far beyond that. The same density without the cancellation is given here, as a user would.
"""

# Where the library is not installed, pyright takes this module for it.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

import functools
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from provi_lab.bench.problems import LAST_STEP, GPProblem, SparseGPProblem, snapshot_due
from provi_lab.bench.protocol import Recorder

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

VERSIONS = {"gpflow": gpflow.__version__, "tensorflow": tf.__version__}


class BernoulliLogit(gpflow.likelihoods.Bernoulli):
    """-log p = softplus((1 - 2y) f), by GPflow's Gauss-Hermite rule with 20 nodes."""

    def _scalar_log_prob(self, X, F, Y):
        return -tf.nn.softplus((1 - 2 * Y) * F)


def squared_exponential(length_scale: float, amplitude: float) -> gpflow.kernels.SquaredExponential:
    """GPflow's kernel with fixed parameters."""
    kernel = gpflow.kernels.SquaredExponential(variance=amplitude**2, lengthscales=length_scale)
    gpflow.set_trainable(kernel, False)
    return kernel


@functools.cache
def _vgp(problem: GPProblem, step_size: float) -> tuple[Any, Any]:
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


def vgp(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """The model VGP with the optimiser NaturalGradient at the constant step `setting`, compiled by tf.function.

    From the prior, which is N(0, I) in GPflow's whitened parameters.
    """
    model, step = _vgp(problem, setting)
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


@functools.cache
def _svgp(problem: SparseGPProblem, step_size: float) -> tuple[Any, Any]:
    """The model, and one step on it with the batch it is given."""
    gpflow.config.set_config(gpflow.config.Config(jitter=problem.jitter))
    kernel = squared_exponential(problem.length_scale, problem.amplitude)
    model = gpflow.models.SVGP(kernel, BernoulliLogit(), problem.inducing, num_data=len(problem.inputs), whiten=True)
    optimiser = gpflow.optimizers.NaturalGradient(step_size)

    @tf.function
    def step(inputs: Any, response: Any) -> None:
        optimiser.minimize(lambda: model.training_loss((inputs, response)), [(model.q_mu, model.q_sqrt)])

    return model, step


def svgp(problem: SparseGPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """The model SVGP with NaturalGradient at the constant step `setting` on mini-batches, from the prior.

    The last iterate of each pass is the answer.
    """
    model, step = _svgp(problem, setting)
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
