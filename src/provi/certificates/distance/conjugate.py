r"""Upper bounds on the convex conjugate of a potential at many points at once.

In coordinates $z = m + Rw$ the potential is $f(w) = \phi(m + Rw) - \phi(m)$, and for a row u of the points $f^*(u) =
\sup_w\langle u, w\rangle - f(w)$. Every w gives a lower bound; with $f - \tfrac12|w|_H^2$ convex, its residual $r =
\nabla f(w) - u$ makes it an upper one, $f^*(u) \le \langle u, w\rangle - f(w) + \tfrac12|r|_{H^{-1}}^2$.

The maximisers are found by L-BFGS with unit steps, all rows together, each until its own remainder is small: slopes
only, and in float32, which is several times as fast; what is reported is evaluated at the end in float64, and rows that
float32 could not finish go on in float64. The loop is on the host: 3 to 30 passes, each a call of a compiled function.
"""

import abc
import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from provi.certificates.linear.bounds import rounded_down
from provi.core.arguments import device_array
from provi.core.devices import on_host
from provi.core.interpreter import instant_jit
from provi.targets.base import AbstractTarget

_EPS = float(np.finfo(float).eps)
_NUMBERS_AT_ONCE, _FEW_NUMBERS, _FEW_TERMS, _LARGEST_CHUNK = 2**22, 2**17, 2**12, 512
_MEMORY, _MOST_PASSES, _PATIENCE = 6, 60, 10
_SINGLE_FLOOR = 1e-9
"""Remainders below this are not sought in float32."""


class AbstractProblem(eqx.Module):
    """f in coordinates that may be changed, and a lower bound H of its Hessian."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The length of w."""

    @property
    @abc.abstractmethod
    def chunk(self) -> int:
        """Points that one call evaluates."""

    @abc.abstractmethod
    def transformed(self, matrix: np.ndarray) -> "AbstractProblem":
        """The same potential in the coordinates v of w = `matrix` v; host arrays."""

    @abc.abstractmethod
    def curvature(self) -> np.ndarray:
        """H, rounded down."""

    @abc.abstractmethod
    def slopes(self, w: Any) -> Any:
        """The gradient of f at each row of w, in the floating type of w; traced."""

    @abc.abstractmethod
    def evaluate(self, w: Any) -> tuple[Any, Any, Any, Any]:
        """f and its gradient at each row of w, in float64, and bounds on the errors of f and of the gradient's norm."""


class RowSums(NamedTuple):
    """What the terms add to f at each row of w (`value`, less that at zero; `gradient`), and to its errors: their
    magnitudes, their slopes times the errors of the predictors (`moved`), and the error of their gradient."""

    value: Any
    gradient: Any
    size: Any
    moved: Any
    gradient_error: Any


def with_prior(problem: Any, w: Any, found: RowSums, sums: float, products: float) -> tuple[Any, Any, Any, Any]:
    """`AbstractProblem.evaluate` once the terms are summed; `sums`, `products`: relative rounding of such sums."""
    prior, length = w @ problem.prior_curvature, jnp.linalg.norm(w, axis=1)
    value = found.value + jnp.sum(w * (0.5 * prior + problem.prior_gradient[None, :]), axis=1, dtype=jnp.float64)
    sizes = jnp.linalg.norm(prior, axis=1), jnp.linalg.norm(problem.prior_gradient)
    value_error = sums * (found.size + length * (sizes[0] + sizes[1])) + problem.gradient_error * length
    value_error += 2 * found.moved + 0.5 * problem.curvature_error * length**2
    error = found.gradient_error + products * (sizes[0] + sizes[1] + length)
    error += problem.gradient_error + problem.curvature_error * length
    return value, prior + problem.prior_gradient[None, :] + found.gradient, value_error, error


