r"""What a fit knows of a row that it has not seen: predictors of linear models and of Gaussian processes; responses.

Of a Gaussian process, a block of rows at a time. With $m = \mu + Ka$, $V^{-1} = K^{-1} + S$ at the data, the latent
value at x has the mean $\mu + k'a$, $k = k(X, x)$. Its variance is found in two steps, neither of which cancels or
inverts K. The sites $s_n > 0$ first: with $A = S_+^{1/2}$ and $LL' = I + AKA$,

$$v_+ = k(x, x) - |L^{-1}Ak|^2.$$

Where some $s_n < 0$ (likelihoods that are not log-concave), with $D = S_-^{1/2}$, $V_+ = K - T'T$, $T = L^{-1}AK$, and
$c = k - T'L^{-1}Ak$ the covariances that are left, $v = v_+ + |M^{-1}Dc|^2$, $MM' = I - DV_+D$, which is positive
definite exactly when V is. The jitter is noise of the data's own function values: new ones have none.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy import linalg
from scipy.special import expit, ndtr

from provi.core.arguments import as_array, device_array, double_precision
from provi.core.compilation import padded_size
from provi.core.interpreter import instant_jit
from provi.core.types import Matrix, Scalar, Vector
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.location_scale import LocationScale, Point, square_root
from provi.families.scales import Diagonal
from provi.families.site_solver import StreamedPredictor, factorise, site_solver
from provi.kernels import AbstractKernel
from provi.kernels.rows import in_full, is_streamed
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.likelihoods import (
    AbstractLikelihood,
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from provi.targets.sparse_gaussian_process import SparseGaussianProcess, inducing_features

Four: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Mean, deviation, and the lower and the upper end of an interval, one of each a row."""

_LARGEST_JOINT = 4000
_STREAM = 2**31 - 6  # of the seed: not the one that drew the parameters
_NUMBERS_AT_ONCE, _LARGEST_BLOCK, _SMALLEST_BLOCK = 2**22, 4096, 64
"""Entries of k(X, new) in a block (32 MiB in float64), and the fewest and the most new inputs in it."""


@dataclasses.dataclass(frozen=True)
class Latent:
    """Mean and standard deviation of the linear predictor, or of the latent function, at each row."""

    mean: np.ndarray
    sd: np.ndarray


class AbstractNewRows(abc.ABC):
    """Rows of a model that the fit has not seen."""

    @abc.abstractmethod
    def moments(self) -> Latent:
        """Mean and deviation of eta under q."""

    @abc.abstractmethod
    def predict(self, kind: str, interval: float, num_draws: int, seed: int) -> Four:
        """Mean, deviation, lower and upper of the kind."""

    @abc.abstractmethod
    def responses(self, num_draws: int, seed: int) -> np.ndarray | None:
        """New responses (draws, rows), one draw of all parameters a draw; None where y cannot be drawn."""


