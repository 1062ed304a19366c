"""From standardised rows to estimates: solver, standard errors, likelihoods, and what the data do not determine."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.models.missing.conditional import Parameters, Rows
from provi.models.missing.factor_covariance import fit_factors
from provi.models.missing.indicators import free_parameters, indicator_log_density, information_with_indicators
from provi.models.missing.information import empirical_information, louis_information
from provi.models.missing.likelihood import conditional_log_likelihoods, expected_statistics, score
from provi.models.missing.solving import Options, Solved, solve

_MOST_PARAMETERS = 1500
"""Up to this many parameters the information of all of them is formed, a matrix of 18 MB."""


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """The information of all parameters, or of the `free` ones, the penalty's included: see `draw_parameters`."""

    information: np.ndarray
    loadings: np.ndarray | None
    free: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Estimates:
    """All in standard units. `uncertainty` is None where the information of all parameters was not computed."""

    solved: Solved
    coefficient_covariance: np.ndarray
    uncertainty: Uncertainty | None
    conditional_log_likelihood: float
    num_parameters: int
    separated: bool


def estimate(rows: Rows, options: Options, penalty: np.ndarray, num_indicators: int = 0) -> Estimates:
    """Fit and describe the fit; `penalty` has an entry for each coefficient, intercept first.

    The last `num_indicators` columns are indicators; the log-likelihood is that of the rest given them.
    """
    solved = solve(rows, options, penalty, num_indicators)
    parameters, q = solved.parameters, len(penalty)
    own = indicator_log_density(parameters, rows, num_indicators)
    solved = dataclasses.replace(solved, log_likelihood=solved.log_likelihood - own)
    uncertainty = _uncertainty(parameters, rows, options.rank, penalty, num_indicators)
    if uncertainty is None:
        information = np.array(_coefficient_information(parameters, rows)) + np.diag(penalty)
    else:
        information = uncertainty.information
    log_probabilities = np.asarray(conditional_log_likelihoods(parameters, rows))
    free = not (penalty > 0).any()
    return Estimates(
        solved,
        coefficient_covariance(information, q),
        uncertainty,
        float(log_probabilities.sum()),
        _count_parameters(q - 1 - num_indicators, options.rank) + num_indicators,
        free and (solved.diverging or _is_separated(parameters, rows, information[:q, :q], log_probabilities)),
    )


def _uncertainty(
    parameters: Parameters, rows: Rows, rank: int | None, penalty: np.ndarray, num_indicators: int
) -> Uncertainty | None:
    """By Louis's formula; for factors by the rows' scores, if the rows are many. None if the matrix is too large."""
    num_rows, p = rows.values.shape
    width = 1 + 2 * p + p * rank + p if rank is not None else len(free_parameters(p, num_indicators))
    if width > _MOST_PARAMETERS or (rank is not None and num_rows < 2 * width):
        return None
    loadings, free = None, None
    if num_indicators:
        information = information_with_indicators(parameters, rows, num_indicators)
        free = free_parameters(p, num_indicators)
    elif rank is None:
        information = np.array(louis_information(parameters, rows))
    else:
        loadings = fit_factors(parameters.covariance, rank).loadings
        information = np.array(empirical_information(parameters, rows, loadings))
    information[np.arange(p + 1), np.arange(p + 1)] += penalty
    return Uncertainty(information, None if loadings is None else np.asarray(loadings), free)


