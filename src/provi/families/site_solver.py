r"""The linear algebra of a Gaussian $q \propto N(0, K)\prod_n\exp(-s_n\eta_n^2/2)$, without $K^{-1}$ or $1/s_n$.

$V^{-1} = K^{-1} + S$ with $S = \mathrm{diag}(s)$. Two ways: factors, and a solver without a matrix beside K.

**`SiteFactor`.** Where every $s_n \ge 0$, with $B = I + S^{1/2}KS^{1/2} = LL'$ (eigenvalues at least 1, however
ill-conditioned K is): $V = K - T'T$, $T = L^{-1}S^{1/2}K$, and $(I + SK)^{-1} = I - S^{1/2}B^{-1}S^{1/2}K$.
Where some $s_n$ may be negative (likelihoods that are not log-concave), with a root $K = RR'$ and
$B = I + R'SR = LL'$, positive definite exactly when V is: $V = T'T$, $T = L^{-1}R'$. In both, $|B| = |K||V|^{-1}$.

**`SiteSolver`.** No matrix of the size of K beside K: low rank, then conjugate gradients.
$K = PP' + R + jI$ with P a pivoted Cholesky factor of rank r of $K - jI$, j the jitter and $R \succeq 0$. The jitter is
exact: with $D = I + jS$ and $s' = s/(1 + js)$, $B = I + S^{1/2}KS^{1/2} = D^{1/2}B'D^{1/2}$,
$B' = I + S'^{1/2}(PP' + R)S'^{1/2}$, $\log|B| = \sum\log(1 + js_n) + \log|B'|$ and $V = jD^{-1} + D^{-1}V'D^{-1}$. Then
$M = I + S'^{1/2}PP'S'^{1/2} \preceq B'$ is the preconditioner, and a bound: $B'^{-1} \preceq M^{-1}$.

Variances, $v'_n = K'_{nn} - b'B'^{-1}b$, $b = S'^{1/2}K'e_n$, with two-sided bounds:

- From the low rank alone. With $V_M$ the covariance for $K' = PP'$, $v_M \le v' \le v_M + (\sqrt{R_{nn}} +
  \sqrt{\Lambda v_M})^2$, $\Lambda = \sum_ns'_nR_{nn}$. Proof: $v'$ grows with K', and it is the least
  $(e_n - w)'K'(e_n - w) + w'S'^{-1}w$ over w; put in the best w for $PP'$, for which $w'S'^{-1}w \le v_M$, and
  $w'Rw \le \lambda_{\max}(S'^{1/2}RS'^{1/2})\,w'S'^{-1}w$. Costs O(N r^2) for all n.
- From a vector x with residual $\rho = b - B'x$: $b'B'^{-1}b = x'b + x'\rho + \rho'B'^{-1}\rho$, and
  $0 \le \rho'B'^{-1}\rho \le \rho'M^{-1}\rho$: the error is quadratic in the residual. Costs 2N^2 a product and datum,
  more than the N^3/3 + N^3 of a Cholesky factor and T for all data, whatever M is.

K itself may be stored or not (`kernels.rows`): only products with it, its diagonal and blocks of its columns are used.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from provi.core.arguments import device_array
from provi.core.interpreter import instant_jit
from provi.core.krylov import Columns, IdentityPlusLowRank, solve
from provi.core.pivoted_cholesky import PivotedCholesky, pivoted_cholesky
from provi.core.types import Count, Flag, Indices, Matrix, Scalar, Vector
from provi.kernels.rows import Gram, KernelRows, gram_columns, gram_diagonal, gram_rows, in_full

LARGEST_RANK, BLOCK, MOST_PRODUCTS = 512, 256, 500
"""Of P; columns solved at a time; products with K for a block of them."""


class SiteFactor(eqx.Module):
    """The factorisation at the site precisions s: L, T, the diagonal of V and log |B|."""

    precision: Vector
    lower: Matrix
    half: Matrix
    variance: Vector
    log_det: Scalar
    whitened: bool = eqx.field(static=True)

    def covariance_times(self, gram: Gram, vector: Vector) -> Vector:
        """V c."""
        product = self.half.T @ (self.half @ vector)
        return product if self.whitened else gram @ vector - product

    def apply_inverse(self, gram: Matrix, vector: Vector) -> Vector:
        """(I + S K)^-1 c."""
        if self.whitened:
            return vector - self.precision * self.covariance_times(gram, vector)
        root = jnp.sqrt(self.precision)
        return vector - root * cho_solve((self.lower, True), root * (gram @ vector))


def factorise(gram: Gram, precision: Vector, root: Any = None) -> SiteFactor:
    """The factorisation for site precisions `precision`; they may be negative if a `root` R of K = RR' is given."""
    gram = in_full(gram)
    identity = jnp.eye(gram.shape[0], dtype=gram.dtype)
    if root is None:
        half = jnp.sqrt(precision)
        lower = _cholesky(identity + half[:, None] * gram * half[None, :])
        half = solve_triangular(lower, half[:, None] * gram, lower=True)
        variance = jnp.diagonal(gram) - jnp.sum(half**2, axis=0)
    else:
        inner = root.T @ (precision[:, None] * root)
        lower = _cholesky(identity + inner)
        half = solve_triangular(lower, root.T, lower=True)
        variance = jnp.sum(half**2, axis=0)
    # Rounding may leave a variance below zero where K is singular.
    variance = jnp.where(variance < 0, jnp.zeros_like(variance), variance)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(lower)))
    return SiteFactor(precision, lower, half, variance, log_det, root is not None)


