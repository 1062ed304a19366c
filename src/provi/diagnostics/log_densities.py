"""log p and log q of draws."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.precision import double_precision
from provi.core.types import Draws
from provi.families.base import AbstractFamily
from provi.targets.base import AbstractTarget

_NUMBERS_AT_ONCE = 2**20


@double_precision
def log_densities(
    target: AbstractTarget, family: AbstractFamily, point: Any, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """log p(z), unnormalised, and log q(z), for each row of z.

    **Arguments:**

    - `family`, `point`: q, as `fit.posterior` has them.
    """
    batch = int(np.clip(_NUMBERS_AT_ONCE // family.dim, 1, len(z)))
    found = _log_densities(target, family, point, jnp.asarray(z, target.dtype), batch)
    log_p, log_q = (np.asarray(values, np.float64) for values in found)
    return log_p, log_q


@eqx.filter_jit
def _log_densities(target: AbstractTarget, family: AbstractFamily, point: Any, z: Draws, batch: int) -> Any:
    def at(row: Any) -> Any:
        return -target.potential(row), family.log_prob(point, row)

    return jax.lax.map(at, z, batch_size=batch)
