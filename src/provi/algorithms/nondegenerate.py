"""What the projected methods share: their checks and the projection of a point on W_M."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.core.checks import check_positive
from provi.estimators.base import AbstractEstimator
from provi.families.location_scale import LocationScale, Point
from provi.geometry.projection import project_nondegenerate
from provi.targets.base import AbstractTarget
from provi.theory.solution_region import smallest_scale


def optional_positive(name: str) -> Callable[[Any], Any]:
    """A converter: None and arrays under transformation pass, numbers must be positive and become leaves."""

    def convert(value: Any) -> Any:
        if isinstance(value, int | float | np.generic | np.ndarray):
            return np.asarray(check_positive(name, value), dtype=np.float64)
        return value

    return convert


def check_projected(name: str, estimator: AbstractEstimator, family: LocationScale) -> None:
    """The parts of a projected method fit together, or a `ValueError` says which do not."""
    if not estimator.includes_entropy:
        raise ValueError(
            f"{name} needs the gradient of the whole objective, but the estimator '{estimator.name}' leaves the "
            f"entropy out. Use estimator=provi.estimators.Entropy() or StickingTheLanding(), or ProxSGD."
        )
    if family.scale == "triangular":
        raise ValueError(
            f"{name} projects on scales with sigma_min >= 1/sqrt(M), which is not a convex set for "
            f"scale='triangular'. Use scale='symmetric' or 'diagonal', or ProxSGD with 'triangular'."
        )
    estimator.check(family)


def known_smallest_scale(name: str, target: AbstractTarget) -> float:
    """1/sqrt(M) from the target's constants."""
    smoothness = target.constants.smoothness
    if not smoothness.known:
        raise ValueError(
            f"{name} needs the smoothness of the target, which is unknown ({smoothness.reason}). "
            f"Pass smallest_scale=, declare smoothness= on the target, use LogDensity.estimate_smoothness, or ProxSGD."
        )
    return smallest_scale(float(smoothness.value))  # pyright: ignore[reportArgumentType]


def project_point(point: Point, smallest: Any) -> Point:
    """The nearest point of W_M, `smallest` = 1/sqrt(M)."""
    return Point(point.loc, project_nondegenerate(point.scale, jnp.asarray(smallest, point.loc.dtype)))
