r"""The user's data made ready: labels as signs; columns checked, constant ones left out, the rest standardised.

With $z = (x - c)/s$, column by column, $\delta_0 + \delta'z$ is the same linear predictor as
$\alpha_0 + \alpha'x$, $\alpha = \delta/s$, $\alpha_0 = \delta_0 - \sum_j \delta_jc_j/s_j$: a linear map T of the
coefficients, so that covariances of estimates go back as $TVT'$, and the density of the observed entries as
$\log p(x_o) = \log p(z_o) - \sum_{j \in o}\log s_j$.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

_DEPENDENT = 1e-10
"""Share of a column's variance that other columns leave unexplained, below which it counts as none."""

_BLOCK = 2**15
"""Rows taken at once, for bounded memory."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """What standardises a table: `kept` are the columns that vary, `centre` and `scale` their units.

    `kept`, `centre` and `scale` have an entry for each of the user's columns (a constant column has its value and 1)
    and then for the indicators of missing entries (`indicators`), those of the columns `indicated`.
    """

    names: tuple[str, ...]
    kept: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    indicated: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))

    def standardise(self, X: np.ndarray) -> np.ndarray:
        """The columns that vary, and the indicators, in standard units and double precision; NaN stays NaN."""
        wide = np.concatenate([X, np.isnan(X)[:, self.indicated]], axis=1)
        return ((wide - self.centre) / self.scale)[:, self.kept]

    def restore(self, Z: np.ndarray) -> np.ndarray:
        """Tables (..., n, kept) in the user's units, with the constant columns at their values."""
        X = np.broadcast_to(self.centre, (*Z.shape[:-1], len(self.centre))).copy()
        X[..., self.kept] += Z * self.scale[self.kept]
        return X[..., : len(self.names)]

    def restore_covariance(self, covariance: np.ndarray) -> np.ndarray:
        """The covariance of the user's columns; zero for constant ones."""
        places, scale = np.flatnonzero(self.kept), self.scale[self.kept]
        full = np.zeros((len(self.kept), len(self.kept)))
        full[np.ix_(places, places)] = covariance * np.outer(scale, scale)
        return full[: len(self.names), : len(self.names)]

    def kept_names(self) -> list[str]:
        """The names of the columns that vary."""
        return [name for name, kept in zip(self.names, self.kept[: len(self.names)], strict=True) if kept]

    def transformation(self) -> np.ndarray:
        """T: the coefficients in the user's units, intercept first and indicators last, from the standardised ones."""
        places = np.flatnonzero(self.kept)
        T = np.zeros((len(self.kept) + 1, len(places) + 1))
        T[0, 0] = 1
        T[0, 1:] = -self.centre[places] / self.scale[places]
        T[1 + places, 1 + np.arange(len(places))] = 1 / self.scale[places]
        return T

    def restore_errors(self, covariance: np.ndarray) -> np.ndarray:
        """T V T' for a covariance V of standardised coefficients; NaN for constant columns and what V leaves open."""
        T, open_ones = self.transformation(), np.isnan(np.diag(covariance))
        full = T @ np.where(np.isnan(covariance), 0, covariance) @ T.T
        unknown = (T[:, open_ones] != 0).any(axis=1) | (T == 0).all(axis=1)
        full[unknown], full[:, unknown] = np.nan, np.nan
        return full

    def log_jacobian(self, X: np.ndarray) -> float:
        """What is added to a log density of standardised observed entries to get that of the user's; no indicators'."""
        counts = np.sum(~np.isnan(X), axis=0)
        return -float(counts @ np.log(self.scale[: len(counts)]))


def column_words(count: int, names: Any) -> list[str]:
    """How messages call the columns: by name, in quotes, or by place."""
    return [str(place) for place in range(count)] if names is None else [f"'{name}'" for name in names]


def check_finite(X: np.ndarray, names: Sequence[str]) -> None:
    """NaN is a missing entry, infinity a mistake."""
    infinite = [name for place, name in enumerate(names) if np.isinf(X[:, place]).any()]
    if infinite:
        raise ValueError(f"X has infinite (inf) entries in {_listed(infinite)}: put NaN where a value is missing.")


def read_columns(X: np.ndarray, names: Sequence[str]) -> Columns:
    """Mean and standard deviation of the observed entries; errors and warnings name the columns they are about."""
    observed = ~np.isnan(X)
    never = [name for place, name in enumerate(names) if not observed[:, place].any()]
    if never:
        raise ValueError(f"X has no observed entry in {_listed(never)}: drop before the fit.")
    low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    kept = high > low
    constant = [name for name, varies in zip(names, kept, strict=True) if not varies]
    if not kept.any():
        raise ValueError(f"X has no column that varies: the observed entries of {_listed(constant)} are all equal.")
    if constant:
        warnings.warn(
            f"The observed entries of {_listed(constant)} are all equal: left out, with coefficient 0 and no standard "
            f"error. Drop before the fit to silence this warning.",
            UserWarning,
            stacklevel=4,
        )
    # In units of the range, so that squares neither overflow nor vanish.
    span = np.where(kept, high / 2 - low / 2, 1)
    unit = (X - low) / span
    centre = np.where(kept, low + np.nanmean(unit, axis=0) * span, low)
    scale = np.where(kept, np.nanstd(unit, axis=0) * span, 1)
    return Columns(tuple(names), kept, centre, scale)


