r"""The incremental natural gradient for linear models with many rows: two numbers a row, replaced when it is visited.

The Gaussian is $q \propto$ prior times one Gaussian site a row, $\exp(l_n\eta_n - \gamma_n\eta_n^2/2)$,
$\eta_n = x_n'z$, so $P = L_0 + \sum_n\gamma_nx_nx_n'$ and $Pm = L_0\mu_0 + \sum_nl_nx_n$. A visit to a block of rows
sets $\gamma_n = E\ell_n''$ and $l_n = \gamma_n\mu_n - E\ell_n'$ under the present $q$: the MISO idea (paper 001)
applied to the closed form of paper 002. The fixed points are those of the full-batch natural gradient, and there is no
noise floor, since the old contribution of a row is taken out exactly when the new one goes in.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from provi.algorithms.base import AbstractAlgorithm, StepInfo, check_parts
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.natural.natural_gradient import scale_from_precision
from provi.core.tree import squared_norm
from provi.core.types import Count, Matrix, Vector
from provi.families.bases import Normal
from provi.families.location_scale import Point, square_root
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.row_sums import keep

_SMALLEST_BLOCK, _ROWS_PER_COLUMN = 512, 8


class SiteTableState(eqx.Module):
    """q as a point and in natural parameters, the two numbers of every row, the number of passes made."""

    point: Point
    precision: Matrix
    shift: Vector
    slopes: Any
    weights: Any
    step: Count


class SiteTable(AbstractAlgorithm):
    """One step is one pass over the rows in random order, in blocks large enough that factorising P is the lesser cost.

    **Requires** a linear model and a Gaussian with full covariance. **Guarantee**: none; `provi.fit` follows it by
    `NaturalGradient`, whose steps descend, and by the certificate. There is no step size, and so no trial to accept or
    reject. **Cost per step** O(N d^2).
    """

    guarantee: Guarantee | None = eqx.field(static=True, default=None)
    num_rows: int = eqx.field(static=True, default=0)

    quantities: ClassVar[tuple[str, str, str]] = ("the step of the location", "", "the new parameters")

    def resolve(self, target, family):
        check_parts(target, family, None)
        if not isinstance(target, AbstractLinearModel):
            raise ValueError(f"SiteTable needs a linear model, not {type(target).__name__}.")
        if family.scale not in ("triangular", "symmetric") or not isinstance(family.base, Normal):
            raise ValueError("SiteTable needs the Gaussian family with a triangular or symmetric scale.")
        return SiteTable(num_rows=target.num_terms)

    def init(self, point):
        """Sites are zero: the precision of the start stands in for the prior until the first pass has replaced it."""
        root = square_root(point)
        precision = np.linalg.inv(root @ root.T)
        dtype, empty = point.loc.dtype, np.zeros(self.num_rows)
        arrays = (precision, precision @ np.asarray(point.loc, np.float64), empty, empty)
        precision, shift, slopes, weights = (jnp.asarray(array, dtype) for array in arrays)
        return SiteTableState(point, precision, shift, slopes, weights, jnp.asarray(0))

    def step(self, key, state, target: Any, family, shrink):
        del shrink
        rows, dim = target.num_terms, target.dim
        block = min(rows, max(_SMALLEST_BLOCK, _ROWS_PER_COLUMN * dim))
        num_blocks = -(-rows // block)
        block = -(-rows // num_blocks)
        order = jax.random.permutation(jax.random.fold_in(key, state.step), num_blocks)

        data = jax.tree.map(jnp.asarray, target.row_data())
        # In the first pass q is the start times the sites so far; afterwards the prior is in the place of the start.
        first = state.step == 0
        base, base_shift = keep(first, (state.precision, state.shift))

        def visit(carry, k):
            precision, shift, slopes, weights = carry
            # Every `num_blocks`-th row from k on: mixed even in sorted data.
            places = k + num_blocks * jnp.arange(block)
            real, places = places < rows, jnp.minimum(places, rows - 1)
            part = target.rows(jax.tree.map(lambda x: x[places], data))
            design = part.design
            scale = scale_from_precision(base + precision, "triangular").matrix
            loc = scale @ (scale.T @ (base_shift + shift))
            centre, variance = design @ loc, jnp.sum((design @ scale) ** 2, axis=1)
            moments = target.gaussian_moments(centre, part.total_variance(variance), part.response)
            # The last row fills up the last block, and counts there once.
            more_weight = jnp.where(real, moments.weight - weights[places], 0)
            more_slope = jnp.where(real, moments.weight * centre - moments.slope - slopes[places], 0)
            precision = precision + design.T @ (more_weight[:, None] * design)
            shift = shift + design.T @ more_slope
            return (precision, shift, slopes.at[places].add(more_slope), weights.at[places].add(more_weight)), None

        start = (*keep(~first, (state.precision, state.shift)), state.slopes, state.weights)
        (precision, shift, slopes, weights), _ = jax.lax.scan(visit, start, order)
        whitener = target.prior.whitener()
        prior = whitener.T @ whitener
        precision = precision + keep(first, prior)
        shift = shift + keep(first, prior @ target.prior.mean)
        precision = (precision + precision.T) / 2
        loc = cho_solve((jnp.linalg.cholesky(precision), True), shift)
        point = Point(loc, scale_from_precision(precision, family.scale))
        zero = jnp.zeros((), loc.dtype)
        moved = jnp.sqrt(jnp.sum((loc - state.point.loc) ** 2))
        info = StepInfo(zero + 1, self.cost_at(state.step), (moved, zero, jnp.sqrt(squared_norm(point))))
        return SiteTableState(point, precision, shift, slopes, weights, state.step + 1), info

    def cost_at(self, step):
        """One pass."""
        del step
        return jnp.asarray(1, jnp.int32)

    def output(self, state):
        return state.point
