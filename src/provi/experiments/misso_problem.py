"""The data sets of paper 001's Figure 1, in standardised columns, each with its exact maximum-likelihood estimate."""

import dataclasses

import numpy as np

from provi.data.support2 import support2
from provi.data.synthetic_missing import synthetic_missing
from provi.models.missing.conditional import Parameters, Rows, make_rows
from provi.models.missing.exact_solver import initial_parameters, solve_exact

SYNTHETIC, SUPPORT2 = "synthetic", "SUPPORT2"
PAPER_ROWS, PAPER_COLUMNS = 6384, 16
"""The sizes of the paper's TraumaBase, which is not public."""

_MAXIMUM_TOLERANCE = 1e-8


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A table with what all methods start from and are judged by.

    - `features`, `response`: as loaded; `rows`: the same standardised; `start`: where every method begins.
    - `optimum`, `maximum`: the exact maximiser and its log-likelihood; `left`: what the solver estimates to be left.
    - `truth`: the true coefficients in standardised columns, NaN where there is none; `names`: of the coefficients.
    - `shown`: which coefficients are drawn.
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
    names: tuple[str, ...]
    shown: tuple[int, ...]


def synthetic_problem(seed: int, terms: int = PAPER_ROWS, columns: int = PAPER_COLUMNS, share: float = 0.1) -> Problem:
    """The paper's sizes with a known truth, entries missing completely at random."""
    table = synthetic_missing(seed, terms, columns, share)
    title = f"{SYNTHETIC}, {share:.0%} missing"
    names = tuple(f"column {place + 1}" for place in range(columns))
    return _problem(title, table.features, table.response, names, table.coefficients, (1, 2, 3))


def support2_problem() -> Problem:
    """9105 x 16; the coefficients that are drawn are those of the columns with most missing entries."""
    table = support2()
    most = np.argsort(-np.isnan(table.features).mean(axis=0))[:3] + 1
    nothing = np.full(table.features.shape[1] + 1, np.nan)
    return _problem(SUPPORT2, table.features, table.response, table.names, nothing, tuple(int(place) for place in most))


def _problem(
    title: str,
    features: np.ndarray,
    response: np.ndarray,
    names: tuple[str, ...],
    coefficients: np.ndarray,
    shown: tuple[int, ...],
) -> Problem:
    centre, scale = np.nanmean(features, axis=0), np.nanstd(features, axis=0)
    rows = make_rows((features - centre) / scale, 2 * response - 1)
    start = initial_parameters(rows)
    best = solve_exact(rows, start, tol=_MAXIMUM_TOLERANCE)
    if not best.converged:
        raise RuntimeError(f"{title}: the exact maximum was not found: {best.message}")
    truth = np.concatenate([[coefficients[0] + coefficients[1:] @ centre], coefficients[1:] * scale])
    return Problem(
        title,
        features,
        response,
        rows,
        start,
        best.parameters,
        best.log_likelihood,
        best.gap_estimate,
        truth,
        ("intercept", *names),
        shown,
    )
