"""The coordinates in which q is standard, and the lower bound of the target's curvature seen in them."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import cholesky, solve_triangular

from provi.certificates.monte_carlo.batch_sums import LARGEST_DENSE, Frame, times
from provi.core.arguments import device_array
from provi.core.interpreter import weighed_jit
from provi.core.types import Draws
from provi.families.location_scale import LocationScale, Point
from provi.families.scales import Diagonal, Symmetric, Triangular
from provi.targets.base import AbstractTarget, Constant, Constants, autodiff


@dataclasses.dataclass(frozen=True)
class Grounds:
    """What the bounds rest on.

    - `convexity`: 'proven', 'declared', 'unknown' or 'violated'. - `curvature`: where the lower bound H of the
      Hessian comes from, or None when there is none. - `distance`: without it, why the best mean is not farther away.
    """

    convexity: str
    curvature: str | None
    distance: str | None = None


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
        claimed=device_array(claimed, target.dtype),
    )
    return frame, Grounds(_convexity(constants.log_concave), curvature)


@dataclasses.dataclass(frozen=True)
class Growth:
    r"""A cone below the potential in q's coordinates, phi(m + Cx) >= offset + slope |x|: what it says of the best q.

    For the best member (v, B), $E\phi(m + C(v + Bu)) - \log\det B \le l_0 = E\phi(m + Cu)$. With the cone, $E|v + Bu|
    \ge |v|$ (Jensen) and $E|v + Bu| \ge E|Bu| \ge c|B|_F$, $c = E|u_1|$ (u is symmetric; the norm is a concave function
    of the squares), half of each: $\tfrac12\mathrm{slope}(|v| + c|B|_F) \le l_0 - \mathrm{offset} + d\log(|B|_F/\sqrt
    d)$, and the largest value of $d\log(b/\sqrt d) - \tfrac12\mathrm{slope}\,cb$ is $d\log(2\sqrt
    d/(\mathrm{slope}\,c)) - d$.
    """

    slope: float
    offset: float
    dim: int
    mean_absolute: float

    def reach(self, energy: float) -> float:
        """How far the best mean can be from q's, in standard deviations, where l_0 is at most `energy`."""
        scale = self.dim * (math.log(2 * math.sqrt(self.dim) / (self.slope * self.mean_absolute)) - 1)
        return max(2 / self.slope * (energy - self.offset + scale), 1.0)


_GROWTH_RADII = (1.5, 3.0, 6.0)


def growth(target: AbstractTarget, family: LocationScale, frame: Frame) -> tuple[Growth | None, int]:
    r"""The cone from tangents at m +- rho C e_i, for a convex potential; None where there is none. And gradients spent.

    Let $W$ have the rows $(w_i^+ - w_i^-)/2$ and $M$ the rows $(w_i^+ + w_i^-)/2$, $w_i^\pm$ the gradients there. Give
    the tangent at $\pm\rho e_i$ the weight $(|x_i| \pm x_i)/(2|x|_1)$: the mean of their slopes along x is $(x'Wx +
    \sum_i|x_i|M_i'x)/|x|_1 \ge (\lambda_{\min}(\mathrm{sym}\,W) - |M|)|x|/\sqrt d$, and the largest tangent is above
    the mean.
    """
    dim = family.dim
    if dim > LARGEST_DENSE:
        return None, 0
    best, spent, energy = None, 0, None
    for radius in _GROWTH_RADII:
        points = radius * np.concatenate([np.eye(dim), -np.eye(dim)])
        values, slopes = (
            np.asarray(x, np.float64) for x in _tangents(target, frame, jnp.asarray(points, frame.loc.dtype))
        )
        spent += 2 * dim
        if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
            break
        plus, minus = slopes[:dim], slopes[dim:]
        odd, even = (plus - minus) / 2, (plus + minus) / 2
        # A thousandth is left to rounding.
        least = float(np.linalg.eigvalsh((odd + odd.T) / 2)[0]) - float(np.linalg.norm(even, 2))
        slope = 0.999 * least / math.sqrt(dim)
        offset = float(np.min(values - np.sum(slopes * points, axis=1)))
        found = Growth(slope, offset, dim, _mean_absolute(family)) if slope > 0 else None
        # Some energy, the same for all radii: to choose among them.
        energy = float(np.mean(values)) if energy is None else energy
        if found is not None and (best is None or found.reach(energy) < best.reach(energy)):
            best = found
    return best, spent


def _mean_absolute(family: LocationScale) -> float:
    """E|u_1|, or the lower bound that Hoelder's inequality gives: (E u_1^2)^3/2 / (E u_1^4)^1/2."""
    return float(family.base.kurtosis(family.dim)) ** -0.5


@weighed_jit
def _tangents(target: AbstractTarget, frame: Frame, points: Draws) -> tuple[Float[Array, " draws"], Draws]:
    """phi and w at m + Cx for each row x."""
    transposed = frame.factor if frame.factor.ndim == 1 else frame.factor.T
    places = frame.loc[None, :] + times(frame.factor, points)
    values, gradients = jax.lax.map(partial(autodiff, target), places, batch_size=2)
    return values, times(transposed, gradients)


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
