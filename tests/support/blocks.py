"""A small least-squares problem in terms, and ways to run methods over its terms, for the tests of such methods."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms import QuadraticSurrogate
from provi.families.base import AnyParameters
from provi.runtime import run
from provi.schedules.sampling import AbstractSampling

N, DIM = 6, 3
_RNG = np.random.default_rng(0)
X, Y = _RNG.normal(size=(N, DIM)), _RNG.normal(size=N)
START = np.array([0.3, -0.2, 0.5])


def least_squares(theta, row):
    return 0.5 * (row[0] @ theta - row[1]) ** 2


def noisy_least_squares(theta, row, draw):
    return least_squares(theta, row) + draw @ theta


def noise(key, row):
    return jax.random.normal(key, row[0].shape)


SURROGATE = QuadraticSurrogate(least_squares, (X, Y), 1.0)
NOISY = QuadraticSurrogate(noisy_least_squares, (X, Y), 1.0, sample=noise)


def many_noisy_terms(table_dtype):
    """400 terms in single precision, so that 1000 visits are two and a half passes."""
    rng = np.random.default_rng(1)
    data = rng.normal(size=(400, DIM)).astype(np.float32), rng.normal(size=400).astype(np.float32)
    return QuadraticSurrogate(noisy_least_squares, data, 1.0, sample=noise, table_dtype=table_dtype)


def value(theta, rows):
    return 0.5 * (X[rows] @ theta - Y[rows]) ** 2


def gradient(theta, rows):
    """The mean over the rows."""
    return X[rows].T @ (X[rows] @ theta - Y[rows]) / len(rows)


class InOrder(AbstractSampling):
    """0, 1, ..., n - 1, 0, 1, ...: an order that is known without a key."""

    batch: int = eqx.field(static=True)

    def indices(self, key, step, num_terms):
        return ((step * self.batch + jnp.arange(self.batch)) % num_terms).astype(jnp.int32)


def visits(num_steps, batch):
    """The rows that `InOrder` visits."""
    return [(k * batch + np.arange(batch)) % N for k in range(num_steps)]


def go(algorithm, num_steps, surrogate=SURROGATE, start=START, seed=0, **options):
    """A run by the driver, which is what `minimise_sum` calls."""
    return run(algorithm, surrogate, AnyParameters(), jnp.asarray(start), seed=seed, num_steps=num_steps, **options)


def final_state(algorithm, num_steps, surrogate=SURROGATE, start=START):
    """The state after `num_steps` steps, compiled together, without the driver."""
    algorithm = algorithm.resolve(surrogate, AnyParameters())
    return _steps(algorithm, algorithm.init(jnp.asarray(start)), jnp.asarray(num_steps))


@eqx.filter_jit
def _steps(algorithm, state, num_steps):
    one = jnp.ones((), jax.tree.leaves(state.point)[0].dtype)

    def step(k, state):
        return algorithm.step(jax.random.key(0), state, None, None, one)[0]

    return jax.lax.fori_loop(jnp.zeros_like(num_steps), num_steps, step, state)


def buffers(tree):
    """Where the arrays lie."""
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]
