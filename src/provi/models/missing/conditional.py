r"""What the observed entries of a row say about its missing ones, and about the linear predictor.

Covariates are $z_i \sim N(\beta, \Omega)$, labels $P(y_i = 1) = \sigma(\delta_0 + \delta'z_i)$. Given its observed
entries $z_i$ is Gaussian with mean $m_i = \beta + \Omega K_o^+(z_o - \beta)$ and covariance
$C_i = \Omega - \Omega K_o^+\Omega$, where $K_o^+$ is $\Omega_{oo}^{-1}$ padded with zeros. The label enters through
one number, the linear predictor $\eta_i \sim N(\mu_i, s_i^2)$, $\mu_i = \delta_0 + \delta'm_i$,
$s_i^2 = \delta'C_i\delta$. With $b_i = C_i\delta = \mathrm{Cov}(z_i, \eta_i)$ and $t = (\eta_i - \mu_i)/s_i^2$ the
rest is Gaussian given $\eta_i$: $z_i = m_i + b_it + $ noise of covariance $C_i - b_ib_i'/s_i^2$, which the label does
not touch.

All that depends on $i$ through the pattern of its missing entries alone is computed once a pattern.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from provi.core.arguments import device_array

_LOG_TWO_PI = float(np.log(2 * np.pi))


class Parameters(eqx.Module):
    r"""$\theta = (\delta, \beta, \Omega)$; `coefficients` holds the intercept $\delta_0$ first."""

    coefficients: Float[Array, " p_plus_1"]
    mean: Float[Array, " p"]
    covariance: Float[Array, "p p"]


class Rows(eqx.Module):
    """The table: `values` are zero where missing, `labels` are -1 or 1, `patterns[pattern[i]]` are row i's observed."""

    values: Float[Array, "n p"]
    labels: Float[Array, " n"]
    pattern: Int[Array, " n"]
    patterns: Bool[Array, "k p"]

    @property
    def observed(self) -> Bool[Array, "n p"]:
        """Which entries are observed."""
        return self.patterns[self.pattern]

    def take(self, places: Any) -> "Rows":
        """The rows at `places`, each with a pattern of its own."""
        places = jnp.asarray(places)
        masks = self.patterns[self.pattern[places]]
        return Rows(self.values[places], self.labels[places], jnp.arange(places.shape[0]), masks)


def make_rows(X: np.ndarray, labels: np.ndarray) -> Rows:
    """Rows from a table with NaN for missing and labels in {-1, 1}.

    The number of patterns is rounded up, by complete rows' patterns that no row has, to one of four sizes an octave:
    tables that differ a little in it run the same compiled programs.
    """
    observed = ~np.isnan(X)
    patterns, pattern = np.unique(observed, axis=0, return_inverse=True)
    padding = np.ones((_rounded_up(len(patterns)) - len(patterns), X.shape[1]), bool)
    return Rows(
        device_array(np.where(observed, X, 0)),
        device_array(np.asarray(labels, X.dtype)),
        jnp.asarray(pattern.reshape(-1).astype(np.int32)),
        device_array(np.concatenate([patterns, padding])),
    )


