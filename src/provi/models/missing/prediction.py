r"""New rows, whatever is missing in them: $P(y \mid x_\mathrm{obs}) = E\,\sigma(y\eta)$, and their completions."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.types import RandomKey
from provi.models.missing.conditional import Parameters, Rows, make_rows
from provi.models.missing.estimation import Uncertainty
from provi.models.missing.imputation import draw_parameters, impute, impute_properly
from provi.models.missing.likelihood import conditional_log_likelihoods
from provi.models.padding import padded_size

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


def _filled_rows(Z: np.ndarray, labels: np.ndarray) -> Rows:
    """The rows, followed by copies of the last one."""
    places = np.minimum(np.arange(padded_size(len(Z), _SMALLEST)), len(Z) - 1)
    return make_rows(Z[places], labels[places])


@eqx.filter_jit
def _log_odds(parameters: Parameters, rows: Rows) -> Float[Array, " n"]:
    other = dataclasses.replace(rows, labels=jnp.negative(rows.labels))
    return conditional_log_likelihoods(parameters, rows) - conditional_log_likelihoods(parameters, other)
