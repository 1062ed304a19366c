r"""Variational inference as an incremental problem: surrogates of the negative ELBO, one for each block of data.

With $B$ blocks $I_i$ of the data terms the negative ELBO of $q_w$, $w = (m, C)$, is the mean of
$$L_i(w) = \ell_i(w)+h(w),\qquad \ell_i(w) = E_u\varphi_i(m+Cu),\quad
  \varphi_i = -\log p_{prior}+B\sum_{n\in I_i}t_n,\qquad h(w) = -\log\det C.$$

*If the Hessian of $\varphi_i$ is at most $M_i$ and at least $-M_i$, then so is that of $\ell_i$ in $w$.* Proof. Along
$w+sv$, $v = (a, V)$, the second derivative is $E[(a+Vu)^\top\nabla^2\varphi_i\,(a+Vu)]$, and $E|a+Vu|^2 =
|a|^2+|V|_F^2 = |v|^2$ as $E u = 0$, $E uu^\top = I$. $\square$ So the energy, not $L_i$, gets the quadratic:
$$\hat L_i(w;\bar w) = \ell_i(\bar w)+\langle\nabla\ell_i(\bar w), w-\bar w\rangle+\tfrac{M_i}2|w-\bar w|^2+h(w)
  \ \ge\ L_i(w),$$
with equality at $\bar w$; it is convex where $h$ is (positive diagonal, or positive definite), and the error
$\hat L_i-L_i$ has its Hessian in $[0, M_i]$ for convex $\varphi_i$. The paper's (13) expands $h$ too, which no
curvature majorises: its second derivative $1/C_{jj}^2$ has no bound. The mean surrogate is
$h(w)+\frac{\bar M}2|w-\bar t|^2$ and a constant, so that its minimiser is
$\mathrm{prox}_{h/\bar M}(\bar t)$, a step of `ProxSGD` with memory, in closed form.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.algorithms.base import check_parts
from provi.algorithms.incremental.quadratic_surrogate import AbstractQuadratic, Expansion, check_weights
from provi.core.arguments import check_count, device_array
from provi.core.devices import divided_columns, on_host
from provi.core.types import Count, Scalar
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.families.scales import Diagonal, Triangular
from provi.geometry.constraints import Box
from provi.geometry.operators import prox_negative_entropy
from provi.targets.base import AbstractFiniteSum, AbstractTarget, outer_spectrum
from provi.targets.linear_model import AbstractLinearModel

ROWS_A_BLOCK = 128
"""Data terms in a block, unless told otherwise."""


class ELBOSurrogate(AbstractQuadratic):
    r"""The surrogates above. Block i holds the data terms i, i + B, i + 2B, ...: mixed even in sorted data.

    Draws are reparameterised, $u$ from the family's base; exact expectations, for `MISO`, are known for linear models
    and Gaussians. `weights` are the $M_i$, `curvature` is 1. Make it with `elbo_surrogate`.
    """

    target: AbstractFiniteSum
    family: LocationScale
    weights: Float[Array, " terms"]
    curvature: Any
    num_terms: int = eqx.field(static=True)

    def _places(self, block: Count) -> tuple[Any, Any]:
        """The data terms of a block; the last ones may be filled up and are then not real."""
        terms = self.target.num_terms
        places = block + self.num_terms * jnp.arange(-(-terms // self.num_terms))
        return jnp.minimum(places, terms - 1), places < terms

    def block_potential(self, z: Any, block: Count) -> Scalar:
        r"""$\varphi_i(z)$."""
        places, real = self._places(block)
        terms = jnp.where(real, self.target.term_potentials(z, places), 0)
        return self.target.prior_potential(z) + self.num_terms * jnp.sum(terms)

    def draw(self, key, parameters, rows, prepared, chains):
        del prepared
        u = self.family.sample_base(key, parameters, rows.shape[0])
        z = self.family.transform(parameters, u)

        def expand(z: Any, u: Any, block: Count) -> tuple[Scalar, Point]:
            value, slope = jax.value_and_grad(self.block_potential)(z, block)
            return value, Point(slope, parameters.scale.pull_back(slope[None, :], u[None, :]))

        return Expansion(*jax.vmap(expand)(z, u, rows)), chains

    def expect(self, parameters, rows, prepared):
        del prepared
        target = self.target
        if not isinstance(target, AbstractLinearModel) or not isinstance(self.family.base, Normal):
            raise ValueError(
                f"The exact energy is known for linear models and Gaussians only, not for {type(target).__name__} with "
                f"base {self.family.base.name}. Use provi.algorithms.MISSO, which draws."
            )
        return Expansion(*jax.vmap(lambda block: self._exact(target, parameters, block))(rows))

    def _exact(self, target: AbstractLinearModel, point: Point, block: Count) -> tuple[Scalar, Point]:
        """The energy of a block and its gradient: E t' x for the mean, E t'' x (x'C) for the scale."""
        places, real = self._places(block)
        rows = target.rows(jax.tree.map(lambda x: x[places], target.row_data()))
        projected = _times_scale(rows.design, point.scale)
        variance = rows.total_variance(jnp.sum(projected**2, axis=1))
        moments = target.gaussian_moments(rows.design @ point.loc, variance, rows.response)
        value, slope, weight = (
            jnp.where(real, self.num_terms * x, 0) for x in (moments.value, moments.slope, moments.weight)
        )
        # The prior is one half of the sum of squares of its whitened coordinates: rows of slope and weight like others.
        whitener = target.prior.whitener()
        white, spread = whitener @ (point.loc - target.prior.mean), _times_scale(whitener, point.scale)
        energy = jnp.sum(value) + target.prior_potential(point.loc) + jnp.sum(spread**2) / 2
        left = jnp.concatenate([weight[:, None] * rows.design, whitener])
        right = jnp.concatenate([projected, spread])
        scale = jax.tree.map(lambda x: left.shape[0] * x, point.scale.pull_back(left, right))  # a sum, not a mean
        return energy, Point(rows.design.T @ slope + whitener.T @ white, scale)

    def arrange(self, table):
        """Divided along the parameters, where the target is on several devices."""
        return divided_columns(self.target.division, table)

    def minimise(self, mean, parameters, constraint):
        step_size = 1 / jnp.mean(self.weights).astype(parameters.loc.dtype)
        point = Point(mean.centre.loc, prox_negative_entropy(mean.centre.scale, step_size))
        if constraint is None:
            return point
        if not isinstance(constraint, Box) or not isinstance(parameters.scale, Triangular | Diagonal):
            raise ValueError(
                "constraint must be None, or a Box with a triangular or diagonal scale: the minima over other sets "
                "have no closed form."
            )
        # Entry by entry a convex function of one number: its minimiser on an interval is the clipped one.
        moved = constraint.project(point)
        if isinstance(moved.scale, Triangular):
            moved = Point(moved.loc, Triangular(jnp.tril(moved.scale.matrix)))
        return moved

    def value(self, mean, parameters):
        return super().value(mean, parameters) + self.family.negative_entropy(parameters)


def _times_scale(rows: Any, scale: Any) -> Any:
    """Rows x' C."""
    return rows * scale.diagonal[None, :] if isinstance(scale, Diagonal) else rows @ scale.matrix