def _count_parameters(num_columns: int, rank: int | None) -> int:
    """Coefficients, mean and covariance; rotations of the factors do not count."""
    p, full = num_columns, num_columns * (num_columns + 1) // 2
    return 1 + 2 * p + (full if rank is None else min(p * rank - rank * (rank - 1) // 2 + p, full))


@eqx.filter_jit
def _coefficient_information(parameters: Parameters, rows: Rows) -> Float[Array, "q q"]:
    """Minus the second derivative of the log-likelihood in the coefficients alone, column by column."""

    def gradient(coefficients: Float[Array, " q"]) -> Float[Array, " q"]:
        moved = Parameters(coefficients, parameters.mean, parameters.covariance)
        return rows.values.shape[0] * expected_statistics(moved, rows).score

    identity = jnp.eye(parameters.coefficients.shape[0], dtype=parameters.coefficients.dtype)
    return -jax.lax.map(lambda e: jax.jvp(gradient, (parameters.coefficients,), (e,))[1], identity)


def _is_separated(parameters: Parameters, rows: Rows, curvature: np.ndarray, log_probabilities: np.ndarray) -> bool:
    r"""Whether the coefficients are on their way to infinity, for all rows or some; there is no penalty.

    If every label is the more probable one, then all $y_i\mu_i > 0$ and every $E\,\sigma(ky_i\eta_i)$ increases in k:
    there is no maximum on this ray. If only some rows can be told apart without error (a category with one label,
    say), the coefficients grow too; a Newton step then moves the log odds of those rows by about 1, outwards, however
    flat the likelihood is there ($-e^{-t}$ has Newton steps of length 1), while elsewhere steps vanish.
    """
    before = _log_odds(log_probabilities)
    if (before > 0).all():
        return True
    smallest = np.linalg.eigvalsh(curvature)[0] if np.isfinite(curvature).all() else np.nan
    # One step of length 1 in the log odds of few rows gains less than a nat near the supremum: flat, in standard units.
    if not 0 < smallest < 1:
        return False
    step = np.linalg.solve(curvature, np.asarray(score(parameters, rows).coefficients))
    ahead = Parameters(parameters.coefficients + jnp.asarray(step), parameters.mean, parameters.covariance)
    moved = _log_odds(np.asarray(conditional_log_likelihoods(ahead, rows))) - before
    far = np.abs(moved) > 0.5
    return bool(far.any() and (moved[far] > 0).all() and before[far].min() > 2)


def _log_odds(log_probabilities: np.ndarray) -> np.ndarray:
    return log_probabilities - np.log(-np.expm1(np.minimum(log_probabilities, -1e-300)))


def inverse_root(information: Any) -> tuple[np.ndarray, np.ndarray] | None:
    r"""R with $RR'$ the pseudo-inverse of the (q, q) information, and which parameters it leaves undetermined.

    The matrix is scaled to a unit diagonal and its eigenvectors computed. Directions with eigenvalue zero to rounding
    carry no information and have no column in R; a parameter that takes part in one of them is undetermined (collinear
    columns; the loadings of a factor model, which may be rotated). None if an eigenvalue is negative: the parameters
    are not at a maximum of the likelihood.
    """
    matrix = np.asarray(information)
    size = matrix.shape[0]
    if matrix.shape != (size, size):
        raise ValueError(f"information must be a square matrix, got shape {matrix.shape}")
    epsilon = np.finfo(matrix.dtype).eps
    matrix = matrix.astype(np.float64)
    diagonal = np.diagonal(matrix)
    if not np.all(np.isfinite(matrix)) or np.any(diagonal < 0):
        return None
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1))
    eigenvalues, vectors = np.linalg.eigh(matrix * scale[:, None] * scale)
    zero = 10 * size * epsilon * eigenvalues[-1]
    if eigenvalues[0] < -zero:
        return None
    known = eigenvalues > zero
    undetermined = np.any(np.abs(vectors[:, ~known]) > np.sqrt(epsilon), axis=1)
    return scale[:, None] * vectors[:, known] / np.sqrt(eigenvalues[known]), undetermined


def parameter_covariance(information: Any) -> np.ndarray:
    """The pseudo-inverse of the (q, q) information, NaN for undetermined parameters, all NaN where it is indefinite.

    Separated classes are no special case: they show as very large standard errors.
    """
    found = inverse_root(information)
    if found is None:
        return np.full(np.shape(information), np.nan)
    root, undetermined = found
    covariance = root @ root.T
    covariance[undetermined] = np.nan
    covariance[:, undetermined] = np.nan
    return covariance


def coefficient_covariance(information: Any, num_coefficients: int) -> np.ndarray:
    """The leading block of `parameter_covariance`: the coefficients', all other parameters being estimated too."""
    return parameter_covariance(information)[:num_coefficients, :num_coefficients]


def standard_errors(information: Any) -> np.ndarray:
    """Of all parameters, the roots of the diagonal of `parameter_covariance`; NaN where there is none."""
    return np.sqrt(np.diagonal(parameter_covariance(information)))
