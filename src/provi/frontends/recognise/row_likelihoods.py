"""Binomial responses whose numbers of trials are those of their rows.

A linear model hands its likelihood one number a row as the response. Here that number is the row's position, and the
likelihood holds the tables: what it computes for a block of rows is then right whichever rows they are.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from provi.targets.likelihoods.base import AbstractLikelihood, Batch, rounded
from provi.targets.likelihoods.bernoulli import (
    DENSITY_ERROR,
    VALUE_ERROR,
    BernoulliLogit,
    density_moments,
    least_sigmoid_slope,
    most_sigmoid_slope,
)
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors
from provi.targets.likelihoods.rows import Table, check_rows, look_up, moved_interval, rounding_of_sum


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
        low, high = moved_interval(low, high, offset)
        return rounded((hits + misses) * least_sigmoid_slope(low, high), -1)

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """At the point nearest to minus the offset."""
        hits, misses, offset = self._rows(y, jnp.zeros_like(low))
        low, high = moved_interval(low, high, offset)
        return rounded((hits + misses) * most_sigmoid_slope(low, high), 1)

    @property
    def self_concordance(self) -> float:
        """That of a Bernoulli term: neither a shift nor a factor changes it."""
        return 1.0

    def curvature_moments(self, mean: Batch, deviation: Batch, y: Any = None) -> tuple[Batch, Batch, Batch, Any]:
        """N times those of a Bernoulli term at the moved mean, with the rounding of the product."""
        if y is None:
            raise ValueError("BinomialRows needs the rows, y, of its curvature's moments.")
        hits, misses, x = self._rows(y, mean)
        zeroth, first, second = density_moments(x, deviation)
        trials, unit = hits + misses, 4 * float(jnp.finfo(mean.dtype).eps)
        return trials * zeroth, trials * first, trials * second, trials * (DENSITY_ERROR + unit * (zeroth + second))

    def shift_error(self, mean: Any, y: Any) -> Any:
        """Of the sum eta + o."""
        return rounding_of_sum(self.offset, mean, y)

    def observed(self, y: Any) -> Any:
        """The successes."""
        del y
        return self.successes

    @property
    def value_error(self) -> float:
        """That of the eight probits, once a trial."""
        return 4 * self.curvature[1] * VALUE_ERROR

    def read_response(self, y: Any, length: int) -> np.ndarray:
        """The positions of the rows."""
        return check_rows(y, length)

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
        return -look_up(self.offset, y), jnp.ones_like(y)

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """At the logit of the share of successes, with the width 1/sqrt(t'')."""
        hits, misses, _ = self._rows(y, y)
        share = (hits + 0.5) / (hits + misses + 1)
        width = 1 / jnp.sqrt(1 / (np.pi / 2) ** 2 + (hits + misses) * share * (1 - share))
        return jnp.log(share) - jnp.log1p(-share) - look_up(self.offset, y), width

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """Not without the row."""
        raise ValueError("BinomialRows has no mean_response: offset and trials belong to rows of the data.")

    def _rows(self, y: Batch, eta: Batch) -> tuple[Batch, Batch, Batch]:
        return look_up(self.successes, y), look_up(self.failures, y), eta + look_up(self.offset, y)


def _log_choose(hits: Batch, misses: Batch) -> Batch:
    return gammaln(hits + misses + 1) - gammaln(hits + 1) - gammaln(misses + 1)
