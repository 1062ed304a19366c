"""The method behind `provi.fit(target)`: whiten by the Laplace approximation, then projected gradients.

In whitened coordinates z = mode + F x the posterior is close to the unit Gaussian, so one step size serves all
directions; growing batches of sticking-the-landing gradients let the noise vanish at a constant step (paper 004,
third dynamic strategy). The step is 1/(2M) with M the largest curvature met at draws of the Laplace approximation,
which is many times smaller than the worst case over all of space that the theorem takes: nothing is guaranteed of
this method, and a step that leaves the finite numbers is rejected and halved.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.laplace import laplace_approximation
from provi.algorithms.mpsgd import MPSGD
from provi.core.lanczos import extreme_eigenvalues
from provi.estimators.entropy import Entropy
from provi.estimators.sticking_the_landing import StickingTheLanding
from provi.families.location_scale import LocationScale, Point
from provi.families.scales import Diagonal, LowRank
from provi.runtime.budget import Budget
from provi.runtime.run import Run, run
from provi.schedules.batch_sizes import PolynomialBatch
from provi.targets.base import AbstractFiniteSum, AbstractTarget
from provi.targets.whitened import Whitened, WhitenedFiniteSum
from provi.theory.mpsgd import largest_step_size
from provi.theory.solution_region import smallest_scale

NUM_STEPS = 300
_NUM_POINTS, _NUM_PRODUCTS, _FALLBACK_CURVATURE = 16, 20, 100.0
BATCH_EXPONENT = 1.1
"""N_k = (k+1)^1.1: just above 1, which Theorem 7 of paper 004 needs at a constant step."""


def run_default(
    target: AbstractTarget, family: LocationScale, start: Point | None, *, budget: Budget, **options: Any
) -> Run:
    """Run in whitened coordinates and map the result back; the ELBO is the same in both."""
    origin = target.default_location if start is None else np.asarray(start.loc, np.float64)
    by_coordinate = family.scale in ("diagonal", "low_rank")
    laplace = laplace_approximation(target, origin, diagonal=by_coordinate)
    kind = WhitenedFiniteSum if isinstance(target, AbstractFiniteSum) else Whitened
    whitened = kind(target, laplace.mode, laplace.factor)  # pyright: ignore[reportArgumentType]
    inner = LocationScale(family.dim, family.base, _inner_scale(family), rank=family.rank)
    curvature = _largest_curvature(whitened)
    known = whitened.constants.smoothness
    smoothness = float(known.value) if known.known else 4 * curvature  # pyright: ignore[reportArgumentType]
    algorithm = MPSGD(
        step_size=largest_step_size(curvature),
        num_draws=PolynomialBatch(1, BATCH_EXPONENT),
        estimator=StickingTheLanding() if family.base.has_score else Entropy(),
        smallest_scale=smallest_scale(smoothness),
    )
    unit = inner.point(np.zeros(target.dim), 1.0, target.dtype)
    steps = budget.steps or (NUM_STEPS if budget.gradients is None and budget.seconds is None else 2**31)
    result = run(algorithm, whitened, inner, unit, budget=budget, num_steps=steps, **options)
    return dataclasses.replace(
        result,
        point=_map_back(family, result.point, laplace.mode, laplace.factor),
        last=_map_back(family, result.last, laplace.mode, laplace.factor),
    )


def _inner_scale(family: LocationScale) -> str:
    return "symmetric" if family.scale == "triangular" else family.scale


def _largest_curvature(target: AbstractTarget) -> float:
    """The largest curvature met at draws of the Laplace approximation, by Lanczos on Hessian-vector products."""
    points = jax.random.normal(jax.random.key(0), (_NUM_POINTS, target.dim), target.dtype)

    def largest(key, point):
        def product(direction):
            return jax.jvp(jax.grad(target.potential), (point,), (direction,))[1]

        low, high = extreme_eigenvalues(product, key, target.dim, _NUM_PRODUCTS, target.dtype)
        return jnp.maximum(jnp.abs(low), jnp.abs(high))

    found = np.asarray(jax.vmap(largest)(jax.random.split(jax.random.key(1), _NUM_POINTS), points))
    finite = found[np.isfinite(found)]
    return max(1.0, float(finite.max())) if finite.size else _FALLBACK_CURVATURE


def _map_back(family: LocationScale, point: Point, mode: np.ndarray, factor: np.ndarray) -> Point:
    """q in the original coordinates: mean mode + F m, covariance F CC' F'."""
    dtype = point.loc.dtype
    times = np.matmul if factor.ndim == 2 else _scale_rows
    loc = mode + times(factor, np.asarray(point.loc, np.float64))
    diagonal = jnp.asarray(factor if factor.ndim == 1 else np.diagonal(factor), dtype)
    match point.scale:
        case Diagonal(diagonal=inner):
            return Point(jnp.asarray(loc, dtype), Diagonal(diagonal * inner))
        case LowRank(diagonal=inner, factor=columns):
            return Point(jnp.asarray(loc, dtype), LowRank(diagonal * inner, diagonal[:, None] * columns))
        case _:
            root = times(factor, np.asarray(point.scale.apply(jnp.eye(family.dim, dtype=dtype)), np.float64).T)
            covariance = root @ root.T
            return family.point_from_covariance(loc, (covariance + covariance.T) / 2, dtype)


def _scale_rows(diagonal: np.ndarray, array: np.ndarray) -> np.ndarray:
    return diagonal * array if array.ndim == 1 else diagonal[:, None] * array
