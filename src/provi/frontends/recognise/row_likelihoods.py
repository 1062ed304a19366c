"""Likelihoods with numbers of their own for each row: offsets, numbers of trials.

A linear model hands its likelihood one number a row as the response. Here that number is the row's position, and the
likelihood holds the tables: what it computes for a block of rows is then right whichever rows they are.
"""

from typing import Any, ClassVar, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.bernoulli import (
    VALUE_ERROR,
    BernoulliLogit,
    least_sigmoid_slope,
    most_sigmoid_slope,
)
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors
from provi.targets.likelihoods.poisson import Poisson

Table: TypeAlias = Float[Array, " rows"]
"""One number for each row of the data."""


def row_numbers(length: int) -> np.ndarray:
    """0, 1, ...: the response of a model with one of these likelihoods."""
    return np.arange(length, dtype=np.float64)


def _look_up(table: Table, rows: Batch) -> Batch:
    return table[rows.astype(jnp.int32)].astype(rows.dtype)


class BinomialRows(AbstractLikelihood):
    r"""y_n ~ Binomial(N_n, sigmoid(eta + o_n)): N_n Bernoulli terms, so log-concave with t'' at most N_n/4.

    $t_n(\eta) = y_n\,\mathrm{softplus}(-x) + (N_n - y_n)\,\mathrm{softplus}(x) - \log\binom{N_n}{y_n}$ with
    $x = \eta + o_n$: two terms of one sign, each with the closed form of `BernoulliLogit`.
    """

    successes: Table
    failures: Table
    offset: Table
    name: ClassVar[str] = "binomial, logit link"
    curvature_decay: ClassVar[float | None] = 0.5
    second_derivative: ClassVar[str] = "N sigmoid(x) sigmoid(-x), x = eta + offset"

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """-log p of the rows y."""
        hits, misses, x = self._rows(y, eta)
        one, inner = jnp.ones_like(x), BernoulliLogit()
        return hits * inner.potential(x, one) + misses * inner.potential(x, 0 * one) - _log_choose(hits, misses)

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, max N/4)."""
        return 0.0, float(np.max(np.asarray(self.successes) + np.asarray(self.failures))) / 4

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the end farther from minus the offset."""
        hits, misses, offset = self._rows(y, jnp.zeros_like(low))
        low, high = _widened(low, high, offset)
        return rounded((hits + misses) * least_sigmoid_slope(low, high), -1)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the point nearest to minus the offset."""
        hits, misses, offset = self._rows(y, jnp.zeros_like(low))
        low, high = _widened(low, high, offset)
        return rounded((hits + misses) * most_sigmoid_slope(low, high), 1)

    @property
    def value_error(self) -> float:
        """That of the eight probits, once a trial."""
        return 4 * self.curvature[1] * VALUE_ERROR

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """The positions of the rows."""
        return _check_rows(y, length)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """In closed form."""
        hits, misses, x = self._rows(y, mean)
        one, inner = jnp.ones_like(x), BernoulliLogit()
        up, down = inner.moments(x, variance, one), inner.moments(x, variance, 0 * one)
        return LinkMoments(
            hits * up.value + misses * down.value - _log_choose(hits, misses),
            hits * up.slope + misses * down.slope,
            hits * up.weight + misses * down.weight,
        )

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """N times those of a Bernoulli term, and the rounding of the binomial coefficient and of the two products."""
        hits, misses, x = self._rows(y, mean)
        error = BernoulliLogit().moment_errors(x, variance, jnp.ones_like(x))
        trials, unit = hits + misses, 8 * jnp.finfo(x.dtype).eps
        # log N! bounds each of the three logarithms in the coefficient; E softplus(x) <= log 2 + |x| + sd.
        size = gammaln(trials + 1) + trials * (1 + jnp.abs(x) + jnp.sqrt(variance))
        return MomentErrors(trials * error.value + unit * size, trials * error.slope, trials * error.weight)

    @property
    def errors_proven(self) -> bool:
        """A closed form."""
        return True

    def bend(self, y: Batch) -> tuple[Batch, Batch]:
        """At minus the offset."""
        return -_look_up(self.offset, y), jnp.ones_like(y)

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """At the logit of the share of successes, with the width 1/sqrt(t'')."""
        hits, misses, _ = self._rows(y, y)
        share = (hits + 0.5) / (hits + misses + 1)
        width = 1 / jnp.sqrt(1 / (np.pi / 2) ** 2 + (hits + misses) * share * (1 - share))
        return jnp.log(share) - jnp.log1p(-share) - _look_up(self.offset, y), width

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """Not without the row."""
        raise ValueError("BinomialRows has no mean_response: offset and trials belong to rows of the data.")

    def _rows(self, y: Batch, eta: Batch) -> tuple[Batch, Batch, Batch]:
        return _look_up(self.successes, y), _look_up(self.failures, y), eta + _look_up(self.offset, y)


class PoissonRows(AbstractLikelihood):
    """y_n ~ Poisson(exp(eta + o_n)): log-concave, not smooth; its means have a closed form."""

    counts: Table
    offset: Table
    name: ClassVar[str] = "Poisson with offsets, log link"
    curvature_decay: ClassVar[float | None] = 0.0
    second_derivative: ClassVar[str] = "exp(eta + offset)"

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """-log p of the rows y."""
        return Poisson().potential(eta + _look_up(self.offset, y), _look_up(self.counts, y))

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, infinity)."""
        return Poisson().curvature

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the lower end."""
        return Poisson().least_curvature(*_widened(low, high, _look_up(self.offset, y)), y)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the upper end."""
        return Poisson().most_curvature(*_widened(low, high, _look_up(self.offset, y)), y)

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """The positions of the rows."""
        return _check_rows(y, length)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """E exp(eta + o) = exp(mean + o + variance/2)."""
        return Poisson().moments(mean + _look_up(self.offset, y), variance, _look_up(self.counts, y))

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Rounding."""
        return Poisson().moment_errors(mean + _look_up(self.offset, y), variance, _look_up(self.counts, y))

    @property
    def errors_proven(self) -> bool:
        """A closed form."""
        return True

    def bend(self, y: Batch) -> tuple[Batch, Batch]:
        """At minus the offset."""
        return -_look_up(self.offset, y), jnp.ones_like(y)

    def value_error_given(self, y: Any) -> float:
        """Poisson's."""
        return Poisson().value_error_given(self.counts)

    def working_response(self, y: Batch) -> tuple[Batch, Batch]:
        """Poisson's, moved by the offset."""
        centre, weight = Poisson().working_response(_look_up(self.counts, y))
        return centre - _look_up(self.offset, y), weight

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Poisson's, moved by the offset."""
        centre, width = Poisson().likelihood_bend(_look_up(self.counts, y))
        return centre - _look_up(self.offset, y), width

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """Not without the row."""
        raise ValueError("PoissonRows has no mean_response: the offset belongs to a row of the data.")


def _widened(low: Batch, high: Batch, offset: Batch) -> tuple[Batch, Batch]:
    """The interval moved by the offset, and wider by the rounding of that."""
    slack = float(jnp.finfo(low.dtype).eps)
    low, high = low + offset - slack * (jnp.abs(low) + jnp.abs(offset)), high + offset
    return low, high + slack * (jnp.abs(high) + jnp.abs(offset))


def _log_choose(hits: Batch, misses: Batch) -> Batch:
    return gammaln(hits + misses + 1) - gammaln(hits + 1) - gammaln(misses + 1)


def _check_rows(y: Any, length: int) -> np.ndarray:
    rows = np.asarray(y, np.float64)
    if not np.array_equal(rows, row_numbers(length)):
        raise ValueError(f"y must be row_numbers({length}): the responses are in the likelihood.")
    return rows
