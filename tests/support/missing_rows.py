"""A small table with missing entries, and the exact maximum of its likelihood."""

import jax.numpy as jnp
import numpy as np

from provi.models.missing.conditional import make_rows
from provi.models.missing.exact_solver import initial_parameters, solve_exact
from provi.models.missing.likelihood import log_likelihood

N, P = 300, 3


def table(share=0.3, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.multivariate_normal(np.array([1.0, 0, -1]), 0.4 + 0.6 * np.eye(P), N)
    labels = np.where(rng.random(N) < 1 / (1 + np.exp(-0.3 - X @ np.array([1.5, -1, 0.8]))), 1.0, -1.0)
    X[rng.random((N, P)) < share] = np.nan
    return X, labels


def solved_problem():
    """Rows, start, exact maximiser, and a function from parameters to their gap in nats below the maximum."""
    rows = make_rows(*table())
    start = initial_parameters(rows)
    best = solve_exact(rows, start, penalty=jnp.zeros(P + 1), tol=1e-9, max_iter=500)
    top = float(log_likelihood(best.parameters, rows))
    return rows, start, best.parameters, lambda parameters: top - float(log_likelihood(parameters, rows))
