r"""The observed-data likelihood of logistic regression with missing covariates, its score and its EM statistics.

A row contributes $\log p(z_o) + \log P(y|z_o)$: a Gaussian density and $P = E\,\sigma(y\eta)$ for
$\eta \sim N(\mu, s^2)$ (`conditional`). With $r_k = P^{(k)}/P$ (`targets.likelihoods.bernoulli`), $b = C\delta$, and a
tilde for a leading 1 (for $b$, a leading 0), Stein's lemma gives, given $z_o$ *and* $y$,

* $E z = m + r_1b$ and $E zz' = C + mm' + r_1(mb' + bm') + r_2bb'$;
* $E(\frac{1+y}{2} - \sigma(\eta))\tilde z = r_1\tilde m + r_2\tilde b$: Fisher's identity, the score in $\delta$;
* $E\,\sigma'(\eta)\tilde z\tilde z' = w_0(\tilde C + \tilde m\tilde m') + w_1(\tilde m\tilde b' + \tilde b\tilde m')
  + w_2\tilde b\tilde b'$, $w_k = (yr_{k+1} - r_{k+2})/2$, as $\sigma(y\eta)\sigma'(\eta)$ is
  $\frac12(\sigma' - y\sigma'')(\eta)$.

So the E-step is exact, and nothing is divided by $s^2$: a complete row is the case $b = 0$, $s^2 = 0$.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from provi.core.arguments import device_array
from provi.core.compilation import sized_jit
from provi.core.normal_cdf import sigmoid_mean_ratios
from provi.models.missing.conditional import (
    Conditional,
    ConditionedPatterns,
    Parameters,
    Rows,
    condition_patterns,
    condition_rows,
)

_BLOCK_ENTRIES = 2**21
"""Rows are taken in blocks whose p-by-p matrices have this many entries: 16 MB."""

_PATTERN_ENTRIES = 2**24
"""Up to this many entries in the patterns' p-by-p matrices each pattern is factorised once; beyond, row by row."""


class ExpectedStatistics(eqx.Module):
    r"""Means over the rows, given all that is observed, at $\theta$.

    `shift`: $E(z - \beta)$; `scatter`: $E(z - \beta)(z - \beta)'$; `score`: $E(y_{01} - \sigma(\eta))\tilde z$;
    `curvature`: $E\,\sigma'(\eta)\tilde z\tilde z'$; `log_likelihood`: $\log p(y, z_o)$.
    """

    shift: Float[Array, " p"]
    scatter: Float[Array, "p p"]
    score: Float[Array, " p_plus_1"]
    curvature: Float[Array, "p_plus_1 p_plus_1"]
    log_likelihood: Float[Array, ""]


@sized_jit
def log_likelihood(parameters: Parameters, rows: Rows) -> Float[Array, ""]:
    r"""$\sum_i\log p(z_{o,i}) + \log P(y_i|z_{o,i})$."""

    def term(_, block: Rows, given: Conditional):
        return given.log_density + sigmoid_mean_ratios(given.centre, given.variance, block.labels).log_mean

    return jnp.sum(_map_rows(parameters, rows, term))


@sized_jit
def conditional_log_likelihoods(parameters: Parameters, rows: Rows) -> Float[Array, " n"]:
    r"""$\log P(y_i|z_{o,i})$, row by row."""

    def term(_, block: Rows, given: Conditional):
        return sigmoid_mean_ratios(given.centre, given.variance, block.labels).log_mean

    return _map_rows(parameters, rows, term)


@sized_jit
def probabilities(parameters: Parameters, rows: Rows) -> Float[Array, " n"]:
    r"""$P(y_i = 1|z_{o,i})$, row by row, whatever the labels."""

    def term(_, block: Rows, given: Conditional):
        return jnp.exp(sigmoid_mean_ratios(given.centre, given.variance, jnp.ones_like(block.labels)).log_mean)

    return _map_rows(parameters, rows, term)


@sized_jit
def expected_statistics(parameters: Parameters, rows: Rows) -> ExpectedStatistics:
    """The exact E-step: see the head of this file."""

    def term(conditioned: ConditionedPatterns, block: Rows, given: Conditional, weights: Array):
        return _block_statistics(parameters, conditioned, block, given, weights)

    total = _sum_blocks(parameters, rows, term)
    return jax.tree.map(lambda leaf: leaf / rows.values.shape[0], total)


@sized_jit
def score(parameters: Parameters, rows: Rows) -> Parameters:
    r"""The gradient of `log_likelihood`, by Fisher's identity.

    In $\Omega$ it is $\frac12\Omega^{-1}(\sum_iE(z_i - \beta)(z_i - \beta)' - n\Omega)\Omega^{-1}$: all $p^2$ entries
    count as free, $d\ell = \sum_{jk}G_{jk}d\Omega_{jk}$. The derivative in one off-diagonal pair together is twice it.
    """
    statistics = expected_statistics(parameters, rows)
    return score_from_statistics(parameters, statistics, rows.values.shape[0])


