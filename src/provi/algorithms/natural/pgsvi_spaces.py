r"""Where mini-batch PG-SVI lives: N-space (two numbers a datum) or D-space (mean and precision of the weights).

Both hold q and one *cache*, the matrix that the next step starts from, so that the natural form costs one Cholesky
factor a step: L of $B = LL'$ in N-space, the precision P in D-space. Batch sums are scaled by N/M already:
$\hat\alpha$, $\hat\gamma$ as vectors of length N (zero outside the batch), or as $X_B'\hat\alpha$,
$X_B'\mathrm{diag}(\hat\gamma)X_B$.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular

from provi.algorithms.natural import natural_gradient
from provi.algorithms.natural.dual_natural_gradient import evaluate as evaluate_dual
from provi.core.types import Count, Indices, Matrix, Scalar, Vector
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.location_scale import LocationScale, Point
from provi.families.site_solver import BLOCK, SiteSolver, site_solver, target_jitter
from provi.kernels.rows import gram_diagonal, gram_rows, in_full, is_streamed
from provi.targets.linear_model import AbstractLinearModel

_VARIANCES, _RESIDUAL = 1e-5, 1e-8
"""Relative: the variances of a batch, and the residual of a step, where K is not stored."""


class AbstractSpace(eqx.Module):
    """A target and a family; see the module."""

    target: eqx.AbstractVar[Any]
    family: eqx.AbstractVar[Any]

    @abstractmethod
    def cache(self, point: Any) -> Matrix:
        """The cache at `point`, computed from nothing."""

    @abstractmethod
    def marginals(self, point: Any, cache: Matrix, indices: Indices) -> tuple[Any, Any, Any]:
        """Means and variances of eta_n, n in `indices`, and the responses."""

    @abstractmethod
    def gather(self, indices: Indices, slopes: Any, weights: Any) -> tuple[Any, Any, Count]:
        """The batch sums of data with these E t' and E t'', and how many E t'' were clipped; data may appear twice."""

    @abstractmethod
    def gradient_norms(self, point: Any, cache: Matrix, slope: Any) -> tuple[Scalar, Scalar]:
        r"""$|g|^2_V$ for g the batch's $\hat\alpha$ alone, and with the prior's part: the whole gradient in m."""

    @abstractmethod
    def move(
        self, point: Any, cache: Matrix, slope: Any, weight: Any, beta: Scalar, form: str
    ) -> tuple[Any, Matrix, Count]:
        """The new point, its cache, and the number of site precisions that had to be clipped at zero."""

    @abstractmethod
    def negative_elbo(self, point: Any) -> Scalar:
        """Exact, of the whole data."""