@dataclasses.dataclass(frozen=True)
class LinearPredictor:
    r"""The distribution of $\eta = x'z$, z ~ N(m, V), in NumPy.

    - `root`: R with RR' = V, or its diagonal; with `explained`, T' of $V = \Sigma_0 - T'T$, RR' is that of the prior.
    - `intercept`: put a one in front of each row.
    """

    mean: np.ndarray
    root: np.ndarray
    explained: np.ndarray | None = None
    intercept: bool = False

    def moments(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance at each row, in blocks of bounded memory."""
        width = max(len(self.mean), 1 if self.explained is None else self.explained.shape[1])
        size = max(1, _NUMBERS_AT_ONCE // width)
        parts = [self._block(rows[start : start + size]) for start in range(0, len(rows), size)]
        return np.concatenate([mean for mean, _ in parts]), np.concatenate([variance for _, variance in parts])

    def _block(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = rows.astype(self.mean.dtype, copy=False)
        if self.intercept:
            rows = np.concatenate([np.ones((len(rows), 1), rows.dtype), rows], axis=1)
        spread = rows * self.root[None, :] if self.root.ndim == 1 else rows @ self.root
        variance = np.sum(spread**2, axis=1)
        if self.explained is not None:
            variance = np.maximum(variance - np.sum((rows @ self.explained) ** 2, axis=1), 0)
        return rows @ self.mean, variance


def linear_predictor(posterior: Any, intercept: bool = False) -> LinearPredictor:
    r"""Of a posterior over coefficients. In dual form, known by sites s, no matrix has the size of V:

    $V = \Sigma_0 - T'T$, $T = L^{-1}S^{1/2}X\Sigma_0$, $LL' = I + S^{1/2}X\Sigma_0X'S^{1/2}$.
    """
    family, point = posterior.family, posterior.point
    if isinstance(family, LocationScale):
        if isinstance(point.scale, Diagonal):
            return LinearPredictor(posterior.mean, posterior.standard_deviation, None, intercept)
        return LinearPredictor(posterior.mean, np.linalg.cholesky(posterior.covariance), None, intercept)
    if not isinstance(family, DualGaussian) or family.prior is None:
        raise ValueError(f"There are no predictions from the family {type(family).__name__} for a linear model.")
    mean = posterior.mean
    root = np.asarray(family.prior.factor, np.float64)
    if root.ndim < 2:
        root = np.broadcast_to(root, (family.dim,))
    # In float64, for a difference of two variances is taken, and in the type of the fit at the end.
    deviation = np.sqrt(np.asarray(point.site_precision, np.float64))
    scaled = deviation[:, None] * np.asarray(family.design, np.float64)
    half = scaled * root[None, :] if root.ndim == 1 else scaled @ root
    lower = np.linalg.cholesky(np.eye(len(half)) + half @ half.T)
    white = linalg.solve_triangular(lower, half, lower=True)
    explained = (white * root[None, :] if root.ndim == 1 else white @ root.T).T
    return LinearPredictor(mean, root.astype(mean.dtype), explained.astype(mean.dtype), intercept)


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

    def covariance(self, inputs: Any) -> Any:
        """Of the latent function at all rows of `inputs` together; traced."""
        cross = self.kernel.matrix(self.inputs, inputs)
        solved = solve_triangular(self.lower, self.root_precision[:, None] * cross, lower=True)
        found = self.kernel.matrix(inputs) - solved.T @ solved
        if self.negative is not None:
            half, root, lower = self.negative
            left = solve_triangular(lower, root[:, None] * (cross - half.T @ solved), lower=True)
            found = found + left.T @ left
        return found

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


class DensePredictor(eqx.Module):
    r"""The posterior process given q(f) = N(m, CC') at the data, $K = LL'$.

    At an input with the covariances k: mean $\mu + w'L^{-1}(m - \mu)$, $w = L^{-1}k$, and
    variance $k(x, x) - |w|^2 + |C'L^{-T}w|^2$.
    """

    kernel: AbstractKernel
    inputs: Float[Array, "terms columns"]
    prior_mean: Scalar
    lower: Matrix
    white_mean: Vector
    white_root: Matrix

    def covariance(self, inputs: Any) -> Any:
        """Of the latent function at all rows of `inputs` together; traced."""
        solved = solve_triangular(self.lower, self.kernel.matrix(self.inputs, inputs), lower=True)
        spread = self.white_root.T @ solved
        return self.kernel.matrix(inputs) - solved.T @ solved + spread.T @ spread

    def latent(self, inputs: Any) -> tuple[Any, Any]:
        """Mean and variance of the latent function at each row of `inputs`; traced."""
        solved = solve_triangular(self.lower, self.kernel.matrix(self.inputs, inputs), lower=True)
        variance = self.kernel.diagonal(inputs) - jnp.sum(solved**2, axis=0)
        variance = jnp.maximum(variance, 0) + jnp.sum((self.white_root.T @ solved) ** 2, axis=0)
        return self.prior_mean + self.white_mean @ solved, variance


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
def exact_predictor(target: GaussianProcess, point: DualPoint) -> ExactPredictor | StreamedPredictor:
    """Condition the process on the sites (a, s) of a fit: a factorisation, two where a site is negative."""
    if is_streamed(target.gram):
        solver = site_solver(target.gram, target.jitter)
        parts = (target.kernel, target.inputs, target.mean, point.dual_mean, point.site_precision)
        return StreamedPredictor(*parts, solver)
    lower, negative = _positive_sites(target.gram, point.site_precision), None
    if bool(np.any(np.asarray(point.site_precision) < 0)):
        negative = _negative_sites(target.gram, lower, point.site_precision)
        if not np.isfinite(np.asarray(negative[2])).all():
            raise ValueError("The posterior covariance is not positive definite in floating point: increase jitter.")
    root_precision = device_array(np.sqrt(np.maximum(np.asarray(point.site_precision), 0)))
    return ExactPredictor(target.kernel, target.inputs, target.mean, point.dual_mean, root_precision, lower, negative)


@double_precision
def dense_predictor(target: GaussianProcess, point: Point) -> DensePredictor:
    """Of a fit in a location-scale family, by the Cholesky factor of the kernel matrix."""
    lower = np.linalg.cholesky(np.asarray(in_full(target.gram), np.float64))
    root = square_root(point)
    prior_mean = float(target.mean)
    white_mean = linalg.solve_triangular(lower, np.asarray(point.loc, np.float64) - prior_mean, lower=True)
    parts = (target.mean, lower, white_mean, linalg.solve_triangular(lower, root, lower=True))
    return DensePredictor(target.kernel, target.inputs, *(device_array(part, target.dtype) for part in parts))


@double_precision
def sparse_predictor(target: SparseGaussianProcess, point: Point) -> SparsePredictor:
    """The predictor of a sparse process; it keeps the inducing points and not the data."""
    root = jnp.linalg.cholesky(point.scale.covariance())
    return SparsePredictor(target.kernel, target.inducing, target.factor, point.loc, root)


@double_precision
def process_rows(target: Any, posterior: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, Callable]:
    """Mean and variance of the latent function at each row of X, and what draws it at all of them together.

    Of a sparse process, what the inducing points leave open is drawn for each row by itself, as `target.predict` does.
    """
    point = posterior.point
    if isinstance(target, SparseGaussianProcess):
        predictor: Any = sparse_predictor(target, point)
    elif isinstance(point, DualPoint):
        predictor = exact_predictor(target, point)
    else:
        predictor = dense_predictor(target, point)
    mean, variance = predict_latent(predictor, X)

    def joint(num_draws: int, seed: int) -> np.ndarray:
        if isinstance(target, SparseGaussianProcess):
            return _sparse_draws(predictor, posterior, X, num_draws, seed)
        if len(X) > _LARGEST_JOINT:
            raise ValueError(
                f"X_new has {len(X)} rows, and draws of the function at all of them together take a matrix of that "
                f"size: pass {_LARGEST_JOINT} rows at most, or take fit.predict(X_new, kind='response')."
            )
        return _joint_draws(predictor, mean, X, num_draws, seed)

    return mean, variance, joint


@double_precision
def _joint_draws(predictor: Any, mean: np.ndarray, X: np.ndarray, num_draws: int, seed: int) -> np.ndarray:
    covariance = np.asarray(_covariance(predictor, device_array(X, predictor.inputs.dtype)), np.float64)
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    root = vectors * np.sqrt(np.maximum(values, 0))
    noise = np.random.default_rng([seed, 3]).standard_normal((num_draws, len(X)))
    return mean + noise @ root.T


@double_precision
def _sparse_draws(predictor: Any, posterior: Any, X: np.ndarray, num_draws: int, seed: int) -> np.ndarray:
    features, left = (np.asarray(part) for part in _features(predictor, device_array(X, predictor.inputs.dtype)))
    noise = np.random.default_rng([seed, 3]).standard_normal((num_draws, len(X)))
    return np.asarray(posterior.sample(num_draws, seed)) @ features.T + np.sqrt(left) * noise


@double_precision
def predict_latent(
    predictor: ExactPredictor | StreamedPredictor | DensePredictor | SparsePredictor, X: Any
) -> tuple[np.ndarray, np.ndarray]:
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
def _latent(
    predictor: ExactPredictor | StreamedPredictor | DensePredictor | SparsePredictor, inputs: Any
) -> tuple[Any, Any]:
    return predictor.latent(inputs)


@instant_jit
def _covariance(predictor: Any, inputs: Any) -> Any:
    return predictor.covariance(inputs)


@instant_jit
def _features(predictor: SparsePredictor, inputs: Any) -> Any:
    return inducing_features(predictor.kernel, predictor.inputs, predictor.factor, inputs)


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


def mean_function(likelihood: AbstractLikelihood, eta: np.ndarray) -> np.ndarray:
    """mu(eta) = E[y | eta], entry by entry."""
    match likelihood:
        case BernoulliLogit():
            return expit(eta)
        case BernoulliProbit():
            return ndtr(eta)
        case GaussianNoise():
            return eta
        case StudentT():
            return eta if float(likelihood.df) > 1 else np.full_like(eta, np.nan)
        case Poisson() | NegativeBinomial():
            return np.exp(eta)
        case _:
            flat = eta.reshape(-1)
            return response_means(likelihood, flat, np.zeros_like(flat)).reshape(eta.shape)


@double_precision
def draw_responses(likelihood: AbstractLikelihood, eta: np.ndarray, seed: int) -> np.ndarray | None:
    """y ~ p(y | eta), entry by entry; None where the likelihood does not say how."""
    key = jax.random.fold_in(jax.random.key(seed), _STREAM)
    if jax.eval_shape(lambda: likelihood.draw(key, jnp.zeros(1))) is None:
        return None
    flat, count = eta.reshape(-1), [0]

    def draw(block: np.ndarray) -> tuple[Any]:
        count[0] += 1
        return (_draw(likelihood, jax.random.fold_in(key, count[0]), block),)

    return in_blocks(draw, (flat,), _NUMBERS_AT_ONCE)[0].reshape(eta.shape)


@eqx.filter_jit
def _draw(likelihood: AbstractLikelihood, key: Any, eta: Any) -> Any:
    return likelihood.draw(key, eta)


def no_draw(likelihood: AbstractLikelihood) -> str:
    """What is said of a likelihood without draws."""
    return f"{type(likelihood).__name__} does not say how a response is drawn: take kind='mean' or kind='latent'."
