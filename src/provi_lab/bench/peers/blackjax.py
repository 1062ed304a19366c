"""BlackJAX: full-rank variational inference, and Pathfinder."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi_lab.bench.peers.log_density import as_data, log_density
from provi_lab.bench.problems import LogisticProblem
from provi_lab.bench.protocol import Recorder, next_block

DRAWS = 10


@functools.cache
def _program(rate: float) -> tuple[Any, Any]:
    """The optimiser, and `num_steps` steps as one compiled loop."""
    import optax
    from blackjax.vi import fullrank_vi

    optimiser = optax.adam(rate)

    @jax.jit
    def advance(key: Any, state: Any, data: Any, num_steps: Any) -> Any:
        density = functools.partial(log_density, *data)

        def step(index: Any, state: Any) -> Any:
            return fullrank_vi.step(jax.random.fold_in(key, index), state, density, optimiser, DRAWS)[0]

        return jax.lax.fori_loop(0, num_steps, step, state)

    return optimiser, advance


def _covariance(factor: np.ndarray, dim: int) -> np.ndarray:
    """The logarithm of the diagonal comes first, then the rows below it."""
    matrix = np.diag(np.exp(factor[:dim]))
    matrix[np.tril_indices(dim, -1)] = factor[dim:]
    return matrix @ matrix.T


def full_rank(problem: LogisticProblem, setting: float, record: Recorder) -> None:
    """Full-rank VI with the sticking-the-landing gradient, ten draws, Adam at the constant rate `setting`.

    The last iterate is the answer.
    """
    from blackjax.vi import fullrank_vi

    data = as_data(problem)
    optimiser, advance = _program(setting)
    state, steps = fullrank_vi.init(jnp.zeros(problem.dim), optimiser), 0
    key = jax.random.key(0)
    while not record.done:
        block = next_block(steps)
        key, block_key = jax.random.split(key)
        state = jax.block_until_ready(advance(block_key, state, data, jnp.asarray(block)))
        steps += block
        record(state.mu, _covariance(np.asarray(state.chol_params), problem.dim), steps * DRAWS)


@functools.partial(jax.jit, static_argnums=1)
def _approximate(data: Any, iterations: int) -> Any:
    from blackjax.vi import pathfinder as library

    density = functools.partial(log_density, *data)
    start = jnp.zeros(data[0].shape[1])
    return library.approximate(jax.random.key(0), density, start, maxiter=iterations)[0]


def pathfinder(problem: LogisticProblem, setting: float, record: Recorder) -> None:
    """Pathfinder, the Gaussian of the best ELBO along an L-BFGS path of at most `setting` iterations, in one call.

    It is N(x + H g, H) with g the gradient of the log density and H = diag(alpha) + beta gamma beta'.
    """
    state = jax.block_until_ready(_approximate(as_data(problem), int(setting)))
    alpha, beta, gamma = (np.asarray(x) for x in (state.alpha, state.beta, state.gamma))
    inverse_hessian = np.diag(alpha) + beta @ gamma @ beta.T
    mean = np.asarray(state.position) + inverse_hessian @ np.asarray(state.grad_position)
    record(mean, inverse_hessian)
