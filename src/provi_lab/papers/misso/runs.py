"""The data sets of paper 001's Figure 1 with their exact maxima, and runs of one solver, measured after every pass.

Columns are standardised; a run is judged by the exact log-likelihood.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from provi.models.missing.conditional import Parameters, Rows, make_rows
from provi.models.missing.exact_solver import initial_parameters, solve_exact
from provi.models.missing.likelihood import log_likelihood
from provi.models.missing.stochastic_solvers import StochasticOptions, solve_mcem, solve_misso, solve_saem
from provi.schedules import OffsetPolynomialBatch
from provi_lab.common.curves import Curve
from provi_lab.data.missing_tables import support2, synthetic_missing

SYNTHETIC, SUPPORT2 = "synthetic", "SUPPORT2"
PAPER_ROWS, PAPER_COLUMNS = 6384, 16
"""The sizes of the paper's TraumaBase, which is not public."""

_MAXIMUM_TOLERANCE = 1e-8


@dataclasses.dataclass(frozen=True, eq=False)
class TableProblem:
    """A table with what all methods start from and are judged by.

    - `features`, `response`: as loaded; `rows`: the same standardised; `start`: where every method begins.
    - `optimum`, `maximum`: the exact maximiser and its log-likelihood; `left`: what the solver estimates to be left.
    - `truth`, `true_mean`: the true coefficients and means of the covariates in standardised columns, NaN where there
      is none; `names`: of the coefficients.
    - `shown`: of which columns the coefficient and the mean are drawn, by their place among the coefficients.
    """

    title: str
    features: np.ndarray
    response: np.ndarray
    rows: Rows
    start: Parameters
    optimum: Parameters
    maximum: float
    left: float
    truth: np.ndarray
    true_mean: np.ndarray
    names: tuple[str, ...]
    shown: tuple[int, ...]


def synthetic_problem(
    seed: int, terms: int = PAPER_ROWS, columns: int = PAPER_COLUMNS, share: float = 0.1
) -> TableProblem:
    """The paper's sizes with a known truth, entries missing completely at random."""
    table = synthetic_missing(seed, terms, columns, share)
    title = f"{SYNTHETIC}, {share:.0%} missing"
    names = tuple(f"column {place + 1}" for place in range(columns))
    return _problem(title, table.features, table.response, names, (table.coefficients, table.mean), (1, 2))


def support2_problem() -> TableProblem:
    """9105 x 16; the coefficients that are drawn are those of the columns with most missing entries."""
    table = support2()
    most = np.argsort(-np.isnan(table.features).mean(axis=0))[:2] + 1
    columns = table.features.shape[1]
    nothing = np.full(columns + 1, np.nan), np.full(columns, np.nan)
    return _problem(SUPPORT2, table.features, table.response, table.names, nothing, tuple(int(place) for place in most))


def _problem(
    title: str,
    features: np.ndarray,
    response: np.ndarray,
    names: tuple[str, ...],
    true: tuple[np.ndarray, np.ndarray],
    shown: tuple[int, ...],
) -> TableProblem:
    coefficients, mean = true
    centre, scale = np.nanmean(features, axis=0), np.nanstd(features, axis=0)
    rows = make_rows((features - centre) / scale, 2 * response - 1)
    start = initial_parameters(rows)
    best = solve_exact(rows, start, tol=_MAXIMUM_TOLERANCE)
    if not best.converged:
        raise RuntimeError(f"{title}: the exact maximum was not found: {best.message}")
    truth = np.concatenate([[coefficients[0] + coefficients[1:] @ centre], coefficients[1:] * scale])
    return TableProblem(
        title,
        features,
        response,
        rows,
        start,
        best.parameters,
        best.log_likelihood,
        best.gap_estimate,
        truth,
        (mean - centre) / scale,
        ("intercept", *names),
        shown,
    )


DRAWS_OFFSET, DRAWS_EXPONENT = 10, 2
"""M_k = 10 + k^2 draws a row, as in the paper, for every method; k counts passes, from 0."""

BURN_IN = 5
"""Passes with gamma = 1, a quarter of a run, of the SAEM that is not handicapped by its start."""

MISSO1, MISSO10, MISSO50, UNIFORM10 = "MISSO", "MISSO10", "MISSO50", "MISSO10, uniform draws"
MCEM, SAEM, LATE_SAEM = "MCEM", "SAEM", f"SAEM, burn-in {BURN_IN}"

SOLVERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    MISSO1: (solve_misso, {"batch": 1}),
    MISSO10: (solve_misso, {"share": 0.1}),
    MISSO50: (solve_misso, {"share": 0.5}),
    UNIFORM10: (solve_misso, {"share": 0.1, "order": "uniform"}),
    MCEM: (solve_mcem, {}),
    SAEM: (solve_saem, {}),
    LATE_SAEM: (solve_saem, {"burn_in": BURN_IN}),
}


def follow(problem: TableProblem, method: str, seed: int, passes: int) -> Curve:
    """`passes` passes from the common start, without any stop; the gap is infinite from where a run broke off."""
    solve, arguments = SOLVERS[method]
    kept: list[tuple[int, Parameters]] = [(0, problem.start)]

    def record(done: int, parameters: Parameters) -> None:
        kept.append((done, parameters))

    draws = OffsetPolynomialBatch(DRAWS_OFFSET, DRAWS_EXPONENT)
    # Plain averages over the draws, as in the paper.
    options = StochasticOptions(num_draws=draws, controls=False, tol=0.0, max_passes=passes, seed=seed, record=record)
    solve(problem.rows, problem.start, options, **arguments)
    gaps = np.full(passes + 1, math.inf)
    coefficients = np.full((passes + 1, len(problem.start.coefficients)), math.nan)
    means = np.full((passes + 1, len(problem.start.mean)), math.nan)
    for done, parameters in kept:  # a run that broke off has no later entries
        gap = problem.maximum - float(log_likelihood(parameters, problem.rows))
        gaps[done] = gap if math.isfinite(gap) else math.inf
        coefficients[done], means[done] = parameters.coefficients, parameters.mean
    columns = {f"coefficient_{place}": column for place, column in enumerate(coefficients.T)}
    # Numbered as the coefficients are: mean_1 is that of the column whose slope is coefficient_1.
    columns |= {f"mean_{place + 1}": column for place, column in enumerate(means.T)}
    return Curve(
        {"data": problem.title, "method": method, "seed": seed},
        {"passes": np.arange(passes + 1), "gap": gaps, **columns},
    )
