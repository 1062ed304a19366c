"""Graphs of neighbours: their edges, their Laplacians, and sparse precisions under a constraint."""

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import splu

_LARGEST_DENSE = 1500


def read_edges(name: str, edges: Any) -> np.ndarray:
    """Pairs i < j, each once, from pairs or from an adjacency matrix."""
    table: Any = edges
    if sparse.issparse(table) or (np.ndim(table) == 2 and np.shape(table)[0] == np.shape(table)[1] != 2):
        found = sparse.coo_matrix(table)
        table = np.stack([found.row, found.col], axis=1)
    pairs = np.asarray(table)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise ValueError(f"edges of {name!r} must be (E, 2) whole numbers or an adjacency matrix; got {pairs.shape}.")
    if pairs.size and pairs.min() < 0:
        raise ValueError(f"edges of {name!r} must not be negative: levels are 0, 1, ...")
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    return np.unique(pairs, axis=0)


def graph_laplacian(pairs: np.ndarray, count: int) -> tuple[Any, np.ndarray]:
    """D - W with ones where a level has no neighbours, and the indicators of the other connected parts, orthonormal."""
    if pairs.size and pairs.max() >= count:
        raise ValueError(f"edges name level {pairs.max()}, but there are {count} levels.")
    ones = np.ones(len(pairs))
    weights = sparse.coo_matrix((ones, (pairs[:, 0], pairs[:, 1])), (count, count))
    weights = (weights + weights.T).tocsr()
    degree = np.asarray(weights.sum(axis=1)).ravel()
    number, part = csgraph.connected_components(weights, directed=False)
    sizes = np.bincount(part, minlength=number)
    kept = np.flatnonzero(sizes > 1)
    null = np.zeros((count, len(kept)))
    for column, label in enumerate(kept):
        null[part == label, column] = sizes[label] ** -0.5
    return sparse.diags(np.where(degree == 0, 1.0, degree)) - weights, null


def constrained_log_det(matrix: Any, null: np.ndarray) -> float:
    """log det of B'MB, B an orthonormal basis of what is orthogonal to `null`: that of M times that of N'M^-1 N."""
    factor = splu(sparse.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    total = float(np.sum(np.log(np.abs(factor.U.diagonal()))))
    if null.shape[1]:
        total += float(np.linalg.slogdet(null.T @ factor.solve(null))[1])
    return total


def constrained_variances(matrix: Any, null: np.ndarray) -> np.ndarray:
    """The diagonal of B(B'MB)^-1 B': variances under the constraint N'v = 0."""
    count = matrix.shape[0]
    if count <= _LARGEST_DENSE:
        dense = np.asarray(sparse.csc_matrix(matrix).todense())
        # N N' fills the null space, so that the inverse is well conditioned; there the constraint takes it out.
        inverse = np.linalg.inv(dense + np.trace(dense) / count * null @ null.T)
        crossed = inverse @ null
        return np.diag(inverse) - np.sum(crossed @ np.linalg.inv(null.T @ crossed) * crossed, axis=1)
    factor = splu(sparse.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    crossed = factor.solve(null)
    middle = np.linalg.inv(null.T @ crossed)
    places = np.unique(np.linspace(0, count - 1, _LARGEST_DENSE).astype(int))  # enough for a geometric mean
    found = np.empty(len(places))
    for start in range(0, len(places), 256):
        some = places[start : start + 256]
        unit = np.zeros((count, len(some)))
        unit[some, np.arange(len(some))] = 1.0
        solved = factor.solve(unit)
        found[start : start + 256] = solved[some, np.arange(len(some))]
    return found - np.sum(crossed[places] @ middle * crossed[places], axis=1)
