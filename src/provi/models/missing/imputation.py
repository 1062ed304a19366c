r"""New rows, whatever is missing in them: their labels, and draws of what is missing and of the parameters behind it.

The label is integrated exactly, $P(y \mid x_\mathrm{obs}) = E\,\sigma(y\eta)$.

A row is drawn without any factorisation of its own: for $x \sim N(0, \Omega)$ the residual $e = x - \Omega K_o^+x$ has
the conditional covariance $C$ (Matheron's rule), and $e - b\,\delta'e/s^2$ that of the noise the label does not touch.
So, with $u = (\eta - \mu)/s$ drawn given the label, $z = m + e + \frac bs(u - \delta'e/s)$; without the label
$z = m + e$.

Imputations are *proper* in Rubin's sense when each has parameters of its own, drawn from their approximate posterior:
then the spread of results between imputations, by Rubin's rules, holds all of the uncertainty. With one set of
parameters for all it is too small.
"""

import dataclasses
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.compilation import padded_size, sized_jit
from provi.core.types import RandomKey
from provi.models.missing.chains import exact_draws
from provi.models.missing.conditional import (
    Parameters,
    Rows,
    condition_patterns,
    condition_rows,
    make_rows,
    unfold_symmetric,
)
from provi.models.missing.estimation import Uncertainty, inverse_root
from provi.models.missing.likelihood import conditional_log_likelihoods

_NUMBERS_AT_ONCE = 2**22
"""Rows are taken in blocks with at most this many numbers in an array."""

_SMALLEST = 64
"""Rows are filled up to multiples of this, so that tables of similar size share one compiled program."""


def log_odds(parameters: Parameters, Z: np.ndarray) -> np.ndarray:
    """log P(y = 1) - log P(y = -1) of each row: of two logarithms, so that certain labels keep their digits."""
    return np.asarray(_log_odds(parameters, _filled_rows(Z, np.ones(len(Z)))))[: len(Z)]


def draw_missing(
    key: RandomKey,
    parameters: Parameters,
    uncertainty: Uncertainty | None,
    Z: np.ndarray,
    labels: np.ndarray | None,
    num: int,
) -> np.ndarray:
    """(num, rows, columns): completions under the estimates or, with `uncertainty`, parameters drawn for each."""
    rows = _filled_rows(Z, np.ones(len(Z)) if labels is None else labels)
    known = labels is not None
    if uncertainty is None:
        return np.asarray(impute(key, parameters, rows, known, num))[:, : len(Z)]
    of_parameters, of_entries = jax.random.split(key)
    loadings = None if uncertainty.loadings is None else jnp.asarray(uncertainty.loadings)
    draws = draw_parameters(
        of_parameters, parameters, jnp.asarray(uncertainty.information), num, loadings, uncertainty.free
    )
    return np.asarray(impute_properly(of_entries, draws, rows, known))[:, : len(Z)]


