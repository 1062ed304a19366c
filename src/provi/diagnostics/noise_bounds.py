"""The theory's bounds on the noise of the gradient estimators at one point, where its constants are known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.tree import squared_norm, subtract
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.families.scales import Diagonal
from provi.targets.base import AbstractTarget
from provi.targets.gaussian import Gaussian
from provi.targets.linear_regression import LinearRegression
from provi.theory import noise
from provi.theory.solution_region import mode_distance_bound, reference_distance_squared_bound, smallest_scale


def noise_bounds(
    target: AbstractTarget, family: LocationScale, point: Point, optimum: Point | None
) -> tuple[dict[str, float], list[str]]:
    r"""$a|w - w^\star|^2 + b$ for each estimator, by its name, and why a bound is missing.

    $a$ and $b$ are those of `provi.theory.noise`. The distance of $w^\star$ from $\bar w = (\bar z, 0)$, $\bar z$ the
    mode, which $b$ needs, is at most $(|\nabla\phi(m^\star)|/\mu)^2 + |C^\star|^2$, and at most $d/\mu$.
    """
    constants = target.constants
    if optimum is None:
        return {}, ["The theory's bounds are in the distance from the optimum: pass optimum= to see them."]
    if family.scale == "low_rank":
        return {}, ["No theorem covers scale='low_rank'."]
    if not (constants.smoothness.known and constants.strong_convexity.known and constants.strong_convexity.value):
        return {}, [
            "The theory's bounds need the target's smoothness and strong convexity; declare them on the target."
        ]
    try:
        kurtosis = float(family.base.kurtosis(family.dim))
    except ValueError as error:
        return {}, [str(error)]
    smoothness, strong_convexity = float(constants.smoothness.value), float(constants.strong_convexity.value)  # pyright: ignore
    known: dict[str, Any] = {
        "dim": family.dim,
        "smoothness": smoothness,
        "reference_distance_squared": _reference_distance_squared(target, optimum, strong_convexity),
        "kurtosis": kurtosis,
    }
    found, notes = {"energy": noise.energy_noise(**known)}, []
    if "estimated" in (constants.smoothness.status, constants.strong_convexity.status):
        notes.append("The bounds rest on estimated constants of the target and may be too small.")
    if _smallest_singular_value(point) < smallest_scale(smoothness) * (1 - 1e-6):
        notes.append("The bounds of entropy and sticking the landing hold for singular values of C >= 1/sqrt(M) only.")
    else:
        found["entropy"] = noise.entropy_noise(**known)
        if isinstance(family.base, Normal):
            residual = _residual_smoothness(target, family, smoothness)
            found["sticking the landing"] = noise.stl_noise(**known, residual_smoothness=residual)
        else:
            notes.append("The bound of sticking the landing is for the normal base only.")
    distance = float(squared_norm(subtract(point, optimum)))
    return {name: float(bound.slope * distance + bound.floor) for name, bound in found.items()}, notes


def _smallest_singular_value(point: Point) -> float:
    if isinstance(point.scale, Diagonal):
        return float(jnp.min(jnp.abs(point.scale.diagonal)))
    return max(float(np.linalg.eigvalsh(np.asarray(point.scale.covariance(), np.float64))[0]), 0.0) ** 0.5


def _reference_distance_squared(target: AbstractTarget, optimum: Point, strong_convexity: float) -> float:
    gradient_norm = float(jnp.linalg.norm(jax.grad(target.potential)(optimum.loc)))
    to_mode = mode_distance_bound(gradient_norm, strong_convexity)
    measured = to_mode**2 + float(squared_norm(optimum.scale))
    return min(measured, reference_distance_squared_bound(target.dim, strong_convexity))


def _residual_smoothness(target: AbstractTarget, family: LocationScale, smoothness: float) -> float:
    """K of log p - log q*: zero for a Gaussian posterior in the family; both Hessians lie in [0, M] if convex."""
    if isinstance(target, Gaussian | LinearRegression) and family.scale != "diagonal":
        return 0.0
    return smoothness if target.constants.log_concave.value is True else 2 * smoothness