class RowProblem(AbstractProblem):
    r"""A Gaussian prior and terms of one number each: $f(w) = \tfrac12w'Hw + b'w + \sum_n\ell_n(\mu_n + x_n'Rw)$.

    - `design`: X, or None for the identity. - `root`: R. - `centre`: mu. - `response`: y. - `likelihood`: the terms.
    - `prior_curvature`, `prior_gradient`: H and b, in the coordinates of w; `curvature_error`, `gradient_error`: bounds
      on the errors of H (spectral) and of b (norm).
    - `row_error`, `centre_error`: bounds on the rounding of each x_n'R, in its norm, and of each mu_n.
    """

    design: Any
    root: Any
    centre: Any
    response: Any
    likelihood: Any
    prior_curvature: Any
    prior_gradient: Any
    curvature_error: Any
    gradient_error: Any
    row_error: Any
    centre_error: Any
    largest_weight: float = eqx.field(static=True)
    """An upper bound of the terms' second derivatives, or infinity."""

    quadratic: bool = eqx.field(static=True)
    """Whether all terms are: their second derivatives are constant."""

    multiples: Any = None
    """What each term is multiplied by, or None."""

    @property
    def dim(self) -> int:
        """The number of columns of R."""
        return self.root.shape[1]

    @property
    def chunk(self) -> int:
        """As many as keep the linear predictors of all of them in the cache, or nearly."""
        # Of few terms, chunks that stay in the processor's cache: NumPy carries them out, an operation at a time.
        most = _FEW_NUMBERS if len(self.centre) <= _FEW_TERMS else _NUMBERS_AT_ONCE
        return int(np.clip(2 ** int(math.log2(max(most // len(self.centre), 1))), 8, _LARGEST_CHUNK))

    def transformed(self, matrix: np.ndarray) -> "RowProblem":
        """H becomes A'HA, its error and those of the rows grow with |A|."""
        size, rounding = float(np.linalg.norm(matrix, 2)), 4 * self.dim * _EPS
        curvature = matrix.T @ np.asarray(self.prior_curvature) @ matrix
        error = size**2 * (float(self.curvature_error) + rounding * float(np.linalg.norm(self.prior_curvature)))
        gradient_error = float(self.gradient_error) + rounding * float(np.linalg.norm(self.prior_gradient))
        return RowProblem(
            self.design,
            self.root @ matrix,
            self.centre,
            self.response,
            self.likelihood,
            (curvature + curvature.T) / 2,
            matrix.T @ np.asarray(self.prior_gradient),
            error,
            size * gradient_error,
            size * (np.asarray(self.row_error) + rounding * on_host(self._row_sizes())),
            self.centre_error,
            self.largest_weight,
            self.quadratic,
            self.multiples,
        )

    def curvature(self) -> np.ndarray:
        """H less its error."""
        return rounded_down(np.asarray(self.prior_curvature), float(self.curvature_error))

    def _predictors(self, w: Any) -> Any:
        moved = w @ self.root.T.astype(w.dtype)
        moved = moved if self.design is None else moved @ jnp.asarray(self.design).T
        return self.centre.astype(w.dtype)[None, :] + moved

    def _collect(self, slopes: Any) -> Any:
        rows = slopes if self.design is None else slopes @ jnp.asarray(self.design)
        return rows @ self.root.astype(slopes.dtype)

    def _terms(self, eta: Any) -> tuple[Any, Any]:
        y = jnp.asarray(self.response, eta.dtype)
        values, pull = jax.vjp(jax.vmap(lambda row: self.likelihood.potential(row, y)), eta)
        each = jnp.ones_like(values)
        if self.multiples is not None:
            each = each * self.multiples.astype(eta.dtype)[None, :]
        return values * each, pull(each)[0]

    def slopes(self, w: Any) -> Any:
        """One product with X and one with X'."""
        curvature, gradient = (x.astype(w.dtype) for x in (self.prior_curvature, self.prior_gradient))
        return w @ curvature + gradient[None, :] + self._collect(self._terms(self._predictors(w))[1])

    def evaluate(self, w: Any) -> tuple[Any, Any, Any, Any]:
        """Sums of N products are off by N eps times the sum of their magnitudes; a predictor by what is stated."""
        eps, eta, count = float(jnp.finfo(w.dtype).eps), self._predictors(w), len(self.centre)
        values, slopes = self._terms(eta)
        first, _ = self._terms(self.centre[None, :])
        products, unit = (count + 8 * self.dim) * eps, 16 * self.dim * eps
        norms, sizes, length = self._row_norms(), jnp.abs(slopes), jnp.linalg.norm(w, axis=1)
        # A predictor is off by `along` times |w|, and by `always`.
        along, always = self.row_error + unit * norms, self.centre_error + unit * jnp.abs(self.centre)
        if math.isfinite(self.largest_weight):
            bent = self.largest_weight * (length * (norms @ along) + norms @ always)
        else:
            weights = jnp.abs(jax.jvp(lambda x: self._terms(x)[1], (eta,), (jnp.ones_like(eta),))[1])
            bent = length * (weights @ (norms * along)) + weights @ (norms * always)
        found = RowSums(
            jnp.sum(values - first, axis=1, dtype=jnp.float64),  # in float64 whatever they were computed in
            self._collect(slopes),
            jnp.sum(jnp.abs(values), axis=1) + jnp.sum(jnp.abs(first)),
            length * (sizes @ along) + sizes @ always,
            sizes @ (products * self._row_sizes() + self.row_error) + bent,
        )
        return with_prior(self, w, found, unit + count * _EPS, products)

    def _row_norms(self) -> Any:
        return jnp.linalg.norm(self.root if self.design is None else self.design @ self.root, axis=1)

    def _row_sizes(self) -> Any:
        """What the rounding of sums over rows of X is in proportion to: x_n'R may cancel after they were added up."""
        rows = (self.root**2).sum(axis=1) ** 0.5
        return rows if self.design is None else abs(self.design) @ rows


def inverse_hessians(problem: RowProblem, places: np.ndarray) -> np.ndarray:
    """The inverse of the Hessian of f at each row of `places`: (rows, d, d)."""
    rows = problem.root if problem.design is None else on_host(problem.design) @ problem.root
    double: Any = in_floating_type(problem, np.float64)
    weights = on_host(_weights(double, places))
    prior = np.asarray(problem.prior_curvature)
    return np.stack([np.linalg.inv(prior + rows.T @ (np.maximum(w, 0)[:, None] * rows)) for w in weights])


class DensityProblem(AbstractProblem):
    """Any log density: f(w) = potential(m + R w) - potential(m), and H = R'LR with L a lower bound of its Hessian."""

    target: AbstractTarget
    loc: Any
    root: Any
    lower: Any

    @property
    def dim(self) -> int:
        """Of the target."""
        return self.root.shape[1]

    @property
    def chunk(self) -> int:
        """Fewer where the target has many terms."""
        terms = getattr(self.target, "num_terms", self.dim)
        return int(np.clip(2 ** int(math.log2(max(_NUMBERS_AT_ONCE // max(terms, self.dim), 1))), 8, _LARGEST_CHUNK))

    def transformed(self, matrix: np.ndarray) -> "DensityProblem":
        """R becomes R A."""
        return DensityProblem(self.target, self.loc, np.asarray(self.root) @ matrix, self.lower)

    def curvature(self) -> np.ndarray:
        """R'LR, less the rounding of the products."""
        root, lower = np.asarray(self.root), np.asarray(self.lower)
        size = np.linalg.norm(np.abs(root).T @ np.abs(lower) @ np.abs(root))
        product = root.T @ lower @ root
        return rounded_down((product + product.T) / 2, 4 * self.dim * _EPS * float(size))

    def _potential(self, w: Any) -> Any:
        return self.target.potential((self.loc + self.root @ w).astype(self.target.dtype))

    def slopes(self, w: Any) -> Any:
        """By automatic differentiation, in the target's floating type."""
        return jax.lax.map(jax.grad(self._potential), w.astype(jnp.float64), batch_size=8).astype(w.dtype)

    def evaluate(self, w: Any) -> tuple[Any, Any, Any, Any]:
        """The rounding of the user's program is taken as 64 units in the last place of its value and gradient."""

        def at(row: Any) -> tuple[Any, Any, Any]:
            place = self.loc + self.root @ row
            value, slope = jax.value_and_grad(self.target.potential)(place.astype(self.target.dtype))
            # What rounding the place itself does to the value.
            return value, slope @ self.root, jnp.sum(jnp.abs(slope * place))

        values, gradients, moved = jax.lax.map(at, w, batch_size=8)
        first, _, there = at(jnp.zeros(self.dim))
        eps = float(jnp.finfo(self.target.dtype).eps)
        error = 64 * eps * (jnp.abs(values) + jnp.abs(first)) + 4 * self.dim * eps * (moved + there)
        return values - first, gradients, error, 64 * eps * jnp.linalg.norm(gradients, axis=1)


@dataclasses.dataclass(frozen=True)
class Conjugates:
    """`upper`: bounds on f*(u), one a row; `places`: the w that they are from; `passes`: evaluations of a row, at most;
    `evaluations`: in all."""

    upper: np.ndarray
    places: np.ndarray
    passes: int
    evaluations: int


def conjugates(problem: AbstractProblem, points: np.ndarray, tolerance: float) -> Conjugates | None:
    """Upper bounds at the rows of `points`, each within about `tolerance` of the best; None if H is not positive.

    Infinite where the potential is not finite at what was found.
    """
    try:
        factor = cholesky(problem.curvature(), lower=True)
    except LinAlgError:
        return None
    inverse = solve_triangular(factor, np.eye(problem.dim), lower=True)
    search = _Search(problem, inverse, np.asarray(points, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(problem, RowProblem):
            search.run(np.float32, max(tolerance, _SINGLE_FLOOR))
        search.finish(tolerance)
    return Conjugates(search.upper, search.places, search.passes, search.evaluations)


class _Search:
    """The state of the maximisation: a place and the best bound of each row so far."""

    def __init__(self, problem: AbstractProblem, inverse: np.ndarray, points: np.ndarray) -> None:
        self.problem, self.inverse, self.points = problem, inverse, points
        self.places, self.upper = points.copy(), np.full(len(points), np.inf)
        self.largest = float(np.linalg.norm(inverse, 2))
        self.passes = self.evaluations = 0
        self.data: dict[Any, Any] = {}

    def run(self, dtype: Any, tolerance: float, rows: np.ndarray | None = None) -> None:
        """L-BFGS on these `rows`, or all, in this floating type, until their remainders are below `tolerance`."""
        active: Any = np.arange(len(self.points)) if rows is None else rows
        points, w = self.points[active].astype(dtype), self.places[active].astype(dtype)
        gradient, remainder = self._slopes(w, points)
        pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        step, best = -gradient, np.full(len(active), np.inf, dtype)
        stalled = np.zeros(len(active), int)
        for _ in range(_MOST_PASSES):
            better = remainder < 0.5 * best
            stalled, best = np.where(better, 0, stalled + 1), np.fmin(remainder, best)
            going: Any = ~(remainder <= tolerance) & (stalled < _PATIENCE)
            if not going.all():
                self.places[active[~going]] = w[~going]
                keep = (active, points, w, gradient, remainder, step, best, stalled)
                active, points, w, gradient, remainder, step, best, stalled = (x[going] for x in keep)
                pairs = [(a[going], b[going], c[going]) for a, b, c in pairs]
            if not len(active):
                return
            trial, left = self._slopes(w + step, points)
            change = trial - gradient
            finite: Any = np.isfinite(change).all(axis=1)
            # Convex: past the minimum along the step the slope must have shrunk.
            accepted: Any = finite & (_inner(trial, step) <= 0.9 * np.abs(_inner(gradient, step)))
            change = np.where(finite[:, None], change, 0)
            curvature = _inner(step, change)
            useful = curvature > 1e-7 * _inner(step, step)
            scale = np.where(useful, 1 / np.where(useful, curvature, 1), 0).astype(dtype)
            pairs = [*pairs[1 - _MEMORY :], (step, change, scale)]
            w = np.where(accepted[:, None], w + step, w)
            gradient, remainder = np.where(accepted[:, None], trial, gradient), np.where(accepted, left, remainder)
            # A trial that taught nothing is tried again closer by.
            step = np.where((accepted | useful)[:, None], -_quasi_newton(gradient, pairs), step / 4)
        self.places[active] = w

    def finish(self, tolerance: float) -> None:
        """Evaluate in float64; rows that are not there yet go on, twice at most."""
        rows = np.arange(len(self.points))
        for attempt in range(3):
            remainder = self._evaluate(rows)
            rows = rows[~(remainder <= 2 * tolerance)]
            if attempt == 2 or not len(rows):
                return
            self.run(np.float64, tolerance, rows)

    def _evaluate(self, rows: np.ndarray) -> np.ndarray:
        """The bounds at the places of these rows, and their remainders."""
        w, points = self.places[rows], self.points[rows]
        found = self._in_chunks(_evaluate_residual, np.float64, w, points)
        value, norm, value_error, gradient_error = (np.asarray(x, np.float64) for x in found)
        remainder = 0.5 * (norm * (1 + 8 * self.problem.dim * _EPS) + 2 * self.largest * gradient_error) ** 2
        terms = points * w
        upper = np.sum(terms, axis=1) - value + remainder + value_error
        upper = upper + 4 * self.problem.dim * _EPS * np.sum(np.abs(terms), axis=1)
        self.upper[rows] = np.fmin(self.upper[rows], np.where(np.isfinite(upper), upper, np.inf))
        return remainder

    def _slopes(self, w: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals at w, and their remainders."""
        self.passes += 1
        found = self._in_chunks(_residual, w.dtype, w, points)
        return found[0], found[1]

    def _in_chunks(self, function: Any, dtype: Any, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """A call for each chunk of rows, the last one padded: one program for all."""
        size, count = self.problem.chunk, len(arrays[0])
        self.evaluations += count
        if dtype not in self.data:
            self.data[dtype] = in_floating_type(self.problem, dtype), device_array(self.inverse, dtype)
        parts = []
        for start in range(0, count, size):
            real = min(size, count - start)
            chunk = [array[start : start + size] for array in arrays]
            if real < size:
                chunk = [np.concatenate([x, np.zeros((size - real, x.shape[1]), x.dtype)]) for x in chunk]
            parts.append(tuple(np.asarray(x)[:real] for x in function(*self.data[dtype], *chunk)))
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


def in_floating_type(problem: AbstractProblem, dtype: Any) -> AbstractProblem:
    """A row problem with its arrays in `dtype`, on the device once for all; a density stays what it is."""
    if isinstance(problem, DensityProblem):
        return problem
    return jax.tree.map(lambda x: _converted(x, dtype), problem)


def _converted(leaf: Any, dtype: Any) -> Any:
    """On the host where it is there: outside a compiled function every conversion is compiled by itself."""
    if not (isinstance(leaf, float) or eqx.is_inexact_array_like(leaf)):
        return leaf
    return jnp.asarray(leaf, dtype) if isinstance(leaf, jax.Array) else device_array(np.asarray(leaf, dtype))


@partial(instant_jit, on_host=True)
def _residual(problem: AbstractProblem, inverse: Any, w: Any, points: Any) -> tuple[Any, Any]:
    """grad f(w) - u, and half the square of its norm in the inverse of H."""
    residual = problem.slopes(jnp.asarray(w)) - jnp.asarray(points)
    return residual, 0.5 * jnp.sum((residual @ inverse.T) ** 2, axis=1)


@partial(instant_jit, on_host=True)
def _evaluate_residual(problem: AbstractProblem, inverse: Any, w: Any, points: Any) -> tuple[Any, Any, Any, Any]:
    """f, the norm of the residual in the inverse of H in float64, and the errors of f and of the gradient."""
    value, gradient, value_error, gradient_error = problem.evaluate(jnp.asarray(w))
    residual = gradient.astype(jnp.float64) - jnp.asarray(points)
    return value, jnp.linalg.norm(residual @ inverse.T.astype(jnp.float64), axis=1), value_error, gradient_error


@partial(instant_jit, on_host=True)
def evaluate(problem: AbstractProblem, w: Any) -> tuple[Any, Any, Any, Any]:
    """`AbstractProblem.evaluate`, compiled."""
    return problem.evaluate(jnp.asarray(w))


@partial(instant_jit, on_host=True)
def _weights(problem: RowProblem, w: Any) -> Any:
    """Second derivatives of the terms."""
    eta = problem._predictors(jnp.asarray(w))
    return jax.jvp(lambda x: problem._terms(x)[1], (eta,), (jnp.ones_like(eta),))[1]


def _quasi_newton(gradient: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """The two-loop recursion of L-BFGS for every row, the inverse Hessian taken as the identity at first."""
    vector, weights = gradient, []
    for step, change, inverse in reversed(pairs):
        weights.append(inverse * _inner(step, vector))
        vector = vector - weights[-1][:, None] * change
    for (step, change, inverse), weight in zip(pairs, reversed(weights), strict=True):
        vector = vector + (weight - inverse * _inner(change, vector))[:, None] * step
    return vector


def _inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", a, b)
