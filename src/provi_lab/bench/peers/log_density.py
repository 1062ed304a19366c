"""The log posterior of a `LogisticProblem` in JAX, with the data as arguments: no compiler folds them as constants."""

import jax
import jax.numpy as jnp

from provi_lab.bench.problems import LogisticProblem

Data = tuple[jax.Array, jax.Array, jax.Array]
"""Design, labels and the prior's standard deviation."""


def as_data(problem: LogisticProblem) -> Data:
    """The problem's arrays on the device, in double precision, which is switched on for this process."""
    jax.config.update("jax_enable_x64", True)
    return jnp.asarray(problem.design), jnp.asarray(problem.response), jnp.asarray(problem.prior_scale)


def log_density(design: jax.Array, response: jax.Array, prior_scale: jax.Array, z: jax.Array) -> jax.Array:
    """log p(y | z) + log p(z), up to a constant."""
    return -jnp.sum(jnp.logaddexp(0.0, (1 - 2 * response) * (design @ z))) - 0.5 * jnp.sum(z**2) / prior_scale**2
