"""The coordinates in which q is standard, and the lower bound of the target's curvature seen in them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky, solve_triangular

from provi.certificates.monte_carlo.batch_sums import LARGEST_DENSE, Frame
from provi.families.location_scale import Point
from provi.families.scales import Diagonal, Symmetric, Triangular
from provi.targets.base import AbstractTarget, Constant, Constants


@dataclasses.dataclass(frozen=True)
class Grounds:
    """What the bounds rest on.

    - `convexity`: 'proven', 'declared', 'unknown' or 'violated'. - `curvature`: where the lower bound H of the
      Hessian comes from, or None when there is none.
    """

    convexity: str
    curvature: str | None


def whitened_frame(target: AbstractTarget, point: Point) -> tuple[Frame, Grounds]:
    """m, C, and W with |W r|^2 >= r'(C'HC)^-1 r for the best known H: a matrix if the target has one, else mu I.

    A low-rank scale is certified against all covariances, a larger family, with C the Cholesky factor of its own.

    **Arguments:**

    - `point`: a member q, of dimension at most `LARGEST_DENSE` unless its scale is diagonal.
    """
    constants, factor = target.constants, scale_factor(point)
    claimed = claimed_convexity(constants)
    whitener, curvature = _from_matrix(target, factor), "a proven lower bound of the Hessian"
    if whitener is None:
        whitener = _from_number(claimed, factor)
        strong = constants.strong_convexity
        curvature = None if whitener is None else f"strong convexity {claimed:.4g} ({strong.status})"
    frame = Frame(
        loc=jnp.asarray(point.loc, target.dtype),
        factor=jnp.asarray(factor, target.dtype),
        whitener=None if whitener is None else jnp.asarray(whitener, target.dtype),
        claimed=jnp.asarray(claimed, target.dtype),
    )
    return frame, Grounds(_convexity(constants.log_concave), curvature)


def _convexity(log_concave: Constant) -> str:
    if log_concave.value is False:
        return "violated"
    # An estimate of convexity is the absence of a counter-example, which 'unknown' is too.
    return "unknown" if log_concave.status == "estimated" else log_concave.status


def claimed_convexity(constants: Constants) -> float:
    """mu where it is proven or declared and not refuted, else 0."""
    strong = constants.strong_convexity
    return float(strong.value or 0.0) if strong.status in ("proven", "declared") else 0.0


def scale_factor(point: Point) -> np.ndarray:
    """C as a matrix, or its diagonal; the Cholesky factor of the covariance for a low-rank scale."""
    scale = point.scale
    match scale:
        case Diagonal(diagonal=diagonal):
            return np.asarray(diagonal, np.float64)
        case Triangular(matrix=matrix) | Symmetric(matrix=matrix):
            return np.asarray(matrix, np.float64)
        case _:
            return np.linalg.cholesky(np.asarray(scale.covariance(), np.float64))


def _from_matrix(target: AbstractTarget, factor: np.ndarray) -> np.ndarray | None:
    """L^-1 where LL' = C'HC, H the target's own matrix, moved to the safe side by the rounding of its computation."""
    dim = factor.shape[0]
    bounds = target.curvature_bounds() if dim <= LARGEST_DENSE else None
    if bounds is None:
        return None
    matrix = factor if factor.ndim == 2 else np.diag(factor)
    seen = matrix.T @ bounds[0] @ matrix
    magnitude = np.linalg.norm(np.abs(matrix).T @ np.abs(bounds[0]) @ np.abs(matrix))
    slack = 4 * dim * np.finfo(np.float64).eps * magnitude
    try:
        lower = cholesky((seen + seen.T) / 2 - slack * np.eye(dim), lower=True)
    except np.linalg.LinAlgError:
        return None  # Singular up to rounding: nothing is known in some direction.
    return solve_triangular(lower, np.eye(dim), lower=True)


def _from_number(claimed: float, factor: np.ndarray) -> np.ndarray | None:
    """(C^-1)' / sqrt(mu), for H = mu I."""
    if not claimed > 0:
        return None
    root = np.sqrt(claimed)
    return 1 / (root * np.abs(factor)) if factor.ndim == 1 else np.linalg.inv(factor).T / root
