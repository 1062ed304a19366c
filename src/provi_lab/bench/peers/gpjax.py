"""GPJax: the dual family with its own natural gradient, inducing points at the data."""

# Where the library is not installed, pyright takes this module for it.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

import functools
from typing import Any

import equinox as eqx
import gpjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from gpjax.natural_gradients import natural_gradient_step, partition_variational

from provi_lab.bench.problems import LAST_STEP, GPProblem, snapshot_due
from provi_lab.bench.protocol import Recorder

jax.config.update("jax_enable_x64", True)

VERSIONS = {"gpjax": gpjax.__version__, "jax": jax.__version__}


class BernoulliLogit(gpjax.likelihoods.Bernoulli):
    """GPJax's Bernoulli is a probit; this is the logit, by its Gauss-Hermite rule with 20 nodes."""

    def link_function(self, f: Any) -> Any:
        """The distribution of a label."""
        return dist.Bernoulli(logits=f)


@functools.cache
def _program(problem: GPProblem) -> tuple[Any, Any, Any, Any]:
    """The family at the prior, its fixed part, the data, and one compiled step.

    The jitter is a white-noise kernel on the row number, so that the values at the data are those of the model;
    GPJax's own jitter, which is on the inducing points only, is next to nothing.
    """
    terms, columns = problem.inputs.shape
    kernel = gpjax.kernels.RBF(
        active_dims=list(range(columns)), lengthscale=problem.length_scale, variance=problem.amplitude**2
    ) + gpjax.kernels.White(active_dims=[columns], variance=problem.jitter)
    prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel, jitter=1e-9)
    inputs = jnp.asarray(np.column_stack([problem.inputs, np.arange(terms)]))
    data = gpjax.Dataset(X=inputs, y=jnp.asarray(problem.response)[:, None])
    family = gpjax.variational_families.DualVariationalGaussian(prior * BernoulliLogit(), inputs)

    @eqx.filter_jit
    def step(variational: Any, fixed: Any, data: Any, rate: Any) -> Any:
        # The loss that it returns beside is never looked at, so it is not computed.
        return natural_gradient_step(variational, fixed, data, lambda q, d: -gpjax.objectives.dual_elbo(q, d), rate)[0]

    return *partition_variational(family), data, step


def natural_gradient(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`natural_gradient_step` at the constant step `setting` from the prior, where both sites are zero."""
    variational, fixed, data, step = _program(problem)
    rate, steps = jnp.asarray(setting), 0
    while not record.done and steps < LAST_STEP:
        variational = jax.block_until_ready(step(variational, fixed, data, rate))
        steps += 1
        if snapshot_due(steps):
            with record.off_the_clock():
                mean, covariance = eqx.combine(variational, fixed).moments()
                mean, covariance = np.asarray(mean)[:, 0], np.asarray(covariance)
            record(mean, covariance, steps)
    return {"versions": VERSIONS, "steps": steps}