def _rounded_up(count: int) -> int:
    quarter = max(1, 2 ** (count.bit_length() - 1) // 4)
    return -(-count // quarter) * quarter


class ConditionedPatterns(eqx.Module):
    r"""For each pattern: $K_o^+$, $C$, $\log|\Omega_{oo}|$ plus the $2\pi$ of the density, $b = C\delta$ and $s^2$."""

    inverse: Float[Array, "k p p"]
    covariance: Float[Array, "k p p"]
    log_normaliser: Float[Array, " k"]
    direction: Float[Array, "k p"]
    variance: Float[Array, " k"]


class Conditional(eqx.Module):
    r"""For each row: $m_i$ (observed entries as they are), $b_i$, $\mu_i$, $s_i^2$ and the log density of $z_o$."""

    filled: Float[Array, "n p"]
    direction: Float[Array, "n p"]
    centre: Float[Array, " n"]
    variance: Float[Array, " n"]
    log_density: Float[Array, " n"]


def condition_patterns(parameters: Parameters, patterns: Bool[Array, "k p"]) -> ConditionedPatterns:
    """One Cholesky factorisation a pattern."""
    omega, slope = parameters.covariance, parameters.coefficients[1:]
    p = omega.shape[0]
    identity = jnp.eye(p, dtype=omega.dtype)
    both = patterns[:, :, None] & patterns[:, None, :]
    # Missing entries are independent, of variance 1, in the padded matrix: they change neither inverse nor determinant.
    factor = jnp.linalg.cholesky(jnp.where(both, omega[None], identity[None]))
    inverse = jax.vmap(lambda root: cho_solve((root, True), identity))(factor)
    inverse = jnp.where(both, inverse, 0)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)), axis=1)
    log_normaliser = 0.5 * (log_det + _LOG_TWO_PI * jnp.sum(patterns, axis=1))
    neither = ~patterns[:, :, None] & ~patterns[:, None, :]
    covariance = jnp.where(neither, omega[None] - omega @ inverse @ omega, 0)
    covariance = (covariance + jnp.swapaxes(covariance, 1, 2)) / 2
    direction = covariance @ slope
    variance = jnp.maximum(direction @ slope, 0)
    return ConditionedPatterns(inverse, covariance, log_normaliser, direction, variance)


def condition_rows(parameters: Parameters, conditioned: ConditionedPatterns, rows: Rows) -> Conditional:
    """The conditional laws of the rows, given those of their patterns."""
    observed = rows.observed
    residual = jnp.where(observed, rows.values - parameters.mean[None], 0)
    weighted = jnp.einsum("nij,nj->ni", conditioned.inverse[rows.pattern], residual)
    filled = jnp.where(observed, rows.values, parameters.mean[None] + weighted @ parameters.covariance)
    centre = parameters.coefficients[0] + filled @ parameters.coefficients[1:]
    log_density = -0.5 * jnp.sum(residual * weighted, axis=1) - conditioned.log_normaliser[rows.pattern]
    return Conditional(
        filled, conditioned.direction[rows.pattern], centre, conditioned.variance[rows.pattern], log_density
    )


def flatten_parameters(parameters: Parameters) -> Float[Array, " q"]:
    r"""Coefficients (intercept first), mean and the lower triangle of $\Omega$ row by row, as one vector.

    $\Omega_{jk} = \Omega_{kj}$ is one parameter and counts once.
    """
    lower = np.tril_indices(parameters.mean.shape[0])
    return jnp.concatenate([parameters.coefficients, parameters.mean, parameters.covariance[lower]])


def unflatten_parameters(vector: Float[Array, " q"], num_columns: int) -> Parameters:
    """The inverse of `flatten_parameters` for `num_columns` covariates."""
    p = num_columns
    return Parameters(vector[: p + 1], vector[p + 1 : 2 * p + 1], unfold_symmetric(vector[2 * p + 1 :], p))


def fold_symmetric(matrix: Float[Array, "... p p"]) -> Float[Array, "... h"]:
    r"""The $c_{jk}$ of $\mathrm{tr}(M'd\Omega) = \sum_{j\ge k}c_{jk}\,d\Omega_{jk}$, where $d\Omega$ is symmetric."""
    row, column = np.tril_indices(matrix.shape[-1])
    share = device_array(np.where(row == column, 0.5, 1.0), matrix.dtype)
    both = matrix[..., row, column] + matrix[..., column, row]
    return both * jnp.broadcast_to(share, both.shape)


def unfold_symmetric(lower: Float[Array, "... h"], size: int) -> Float[Array, "... p p"]:
    """The symmetric matrix whose lower triangle, row by row, is `lower`."""
    row, column = np.tril_indices(size)
    place = np.zeros((size, size), int)
    place[row, column] = place[column, row] = np.arange(len(row))
    return lower[..., place]
