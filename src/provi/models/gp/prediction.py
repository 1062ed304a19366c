r"""Predictions of a Gaussian process at new inputs, a block of rows at a time.

With $m = \mu + Ka$, $V^{-1} = K^{-1} + S$ at the data, the latent value at x has the mean $\mu + k'a$, $k = k(X, x)$.
Its variance is found in two steps, neither of which cancels or inverts K. The sites $s_n > 0$ first:
with $A = S_+^{1/2}$ and $LL' = I + AKA$,

$$v_+ = k(x, x) - |L^{-1}Ak|^2.$$

Where some $s_n < 0$ (likelihoods that are not log-concave), with $D = S_-^{1/2}$, $V_+ = K - T'T$, $T = L^{-1}AK$, and
$c = k - T'L^{-1}Ak$ the covariances that are left, $v = v_+ + |M^{-1}Dc|^2$, $MM' = I - DV_+D$, which is positive
definite exactly when V is. The jitter is noise of the data's own function values: new ones have none.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from provi.core.arguments import as_array, device_array, double_precision
from provi.core.compilation import padded_size
from provi.core.interpreter import instant_jit
from provi.core.types import Matrix, Scalar, Vector
from provi.families.dual_gaussian import DualPoint
from provi.families.location_scale import Point
from provi.families.site_solver import factorise
from provi.kernels import AbstractKernel
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.likelihoods import AbstractLikelihood
from provi.targets.sparse_gaussian_process import SparseGaussianProcess, inducing_features

_NUMBERS_AT_ONCE, _LARGEST_BLOCK, _SMALLEST_BLOCK = 2**22, 4096, 64
"""Entries of k(X, new) in a block (32 MiB in float64), and the fewest and the most new inputs in it."""


class ExactPredictor(eqx.Module):
    """The posterior process given all data: `exact_predictor` makes it.

    - `negative`: (T, D, M) of the formulae above; None where no site is negative.
    """

    kernel: AbstractKernel
    inputs: Float[Array, "terms columns"]
    prior_mean: Scalar
    dual_mean: Vector
    root_precision: Vector
    lower: Matrix
    negative: Any

    def latent(self, inputs: Any) -> tuple[Any, Any]:
        """Mean and variance of the latent function at each row of `inputs`; traced."""
        cross = self.kernel.matrix(self.inputs, inputs)
        solved = solve_triangular(self.lower, self.root_precision[:, None] * cross, lower=True)
        variance = self.kernel.diagonal(inputs) - jnp.sum(solved**2, axis=0)
        if self.negative is not None:
            half, root, lower = self.negative
            left = root[:, None] * (cross - half.T @ solved)
            variance = variance + jnp.sum(solve_triangular(lower, left, lower=True) ** 2, axis=0)
        return self.prior_mean + self.dual_mean @ cross, jnp.maximum(variance, 0)


class SparsePredictor(eqx.Module):
    r"""The posterior process given q(w) = N(m, CC') of the whitened inducing values.

    At an input with the features $\phi$ and the offset $\kappa$: mean $\phi'm$, variance $|C'\phi|^2 + \kappa$.
    """

    kernel: AbstractKernel
    inputs: Float[Array, "points columns"]
    factor: Any
    loc: Any
    root: Any

    def latent(self, inputs: Any) -> tuple[Any, Any]:
        """Mean and variance of the latent function at each row of `inputs`; traced."""
        features, offset = inducing_features(self.kernel, self.inputs, self.factor, inputs)
        return features @ self.loc, jnp.sum((features @ self.root) ** 2, axis=1) + offset


@double_precision
def exact_predictor(target: GaussianProcess, point: DualPoint) -> ExactPredictor:
    """Condition the process on the sites (a, s) of a fit: a factorisation, two where a site is negative."""
    lower, negative = _positive_sites(target.gram, point.site_precision), None
    if bool(np.any(np.asarray(point.site_precision) < 0)):
        negative = _negative_sites(target.gram, lower, point.site_precision)
        if not np.isfinite(np.asarray(negative[2])).all():
            raise ValueError("The posterior covariance is not positive definite in floating point: increase jitter.")
    root_precision = device_array(np.sqrt(np.maximum(np.asarray(point.site_precision), 0)))
    return ExactPredictor(target.kernel, target.inputs, target.mean, point.dual_mean, root_precision, lower, negative)


@double_precision
def sparse_predictor(target: SparseGaussianProcess, point: Point) -> SparsePredictor:
    """The predictor of a sparse process; it keeps the inducing points and not the data."""
    root = jnp.linalg.cholesky(point.scale.covariance())
    return SparsePredictor(target.kernel, target.inducing, target.factor, point.loc, root)


@double_precision
def predict_latent(predictor: ExactPredictor | SparsePredictor, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the latent function at each row of X; memory does not grow with the number of rows."""
    points = as_array("X", X, ndim=2).astype(predictor.inputs.dtype)
    if points.shape[1] != predictor.inputs.shape[1]:
        raise ValueError(f"X has {points.shape[1]} columns, but the process was fitted to {predictor.inputs.shape[1]}.")
    largest = largest_block(len(predictor.inputs))
    mean, variance = in_blocks(lambda block: _latent(predictor, block), (points,), largest)
    return mean, variance


@double_precision
def response_means(likelihood: AbstractLikelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """E[y] where the latent value is N(mean, variance)."""
    return in_blocks(lambda *block: (_response_means(likelihood, *block),), (mean, variance))[0]


@double_precision
def log_predictive_densities(
    likelihood: AbstractLikelihood, mean: np.ndarray, variance: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """log E p(y | f), f ~ N(mean, variance)."""
    parts = (mean, variance, np.asarray(y, mean.dtype))
    return in_blocks(lambda *block: (_log_predictive(likelihood, *block),), parts)[0]


@double_precision
def label_log_odds(likelihood: AbstractLikelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """log P(y = 1) - log P(y = 0) for labels 0 and 1: of two logarithms, so that certain labels keep their digits."""
    return in_blocks(lambda *block: (_log_odds(likelihood, *block),), (mean, variance))[0]


def largest_block(num_inputs: int) -> int:
    """Of new inputs at once, where the process is known by so many."""
    return int(np.clip(_NUMBERS_AT_ONCE // num_inputs, _SMALLEST_BLOCK, _LARGEST_BLOCK))


def in_blocks(
    function: Callable[..., Any], arrays: tuple[np.ndarray, ...], largest: int = _LARGEST_BLOCK
) -> tuple[np.ndarray, ...]:
    """`function` of each block of rows, filled up to a size that blocks share: few programs are compiled."""
    num = len(arrays[0])
    size = min(padded_size(num, _SMALLEST_BLOCK), largest)
    parts = []
    for start in range(0, num, size):
        blocks = [array[start : start + size] for array in arrays]
        missing = size - len(blocks[0])
        filled = [np.concatenate([block, np.repeat(block[-1:], missing, axis=0)]) for block in blocks]
        parts.append([np.asarray(found)[: size - missing] for found in function(*filled)])
    return tuple(np.concatenate(pieces) for pieces in zip(*parts, strict=True))


@instant_jit
def _positive_sites(gram: Any, precision: Any) -> Any:
    """L."""
    return factorise(gram, jnp.maximum(precision, 0)).lower


@instant_jit
def _negative_sites(gram: Any, lower: Any, precision: Any) -> tuple[Any, Any, Any]:
    """T, D and M."""
    half = solve_triangular(lower, jnp.sqrt(jnp.maximum(precision, 0))[:, None] * gram, lower=True)
    root = jnp.sqrt(jnp.maximum(-precision, 0))
    identity = jnp.eye(len(root), dtype=gram.dtype)
    left = identity - root[:, None] * (gram - half.T @ half) * root[None, :]
    return half, root, jnp.linalg.cholesky(left)


@instant_jit
def _latent(predictor: ExactPredictor | SparsePredictor, inputs: Any) -> tuple[Any, Any]:
    return predictor.latent(inputs)


@instant_jit
def _response_means(likelihood: AbstractLikelihood, mean: Any, variance: Any) -> Any:
    return likelihood.mean_response(mean, variance)


@instant_jit
def _log_predictive(likelihood: AbstractLikelihood, mean: Any, variance: Any, y: Any) -> Any:
    return likelihood.log_predictive(mean, variance, y)


@instant_jit
def _log_odds(likelihood: AbstractLikelihood, mean: Any, variance: Any) -> Any:
    one = jnp.ones_like(mean)
    return likelihood.log_predictive(mean, variance, one) - likelihood.log_predictive(mean, variance, 0 * one)
