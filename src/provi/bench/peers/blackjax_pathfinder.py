"""BlackJAX: Pathfinder, the Gaussian of the best ELBO along an L-BFGS path of at most `setting` iterations."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.bench.peers.jax_model import as_data, log_density
from provi.bench.protocol import Problem, Recorder, serve


@functools.partial(jax.jit, static_argnums=1)
def _approximate(data: Any, iterations: int) -> Any:
    from blackjax.vi import pathfinder

    density = functools.partial(log_density, *data)
    start = jnp.zeros(data[0].shape[1])
    return pathfinder.approximate(jax.random.key(0), density, start, maxiter=iterations)[0]


def solve(problem: Problem, setting: float, record: Recorder) -> None:
    """One call; N(x + H g, H) with g the gradient of the log density and H = diag(alpha) + beta gamma beta'."""
    state = jax.block_until_ready(_approximate(as_data(problem), int(setting)))
    alpha, beta, gamma = (np.asarray(x) for x in (state.alpha, state.beta, state.gamma))
    inverse_hessian = np.diag(alpha) + beta @ gamma @ beta.T
    mean = np.asarray(state.position) + inverse_hessian @ np.asarray(state.grad_position)
    record(mean, inverse_hessian)


if __name__ == "__main__":
    serve(solve)
