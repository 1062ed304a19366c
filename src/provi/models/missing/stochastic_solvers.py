r"""MISSO, Monte-Carlo EM and SAEM for logistic regression with missing covariates, stopped by Monte-Carlo error.

All three minimise the mean of the surrogates of `surrogate`, made of draws of the missing entries:

- **MISSO** (paper 001) keeps the statistics of every row and refreshes those of a batch before each minimisation.
- **MCEM** refreshes all rows each time and keeps none: MISSO with a batch of n.
- **SAEM** averages, $S_k = S_{k-1} + \gamma_k(\hat S_k - S_{k-1})$, $\gamma_k = 1$ for `burn_in` steps, then $1/k$.

A *check* is a sweep over all rows at a fixed theta with fresh draws (`monte_carlo_error`), which also refreshes the
table and makes a step. It is made when the last pass moved the parameters little, or no longer less than the one
before; a small step never stops a solver, only a check does, when remaining + noise is at most half of `tol` nats.
With `num_draws="auto"` the draws grow when the noise of a check hides what remains, and not before.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.algorithms.misso import MISSO
from provi.core.checks import check_count
from provi.core.precision import double_precision
from provi.models.missing.conditional import Parameters, Rows
from provi.models.missing.stochastic_run import StochasticSolution, run
from provi.models.missing.surrogate import CURVATURES, SAMPLERS, MissingSurrogate
from provi.schedules.sampling import ReshuffledSampling, UniformSampling

__all__ = ["StochasticSolution", "solve_mcem", "solve_misso", "solve_saem"]

_BLOCK = 8
"""Draws a row in one compiled block, with num_draws="auto"."""


@double_precision
def solve_misso(
    rows: Rows,
    start: Parameters,
    *,
    share: float = 0.1,
    batch: int | None = None,
    surrogate: str = "newton",
    sampler: str = "metropolis",
    controls: bool = True,
    num_draws: Any = "auto",
    order: str = "permutation",
    penalty: Any = None,
    tol: float = 0.01,
    max_passes: int = 200,
    seed: int = 0,
    covariance_step: Callable | None = None,
    record: Callable[[int, Parameters], None] | None = None,
) -> StochasticSolution:
    """MISSO: the statistics of a batch of rows are drawn anew before each minimisation, those of the others kept.

    **Arguments:**

    - `share` of the rows in a step, or, if given, `batch`, their number (1: the paper's MISSO).
    - `surrogate`: the curvature, "newton", "jaakkola" or "boehning". - `sampler`: "metropolis" or "exact".
    - `controls`: control variates are taken off the draws' means (`control_variates`); False is plain averages.
    - `num_draws`: draws a row and visit: "auto", a whole number, or a schedule of `provi.schedules` in the *pass* k.
    - `order`: "permutation", a fresh random order each pass, or "uniform", with replacement as in the paper.
    - `penalty`: (p + 1,), half its sum with the squared coefficients is added to minus the log-likelihood.
    - `tol`: the estimated gap in nats at which to stop; 0 makes no checks, so that the iterates are MISSO's alone.
    - `covariance_step`: turns the second moment about the mean into the covariance; None: it is the covariance.
    - `record(passes, parameters)` is called after each pass.
    """
    terms = _surrogate(rows, surrogate, sampler, controls, num_draws, penalty, covariance_step, tol)
    n = terms.num_terms
    if batch is None and not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], not {share}; batch= gives a number of rows.")
    size = max(1, round(share * n)) if batch is None else check_count("batch", batch)
    if size > n:
        raise ValueError(f"batch={batch} is more than the {n} rows. Use at most {n}.")
    if order not in ("permutation", "uniform"):
        raise ValueError(f'order must be "permutation" or "uniform", not {order!r}.')
    sampling = ReshuffledSampling(size) if order == "permutation" else UniformSampling(size)
    algorithm = None if size == n and order == "permutation" else MISSO(sampling=sampling)
    return run(terms, start, algorithm, None, num_draws, tol, max_passes, seed, record)


@double_precision
def solve_mcem(
    rows: Rows,
    start: Parameters,
    *,
    surrogate: str = "newton",
    sampler: str = "metropolis",
    controls: bool = True,
    num_draws: Any = "auto",
    penalty: Any = None,
    tol: float = 0.01,
    max_passes: int = 200,
    seed: int = 0,
    covariance_step: Callable | None = None,
    record: Callable[[int, Parameters], None] | None = None,
) -> StochasticSolution:
    """Monte-Carlo EM: all rows are drawn anew before each minimisation. Arguments as for `solve_misso`."""
    terms = _surrogate(rows, surrogate, sampler, controls, num_draws, penalty, covariance_step, tol)
    return run(terms, start, None, None, num_draws, tol, max_passes, seed, record)


@double_precision
def solve_saem(
    rows: Rows,
    start: Parameters,
    *,
    burn_in: int = 0,
    surrogate: str = "newton",
    sampler: str = "metropolis",
    controls: bool = True,
    num_draws: Any = "auto",
    penalty: Any = None,
    tol: float = 0.01,
    max_passes: int = 200,
    seed: int = 0,
    covariance_step: Callable | None = None,
    record: Callable[[int, Parameters], None] | None = None,
) -> StochasticSolution:
    """Stochastic approximation EM: the mean statistics are averaged over the passes, with steps 1 for `burn_in` passes
    and 1/k for the k-th after them. `burn_in=0` is the paper's. Other arguments as for `solve_misso`."""
    check_count("burn_in", burn_in, minimum=0)
    terms = _surrogate(rows, surrogate, sampler, controls, num_draws, penalty, covariance_step, tol)

    def gain(k: int) -> float:
        return 1.0 if k <= burn_in else 1 / (k - burn_in)

    return run(terms, start, None, gain, num_draws, tol, max_passes, seed, record)


def _surrogate(
    rows: Rows,
    curvature: str,
    sampler: str,
    controls: bool,
    num_draws: Any,
    penalty: Any,
    covariance_step: Any,
    tol: float,
) -> MissingSurrogate:
    """The surrogate, with as many draws in a compiled block as divide the number that is asked for."""
    for name, value, known in (("surrogate", curvature, CURVATURES), ("sampler", sampler, SAMPLERS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}.")
    block = 1
    if isinstance(num_draws, str):
        if num_draws != "auto":
            raise ValueError(f'num_draws must be "auto", a whole number or a schedule, not {num_draws!r}.')
        block = _BLOCK
    elif isinstance(num_draws, int | float | np.number):
        # The Monte-Carlo error compares two halves of the draws.
        draws = check_count("num_draws", num_draws, minimum=2 if tol > 0 else 1)
        block = max(b for b in (8, 4, 2, 1) if b == 1 or (draws % b == 0 and draws >= 2 * b))
    dtype, q = rows.values.dtype, rows.values.shape[1] + 1
    weights = np.zeros(q) if penalty is None else np.broadcast_to(np.asarray(penalty, np.float64), (q,))
    return MissingSurrogate(rows, jnp.asarray(weights, dtype), curvature, sampler, block, covariance_step, controls)