def impute(key: RandomKey, parameters: Parameters, rows: Rows, given_labels: bool, num: int) -> Float[Array, "m n p"]:
    """`num` independent completions of the rows under one set of parameters; observed entries are as they were.

    **Arguments:**

    - `given_labels`: whether the labels of `rows` are known and used. To impute a table for an analysis of its labels
      they must be; for rows whose labels are to be predicted they cannot be.
    """
    n, p = rows.values.shape
    size = max(64, _NUMBERS_AT_ONCE // max(p * p, 8 * num))
    if n <= size:
        return _impute(key, parameters, rows, given_labels, num)
    parts = []
    for start in range(0, n, size):
        # The last block is filled up with copies of the last row: one compiled program.
        block = rows.take(np.minimum(np.arange(start, start + size), n - 1))
        draws = _impute(jax.random.fold_in(key, start), parameters, block, given_labels, num)
        parts.append(draws[:, : n - start])
    return jnp.concatenate(parts, axis=1)


def impute_properly(key: RandomKey, draws: Parameters, rows: Rows, given_labels: bool) -> Float[Array, "m n p"]:
    """One completion of the rows for each of the parameters stacked in `draws` (see `draw_parameters`)."""
    num = draws.mean.shape[0]
    parts = []
    for index in range(num):
        parameters = jax.tree.map(operator.itemgetter(index), draws)
        parts.append(impute(jax.random.fold_in(key, index), parameters, rows, given_labels, 1))
    return jnp.concatenate(parts)


@sized_jit
def _impute(key: RandomKey, parameters: Parameters, rows: Rows, given_labels: bool, num: int) -> Float[Array, "m n p"]:
    conditioned = condition_patterns(parameters, rows.patterns)
    law = condition_rows(parameters, conditioned, rows)
    slope, omega = parameters.coefficients[1:], parameters.covariance
    gauss, tilt = jax.random.split(key)
    shape = (num, *rows.values.shape)
    x = jax.random.normal(gauss, shape, omega.dtype) @ jnp.linalg.cholesky(omega).T
    noise = x - jnp.einsum("nij,mnj->mni", conditioned.inverse[rows.pattern], x) @ omega
    if given_labels:
        deviation = jnp.sqrt(law.variance)
        # No spread, no direction: rows that are complete, or whose missing entries have no coefficients.
        spread = jnp.where(deviation > 0, deviation, 1)
        residual = exact_draws(tilt, law.centre, deviation, rows.labels, num) - noise @ slope / spread[None]
        noise = noise + residual[:, :, None] * (law.direction / spread[:, None])[None]
    return jnp.where(rows.observed[None], rows.values[None], law.filled[None] + noise)


def draw_parameters(
    key: RandomKey,
    parameters: Parameters,
    information: Float[Array, "q q"],
    num: int,
    loadings: Array | None = None,
    free: np.ndarray | None = None,
) -> Parameters:
    r"""`num` draws, stacked, from the normal approximation $N(\hat\theta, I^{-1})$ of the posterior.

    A draw $d\Omega$ is applied as $\Omega = L\exp(L^{-1}d\Omega L^{-T})L'$, $\hat\Omega = LL'$, which agrees to first
    order and is positive definite always. With `loadings` the information is that of
    `empirical_information(..., loadings)`: $\Lambda$ moves as drawn, $\psi$ by $\exp(d\psi/\psi)$; directions without
    information (rotations) stay where they are.

    **Arguments:**

    - `information`: of `parameters`, at the maximum (with the penalty's curvature added, if there is one).
    - `free`: the places, among all parameters, of those that the information is about; the others stay.
    """
    found = inverse_root(information)
    if found is None:
        raise ValueError(
            "information must be positive semidefinite, as it is at a maximum of the likelihood: fit to convergence, "
            "or impute under one set of parameters"
        )
    root = jnp.asarray(found[0].astype(parameters.mean.dtype))
    moves = jax.random.normal(key, (num, root.shape[1]), root.dtype) @ root.T
    if free is not None:
        p = parameters.mean.shape[0]
        moves = jnp.zeros((num, 2 * p + 1 + p * (p + 1) // 2), root.dtype).at[:, free].set(moves)
    if loadings is None:
        return _move_covariance(parameters, moves)
    return _move_factors(parameters, moves, loadings)


@sized_jit
def _move_covariance(parameters: Parameters, moves: Float[Array, "m q"]) -> Parameters:
    p = parameters.mean.shape[0]
    root = jnp.linalg.cholesky(parameters.covariance)

    def move(step: Float[Array, " q"]) -> Parameters:
        change = unfold_symmetric(step[2 * p + 1 :], p)
        half = jax.scipy.linalg.solve_triangular(root, change, lower=True)
        relative = jax.scipy.linalg.solve_triangular(root, half.T, lower=True)
        values, vectors = jnp.linalg.eigh((relative + relative.T) / 2)
        factor = root @ vectors * jnp.exp(values / 2)[None]
        return Parameters(
            parameters.coefficients + step[: p + 1], parameters.mean + step[p + 1 : 2 * p + 1], factor @ factor.T
        )

    return jax.vmap(move)(moves)


@sized_jit
def _move_factors(parameters: Parameters, moves: Float[Array, "m q"], loadings: Float[Array, "p r"]) -> Parameters:
    p, rank = loadings.shape
    own = jnp.diagonal(parameters.covariance) - jnp.sum(loadings**2, axis=1)

    def move(step: Float[Array, " q"]) -> Parameters:
        turned = loadings + step[2 * p + 1 : 2 * p + 1 + p * rank].reshape(p, rank)
        uniquenesses = own * jnp.exp(step[2 * p + 1 + p * rank :] / own)
        return Parameters(
            parameters.coefficients + step[: p + 1],
            parameters.mean + step[p + 1 : 2 * p + 1],
            turned @ turned.T + jnp.diag(uniquenesses),
        )

    return jax.vmap(move)(moves)


def _filled_rows(Z: np.ndarray, labels: np.ndarray) -> Rows:
    """The rows, followed by copies of the last one."""
    places = np.minimum(np.arange(padded_size(len(Z), _SMALLEST)), len(Z) - 1)
    return make_rows(Z[places], labels[places])


@eqx.filter_jit
def _log_odds(parameters: Parameters, rows: Rows) -> Float[Array, " n"]:
    other = dataclasses.replace(rows, labels=jnp.negative(rows.labels))
    return conditional_log_likelihoods(parameters, rows) - conditional_log_likelihoods(parameters, other)