def _cholesky(matrix: Matrix) -> Matrix:
    """Only the lower triangle is read: `jnp.linalg.cholesky` would first make a symmetric copy."""
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


def covariance_root(gram: Gram) -> Matrix:
    """R with RR' = K for any positive semi-definite K, singular ones too."""
    gram = in_full(gram)
    values, vectors = jnp.linalg.eigh((gram + gram.T) / 2)
    return vectors * jnp.sqrt(jnp.maximum(values, jnp.zeros_like(values)))[None, :]


class SiteVariances(NamedTuple):
    """`value` within `error` of the variances, `low_rank` those for K = PP' + jI, `products` with K for each datum."""

    value: Vector
    error: Vector
    low_rank: Vector
    products: Scalar


class SiteInverse(NamedTuple):
    """`vector` w = (I + SK)^-1 c, `squared_norm` c'Vc, the relative `residual` reached, `products` with K."""

    vector: Vector
    squared_norm: Scalar
    residual: Scalar
    products: Count


class SiteSolver(eqx.Module):
    """K, its jitter, P and the diagonal of R; make it with `site_solver`."""

    gram: Gram
    jitter: Scalar
    factor: Float[Array, "dim rank"]
    residual: Vector

    def low_rank(self, precision: Vector) -> tuple[Vector, IdentityPlusLowRank]:
        """s' and M."""
        weights = precision / (1 + self.jitter * precision)
        return weights, IdentityPlusLowRank(self.factor, weights)

    def log_det(self, precision: Vector) -> tuple[Scalar, Scalar]:
        r"""$\sum\log(1 + js_n) + \log|M|$, and $\mathrm{tr}(S'R)$: log |B| is at least the first, at most their sum."""
        weights, low_rank = self.low_rank(precision)
        noise = jnp.sum(jnp.log1p(self.jitter * precision))
        return noise + low_rank.log_determinant(), jnp.sum(weights * self.residual)

    def apply_inverse(self, precision: Vector, vector: Vector, tolerance: Any) -> Vector:
        """(I + SK)^-1 c to a relative residual in B'."""
        return self.inverse(precision, vector, tolerance).vector

    def inverse(self, precision: Vector, vector: Vector, tolerance: Any) -> SiteInverse:
        r"""$(I + SK)^{-1}c = w = u - S'^{1/2}B'^{-1}S'^{1/2}K'u$, $u = D^{-1}c$, and
        $c'Vc = j\,c'D^{-1}c + w'K'u$; the tolerance is that of the residual in B', relative to its right-hand side."""
        weights, low_rank = self.low_rank(precision)
        root = jnp.sqrt(weights)
        scaled = vector / (1 + self.jitter * precision)
        product = self._multiply(scaled[:, None])[:, 0]
        found = solve(
            lambda x: self._inner(root, x), (root * product)[:, None], low_rank.solve, tolerance, MOST_PRODUCTS
        )
        solved = scaled - root * found.solution[:, 0]
        norm = self.jitter * jnp.sum(vector * scaled) + jnp.sum(solved * product)
        return SiteInverse(solved, norm, found.relative_residuals[0], found.iterations + 2)

    def variances(self, precision: Vector, tolerance: Any) -> SiteVariances:
        """The diagonal of V = (K^-1 + S)^-1 to a relative error of `tolerance`; `error` says what was reached."""
        weights, low_rank = self.low_rank(precision)
        bounds = self._low_rank_bounds(weights, low_rank, self.factor, self.residual, precision)
        return self._resolved(
            bounds, precision, tolerance, lambda: self._sweep(weights, low_rank, bounds[0], bounds[2], tolerance)
        )

    def variances_at(self, indices: Indices, precision: Vector, tolerance: Any) -> SiteVariances:
        """Those of some data, which may appear twice: their columns of K, and the equations of them alone."""
        weights, low_rank = self.low_rank(precision)
        own = precision[indices]
        bounds = self._low_rank_bounds(weights, low_rank, self.factor[indices], self.residual[indices], own)

        def solved() -> Any:
            columns = gram_rows(self.gram, indices).T
            places = jnp.arange(precision.shape[0])[:, None] == indices[None, :]
            columns = columns - self.jitter * places.astype(columns.dtype)
            prior = gram_diagonal(self.gram)[indices] - self.jitter
            value, error, products = self.conditioned(
                weights, low_rank, columns, prior, bounds[0], bounds[2], tolerance
            )
            return value, error, products.astype(value.dtype)

        return self._resolved(bounds, own, tolerance, solved)

    def low_rank_variances(self, precision: Vector, tolerance: Any) -> tuple[Vector, Vector, Vector, Flag]:
        r"""$v_M$ and half the width of its bounds, $jD$, and whether $v_M$ is within `tolerance` for each datum."""
        bounds = self._low_rank_bounds(*self.low_rank(precision), self.factor, self.residual, precision)
        return *bounds, _enough(bounds, tolerance)

    def _low_rank_bounds(
        self, weights: Vector, low_rank: IdentityPlusLowRank, factor: Any, residual: Any, precision: Any
    ) -> tuple[Any, Any, Any]:
        """The first three of `low_rank_variances`, of the data whose rows of P, diagonal of R and s are given."""
        half = solve_triangular(low_rank.cholesky, factor.T, lower=True)
        least = jnp.sum(half**2, axis=0)
        excess = 0.5 * (jnp.sqrt(residual) + jnp.sqrt(jnp.sum(weights * self.residual) * least)) ** 2
        return least, excess, self.jitter * (1 + self.jitter * precision)

    def _resolved(
        self, bounds: tuple[Any, Any, Any], precision: Any, tolerance: Any, solve: Callable[[], Any]
    ) -> SiteVariances:
        """By the low rank where it suffices, else by `solve`; and from V' to V."""
        least, excess, _ = bounds
        value, error, products = jax.lax.cond(
            _enough(bounds, tolerance), lambda: (least + excess, excess, jnp.zeros((), least.dtype)), solve
        )
        shrink = 1 + self.jitter * precision
        own = self.jitter / shrink
        return SiteVariances(own + value / shrink**2, error / shrink**2, own + least / shrink**2, products)

    def whitened(self, precision: Vector) -> Callable[[Columns], Columns]:
        r"""V -> M^(-1/2) B' M^(-1/2) V, with eigenvalues of at least 1, and log |B'| - log |M| as its log determinant.

        With $W = S'^{1/2}P$ and $W'W = U\Lambda U'$,
        $M^{-1/2} = I + WU\,\mathrm{diag}(((1 + \lambda)^{-1/2} - 1)/\lambda)U'W'$.
        """
        weights, low_rank = self.low_rank(precision)
        root, wide = jnp.sqrt(weights), low_rank.factor
        values, vectors = jnp.linalg.eigh(wide.T @ wide)
        values = jnp.maximum(values, 0)
        # ((1 + l)^(-1/2) - 1) / l without cancellation at l = 0.
        scale = -1 / ((1 + jnp.sqrt(1 + values)) * jnp.sqrt(1 + values))
        turned = wide @ vectors

        def half(columns: Columns) -> Columns:
            return columns + turned @ (scale[:, None] * (turned.T @ columns))

        return lambda columns: half(self._inner(root, half(columns)))

    def _multiply(self, columns: Columns) -> Columns:
        """K' V."""
        return self.gram @ columns - self.jitter * columns

    def _inner(self, root: Vector, columns: Columns) -> Columns:
        """B' V."""
        return columns + root[:, None] * self._multiply(root[:, None] * columns)

    def _sweep(
        self, weights: Vector, low_rank: IdentityPlusLowRank, least: Vector, noise: Vector, tolerance: Any
    ) -> tuple[Vector, Vector, Scalar]:
        """v' and its error by conjugate gradients, a block of columns at a time; mean number of products."""
        size = least.shape[0]
        block = min(BLOCK, size)
        count = -(-size // block)

        def solved(index: Any, carry: Any) -> Any:
            value, error, products = carry
            start = jnp.minimum(index * block, size - block)  # the last block overlaps the one before it
            part = self._block(weights, low_rank, least, noise, tolerance, start, block)
            value = jax.lax.dynamic_update_slice(value, part[0], (start,))
            return value, jax.lax.dynamic_update_slice(error, part[1], (start,)), products + part[2]

        zero = jnp.zeros_like(least)
        value, error, products = jax.lax.fori_loop(0, count, solved, (zero, zero, jnp.zeros((), jnp.int32)))
        return value, error, products.astype(least.dtype) / count

    def _block(
        self, weights: Vector, low_rank: Any, least: Vector, noise: Vector, tolerance: Any, start: Count, block: int
    ) -> tuple[Any, Any, Count]:
        columns = gram_columns(self.gram, start, block)
        own = (jnp.arange(self.gram.shape[0])[:, None] == start + jnp.arange(block)[None, :]).astype(columns.dtype)
        columns = columns - self.jitter * own
        least, noise = (jax.lax.dynamic_slice(x, (start,), (block,)) for x in (least, noise))
        prior = jnp.sum(columns * own, axis=0)
        return self.conditioned(weights, low_rank, columns, prior, least, noise, tolerance)

    def conditioned(
        self, weights: Vector, low_rank: Any, columns: Any, prior: Any, least: Any, noise: Any, tolerance: Any
    ) -> tuple[Any, Any, Count]:
        """`prior` less what the sites explain of it, b'B'^-1 b, b = S'^(1/2) `columns`; its error; products.

        To a relative error of `tolerance` of the result, which is at least `least`, and `noise` together.
        """
        root = jnp.sqrt(weights)
        rhs = root[:, None] * columns
        # Variances of zero, by equal points without jitter, are known to the rounding of K_nn only.
        floor = columns.shape[0] * jnp.finfo(columns.dtype).eps * prior

        def unfinished(explained: Any, left: Any) -> Any:
            return 0.5 * left > tolerance * (jnp.maximum(least, prior - explained - left) + noise) + floor

        def proceed(carry: Any) -> Any:
            return jnp.any(unfinished(carry[3], carry[4])) & (carry[5] < MOST_PRODUCTS)

        def step(carry: Any) -> Any:
            solution, residual, direction, explained, left, products = carry
            image = self._inner(root, direction)
            active = unfinished(explained, left)
            length = jnp.where(active, left / jnp.where(active, jnp.sum(direction * image, axis=0), 1), 0)
            solution = solution + length[None, :] * direction
            residual = residual - length[None, :] * image
            preconditioned = low_rank.solve(residual)
            following = jnp.where(active, jnp.sum(residual * preconditioned, axis=0), left)
            ratio = following / jnp.where(left > 0, left, 1)
            direction = preconditioned + ratio[None, :] * direction
            return solution, residual, direction, explained + length * left, following, products + 1

        first = low_rank.solve(rhs)
        zero = jnp.zeros_like(prior)
        start_carry = (jnp.zeros_like(rhs), rhs, first, zero, jnp.sum(rhs * first, axis=0), jnp.zeros((), jnp.int32))
        solution, *_, products = jax.lax.while_loop(proceed, step, start_carry)
        # The bounds hold for any x: those below do not rest on the recurrences.
        residual = rhs - self._inner(root, solution)
        left = jnp.maximum(jnp.sum(residual * low_rank.solve(residual), axis=0), 0)
        upper = prior - jnp.sum(solution * (rhs + residual), axis=0)
        return jnp.maximum(upper - 0.5 * left, 0), 0.5 * left, products + 1

    def explained(self, weights: Vector, low_rank: Any, columns: Any) -> Any:
        """C'S'^(1/2) B'^-1 S'^(1/2) C for the columns C, to a relative residual of 1e-8; symmetric."""
        root = jnp.sqrt(weights)
        rhs = root[:, None] * columns
        found = solve(lambda x: self._inner(root, x), rhs, low_rank.solve, 1e-8, MOST_PRODUCTS)
        inner = rhs.T @ found.solution
        return 0.5 * (inner + inner.T)


def _enough(bounds: tuple[Any, Any, Any], tolerance: Any) -> Flag:
    least, excess, noise = bounds
    return jnp.all(excess <= tolerance * (least + noise))


def site_solver(gram: Gram, jitter: Any, rank: int = LARGEST_RANK) -> SiteSolver:
    """Factor K - jI to rank `rank` at most: O(N rank^2), once for all sites."""
    jitter = device_array(np.asarray(jitter, gram.dtype))
    found = _low_rank_part(gram, jitter, rank)
    # Columns of zeros are cut off, to a multiple of 64: one compilation for kernels of about the same rank.
    used = min(-(-max(int(found.num_pivots), 1) // 64) * 64, found.factor.shape[1])
    return SiteSolver(gram, jitter, found.factor[:, :used], found.residual)


@instant_jit
def _low_rank_part(gram: Gram, jitter: Scalar, rank: int) -> PivotedCholesky:
    def column(index: Any) -> Vector:
        return gram_rows(gram, index[None])[0].at[index].add(-jitter)

    # Rounding may leave a variance below zero where the kernel's own is zero.
    return pivoted_cholesky(column, jnp.maximum(gram_diagonal(gram) - jitter, 0), rank)


class StreamedPredictor(eqx.Module):
    """The posterior process at new inputs, K not stored: variances by conjugate gradients, relative error 1e-6."""

    kernel: Any
    inputs: Float[Array, "terms columns"]
    prior_mean: Scalar
    dual_mean: Vector
    precision: Vector
    solver: SiteSolver

    def latent(self, inputs: Any) -> tuple[Any, Any]:
        """Mean and variance of the latent function at each row of `inputs`; traced."""
        cross, prior = self.kernel.matrix(self.inputs, inputs), self.kernel.diagonal(inputs)
        zero, tolerance = jnp.zeros_like(prior), jnp.asarray(1e-6, prior.dtype)
        parts = self.solver.low_rank(self.precision)
        variance, _, _ = self.solver.conditioned(*parts, cross, prior, zero, zero, tolerance)
        return self.prior_mean + self.dual_mean @ cross, variance

    def covariance(self, inputs: Any) -> Any:
        """Of the latent function at all rows of `inputs` together; traced."""
        cross = self.kernel.matrix(self.inputs, inputs)
        weights, low_rank = self.solver.low_rank(self.precision)
        return self.kernel.matrix(inputs) - self.solver.explained(weights, low_rank, cross)


_DEVIATION_TOLERANCE = 1e-6


def streamed_deviations(gram: KernelRows, precision: Vector) -> Vector:
    """The standard deviations under q where K is not stored: the variances to a relative error of 1e-6; traced."""
    found = _low_rank_part.__wrapped__(gram, gram.jitter, LARGEST_RANK)
    solver = SiteSolver(gram, gram.jitter, found.factor, found.residual)
    tolerance = jnp.asarray(_DEVIATION_TOLERANCE, gram.dtype)
    return jnp.sqrt(jnp.maximum(solver.variances(precision, tolerance).value, 0))


def target_jitter(target: Any) -> Any:
    """The jitter of a Gaussian process; zero for a linear model."""
    return getattr(target, "jitter", 0.0)


def factors_fit(num_sites: int, itemsize: int, available: int) -> bool:
    """Whether a Cholesky factor, T and the work on them, four matrices beside K, take half of `available` at most."""
    return 8 * itemsize * num_sites**2 <= available


@instant_jit
def low_rank_suffices(solver: SiteSolver, precision: Any, tolerance: float = 1e-5) -> Any:
    """Whether variances need no conjugate gradients while no site precision is above `precision`."""
    # The bound on the error grows with s, relative to the variance, which falls.
    return solver.low_rank_variances(jnp.full_like(solver.residual, 1) * precision, tolerance)[3]
