"""From standardised rows to estimates: solver, standard errors, likelihoods, and what the data do not determine."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.stats import norm

from provi.core.arguments import check_positive, double_precision
from provi.models.missing.conditional import Parameters, Rows, make_rows
from provi.models.missing.factor_covariance import fit_factors
from provi.models.missing.indicators import (
    add_indicators,
    free_parameters,
    indicator_log_density,
    information_with_indicators,
)
from provi.models.missing.information import empirical_information, louis_information
from provi.models.missing.likelihood import conditional_log_likelihoods, expected_statistics, score
from provi.models.missing.reading import (
    Columns,
    check_finite,
    check_independent,
    check_shape,
    column_words,
    read_columns,
    refuse_singular,
    two_classes,
)
from provi.models.missing.solving import Options, Solved, solve
from provi.models.missing.summary import CoefficientSummary, summarise

_MOST_PASSES = 1000
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
    tol: float


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
        options.tol,
    )


class LikelihoodFit:
    """Fit and fitted attributes of the model, in the user's units: what scikit-learn's interface is put around.

    The command line, which reads its tables itself, needs no more than `TableFit`.
    """

    def _learn(
        self, values: np.ndarray, labels: tuple[np.ndarray, np.ndarray], options: Options, given: Any
    ) -> Estimates:
        """From a table with NaN where entries are missing; `labels`: the two classes, and 1 or -1 for each row."""
        self.classes_, signs = labels
        names = column_words(values.shape[1], given)
        check_finite(values, names)
        columns = read_columns(values, names)
        Z, kept = columns.standardise(values), columns.kept_names()
        check_shape(len(Z), len(kept), options.rank)
        if options.rank is None:
            check_independent(Z, kept)
        if options.missing_indicators:
            columns = add_indicators(columns, values)
            Z = columns.standardise(values)
        penalty = np.concatenate([[0.0], 1 / (options.C * columns.scale[columns.kept] ** 2)])
        found = estimate(make_rows(Z, signs), options, penalty, len(columns.indicated))
        if options.rank is None:
            refuse_singular(np.asarray(found.solved.parameters.covariance)[: len(kept), : len(kept)], kept)
        self._store(found, columns, values)
        return found

    def _store(self, found: Estimates, columns: Columns, values: np.ndarray) -> None:
        """The fitted attributes, in the user's units."""
        solved, T = found.solved, columns.transformation()
        parameters = solved.parameters
        coefficients = T @ np.asarray(parameters.coefficients)
        p = values.shape[1]
        self.intercept_, self.coef_ = coefficients[:1], coefficients[None, 1 : p + 1]
        self.indicator_features_, self.indicator_coef_ = columns.indicated, coefficients[p + 1 :]
        self.coef_covariance_ = columns.restore_errors(found.coefficient_covariance)
        self.standard_errors_ = np.sqrt(np.diag(self.coef_covariance_))
        self.mean_ = columns.restore(np.asarray(parameters.mean))
        self.covariance_ = columns.restore_covariance(np.asarray(parameters.covariance))
        self.log_likelihood_ = solved.log_likelihood + columns.log_jacobian(values)
        self.conditional_log_likelihood_ = found.conditional_log_likelihood
        self.num_parameters_ = found.num_parameters
        self.aic_ = 2 * (found.num_parameters - self.log_likelihood_)
        self.bic_ = np.log(len(values)) * found.num_parameters - 2 * self.log_likelihood_
        self.n_iter_, self.gap_, self.converged_ = solved.passes, solved.gap, solved.converged
        self.separated_, self.acceptance_ = found.separated, solved.acceptance
        # Of the intercept a bound: its error is a sum of errors that may be correlated.
        self.monte_carlo_error_ = np.abs(T) @ solved.monte_carlo_error
        self._columns, self._missing_shares, self._num_rows = columns, np.isnan(values).mean(axis=0), len(values)
        # As NumPy arrays: JAX unpickles its own as float32 for a user who has not enabled 64 bits.
        self._standardised = tuple(map(np.asarray, (parameters.coefficients, parameters.mean, parameters.covariance)))
        self._uncertainty = found.uncertainty

    def _warn(self, found: Estimates, category: type[Warning]) -> None:
        if found.separated:
            warnings.warn(
                "The labels are separated: some rows can be told apart without error, the maximum of the likelihood "
                "does not exist, and coefficients and standard errors are where the fit stopped on the way to "
                "infinity. Set C=1.0, or another finite C.",
                category,
                stacklevel=4,
            )
        elif not self.converged_:
            warnings.warn(
                f"The fit did not converge to tol={found.tol} nats: {found.solved.message}. Increase max_iter or tol.",
                category,
                stacklevel=4,
            )

    def _intervals(self, level: Any) -> np.ndarray:
        """Wald's, a row a coefficient, intercept first and indicators last: estimate -+ quantile x error."""
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, not {level}.")
        reach = norm.ppf(0.5 + level / 2) * self.standard_errors_
        return np.stack([self._coefficients() - reach, self._coefficients() + reach], axis=1)

    def _summary(self, level: Any) -> CoefficientSummary:
        return summarise(
            self, self._coefficients(), self._intervals(level), self._missing_shares, self._num_rows, level
        )

    def _coefficients(self) -> np.ndarray:
        return np.concatenate([self.intercept_, self.coef_[0], self.indicator_coef_])


class TableFit(LikelihoodFit):
    """The exact solver on a table of numbers, labels 0 and 1, with the attributes of `MissingLogisticRegression`."""

    @double_precision
    def __init__(self, X: np.ndarray, y: np.ndarray, names: Sequence[str], *, tol: float, seed: int, progress: bool):
        values, tol = np.asarray(X, np.float64), check_positive("tol", tol)
        options = Options(
            "exact", 0.1, "newton", "metropolis", "auto", np.inf, None, False, tol, _MOST_PASSES, progress, seed
        )
        found = self._learn(values, two_classes(np.asarray(y)), options, None)
        self.feature_names_in_ = np.array(names, object)
        self._warn(found, UserWarning)

    def summary(self, level: float = 0.95) -> CoefficientSummary:
        """Coefficients, standard errors, tests, intervals and shares of missing entries."""
        return self._summary(level)


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