def block_curvatures(target: AbstractTarget, num_blocks: int) -> np.ndarray:
    r"""The proven $M_i = \lambda_{max}(S^{-1}+Bt_1\sum_{n\in I_i}x_nx_n^\top)$ of a linear model, rounded up, (B,).

    Shorter ones (a tenth, say) make longer steps, often faster and no longer majorisers: pass them as `curvature`.
    """
    if not isinstance(target, AbstractLinearModel) or not np.isfinite(target.curvature[1]):
        raise ValueError(
            f"curvature must be given for {type(target).__name__}: no bound on the Hessian of a block of its terms is "
            f"known. Pass a number, or one for each block: smaller ones make longer steps."
        )
    count = check_count("num_blocks", num_blocks)
    design = on_host(target.rows(target.row_data()).design).astype(np.float64)
    prior = target.prior.precision_matrix()
    error = target.prior.precision_rounding()
    largest = np.empty(count)
    for i in range(count):
        block = design[i::count]
        gram = count * target.curvature[1] * (block.T @ block)
        rounding = 2 * len(block) * np.finfo(np.float64).eps * float(np.trace(gram))
        largest[i] = outer_spectrum(prior + gram, error + rounding)[1]
    return largest


def elbo_surrogate(
    target: AbstractTarget, family: Any, curvature: Any = None, num_blocks: int | None = None
) -> ELBOSurrogate:
    """The surrogates of the negative ELBO of `target` over `family`, for `MISSO` and `MISO`.

    **Arguments:**

    - `target`: one with data terms. - `family`: location-scale, with a triangular, symmetric or diagonal scale.
    - `curvature`: the M_i: a number for all blocks, or one for each (which says how many blocks there are). None takes
      `block_curvatures`, proven for linear models.
    - `num_blocks`: B; default a block for every 128 data terms. The table holds B points of the family.
    """
    if not isinstance(target, AbstractFiniteSum):
        raise ValueError(
            f"target must have data terms; {type(target).__name__} has none. Use provi.algorithms.ProxSGD."
        )
    if not isinstance(family, LocationScale) or family.scale == "low_rank":
        raise ValueError(
            "family must be location-scale with a triangular, symmetric or diagonal scale: other scales have no "
            f"proximal operator. Use provi.families.Gaussian({target.dim})."
        )
    check_parts(target, family, None)
    given = None if curvature is None or np.ndim(curvature) == 0 else np.shape(curvature)[0]
    count = num_blocks or given or -(-target.num_terms // ROWS_A_BLOCK)
    if check_count("num_blocks", count) > target.num_terms:
        raise ValueError(f"num_blocks = {count} is more than the {target.num_terms} data terms. Take fewer.")
    if curvature is None:
        curvature = block_curvatures(target, count)
    weights = check_weights(np.broadcast_to(curvature, (count,)) if np.ndim(curvature) == 0 else curvature, count)
    one = device_array(np.ones((), target.dtype))
    return ELBOSurrogate(target=target, family=family, weights=weights, curvature=one, num_terms=count)