class SiteSpace(AbstractSpace):
    r"""N-space: $s_+ = rs + (1-r)\hat\gamma$, $a_+ = a - (1-r)(I + DK)^{-1}(a + \hat\alpha)$.

    $D = S_+$ in the natural form, $rS$ in the proximal one. Only the batch's variances are computed: N^3/3 + N^2 M.
    """

    target: Any
    family: DualGaussian

    def cache(self, point):
        return self._factor(point.site_precision)

    def marginals(self, point, cache, indices):
        family = self.family
        rows = gram_rows(family.gram, indices)
        mean = family.site_mean[indices] + rows @ point.dual_mean
        if family.root is None:
            half = solve_triangular(cache, jnp.sqrt(point.site_precision)[:, None] * rows.T, lower=True)
            variance = gram_diagonal(family.gram)[indices] - jnp.sum(half**2, axis=0)
        else:
            variance = jnp.sum(solve_triangular(cache, family.root[indices].T, lower=True) ** 2, axis=0)
        return mean, jnp.maximum(variance, jnp.zeros_like(variance)), self.target.response[indices]

    def gather(self, indices, slopes, weights):
        zero = jnp.zeros(self.family.num_sites, slopes.dtype)
        return zero.at[indices].add(slopes), zero.at[indices].add(weights), jnp.zeros((), int)

    def gradient_norms(self, point, cache, slope):
        def squared(c: Vector) -> Scalar:
            return jnp.sum(c * self._covariance_times(point.site_precision, cache, c))

        return squared(slope), squared(point.dual_mean + slope)

    def move(self, point, cache, slope, weight, beta, form):
        r = 1 / (1 + beta)
        precision = r * point.site_precision + (1 - r) * weight
        below = precision < 0
        if self.family.root is None:
            precision = jnp.where(below, jnp.zeros_like(precision), precision)
        cache = self._factor(precision)
        inner = precision if form == "natural" else r * point.site_precision
        lower = cache if form == "natural" else self._factor(inner)
        wanted = point.dual_mean + slope
        solved = wanted - inner * self._covariance_times(inner, lower, wanted)
        clipped = jnp.sum(below) if self.family.root is None else jnp.zeros((), int)
        return DualPoint(point.dual_mean - (1 - r) * solved, precision), cache, clipped

    def negative_elbo(self, point):
        factor = self.family.factorise(point)
        return evaluate_dual(self.target, self.family, point, factor).negative_elbo

    def _factor(self, precision: Vector) -> Matrix:
        """L of B, without the N^3 of all variances."""
        gram, root = in_full(self.family.gram), self.family.root
        identity = jnp.eye(gram.shape[0], dtype=gram.dtype)
        if root is None:
            half = jnp.sqrt(precision)
            return jnp.linalg.cholesky(identity + half[:, None] * gram * half[None, :])
        inner = root.T @ (precision[:, None] * root)
        return jnp.linalg.cholesky(identity + (inner + inner.T) / 2)

    def _covariance_times(self, precision: Vector, lower: Matrix, vector: Vector) -> Vector:
        """V c, V^-1 = K^-1 + diag(precision); then (I + DK)^-1 c = c - DVc."""
        if self.family.root is not None:
            return self.family.root @ cho_solve((lower, True), self.family.root.T @ vector)
        half, product = jnp.sqrt(precision), self.family.gram @ vector
        return product - self.family.gram @ (half * cho_solve((lower, True), half * product))


class StreamedSpace(AbstractSpace):
    r"""N-space without the matrix K: the steps of `SiteSpace` by conjugate gradients (`families.site_solver`).

    The batch's variances and $(I + DK)^{-1}(a + \hat\alpha)$ are known to a relative error of 1e-5 and a relative
    residual of 1e-8: errors of a step, which the certificate of what is returned knows nothing of and need not. Memory
    O(N (r + M)), r the rank of the preconditioner; the cache is a site that the step does not read.
    """

    target: Any
    family: DualGaussian
    solver: SiteSolver

    def cache(self, point):
        return point.site_precision

    def marginals(self, point, cache, indices):
        precision, tolerance = point.site_precision, jnp.asarray(_VARIANCES, point.site_precision.dtype)
        count, block = indices.shape[0], min(BLOCK, indices.shape[0])
        # Whole blocks, the last datum again where there are none left, so that columns are never more than BLOCK.
        filled = jnp.concatenate([indices, jnp.broadcast_to(indices[-1:], (-count % block,))]).reshape(-1, block)

        def found(own: Any) -> Any:
            variance = self.solver.variances_at(own, precision, tolerance).value
            return gram_rows(self.family.gram, own) @ point.dual_mean, variance

        mean, variance = (x.reshape(-1)[:count] for x in jax.lax.map(found, filled))
        mean = self.family.site_mean[indices] + mean
        return mean, jnp.maximum(variance, jnp.zeros_like(variance)), self.target.response[indices]

    def gather(self, indices, slopes, weights):
        zero = jnp.zeros(self.family.num_sites, slopes.dtype)
        return zero.at[indices].add(slopes), zero.at[indices].add(weights), jnp.zeros((), int)

    def gradient_norms(self, point, cache, slope):
        """With K replaced by its low rank and the diagonal of the rest: they are shown, and pace the batch."""
        precision, (weights, low_rank) = point.site_precision, self.solver.low_rank(point.site_precision)
        shrink = 1 + self.solver.jitter * precision
        rest = self.solver.residual / (1 + weights * self.solver.residual)

        def squared(c: Vector) -> Scalar:
            inner = c / shrink
            half = solve_triangular(low_rank.cholesky, self.solver.factor.T @ inner, lower=True)
            return jnp.sum(half**2) + jnp.sum(rest * inner**2) + self.solver.jitter * jnp.sum(c * inner)

        return squared(slope), squared(point.dual_mean + slope)

    def move(self, point, cache, slope, weight, beta, form):
        r = 1 / (1 + beta)
        precision = r * point.site_precision + (1 - r) * weight
        below = precision < 0
        precision = jnp.where(below, jnp.zeros_like(precision), precision)
        inner = precision if form == "natural" else r * point.site_precision
        solved = self.solver.apply_inverse(inner, point.dual_mean + slope, _RESIDUAL)
        return DualPoint(point.dual_mean - (1 - r) * solved, precision), precision, jnp.sum(below)

    def negative_elbo(self, point):
        """Not known: log |B| takes a factor; see `iterative_natural_gradient.estimated_elbo`."""
        return jnp.full((), jnp.nan, point.site_precision.dtype)


