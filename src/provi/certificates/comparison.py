r"""(g) The gap of q through a better member: f(q) - f* <= [f(q) - f(q_1)] + [bound on f(q_1) - f*].

Any member $q_1$ will do; the nearer it is to the best one, the sharper the bound. The difference of the two objectives
is computed without error for linear models (up to quadrature), and otherwise estimated with common draws,
$f(q) - f(q_1) = E[\phi(m + Cu) - \phi(m_1 + C_1u)] - \log\det C + \log\det C_1$.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.natural.natural_gradient import line_arguments
from provi.certificates.bounds import mean_upper_bound
from provi.certificates.linear.bounds import moments_and_errors, row_rounding
from provi.core.devices import over_draws
from provi.core.interpreter import instant_jit
from provi.families.location_scale import LocationScale, Point, square_root
from provi.targets.base import AbstractTarget
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import whitened_prior
from provi.targets.row_sums import Rows, keep, sum_over_rows

NUM_BATCHES, _PAIRS = 64, 16


def linear_difference_bound(
    target: AbstractLinearModel, family: LocationScale, point: Point, better: Point
) -> tuple[float, int]:
    """An upper bound on f(point) - f(better) without draws, and the passes over the data that it took.

    The errors of both likelihoods' computation are in it; it is infinite where one of them is not known.
    """
    double, rule = line_arguments(target, family)
    total, size = 0.0, 0.0
    for sign, member in ((1.0, point), (-1.0, better)):
        root, loc = square_root(member), np.asarray(member.loc, np.float64)
        likelihood, error = (float(x) for x in mean_likelihood(double, loc, root, rule))
        prior, prior_error = whitened_prior(target.prior, root, loc).energy
        log_det, log_det_error = _log_det(root)
        total += sign * (likelihood + prior - log_det) + error + prior_error + log_det_error
        size += abs(likelihood) + prior + abs(log_det)
    if not np.isfinite(total):
        return np.inf, 2
    return float(total + 64 * family.dim * np.finfo(float).eps * size), 2


def _log_det(root: np.ndarray) -> tuple[float, float]:
    """log |det C| and a bound on its error: LU factors, unlike the diagonal of a triangular C, have one."""
    if not np.triu(root, 1).any():
        return float(np.sum(np.log(np.abs(np.diagonal(root))))), 0.0
    rounding = 4 * len(root) ** 2 * np.finfo(float).eps * float(np.linalg.cond(root))
    return float(np.linalg.slogdet(root)[1]), rounding if rounding < 0.1 else np.inf


@instant_jit
def mean_likelihood(target: AbstractLinearModel, loc: Any, root: Any, rule: Any) -> tuple[Any, Any]:
    """The mean of the likelihood part, and a bound on its error."""
    eps = jnp.finfo(root.dtype).eps

    def sums(block: Rows, real: Any) -> tuple[Any, Any]:
        centre = block.design @ loc
        own = jnp.sum((block.design @ root) ** 2, axis=1)
        variance = block.total_variance(own)
        moments, errors = keep(real, moments_and_errors(target, centre, variance, block.response, rule))
        # The rounding of centre and spread moves the value by its slope, and by its weight times the spread.
        row_error, centre_error = row_rounding(block.design, loc, root)
        centre_error = centre_error + target.likelihood.shift_error(centre, block.response)
        moved = (
            jnp.abs(moments.slope) * centre_error + jnp.abs(moments.weight) * (jnp.sqrt(own) + row_error) * row_error
        )
        rounding = target.num_terms * eps * jnp.abs(moments.value) + 2 * moved
        return jnp.sum(moments.value), jnp.sum(errors.value + rounding)

    return sum_over_rows(target, sums, dtype=jnp.float64)


def difference_upper_bound(
    target: AbstractTarget, family: LocationScale, point: Point, better: Point, *, delta: float, seed: int
) -> tuple[float, int]:
    """An upper 1 - delta bound on f(point) - f(better), and the evaluations of the potential that it used.

    **Arguments:**

    - `point`, `better`: members of `family`. - `seed`: of draws that were not used to find either.
    """
    keys = jax.random.split(jax.random.key(seed), NUM_BATCHES)
    values = np.asarray(_batch_differences(keys, target, family, point, better), np.float64)
    constant = float(better.scale.log_det()) - float(point.scale.log_det())
    if not np.isfinite(values).all():
        return np.inf, 4 * NUM_BATCHES * _PAIRS
    return mean_upper_bound(values, delta) + constant, 4 * NUM_BATCHES * _PAIRS


@instant_jit
def _batch_differences(keys: Any, target: AbstractTarget, family: LocationScale, point: Point, better: Point) -> Any:
    def batch(key):
        half = family.sample_base(key, point, _PAIRS)
        u = jnp.concatenate([half, -half])
        potential = partial(over_draws, target.division, target.potential)
        return jnp.mean(potential(family.transform(point, u)) - potential(family.transform(better, u)))

    return jax.lax.map(batch, keys)
