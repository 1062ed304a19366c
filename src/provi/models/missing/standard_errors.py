"""From an information matrix to covariances and standard errors; NaN where the data do not determine a parameter."""

from typing import Any

import numpy as np


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