class WeightSpace(AbstractSpace):
    r"""D-space: $P_+ = rP + (1-r)(L_0 + \hat\Gamma)$, $m_+ = m - (1-r)A^{-1}(L_0(m - \mu_0) + \hat g)$.

    $A = P_+$ in the natural form, $rP + (1-r)L_0$ in the proximal one; $\hat g = X_B'\hat\alpha$,
    $\hat\Gamma = X_B'\mathrm{diag}(\hat\gamma)X_B$. Cost M D^2 + D^3.
    There is no site to clip here: for a log-concave likelihood negative $\hat\gamma_n$ count as zero.
    """

    target: AbstractLinearModel
    family: LocationScale

    def cache(self, point):
        return natural_gradient.precision_of(point)

    def marginals(self, point, cache, indices):
        rows = self._rows(indices)
        variance = jnp.sum((rows.design @ self._root(point)) ** 2, axis=1)
        return rows.design @ point.loc, rows.total_variance(variance), rows.response

    def gather(self, indices, slopes, weights):
        design, below = self._rows(indices).design, weights < 0
        if self.target.likelihood.log_concave:
            weights = jnp.where(below, jnp.zeros_like(weights), weights)
        clipped = jnp.sum(below) if self.target.likelihood.log_concave else jnp.zeros((), int)
        return design.T @ slopes, design.T @ (weights[:, None] * design), clipped

    def gradient_norms(self, point, cache, slope):
        root, away = self._root(point), point.loc - self.target.prior.mean
        whole = self._prior_precision() @ away + slope
        return jnp.sum((root.T @ slope) ** 2), jnp.sum((root.T @ whole) ** 2)

    def move(self, point, cache, slope, weight, beta, form):
        share, prior = beta / (1 + beta), self._prior_precision()
        precision = cache + share * (prior + weight - cache)
        precision = (precision + precision.T) / 2
        inner = precision if form == "natural" else cache + share * (prior - cache)
        gradient = prior @ (point.loc - self.target.prior.mean) + slope
        loc = point.loc - share * cho_solve((jnp.linalg.cholesky(inner), True), gradient)
        scale = natural_gradient.scale_from_precision(precision, self.family.scale)
        return Point(loc, scale), precision, jnp.zeros((), int)

    def negative_elbo(self, point):
        whitener = self.target.prior.whitener()
        spread = jnp.ones((), bool)
        return natural_gradient.evaluate(self.target, self.family, point, None, whitener, spread).negative_elbo

    def _rows(self, indices: Indices) -> Any:
        return self.target.rows(jax.tree.map(lambda x: jnp.asarray(x)[indices], self.target.row_data()))

    def _root(self, point: Point) -> Matrix:
        return point.scale.apply(jnp.eye(self.family.dim, dtype=point.loc.dtype)).T

    def _prior_precision(self) -> Matrix:
        whitener = self.target.prior.whitener()
        return whitener.T @ whitener


def space_of(target: Any, family: Any, known: AbstractSpace | None = None) -> AbstractSpace:
    """N-space for the dual family, else D-space; the factor of a K that is not stored is that of `known`, if given."""
    if isinstance(family, DualGaussian) and is_streamed(family.gram):
        if isinstance(known, StreamedSpace):
            return StreamedSpace(target, family, known.solver)
        return StreamedSpace(target, family, site_solver(family.gram, target_jitter(target)))
    return SiteSpace(target, family) if isinstance(family, DualGaussian) else WeightSpace(target, family)