def check_shape(num_rows: int, num_columns: int, rank: int | None) -> None:
    """A full covariance needs more rows than columns, a low rank more columns than factors."""
    if rank is not None and rank >= num_columns:
        raise ValueError(f"rank must be at most {num_columns - 1}, one less than the columns that vary, not {rank}.")
    if rank is None and num_columns >= num_rows:
        raise ValueError(
            f"X has {num_columns} columns that vary and n_samples={num_rows}: the covariance of the columns would be "
            f"singular. Give rank=, e.g. rank=5, for a low-rank covariance, and C=, e.g. C=1.0, to shrink the "
            f"coefficients."
        )


def check_independent(Z: np.ndarray, names: Sequence[str]) -> None:
    """Refuse columns of which one is a linear function of others: the likelihood is then unbounded.

    Two columns are compared on the rows that have both: a line through one or two points always fits, and where all
    lie on a line the density grows without bound as the correlation tends to one. More than two columns are compared
    on the rows without missing entries. Standardised columns are expected.
    """
    complete = Z[~np.isnan(Z).any(axis=1)]
    if len(complete) > Z.shape[1]:
        refuse_singular(np.cov(complete, rowvar=False).reshape(Z.shape[1], Z.shape[1]), names)
    if len(complete) == len(Z):
        return
    together, unexplained = _pairs(Z)
    for first, second in np.argwhere(np.triu((together <= 2) & (together > 0), 1)).tolist():
        raise ValueError(
            f"{_listed([names[first], names[second]])} are both observed in {together[first, second]:.0f} rows only, "
            f"which does not determine their correlation: drop one of them, or give rank=, e.g. rank=1."
        )
    for first, second in np.argwhere(np.triu(unexplained < _DEPENDENT, 1)).tolist():
        raise _dependent([names[first], names[second]])


def refuse_singular(covariance: np.ndarray, names: Sequence[str]) -> None:
    """An error that names the columns of a linear dependence, if the covariance has one."""
    sd = np.sqrt(np.diag(covariance))
    if not (sd > 0).all():
        return  # A column that does not vary on these rows: nothing can be said here.
    values, vectors = np.linalg.eigh(covariance / np.outer(sd, sd))
    if values[0] < _DEPENDENT:
        part = np.abs(vectors[:, 0])
        raise _dependent([name for name, weight in zip(names, part, strict=True) if weight > 1e-3 * part.max()])


def read_labels(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`two_classes` of what scikit-learn takes for labels, whatever their type."""
    from sklearn.utils.multiclass import check_classification_targets, type_of_target

    check_classification_targets(labels)
    classes = np.unique(labels)
    if len(classes) > 2:
        raise ValueError(
            f"Only binary classification is supported. The type of the target is {type_of_target(labels)}, with "
            f"{len(classes)} classes: merge some, or wrap the model in sklearn.multiclass.OneVsRestClassifier."
        )
    return two_classes(labels)


def two_classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two classes, sorted, and 1 where a label is the second, -1 elsewhere."""
    classes = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {shown(classes[0])}; rows of two classes are needed.")
    return classes, np.where(labels == classes[1], 1.0, -1.0)


def match_labels(y: Any, classes: np.ndarray, num_rows: int) -> np.ndarray:
    """1 and -1 for labels that must be of the `classes` of an earlier fit."""
    from sklearn.utils import column_or_1d

    labels = column_or_1d(y)
    if len(labels) != num_rows:
        raise ValueError(f"y has {len(labels)} labels, but X has {num_rows} rows.")
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise ValueError(f"y has the label {shown(unknown[0])}, but the model knows {shown(classes)}.")
    return np.where(labels == classes[1], 1.0, -1.0)


def shown(label: Any) -> str:
    """A NumPy label, or an array of them, as Python shows it."""
    return repr(label.tolist() if isinstance(label, np.ndarray | np.generic) else label)


def _pairs(Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each two columns: rows that have both, and the share of variance on them that a line leaves unexplained."""
    columns = Z.shape[1]
    count, total, square, cross = (np.zeros((columns, columns)) for _ in range(4))
    for start in range(0, len(Z), _BLOCK):
        block = Z[start : start + _BLOCK]
        observed = (~np.isnan(block)).astype(float)
        filled = np.nan_to_num(block, nan=0.0)
        count += observed.T @ observed
        total += filled.T @ observed
        square += (filled**2).T @ observed
        cross += filled.T @ filled
    rows = np.maximum(count, 1)
    variance = square / rows - (total / rows) ** 2
    covariance = cross / rows - total * total.T / rows**2
    product = variance * variance.T
    # A column may be constant on the rows it shares with another: then there is no line to speak of.
    vary = np.minimum(variance, variance.T) > _DEPENDENT
    return count, np.where(vary, 1 - covariance**2 / np.where(vary, product, 1), 1)


def _dependent(names: Sequence[str]) -> ValueError:
    return ValueError(
        f"{_listed(names)} of X are linearly dependent: their covariance is singular, the likelihood unbounded. "
        f"Drop one of them, or give rank=, e.g. rank=1, for a low-rank covariance."
    )


def _listed(names: Sequence[str], largest: int = 10) -> str:
    """'column a', 'columns a and b', 'columns a, b, ... and 7 more'."""
    shown = list(names[:largest])
    rest = len(names) - len(shown)
    last = [f"{rest} more"] if rest else []
    words = shown + last
    text = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"column{'s' if len(names) > 1 else ''} {text}"
