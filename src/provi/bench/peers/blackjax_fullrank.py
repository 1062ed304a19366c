"""BlackJAX: full-rank VI with the sticking-the-landing gradient, ten draws, Adam at the rate `setting`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.bench.peers.jax_model import as_data, log_density
from provi.bench.protocol import Problem, Recorder, next_block, serve

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


def solve(problem: Problem, setting: float, record: Recorder) -> None:
    """Adam at a constant rate; the last iterate is the answer."""
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


if __name__ == "__main__":
    serve(solve)
