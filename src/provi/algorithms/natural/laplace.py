"""The mode and the Laplace approximation: where to start, and the coordinates in which a target is nearly round."""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.interpreter import weighed_jit
from provi.core.limits import Clock
from provi.core.types import Vector
from provi.targets.base import AbstractTarget, autodiff

LARGEST_DENSE = 1000
"""Above this dimension a dense Hessian is not formed, and whitening is by its diagonal only."""

_NUM_PROBES = 100


@dataclasses.dataclass(frozen=True)
class LaplaceApproximation:
    """A mode and a factor F of a covariance FF' ~ (Hessian of the potential at the mode)^-1.

    F is lower triangular, (dim, dim), or the vector of its diagonal, (dim,), where only that was computed.
    """

    mode: np.ndarray
    factor: np.ndarray
    converged: bool


@partial(weighed_jit, calls=100)
def value_and_gradient(target: AbstractTarget, z: Vector):
    """The potential and its gradient, compiled once for a kind of target."""
    return target.value_and_gradient(z)


@weighed_jit
def _hessian(target: AbstractTarget, z: Vector):
    return jax.jacfwd(lambda at: autodiff(target, at)[1])(z)


@weighed_jit
def _hessian_diagonal(target: AbstractTarget, z: Vector):
    """diag(H) by one Hessian-vector product a coordinate; above `LARGEST_DENSE`, the mean of v * H v over random signs.

    The estimate serves a choice of coordinates only, so its error costs speed and not correctness.
    """

    def gradient(at):
        return autodiff(target, at)[1]

    def product(direction):
        return jax.jvp(gradient, (z,), (direction,))[1]

    if z.shape[0] > LARGEST_DENSE:
        signs = jax.random.rademacher(jax.random.key(0), (_NUM_PROBES, z.shape[0]), z.dtype)
        return jnp.mean(jax.lax.map(lambda v: v * product(v), signs), axis=0)

    def entry(index):
        return product(jnp.zeros_like(z).at[index].set(1))[index]

    return jax.lax.map(entry, jnp.arange(z.shape[0]), batch_size=64)


def laplace_approximation(
    target: AbstractTarget, start: np.ndarray, diagonal: bool = False, clock: Clock | None = None
) -> LaplaceApproximation:
    """Find the mode by L-BFGS and factorise the inverse Hessian there.

    The iteration is SciPy's, on the host, with a line search of its own: a start of a few dozen gradients needs neither
    the records nor the checkpoints of `runtime`.

    Directions of negative or vanishing curvature (a target that is not log-concave, a flat ridge) get the absolute
    curvature, bounded below relative to the largest, so the factor always exists. With `diagonal`, and above
    `LARGEST_DENSE` dimensions, only the Hessian's diagonal is used.

    With a `clock` the search ends when a quarter of its time is used up, and where half of what is left does
    not pay for a Hessian, what the search has learnt of it is taken.
    """
    clock = Clock() if clock is None else clock
    enough = clock.left * 0.75

    def objective(z):
        value, gradient = value_and_gradient(target, jnp.asarray(z, target.dtype))
        return float(value), np.asarray(gradient, np.float64)

    from scipy import optimize  # large, and no linear model has need of it

    def look_at_the_clock(_):
        if clock.left <= enough:
            raise StopIteration

    found = optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "maxcor": 20},
        callback=look_at_the_clock if clock.limited else None,
    )
    mode = found.x if np.isfinite(found.x).all() else np.asarray(start, np.float64)
    products = _NUM_PROBES if target.dim > LARGEST_DENSE else target.dim
    if not clock.pays_for(2 * 3 * products, programs=2 * 2):  # a product with the Hessian takes three gradients
        return LaplaceApproximation(
            mode, _learnt_factor(found, target.dim, diagonal or target.dim > LARGEST_DENSE), False
        )
    return LaplaceApproximation(mode, curvature_factor(target, mode, diagonal)[0], bool(found.success))


def curvature_factor(target: AbstractTarget, at: np.ndarray, diagonal: bool = False) -> tuple[np.ndarray, float]:
    """F with FF' the inverse of the Hessian's absolute value at a point, and a number with the least eigenvalue's sign.

    With `diagonal`, and above `LARGEST_DENSE` dimensions, of the Hessian's diagonal: a vector, and its least entry.
    """
    point = jnp.asarray(at, target.dtype)
    if diagonal or target.dim > LARGEST_DENSE:
        entries = np.asarray(_hessian_diagonal(target, point), np.float64)
        return _safe_curvature(entries) ** -0.5, float(entries.min())
    hessian = np.asarray(_hessian(target, point), np.float64)
    hessian = (hessian + hessian.T) / 2
    if not np.isfinite(hessian).all():
        return np.eye(target.dim), math.nan
    # In units in which the diagonal is one: parameters of very different scales are no flat directions.
    units = _safe_curvature(np.diagonal(hessian), 1e-300) ** -0.5
    values, vectors = np.linalg.eigh(units[:, None] * hessian * units)
    root = units[:, None] * vectors
    covariance = (root / _safe_curvature(values)) @ root.T
    return np.linalg.cholesky((covariance + covariance.T) / 2), float(values[0])


def _learnt_factor(found: Any, dim: int, diagonal: bool) -> np.ndarray:
    """A round covariance as wide as the curvature that the last step of L-BFGS has met, s'y / y'y."""
    steps, changes = found.hess_inv.sk, found.hess_inv.yk
    width = float(steps[-1] @ changes[-1] / (changes[-1] @ changes[-1])) if len(steps) else 1.0
    deviations = np.full(dim, np.sqrt(width) if np.isfinite(width) and width > 0 else 1.0)
    return deviations if diagonal else np.diag(deviations)


def _safe_curvature(values: np.ndarray, relative: float = 1e-8) -> np.ndarray:
    magnitude = np.abs(np.nan_to_num(values, nan=1.0, posinf=1.0, neginf=1.0))
    return np.maximum(magnitude, max(relative * magnitude.max(), 1e-12))
