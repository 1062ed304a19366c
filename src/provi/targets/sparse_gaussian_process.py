r"""Sparse variational Gaussian processes: a linear model in the whitened values at the inducing points.

With $L L' = k(Z, Z) + jI$, Z the inducing points, the whitened inducing values $w = L^{-1}u$ are $N(0, I)$ a priori,
and $f(x) = \phi(x)'w + e$, $\phi(x) = L^{-1}k(Z, x)$, $e \sim N(0, \kappa(x))$ independent of w,
$\kappa(x) = k(x, x) - |\phi(x)|^2 \ge 0$. The jitter j makes u the function values with noise of variance j: these are
inducing variables like any others, so that the bound on the evidence stays a bound.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from provi.core.arguments import as_array, available_bytes, check_count, device_array, double_precision, floating_dtype
from provi.core.compilation import program_jit
from provi.core.devices import counted
from provi.core.frames import frame_names, is_frame
from provi.core.pivoted_cholesky import pivoted_cholesky
from provi.core.types import Matrix, Scalar, Vector
from provi.kernels import AbstractKernel, SquaredExponential
from provi.targets.data import default_names
from provi.targets.likelihoods import AbstractLikelihood, BernoulliLogit
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import GaussianPrior, gaussian_prior
from provi.targets.row_sums import Rows, sum_over_rows

_CANDIDATES_PER_POINT, _FEWEST_CANDIDATES = 8, 2000
"""Among how many inputs, drawn without replacement, the inducing points are chosen."""

_SHARE_OF_MEMORY = 0.4
"""Of the memory, for the table of features: a certificate holds it twice for a moment."""

_ROWS_AT_ONCE = 2048


class SparseGaussianProcess(AbstractLinearModel):
    r"""$y_n \sim p(y_n | f(x_n))$, $f \sim GP(0, k)$, seen through M inducing points.

    The parameters are the whitened inducing values $w \sim N(0, I)$; row n has the features $\phi_n$ and the variance
    offset $\kappa_n$ above. For $q(w) = N(m, V)$ the ELBO
    $\sum_n E\log p(y_n | f_n) - KL(q\|N(0, I))$, $f_n \sim N(\phi_n'm, \phi_n'V\phi_n + \kappa_n)$, is a lower bound
    on the log evidence of the full process (Titsias 2009; Hensman et al. 2013), and convex for log-concave
    likelihoods: `provi.fit` finds its maximum by natural gradients and proves how far it is from it. The gap is to
    the best Gaussian q(w) for these inducing points; what is lost by their being few is not in it.
    """

    variable: ClassVar[str] = "whitened"
    inputs: Float[Array, "terms columns"]
    response: Float[Array, " terms"]
    inducing: Float[Array, "dim columns"]
    kernel: AbstractKernel
    likelihood: AbstractLikelihood
    relative_jitter: Scalar
    factor: Matrix
    prior: GaussianPrior
    design: Any
    offset: Any
    names: tuple[str, ...] | None = eqx.field(static=True)
    columns: tuple[str, ...] | None = eqx.field(static=True)

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        inducing: Any = 200,
        kernel: AbstractKernel | None = None,
        likelihood: AbstractLikelihood | None = None,
        *,
        relative_jitter: float | None = None,
        stream: bool | None = None,
        seed: int = 0,
    ):
        """**Arguments:**

        - `X`: (N, d) inputs, an array or a data frame. - `y`: (N,) responses, as the likelihood wants them.
        - `inducing`: a number of inputs to choose (greedily, from a sample drawn with `seed`), or (M, d) points.
        - `kernel`: of `provi.kernels`; default `SquaredExponential()`.
        - `likelihood`: a log-concave one of `provi.targets.likelihoods`; default `BernoulliLogit()`.
        - `relative_jitter`: the share of the mean variance that is added to the diagonal of k(Z, Z); default 1e-6, in
            float32 1e-4.
        - `stream`: compute the (N, M) features anew in every pass instead of storing them, about twice the work;
            default only where the table would not fit into memory.
        """
        table = as_array("X", X, ndim=2)
        self.columns = frame_names(X) if not isinstance(X, np.ndarray) and is_frame(X) else None
        dtype = floating_dtype(X if hasattr(X, "dtype") else table)
        self.kernel = SquaredExponential() if kernel is None else kernel
        self.likelihood = BernoulliLogit() if likelihood is None else likelihood
        _check_parts(self.kernel, self.likelihood)
        self.response = jnp.asarray(self.likelihood.read_response(y, table.shape[0]), dtype)
        self.inputs = jnp.asarray(table, dtype)
        self.inducing = jnp.asarray(_choose_inducing(inducing, np.asarray(self.inputs), self.kernel, seed))
        share = (1e-6 if jnp.finfo(dtype).eps < 1e-10 else 1e-4) if relative_jitter is None else relative_jitter
        if not (np.isfinite(share) and share >= 0):
            raise ValueError(f"relative_jitter must be a number of at least 0, not {relative_jitter}.")
        self.relative_jitter = device_array(np.asarray(share, dtype))
        self.prior, self.names = gaussian_prior(self.dim, dtype=dtype), None
        self.factor = _factor(self.kernel, self.inducing, self.relative_jitter)
        _check_factor(np.asarray(self.factor))
        stored = _stored(stream, table.shape[0], self.dim, dtype)
        self.design, self.offset = _table(self) if stored else (None, None)

    @property
    def dim(self) -> int:
        """The number of inducing points."""
        return self.inducing.shape[0]

    @property
    def dtype(self) -> Any:
        """The floating type of the inputs."""
        return self.inputs.dtype

    @property
    def num_terms(self) -> int:
        """The number of inputs."""
        return counted(self.division, self.inputs.shape[0])

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """`whitened[0]`, `whitened[1]`, ..."""
        return default_names("whitened", self.dim)

    @property
    def variance_offset(self) -> Any:
        """kappa of every row where it is stored."""
        return self.offset

    @property
    def has_variance_offset(self) -> bool:
        """Always, also where it is computed with the rows."""
        return True

    def row_data(self) -> Any:
        """The stored features, or the inputs that they are computed from."""
        return (self.inputs, self.response) if self.design is None else (self.design, self.response, self.offset)

    def rows(self, data: Any) -> Rows:
        """Features, responses and offsets of a part of `row_data`."""
        if self.design is not None:
            return Rows(*data)
        features, offset = inducing_features(self.kernel, self.inducing, self.factor, data[0])
        return Rows(features, data[1], offset)

    def potential(self, z: Vector) -> Scalar:
        """-log of the integrand of the ELBO: the prior and the mean of each term over its own noise, in blocks."""

        def terms(rows: Rows, real: Any) -> Scalar:
            return jnp.sum(jnp.where(real, self.smoothed_link(rows.design @ z, rows), 0))

        return self.prior_potential(z) + sum_over_rows(self, terms)

    @double_precision
    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None]:
        """(I, (1 + t1 sum |phi_n|^2) I): the largest eigenvalue of a Gram matrix is at most its trace."""
        upper = self.curvature[1]
        if not np.isfinite(upper):
            return np.eye(self.dim), None
        trace = float(_trace(self)) * (1 + 8 * self.num_terms * float(jnp.finfo(self.dtype).eps))
        return np.eye(self.dim), (1 + upper * trace) * np.eye(self.dim)

    def curvature_lower_bound(self) -> np.ndarray:
        """The prior's."""
        return np.eye(self.dim)

    def predict_latent(self, mean: Any, covariance_factor: Any, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        r"""Mean $\phi'm$ and variance $|C'\phi|^2 + \kappa$ of f at new inputs, for q(w) = N(m, CC'); host arrays.

        **Arguments:** `mean`: (M,). `covariance_factor`: C, (M, M). `X_new`: (n, d).
        """
        points = as_array("X_new", X_new, ndim=2)
        if points.shape[1] != self.inputs.shape[1]:
            raise ValueError(f"X_new has {points.shape[1]} columns, but X has {self.inputs.shape[1]}.")
        return _predict(self, np.asarray(mean), np.asarray(covariance_factor), points.astype(self.dtype))


def inducing_factor(kernel: AbstractKernel, inducing: Any, jitter: Any) -> Any:
    """L, the Cholesky factor of k(Z, Z) + jitter * mean variance * I; traced and differentiable."""
    gram = kernel.matrix(inducing)
    added = jitter * jnp.mean(kernel.diagonal(inducing))
    return jnp.linalg.cholesky(gram + added * jnp.eye(gram.shape[0], dtype=gram.dtype))


def inducing_features(kernel: AbstractKernel, inducing: Any, factor: Any, inputs: Any) -> tuple[Any, Any]:
    """phi and kappa of every input, (n, M) and (n,); kappa is not below 0 by rounding."""
    features = solve_triangular(factor, kernel.matrix(inputs, inducing).T, lower=True).T
    left = kernel.diagonal(inputs) - jnp.sum(features**2, axis=1)
    return features, jnp.maximum(left, 0)


def _choose_inducing(inducing: Any, inputs: np.ndarray, kernel: AbstractKernel, seed: int) -> np.ndarray:
    """The user's own points, or a number of inputs chosen greedily.

    Each next point is the candidate whose value is the least determined by the points so far, the one with the
    largest kappa: the pivots of the Cholesky factor of the candidates' covariances (greedy variance selection of Burt,
    Rasmussen and van der Wilk 2020). Fewer points come back where the rest would add nothing but rounding.
    """
    if np.ndim(inducing) == 0:
        wanted = check_count("inducing", inducing)
        rng = np.random.default_rng(seed)
        num = min(len(inputs), max(_FEWEST_CANDIDATES, _CANDIDATES_PER_POINT * wanted))
        candidates = inputs if num == len(inputs) else inputs[np.sort(rng.choice(len(inputs), num, replace=False))]
        pivots, used = _greedy(kernel, jnp.asarray(candidates), min(wanted, num))
        return candidates[np.asarray(pivots)[: max(int(used), 1)]]
    points = as_array("inducing", inducing, ndim=2)
    if points.shape[1] != inputs.shape[1]:
        raise ValueError(f"inducing has {points.shape[1]} columns, but X has {inputs.shape[1]}: give both the same.")
    return points.astype(inputs.dtype)


@program_jit
def _greedy(kernel: AbstractKernel, candidates: Any, rank: int) -> tuple[Any, Any]:
    def column(index: Any) -> Any:
        chosen = jax.lax.dynamic_slice_in_dim(candidates, index, 1)
        return kernel.matrix(candidates, chosen)[:, 0]

    found = pivoted_cholesky(column, kernel.diagonal(candidates), rank)
    return found.pivots, found.num_pivots


def _check_parts(kernel: Any, likelihood: Any) -> None:
    if not isinstance(kernel, AbstractKernel):
        raise ValueError(f"kernel must be a kernel such as provi.kernels.SquaredExponential(), not {kernel!r}.")
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(f"likelihood must be one of provi.targets.likelihoods, not {likelihood!r}.")
    if not likelihood.log_concave:
        raise ValueError(
            f"likelihood {type(likelihood).__name__} is not log-concave, and the sparse process is fitted and "
            f"certified by convexity. Use targets.GaussianProcess, or for a UserLikelihood that is log-concave say "
            f"so with log_concave=True."
        )


def _check_factor(factor: np.ndarray) -> None:
    if not np.isfinite(factor).all():
        raise ValueError(
            "The covariances of the inducing points are not positive definite in floating point: they are too close "
            "together for this kernel. Give a larger relative_jitter=, fewer points, or a shorter length scale."
        )


def _stored(stream: bool | None, terms: int, dim: int, dtype: Any) -> bool:
    needed, limit = terms * dim * np.dtype(dtype).itemsize, _SHARE_OF_MEMORY * available_bytes()
    if stream is False and needed > limit:
        raise ValueError(
            f"stream=False needs {needed / 2**30:.1f} GiB for the {terms} x {dim} features, and {limit / 2**30:.1f} "
            f"GiB are free for them. Leave stream=None, take fewer inducing points, or float32 inputs."
        )
    return needed <= limit if stream is None else not stream


_factor = program_jit(inducing_factor)


@program_jit
def _table(process: SparseGaussianProcess) -> tuple[Any, Any]:
    """All features and offsets, computed in blocks into the table itself."""
    terms, dim = process.num_terms, process.dim
    size = min(terms, _ROWS_AT_ONCE)

    def fill(k: Any, tables: Any) -> Any:
        start = jnp.minimum(k * size, terms - size)
        inputs = jax.lax.dynamic_slice_in_dim(process.inputs, start, size)
        parts = inducing_features(process.kernel, process.inducing, process.factor, inputs)
        return jax.tree.map(lambda all, new: jax.lax.dynamic_update_slice_in_dim(all, new, start, 0), tables, parts)

    empty = jnp.zeros((terms, dim), process.dtype), jnp.zeros(terms, process.dtype)
    return jax.lax.fori_loop(0, -(-terms // size), fill, empty)


@program_jit
def _trace(process: SparseGaussianProcess) -> Any:
    return sum_over_rows(process, lambda rows, real: jnp.sum(jnp.where(real[:, None], rows.design**2, 0)))


@double_precision
def _predict(
    process: SparseGaussianProcess, mean: np.ndarray, root: np.ndarray, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A block at a time, each filled up to one size: every number of points uses one compiled program."""
    parts = []
    for start in range(0, len(points), _ROWS_AT_ONCE):
        block = points[start : start + _ROWS_AT_ONCE]
        filled = np.concatenate([block, np.broadcast_to(block[-1:], (_ROWS_AT_ONCE - len(block), block.shape[1]))])
        found = _predict_block(process.kernel, process.inducing, process.factor, mean, root, filled)
        parts.append([np.asarray(x)[: len(block)] for x in found])
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


@program_jit
def _predict_block(kernel: AbstractKernel, inducing: Any, factor: Any, mean: Any, root: Any, inputs: Any) -> Any:
    features, offset = inducing_features(kernel, inducing, factor, inputs)
    return features @ mean, jnp.sum((features @ root) ** 2, axis=1) + offset
