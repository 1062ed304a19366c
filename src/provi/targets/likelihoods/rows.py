r"""A likelihood with numbers of its own for each row: offsets and weights.

$$\ell_n(\eta) = w_nt(\eta + o_n, y_n).$$

A model hands its likelihood one number a row as the response. Here that number is the row's position, and the
likelihood holds the tables: what it computes for a block of rows is right whichever rows they are, and every algorithm
and bound that knows a likelihood knows this one. Rows that are read in blocks bring their own numbers, a `RowNumbers`;
the tables then hold the extreme ones. Derivatives are those of t at the moved argument, times $w_n \ge 0$:
the term is as convex as t, $|\ell'''| \le M\ell''$ with the same M, and errors are multiplied by $w_n$. Rounding moves
$\eta + o_n$; `shift_error` says by how much, and the passes over the data add it to their own rounding of eta.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import as_array, check_length, device_array
from provi.core.types import RandomKey
from provi.targets.base import Status
from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.bernoulli import BernoulliLogit, BernoulliProbit
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors
from provi.targets.likelihoods.negative_binomial import NegativeBinomial
from provi.targets.likelihoods.poisson import Poisson
from provi.targets.row_sums import RowNumbers

Table: TypeAlias = Float[Array, " rows"]
"""One number for each row of the data."""

Place: TypeAlias = Batch | RowNumbers
"""Which rows: their positions, or their numbers."""


def row_numbers(length: int) -> np.ndarray:
    """0, 1, ...: the response of a model whose likelihood holds tables."""
    return np.arange(length, dtype=np.float64)


def look_up(table: Any, rows: Any) -> Any:
    """The entries of a table at these positions."""
    return jnp.asarray(table)[jnp.asarray(rows).astype(jnp.int32)].astype(rows.dtype)


def check_rows(y: Any, length: int) -> np.ndarray:
    """Positions in order, or a `ValueError`."""
    rows = np.asarray(y, np.float64)
    if not np.array_equal(rows, row_numbers(length)):
        raise ValueError(f"y must be row_numbers({length}): the responses are in the likelihood.")
    return rows


def moved_interval(low: Batch, high: Batch, offset: Batch) -> tuple[Batch, Batch]:
    """The interval moved by the offset, and wider by the rounding of that."""
    slack = float(jnp.finfo(low.dtype).eps)
    low, high = low + offset - slack * (jnp.abs(low) + jnp.abs(offset)), high + offset
    return low, high + slack * (jnp.abs(high) + jnp.abs(offset))


def rounding_of_sum(offset: Any, mean: Any, rows: Any) -> Any:
    """A bound on the rounding of `mean` + the offset of these rows."""
    unit = 2 * float(np.finfo(mean.dtype).eps)
    if isinstance(rows, np.ndarray):  # on the host, where an operation of JAX would be compiled by itself
        return unit * (np.abs(mean) + np.abs(np.asarray(offset, np.float64)[rows.astype(int)]))
    return unit * (jnp.abs(mean) + jnp.abs(look_up(offset, rows)))


class RowLikelihood(AbstractLikelihood):
    """The terms w_n t(eta + o_n, y_n) of the likelihood `inner`; its responses are positions of rows.

    - `values`: y. - `offset`, `weights`: o and w, or None for zeros and for ones. Of rows that are read in blocks, the
      extreme ones.
    """

    inner: AbstractLikelihood
    values: Table
    offset: Float[Array, " offsets"] | None = None
    weights: Float[Array, " weights"] | None = None

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the likelihood without them."""
        return self.inner.name

    @property
    def second_derivative(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the likelihood without them."""
        moved = "" if self.offset is None else ", eta with the offset"
        return f"{'' if self.weights is None else 'weight times '}{self.inner.second_derivative}{moved}"

    @property
    def curvature_decay(self) -> float | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Neither a shift nor a factor changes it."""
        return self.inner.curvature_decay

    def _value(self, y: Place) -> Any:
        return y.value if isinstance(y, RowNumbers) else look_up(self.values, y)

    def _offset(self, y: Place) -> Any:
        return y.offset if isinstance(y, RowNumbers) else look_up(self.offset, y)

    def _weight(self, y: Place) -> Any:
        return y.weight if isinstance(y, RowNumbers) else look_up(self.weights, y)

    def _at(self, eta: Batch, y: Place) -> tuple[Batch, Batch]:
        """eta + o and y of these rows."""
        return eta if self.offset is None else eta + self._offset(y), self._value(y)

    def _times(self, y: Place, tree: Any) -> Any:
        """Every number of a row times its weight."""
        if self.weights is None:
            return tree
        weight = self._weight(y)
        # A row of weight zero counts for nothing, be its term infinite.
        return jax.tree.map(lambda x: jnp.where(weight > 0, weight * x, 0), tree)

    def potential(self, eta: Batch, y: Place) -> Batch:
        """w t(eta + o, y)."""
        return self._times(y, self.inner.potential(*self._at(eta, y)))

    @property
    def curvature(self) -> tuple[float, float]:
        """Times the least and the largest weight."""
        return self._weighted(self.inner.curvature)

    def curvature_given(self, y: Any) -> tuple[float, float]:
        """The same, for the responses of all rows."""
        del y
        return self._weighted(self.inner.curvature_given(np.asarray(self.values)))

    def _weighted(self, ends: tuple[float, float]) -> tuple[float, float]:
        if self.weights is None:
            return ends
        least, most = float(np.min(np.asarray(self.weights))), float(np.max(np.asarray(self.weights)))
        return ends[0] * (least if ends[0] >= 0 else most), ends[1] * (most if ends[1] >= 0 else least)

    def least_curvature(self, low: Batch, high: Batch, y: Place) -> Batch:
        """That of t on the moved interval."""
        return self._rounded(y, self.inner.least_curvature(*self._moved(low, high, y), self._value(y)), -1)

    def most_curvature(self, low: Batch, high: Batch, y: Place) -> Batch:
        """That of t on the moved interval."""
        return self._rounded(y, self.inner.most_curvature(*self._moved(low, high, y), self._value(y)), 1)

    def _moved(self, low: Batch, high: Batch, y: Place) -> tuple[Batch, Batch]:
        return (low, high) if self.offset is None else moved_interval(low, high, self._offset(y))

    def _rounded(self, y: Place, curvature: Batch, sign: int) -> Batch:
        return curvature if self.weights is None else rounded(self._times(y, curvature), sign)

    @property
    def log_concave(self) -> bool:
        """As t is."""
        return self.inner.log_concave

    @property
    def grounds(self) -> tuple[Status, str]:
        """Those of t."""
        return self.inner.grounds

    @property
    def self_concordance(self) -> float | None:
        """That of t."""
        return self.inner.self_concordance

    @property
    def errors_proven(self) -> bool:
        """As those of t are."""
        return self.inner.errors_proven

    @property
    def value_error(self) -> float:
        """That of t, times the largest weight above 1: w (1 + |E t|) is at most max(1, w) (1 + |E w t|)."""
        return self.inner.value_error * self._largest

    def value_error_given(self, y: Any) -> float:
        """The same, for the responses of all rows."""
        del y
        return self.inner.value_error_given(np.asarray(self.values)) * self._largest

    @property
    def _largest(self) -> float:
        return 1.0 if self.weights is None else max(1.0, float(np.max(np.asarray(self.weights))))

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """The positions of the rows."""
        return check_rows(y, length)

    def moments(self, mean: Batch, variance: Batch, y: Place) -> LinkMoments:
        """Those of t at the moved mean, times w."""
        moved, values = self._at(mean, y)
        return self._times(y, self.inner.moments(moved, variance, values))

    def moment_errors(self, mean: Batch, variance: Batch, y: Place) -> MomentErrors:
        """Those of t at the moved mean, times w, and the rounding of that product."""
        moved, values = self._at(mean, y)
        errors = self.inner.moment_errors(moved, variance, values)
        if self.weights is None:
            return errors
        found, unit = self.inner.moments(moved, variance, values), 2 * float(jnp.finfo(mean.dtype).eps)
        sizes = MomentErrors(*(unit * jnp.abs(x) for x in (found.value, found.slope, found.weight)))
        return self._times(y, jax.tree.map(jnp.add, errors, sizes))

    def curvature_moments(self, mean: Batch, deviation: Batch, y: Any = None) -> tuple[Batch, Batch, Batch, Any]:
        """Those of t at the moved mean, times w; their error is one a row."""
        if y is None:
            raise ValueError("RowLikelihood needs the rows, y, of its curvature's moments.")
        moved, values = self._at(mean, y)
        zeroth, first, second, error = self.inner.curvature_moments(moved, deviation, values)
        # The rounding of the product with w, and |E u t''| <= E (1 + u^2) t'' / 2.
        error = error + 4 * float(jnp.finfo(mean.dtype).eps) * (zeroth + second)
        return self._times(y, (zeroth, first, second, error))

    def shift_error(self, mean: Any, y: Any) -> Any:
        """Of the sum eta + o."""
        if isinstance(y, RowNumbers) and self.offset is not None:
            return 2 * float(np.finfo(mean.dtype).eps) * (jnp.abs(mean) + jnp.abs(y.offset))
        return 0.0 if self.offset is None else rounding_of_sum(self.offset, mean, y)

    def working_response(self, y: Place) -> tuple[Batch, Batch] | None:
        """That of t, moved and weighted."""
        found = self.inner.working_response(self._value(y))
        if found is None:
            return None
        centre, weight = found
        return centre if self.offset is None else centre - self._offset(y), self._times(y, weight)

    def bend(self, y: Place) -> tuple[Batch, Batch]:
        """That of t, moved."""
        return self._bend(y, *self.inner.bend(self._value(y)))

    def likelihood_bend(self, y: Place) -> tuple[Batch, Batch]:
        """That of exp(-t), moved, and narrower by the root of a weight above 1."""
        centre, width = self.inner.likelihood_bend(self._value(y))
        if self.weights is not None:
            width = width / jnp.sqrt(jnp.maximum(self._weight(y), 1))
        return self._bend(y, centre, width)

    def _bend(self, y: Place, centre: Batch, width: Batch) -> tuple[Batch, Batch]:
        return centre if self.offset is None else centre - self._offset(y), width

    def log_predictive(self, mean: Batch, variance: Batch, y: Place) -> Batch:
        """That of t at the moved mean; of weighted rows by quadrature."""
        if self.weights is not None:
            whole: Any = y
            return super().log_predictive(mean, variance, whole)
        moved, values = self._at(mean, y)
        return self.inner.log_predictive(moved, variance, values)

    @property
    def plain(self) -> AbstractLikelihood:
        """t."""
        return self.inner

    @property
    def largest_weight(self) -> Any:
        """Traced."""
        return 1.0 if self.weights is None else jnp.maximum(jnp.max(jnp.asarray(self.weights)), 1.0)

    def seen(self, mean: Any, y: Any) -> tuple[AbstractLikelihood, Any, Any]:
        """t, eta + o and y."""
        return self.inner, *self._at(jnp.asarray(mean), y if isinstance(y, RowNumbers) else jnp.asarray(y))

    def seen_by_all(self, eta: np.ndarray) -> tuple[AbstractLikelihood, np.ndarray] | None:
        """t and eta + o; None for weighted rows, which stand for several."""
        if self.weights is not None:
            return None
        return self.inner, eta if self.offset is None else eta + np.asarray(self.offset, np.float64)

    def observed(self, y: Any) -> Any:
        """The responses."""
        del y
        return self.values

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """Not without the row."""
        raise ValueError(
            "mean_response does not know the offset, which belongs to rows of the data: use the likelihood's `plain`, "
            "with the offset added to the mean."
        )

    def draw_rows(self, key: RandomKey, eta: Batch, y: Place) -> Any:
        """From p(y | eta + o); None for weighted rows, which stand for several."""
        return None if self.weights is not None else self.inner.draw(key, self._at(eta, y)[0])


def read_rows(
    likelihood: AbstractLikelihood, y: Any, length: int, offset: Any, exposure: Any, weights: Any, dtype: Any
) -> tuple[AbstractLikelihood, np.ndarray]:
    """The likelihood of the rows and their responses: itself and y, or a `RowLikelihood` and positions.

    With `weights` the labels of Bernoulli likelihoods may be shares of successes, weighted with the trials.
    """
    likelihood = of_responses(likelihood, y, weights is not None)
    values = likelihood.read_response(y, length)
    if exposure is not None:
        offset = log_exposure(likelihood, exposure, offset, length)
    if offset is None and weights is None:
        return likelihood, values
    if isinstance(likelihood, RowLikelihood):
        raise ValueError("The likelihood has offsets or weights already: give all of them to the model.")
    if length * float(jnp.finfo(dtype).eps) > 1:
        raise ValueError(f"{length} rows with offsets or weights cannot be numbered in {dtype}: give X in float64.")
    tables = [values, None if offset is None else read_row_table("offset", offset, length)]
    tables.append(None if weights is None else read_weights(weights, length))
    arrays = (None if table is None else device_array(np.asarray(table, dtype)) for table in tables)
    make: Any = RowLikelihood
    return make(likelihood, *arrays), row_numbers(length)


def of_responses(likelihood: Any, y: Any, weighted: bool) -> Any:
    """The likelihood, of shares of successes where weighted labels are that."""
    if not weighted or not isinstance(likelihood, BernoulliLogit | BernoulliProbit):
        return likelihood
    labels = np.asarray(y)
    shares = labels.dtype.kind == "f" and bool(((labels > 0) & (labels < 1)).any())
    return type(likelihood)(fractional=True) if shares else likelihood


def read_row_table(name: str, values: Any, length: int) -> np.ndarray:
    """One number for each row, in float64; a single number is that of all."""
    table = as_array(name, values)
    if table.ndim == 0:
        table = np.broadcast_to(table, (length,))
    if table.ndim != 1:
        raise ValueError(f"{name} must be a number or have one entry for each row of X; its shape is {table.shape}.")
    check_length(name, table, length, "one for each row of X")
    return np.asarray(table, np.float64)


def read_weights(weights: Any, length: int) -> np.ndarray:
    """One number for each row, none negative and not all zero."""
    table = read_row_table("weights", weights, length)
    if (table < 0).any() or not table.any():
        raise ValueError("weights must not be negative, nor all zero: they say how often a row counts.")
    return table


def check_exposure(likelihood: AbstractLikelihood) -> None:
    """`ValueError` but for counts with the log link."""
    if not isinstance(likelihood, Poisson | NegativeBinomial):
        raise ValueError(
            f"exposure is for counts with the log link (Poisson, negative binomial), not for the {likelihood.name} "
            f"likelihood: use offset=."
        )


def log_exposure(likelihood: AbstractLikelihood, exposure: Any, offset: Any, length: int) -> np.ndarray:
    """log E, plus the offset where there is one: for counts with the log link."""
    check_exposure(likelihood)
    table = read_row_table("exposure", exposure, length)
    if not (table > 0).all():
        raise ValueError(f"exposure must be positive; its smallest entry is {table.min():g}.")
    return np.log(table) + (0.0 if offset is None else read_row_table("offset", offset, length))