def score_from_statistics(parameters: Parameters, statistics: ExpectedStatistics, num_rows: int) -> Parameters:
    """The score of `num_rows` rows with these mean statistics."""
    root = (jnp.linalg.cholesky(parameters.covariance), True)
    excess = statistics.scatter - parameters.covariance
    return Parameters(
        num_rows * statistics.score,
        num_rows * cho_solve(root, statistics.shift),
        0.5 * num_rows * cho_solve(root, cho_solve(root, excess).T),
    )


def _block_statistics(
    parameters: Parameters, conditioned: ConditionedPatterns, block: Rows, given: Conditional, weights: Array
) -> ExpectedStatistics:
    """Sums over the rows of a block, of weight 1, or 0 for those that only fill it up."""
    ratios = sigmoid_mean_ratios(given.centre, given.variance, block.labels, order=4)
    r1, r2 = ratios.first, ratios.second
    sharpness = _tilted_slopes(block.labels, ratios)
    b = given.direction * weights[:, None]
    deviation = given.filled - parameters.mean[None]
    shift = weights @ deviation + r1 @ b
    cross = (deviation * r1[:, None]).T @ b
    scatter = (deviation * weights[:, None]).T @ deviation + cross + cross.T + (given.direction * r2[:, None]).T @ b
    ones = jnp.ones_like(r1)[:, None]
    m_tilde, b_tilde = jnp.concatenate([ones, given.filled], 1), jnp.concatenate([0 * ones, given.direction], 1)
    w0, w1, w2 = (weights * w for w in sharpness)
    cross = (m_tilde * w1[:, None]).T @ b_tilde
    curvature = (m_tilde * w0[:, None]).T @ m_tilde + cross + cross.T + (b_tilde * w2[:, None]).T @ b_tilde
    # The patterns' own covariances, by how many rows have them and with what weight.
    shares = jax.ops.segment_sum(jnp.stack([weights, w0], 1), block.pattern, conditioned.variance.shape[0])
    flat = conditioned.covariance.reshape(shares.shape[0], -1)
    noise, sharp_noise = (shares.T @ flat).reshape(2, *conditioned.covariance.shape[1:])
    return ExpectedStatistics(
        shift,
        scatter + noise,
        (weights * r1) @ m_tilde + (weights * r2) @ b_tilde,
        curvature.at[1:, 1:].add(sharp_noise),
        weights @ (given.log_density + ratios.log_mean),
    )


def _tilted_slopes(labels: Array, ratios: Any) -> tuple[Array, Array, Array]:
    r"""$w_k = (yr_{k+1} - r_{k+2})/2$ for $k = 0, 1, 2$."""
    r1, r2, r3, r4 = ratios.first, ratios.second, ratios.third, ratios.fourth
    return 0.5 * (labels * r1 - r2), 0.5 * (labels * r2 - r3), 0.5 * (labels * r3 - r4)


def _sum_blocks(parameters: Parameters, rows: Rows, term: Callable) -> Any:
    """The sum over blocks of rows of `term(conditioned, block, conditional, weights)`."""
    take, places, weights = _blocks(parameters, rows)

    def of_block(place, weight):
        block, mine = take(place)
        return term(mine, block, condition_rows(parameters, mine, block), weight)

    if places.shape[0] == 1:
        return of_block(places[0], weights[0])
    shapes = jax.eval_shape(of_block, places[0], weights[0])
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def add(total, block):
        return jax.tree.map(jnp.add, total, of_block(*block)), None

    return jax.lax.scan(add, zero, (places, weights))[0]


def _map_rows(parameters: Parameters, rows: Rows, term: Callable) -> Float[Array, " n"]:
    """`term(conditioned, block, conditional)`, one number a row, for all rows."""
    take, places, _ = _blocks(parameters, rows)

    def of_block(place):
        block, mine = take(place)
        return term(mine, block, condition_rows(parameters, mine, block))

    if places.shape[0] == 1:
        return of_block(places[0])
    return jax.lax.map(of_block, places).reshape(-1)[: rows.values.shape[0]]


def _blocks(parameters: Parameters, rows: Rows) -> tuple[Callable, Array, Array]:
    """How the rows are cut: a function from places to (block, its conditioned patterns), the places and weights.

    The last block is filled up with copies of the last row, of weight 0.
    """
    n, p = rows.values.shape
    num_blocks = -(-n // max(64, min(8192, _BLOCK_ENTRIES // p**2)))
    size = -(-n // num_blocks)
    flat = np.arange(num_blocks * size)
    places = device_array(np.minimum(flat, n - 1).reshape(num_blocks, size))
    weights = jnp.asarray((flat < n).reshape(num_blocks, size).astype(rows.values.dtype))
    if num_blocks > 1 and rows.patterns.shape[0] * p**2 > _PATTERN_ENTRIES:

        def take_apart(place):
            block = rows.take(place)
            return block, condition_patterns(parameters, block.patterns)

        return take_apart, places, weights
    conditioned = condition_patterns(parameters, rows.patterns)

    def take(place):
        if num_blocks == 1:
            return rows, conditioned
        return Rows(rows.values[place], rows.labels[place], rows.pattern[place], rows.patterns), conditioned

    return take, places, weights
