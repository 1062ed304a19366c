"""The options of `MissingLogisticRegression`, checked before any work, and its solvers behind one call."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import available_bytes, check_count, check_positive
from provi.models.missing.conditional import Parameters, Rows
from provi.models.missing.exact_solver import initial_parameters, solve_exact
from provi.models.missing.factor_covariance import factor_covariance
from provi.models.missing.indicators import indicator_step
from provi.models.missing.likelihood import log_likelihood
from provi.models.missing.stochastic_solvers import (
    StochasticOptions,
    StochasticSolution,
    solve_mcem,
    solve_misso,
    solve_saem,
)
from provi.runtime.record import ProgressBar
from provi.schedules.batch_sizes import AbstractBatchSize

_BURN_IN = 10
"""Passes of SAEM before it begins to average: without them it never leaves its start behind."""

_CHOICES = {
    "solver": ("exact", "misso", "mcem", "saem"),
    "surrogate": ("newton", "boehning", "jaakkola"),
    "sampler": ("metropolis", "exact"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments with their final types; `seed` is drawn from `random_state`."""

    solver: str
    batch: int | float
    surrogate: str
    sampler: str
    num_draws: Any
    C: float
    rank: int | None
    missing_indicators: bool
    tol: float
    max_iter: int
    progress: bool
    seed: int


def read_options(model: Any) -> Options:
    """The arguments of an estimator, or a `ValueError` that names the wrong one."""
    from sklearn.utils import check_random_state

    for name, choices in _CHOICES.items():
        given = getattr(model, name)
        if not isinstance(given, str) or given not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {given!r}.")
    if isinstance(model.num_draws, str):
        if model.num_draws != "auto":
            raise ValueError(f"num_draws must be 'auto', a number or a schedule, not {model.num_draws!r}.")
    elif not isinstance(model.num_draws, AbstractBatchSize):
        check_count("num_draws", model.num_draws)
    if not model.C > 0:
        raise ValueError(f"C must be positive (np.inf: no penalty), not {model.C}.")
    if not isinstance(model.missing_indicators, bool | np.bool_):
        raise ValueError(f"missing_indicators must be True or False, not {model.missing_indicators!r}.")
    if model.missing_indicators and model.rank is not None:
        raise ValueError(
            f"missing_indicators=True needs rank=None, not {model.rank}: indicators are outside the model of the "
            f"columns. Drop rank, or append the indicators to X as columns."
        )
    return Options(
        model.solver,
        _read_batch(model.batch),
        model.surrogate,
        model.sampler,
        model.num_draws,
        float(model.C),
        None if model.rank is None else check_count("rank", model.rank),
        bool(model.missing_indicators),
        check_positive("tol", model.tol),
        check_count("max_iter", model.max_iter),
        bool(model.progress),
        int(check_random_state(model.random_state).randint(2**31 - 1)),
    )


def _read_batch(batch: Any) -> int | float:
    """A number of rows (int), or a share of them (float in (0, 1])."""
    if isinstance(batch, int | np.integer) and not isinstance(batch, bool):
        return check_count("batch", batch)
    if isinstance(batch, float | np.floating) and 0 < batch <= 1:
        return float(batch)
    raise ValueError(
        f"batch must be a share of the rows, a float in (0, 1], or a number of rows, an int from 1, not {batch!r}."
    )


class FactorStep(eqx.Module):
    """S -> the Omega = Lambda Lambda' + Psi of this rank that fits it best: the M-step of a low-rank covariance."""

    rank: int = eqx.field(static=True)

    def __call__(self, S: Float[Array, "p p"]) -> Float[Array, "p p"]:
        return factor_covariance(S, self.rank)


@dataclasses.dataclass(frozen=True)
class Solved:
    """What every solver says: `monte_carlo_error` of the coefficients is 0, `acceptance` NaN, without draws.

    `diverging`: whether the solver saw the coefficients on their way to infinity; solvers with draws do not look.
    """

    parameters: Parameters
    log_likelihood: float
    passes: int
    gap: float
    converged: bool
    message: str
    monte_carlo_error: np.ndarray
    acceptance: float
    diverging: bool


def solve(rows: Rows, options: Options, penalty: np.ndarray, num_indicators: int) -> Solved:
    """Run `options.solver` from the observed means and variances; refuses a table that memory does not hold.

    The last `num_indicators` columns are indicators of missing entries, outside the Gaussian model (`indicators`).
    """
    if options.solver == "misso":
        _check_table_fits(*rows.values.shape)
    start = initial_parameters(rows)
    step = None if options.rank is None else FactorStep(options.rank)
    if num_indicators:
        step = indicator_step(rows.values.shape[1], num_indicators)
    if options.solver == "exact":
        found = solve_exact(
            rows, start, penalty=penalty, tol=options.tol, max_iter=options.max_iter, covariance_step=step
        )
        errors, acceptance, passes = np.zeros(len(penalty)), np.nan, found.iterations
        value, diverging = found.log_likelihood, found.separated
    else:
        found = _solve_with_draws(rows, start, options, penalty, step)
        errors, acceptance, passes = np.asarray(found.monte_carlo_error), float(found.acceptance), found.passes
        value, diverging = float(log_likelihood(found.parameters, rows)), False
    gap, converged = float(found.gap_estimate), bool(found.converged)
    return Solved(found.parameters, value, passes, gap, converged, found.message, errors, acceptance, diverging)


def _solve_with_draws(
    rows: Rows, start: Parameters, options: Options, penalty: np.ndarray, step: Callable | None
) -> StochasticSolution:
    with ProgressBar(options.max_iter, options.progress) as bar:
        settings = StochasticOptions(
            surrogate=options.surrogate,
            sampler=options.sampler,
            num_draws=options.num_draws,
            penalty=penalty,
            tol=options.tol,
            max_passes=options.max_iter,
            seed=options.seed,
            covariance_step=step,
            record=lambda passes, _: bar.update(passes, None),
        )
        if options.solver == "mcem":
            return solve_mcem(rows, start, settings)
        if options.solver == "saem":
            return solve_saem(rows, start, settings, burn_in=_BURN_IN)
        if isinstance(options.batch, int):
            return solve_misso(rows, start, settings, batch=options.batch)
        return solve_misso(rows, start, settings, share=options.batch)


def _check_table_fits(num_rows: int, num_columns: int) -> None:
    """MISSO keeps E z, E zz', A and h of each row, p + p^2 + (p + 1)^2 + p + 1 numbers, and a copy while it writes."""
    p = num_columns
    needed = 2 * 8 * num_rows * (p + p**2 + (p + 1) ** 2 + p + 1)
    if needed > available_bytes():
        raise ValueError(
            f"solver='misso' keeps statistics of each row, about {needed / 2**30:.1f} GiB for {num_rows} rows and {p} "
            f"columns, and there are {available_bytes() / 2**30:.1f} GiB: take solver='exact' or 'mcem'."
        )
