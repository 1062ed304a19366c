"""A target seen in other coordinates, in which it is closer to round."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import as_array, double_precision
from provi.core.types import Indices, Matrix, Scalar, Vector
from provi.targets.base import AbstractFiniteSum, AbstractTarget, Constant, Constants, outer_spectrum, proven
from provi.targets.data import default_names

Bounds = tuple[np.ndarray, np.ndarray | None] | None


class AbstractWhitened(AbstractTarget):
    """What every target in other coordinates z = shift + factor @ x says."""

    target: eqx.AbstractVar[AbstractTarget]
    shift: eqx.AbstractVar[Vector]
    factor: eqx.AbstractVar[Matrix | Vector]

    @property
    def dim(self) -> int:
        """The dimension of the target."""
        return self.target.dim

    @property
    def dtype(self) -> Any:
        """The floating type of the target."""
        return self.target.dtype

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """`x[0]`, `x[1]`, ...: mixtures of the target's parameters."""
        return default_names("x", self.dim)

    def original(self, x: Vector) -> Vector:
        """z = shift + factor @ x."""
        return self.shift + _times(self.factor, x)

    def curvature_bounds(self) -> Bounds:
        """factor' H factor for the target's bounds H."""
        return _bounds(self.target, self.factor)

    @property
    def constants(self) -> Constants:
        """From the target's matrices where it has them, else from its numbers and the factor's extremes."""
        return _constants(self.target, self.factor)


class Whitened(AbstractWhitened):
    """The law of x where z = shift + factor @ x follows `target`: p(x) = p_target(z) |det factor|."""

    target: AbstractTarget
    shift: Vector
    factor: Matrix | Vector

    @double_precision
    def __init__(self, target: AbstractTarget, shift: Any, factor: Any):
        """**Arguments:**

        - `target`: the target in the coordinates z.
        - `shift`: (dim,), where the origin goes.
        - `factor`: (dim, dim), lower triangular, with a positive diagonal; or (dim,), that diagonal alone.
        """
        self.target = target
        self.shift, self.factor = _coordinates(target, shift, factor)
        if target.division is not None:
            self.division = target.division

    def potential(self, x: Vector) -> Scalar:
        """-log p_target(shift + factor @ x) - log|det factor|."""
        return self.target.potential(self.original(x)) - _log_det(self.factor)


class WhitenedFiniteSum(AbstractWhitened, AbstractFiniteSum):
    """`Whitened`, for a target that is a sum over data: its mini-batches carry over."""

    target: AbstractFiniteSum
    shift: Vector
    factor: Matrix | Vector

    @double_precision
    def __init__(self, target: AbstractFiniteSum, shift: Any, factor: Any):
        """**Arguments:** as for `Whitened`."""
        self.target = target
        self.shift, self.factor = _coordinates(target, shift, factor)
        if target.division is not None:
            self.division = target.division

    @property
    def num_terms(self) -> int:
        """The number of data terms of the target."""
        return self.target.num_terms

    def prior_potential(self, x: Vector) -> Scalar:
        """The prior's part, with -log|det factor|."""
        return self.target.prior_potential(self.original(x)) - _log_det(self.factor)

    def term_potentials(self, x: Vector, indices: Indices | slice) -> Float[Array, " batch"]:
        """The target's terms at shift + factor @ x."""
        return self.target.term_potentials(self.original(x), indices)


def _times(factor: Matrix | Vector, x: Vector) -> Vector:
    return factor @ x if factor.ndim == 2 else factor * x


def _coordinates(target: AbstractTarget, shift: Any, factor: Any) -> tuple[Vector, Matrix | Vector]:
    shift, factor, dim = as_array("shift", shift), as_array("factor", factor), target.dim
    if shift.shape != (dim,):
        raise ValueError(f"shift must have shape ({dim},); its shape is {shift.shape}.")
    if factor.shape not in ((dim, dim), (dim,)):
        raise ValueError(f"factor must have shape ({dim}, {dim}) or ({dim},); its shape is {factor.shape}.")
    upper, diagonal = (np.triu(factor, 1), np.diagonal(factor)) if factor.ndim == 2 else (np.zeros(1), factor)
    if upper.any() or not (diagonal > 0).all():
        raise ValueError("factor must be lower triangular with a positive diagonal, e.g. a Cholesky factor.")
    return jnp.asarray(shift, target.dtype), jnp.asarray(factor, target.dtype)


def _log_det(factor: Matrix | Vector) -> Scalar:
    return jnp.sum(jnp.log(jnp.diagonal(factor) if factor.ndim == 2 else factor))


def _bounds(target: AbstractTarget, factor: Matrix | Vector) -> Bounds:
    bounds = target.curvature_bounds()
    if bounds is None:
        return None
    host = np.asarray(factor, np.float64)
    host = host if host.ndim == 2 else np.diag(host)
    low, high = bounds
    return _congruence(low, host, -1.0), None if high is None else _congruence(high, host, 1.0)


def _congruence(matrix: np.ndarray, factor: np.ndarray, side: float) -> np.ndarray:
    """factor' matrix factor, moved to one side by a bound on its rounding error."""
    product = factor.T @ matrix @ factor
    magnitude = np.linalg.norm(np.abs(factor).T @ np.abs(matrix) @ np.abs(factor))
    rounding = 4 * factor.shape[0] * np.finfo(np.float64).eps * magnitude
    return (product + product.T) / 2 + side * rounding * np.eye(factor.shape[0])


def _constants(target: AbstractTarget, factor: Matrix | Vector) -> Constants:
    known, bounds = target.constants, _bounds(target, factor)
    host = np.asarray(factor, np.float64)
    singular = np.linalg.svd(host, compute_uv=False) if host.ndim == 2 else np.sort(host)[::-1]
    slack = 8 * factor.shape[0] * np.finfo(np.float64).eps * singular[0]
    lower = _rescaled(known.strong_convexity, max(singular[-1] - slack, 0.0) ** 2)
    upper = _rescaled(known.smoothness, (singular[0] + slack) ** 2)
    if bounds is not None:
        least = max(outer_spectrum(bounds[0])[0], float(lower.value or 0.0))
        lower = proven(least, "lambda_min(factor' H factor) of the Hessian's lower bound, rounded down")
        if bounds[1] is not None:
            upper = proven(outer_spectrum(bounds[1])[1], "lambda_max(factor' H factor), rounded up")
    return Constants(log_concave=known.log_concave, strong_convexity=lower, smoothness=upper)


def _rescaled(constant: Constant, factor: float) -> Constant:
    if constant.value is None:
        return constant
    reason = f"{constant.reason}; in whitened coordinates"
    return Constant(float(constant.value * factor), constant.status, reason)
