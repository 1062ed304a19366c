r"""Indicators of missing entries in the linear predictor, for data where it says something that an entry is missing.

The indicators $u_i$ of a row are always known and stand *outside* the Gaussian model of the columns: the likelihood is
$\log p(y, x_o \mid u)$ with $P(y = 1) = E\,\sigma(\delta_0 + \delta'x + \gamma'u)$, and the law of $x$ does not depend
on $u$. (How $x_j$ and its own indicator go together cannot be learnt: $x_j$ is never seen where the indicator is 1.)

For the solvers they are columns that are always observed, of covariance $I$ and uncorrelated with the others. The
M-step sets that part of $\Omega$ and keeps the part of the true columns, which is the exact maximum under this
constraint; what the indicators' Gaussian density adds to the log-likelihood is a constant, and is taken out.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Bool, Float

from provi.core.arguments import device_array
from provi.models.missing.conditional import Parameters, Rows, fold_symmetric
from provi.models.missing.information import louis_information
from provi.models.missing.likelihood import score
from provi.models.missing.reading import Columns

FEWEST = 0.01
"""A column has an indicator if at least this share of its entries is missing and at least this share is not."""

_DEPENDENT = 1e-10
"""Share of an indicator's variance that other columns leave unexplained, below which it counts as none."""


class IndicatorStep(eqx.Module):
    """S -> the covariance of the true columns as it is, and the identity for the indicators: the M-step with them."""

    is_column: Bool[Array, " p"]

    def __call__(self, S: Float[Array, "p p"]) -> Float[Array, "p p"]:
        both = self.is_column[:, None] & self.is_column[None]
        return jnp.where(both, S, jnp.eye(S.shape[0], dtype=S.dtype))


def indicator_step(num_columns: int, num_indicators: int) -> IndicatorStep:
    """For `num_columns` in all, the last `num_indicators` of which are indicators."""
    return IndicatorStep(device_array(np.arange(num_columns) < num_columns - num_indicators))


def add_indicators(columns: Columns, X: np.ndarray) -> Columns:
    """The columns followed by standardised indicators of missing entries, those of `FEWEST` that add something.

    Left out are indicators that are a linear function of those before and of the columns without missing entries:
    equal ones, complements, an indicator that the user put into X.
    """
    missing = np.isnan(X)
    share = missing.mean(axis=0)
    complete = columns.standardise(X)[:, ~missing[:, columns.kept].any(axis=0)]
    basis = np.linalg.qr(np.column_stack([np.ones(len(X)), complete]))[0]
    chosen = []
    for place in np.flatnonzero((share >= FEWEST) & (share <= 1 - FEWEST)):
        rest = missing[:, place] - share[place]
        for _ in range(2):  # The second time for what rounding left in the first.
            rest = rest - basis @ (basis.T @ rest)
        if rest @ rest > _DEPENDENT * len(X) * share[place] * (1 - share[place]):
            chosen.append(place)
            basis = np.column_stack([basis, rest / np.linalg.norm(rest)])
    indicated = np.asarray(chosen, int)
    return dataclasses.replace(
        columns,
        kept=np.concatenate([columns.kept, np.ones(len(indicated), bool)]),
        centre=np.concatenate([columns.centre, share[indicated]]),
        scale=np.concatenate([columns.scale, np.sqrt(share * (1 - share))[indicated]]),
        indicated=indicated,
    )


def indicator_log_density(parameters: Parameters, rows: Rows, num_indicators: int) -> float:
    """What the indicators' Gaussian density, of covariance I, has added to the log-likelihood."""
    start = rows.values.shape[1] - num_indicators
    deviation = np.asarray(rows.values)[:, start:] - np.asarray(parameters.mean)[start:]
    return -0.5 * float(np.sum(deviation**2) + deviation.size * np.log(2 * np.pi))


def free_parameters(num_columns: int, num_indicators: int) -> np.ndarray:
    """Their places among all: the coefficients, the mean and the covariance of the true columns."""
    width, p = num_columns, num_columns - num_indicators
    means, covariances = width + 1 + np.arange(p), 2 * width + 1 + np.arange(p * (p + 1) // 2)
    return np.concatenate([np.arange(width + 1), means, covariances])


def information_with_indicators(parameters: Parameters, rows: Rows, num_indicators: int) -> np.ndarray:
    r"""Minus the second derivative of the log-likelihood in the `free_parameters`.

    Without $\gamma$ it is Louis's information with all indicators replaced by one column, their part $\gamma'u$ of the
    linear predictor: as many columns as without indicators, and one. The rows of $\gamma$ are derivatives of the score.
    """
    width = rows.values.shape[1]
    p, free = width - num_indicators, free_parameters(width, num_indicators)
    louis = np.asarray(louis_information(*_merge(parameters, rows, p)))
    of_indicators = -np.asarray(_score_derivatives(parameters, rows, num_indicators))[:, free]
    information = np.zeros((len(free), len(free)))
    # Coefficients, mean and covariance of the true columns: here, and in Louis's matrix, with one column more.
    here = np.concatenate([np.arange(p + 1), np.arange(width + 1, len(free))])
    there = np.delete(free_parameters(p + 1, 1), p + 1)
    information[np.ix_(here, here)] = louis[np.ix_(there, there)]
    gamma = np.arange(p + 1, width + 1)
    information[gamma], information[:, gamma] = of_indicators, of_indicators.T
    return information


@eqx.filter_jit
def _merge(parameters: Parameters, rows: Rows, p: int) -> tuple[Parameters, Rows]:
    """The columns from p on as one, of coefficient 1, mean 0 and variance 1."""
    part = rows.values[:, p:] @ parameters.coefficients[p + 1 :]
    one, zero = jnp.ones(1, part.dtype), jnp.zeros(1, part.dtype)
    merged = Parameters(
        jnp.concatenate([parameters.coefficients[: p + 1], one]),
        jnp.concatenate([parameters.mean[:p], zero]),
        block_diag(parameters.covariance[:p, :p], one[:, None]),
    )
    values = jnp.concatenate([rows.values[:, :p], part[:, None]], axis=1)
    # The first indicator stands for all: always observed.
    return merged, Rows(values, rows.labels, rows.pattern, rows.patterns[:, : p + 1])


@eqx.filter_jit
def _score_derivatives(parameters: Parameters, rows: Rows, num_indicators: int) -> Float[Array, "k q"]:
    """The derivatives of the score of all parameters in the coefficients of the indicators."""

    def gradient(last: Float[Array, " k"]) -> Float[Array, " q"]:
        coefficients = parameters.coefficients.at[-num_indicators:].set(last)
        found = score(Parameters(coefficients, parameters.mean, parameters.covariance), rows)
        folded = fold_symmetric(found.covariance)
        return jnp.concatenate([found.coefficients, found.mean, folded])

    last = parameters.coefficients[-num_indicators:]
    # What does not depend on the direction, the factorisations above all, is computed once.
    _, push = jax.linearize(gradient, last)
    return jax.lax.map(push, jnp.eye(num_indicators, dtype=last.dtype))
