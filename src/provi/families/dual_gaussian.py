r"""Gaussian posteriors kept as two numbers a datum: Gaussian processes, and linear models with more columns than rows.

The prior is $z \sim N(\mu_0, \Sigma_0)$, datum n sees $\eta_n = x_n'z$, and $K = X\Sigma_0X'$ (a Gaussian process:
$z = \eta$ and K is the kernel matrix). The best Gaussian of all, for any likelihood of the $\eta_n$, has the form
$m = \mu_0 + \Sigma_0X'a$, $V^{-1} = \Sigma_0^{-1} + X'\mathrm{diag}(s)X$: stationarity of the ELBO in (m, V) says so,
with $s_n = E\ell_n''$ and $a_n = -E\ell_n'$. So (a, s) lose nothing, and q is the prior at a = s = 0.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from provi.core.arguments import device_array
from provi.core.interpreter import instant_jit
from provi.core.types import Draws, Matrix, RandomKey, Scalar, Vector
from provi.families.base import AbstractFamily
from provi.families.bases import AbstractBase, Normal
from provi.families.site_solver import SiteFactor, covariance_root, factorise, streamed_deviations
from provi.kernels.rows import Gram, KernelRows, gram_diagonal, in_full
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.priors import GaussianPrior


class DualPoint(eqx.Module):
    """(a, s): the dual mean a = K^-1 (E eta - X mu_0) and the site precisions s."""

    dual_mean: Vector
    site_precision: Vector


class DualGaussian(AbstractFamily):
    """The family above.

    **Arguments:**

    - `gram`: K, (N, N), positive semi-definite; a `KernelRows` where it is not stored. - `prior_mean`: of z.
    - `design`, `prior`: X and the prior of z, for a linear model; None where z is eta.
    - `root`: R with RR' = K, needed where the likelihood is not log-concave: sites may then be negative.
    """

    dim: int = eqx.field(static=True)
    base: AbstractBase
    scale: str = eqx.field(static=True)
    gram: Gram
    prior_mean: Float[Array, " columns"]
    design: Any
    prior: GaussianPrior | None
    root: Any

    def __init__(
        self, gram: Gram, prior_mean: Any, design: Any = None, prior: GaussianPrior | None = None, root: Any = None
    ) -> None:
        self.dim, self.base, self.scale = prior_mean.shape[0], Normal(), "dual"
        self.gram, self.prior_mean = gram, prior_mean
        self.design, self.prior, self.root = design, prior, root

    @property
    def num_sites(self) -> int:
        """The number of data terms."""
        return self.gram.shape[0]

    @property
    def site_mean(self) -> Vector:
        """The prior mean of eta, X mu_0."""
        return self.prior_mean if self.design is None else self.design @ self.prior_mean

    def prior_point(self) -> DualPoint:
        """q = the prior."""
        zero = device_array(np.zeros(self.num_sites, self.gram.dtype))
        return DualPoint(zero, zero)

    def check_point(self, point: Any) -> None:
        shape = (self.num_sites,)
        if not isinstance(point, DualPoint) or not point.dual_mean.shape == point.site_precision.shape == shape:
            raise ValueError("start does not belong to the family; make it with family.prior_point().")
        precision = np.asarray(point.site_precision)
        if self.root is None and (precision < 0).any():
            raise ValueError(
                f"start has the site precision {precision.min()}; for a log-concave likelihood none may be negative."
            )

    def check_target(self, target: Any) -> None:
        """`ValueError` unless this is the family of `target`: (a, s) mean another Gaussian under another prior."""
        if isinstance(target, GaussianProcess):
            mean = np.full(target.dim, np.asarray(target.mean))
            same = self.design is None and _agree(self.gram, target.gram) and _agree(self.prior_mean, mean)
        elif self.design is None or self.prior is None or not hasattr(target, "prior"):
            same = False
        else:
            pairs = [(self.design, target.design), (self.prior.mean, target.prior.mean)]
            same = all(_agree(*pair) for pair in [*pairs, (self.prior.factor, target.prior.factor)])
        if not same:
            raise ValueError(
                "the dual family was made for another target (other data, kernel or prior). Make one with "
                "provi.families.dual_gaussian(target); to certify the fit of another model pass its (mean, covariance)."
            )

    def factorise(self, point: DualPoint) -> SiteFactor:
        """The factorisation that everything below uses."""
        return factorise(self.gram, point.site_precision, self.root)

    def cross_covariance(self) -> Any:
        """Cov(z, eta) = Sigma_0 X' under the prior, (dim, N)."""
        if self.design is None or self.prior is None:
            return self.gram
        return self.prior.covariance_times(self.design.T)

    def prior_variance(self) -> Any:
        """The diagonal of Sigma_0."""
        return gram_diagonal(self.gram) if self.prior is None else self.prior.variance()

    def mean(self, point):
        return self.prior_mean + self.cross_covariance() @ point.dual_mean

    def covariance(self, point):
        half, prior = self._half(point)
        if half is None:
            factor = self.factorise(point)
            return factor.half.T @ factor.half
        return prior - half.T @ half

    def marginal_standard_deviation(self, point):
        if isinstance(self.gram, KernelRows):
            return streamed_deviations(self.gram, point.site_precision)
        if self.design is None or self.prior is None:
            return jnp.sqrt(self.factorise(point).variance)
        half, _ = self._half(point)
        return jnp.sqrt(jnp.maximum(self.prior_variance() - jnp.sum(half**2, axis=0), 0))

    def _half(self, point: DualPoint) -> tuple[Any, Any]:
        """T with Cov z = Sigma_0 - T'T, and Sigma_0; (None, None) in the whitened form."""
        factor = self.factorise(point)
        if factor.whitened:
            return None, None
        if self.design is None or self.prior is None:
            return factor.half, in_full(self.gram)
        scaled = jnp.sqrt(point.site_precision)[:, None] * self.cross_covariance().T
        identity = jnp.eye(self.dim, dtype=self.gram.dtype)
        return solve_triangular(factor.lower, scaled, lower=True), self.prior.covariance_times(identity)

    def sample(self, key: RandomKey, point: DualPoint, num: int) -> Draws:
        r"""Draws of the prior corrected by pseudo-observations (Matheron's rule).

        With $z_0 \sim N(0, \Sigma_0)$ and $\epsilon \sim N(0, I)$,
        $z = m + z_0 - \Sigma_0X'S^{1/2}B^{-1}(S^{1/2}Xz_0 + \epsilon)$ has covariance V.
        """
        first, second = jax.random.split(key)
        mean, factor = self.mean(point), self.factorise(point)
        dtype = self.gram.dtype
        if factor.whitened:
            return mean[None, :] + jax.random.normal(first, (num, self.num_sites), dtype) @ factor.half
        if self.design is None or self.prior is None:
            prior = jax.random.normal(first, (num, self.dim), dtype) @ covariance_root(self.gram).T
            seen = prior
        else:
            prior = self.prior.factor_times(jax.random.normal(first, (self.dim, num), dtype)).T
            seen = prior @ self.design.T
        half = jnp.sqrt(point.site_precision)
        noise = jax.random.normal(second, (num, self.num_sites), dtype)
        solved = cho_solve((factor.lower, True), (half[None, :] * seen + noise).T)
        return mean[None, :] + prior - (self.cross_covariance() @ (half[:, None] * solved)).T

    def log_prob(self, point, z):
        r"""$-\tfrac12(\delta'\Sigma_0^{-1}\delta + \sum_ns_n(x_n'\delta)^2) + \tfrac12\log|B| - \tfrac12\log|2\pi
        \Sigma_0|$, $\delta = z - m$; a singular K has no density (NaN)."""
        deviation = z - self.mean(point)
        if self.design is None or self.prior is None:
            lower = jnp.linalg.cholesky(in_full(self.gram))
            white = solve_triangular(lower, deviation, lower=True)
            prior = 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diagonal(lower)))
            prior, seen = prior + 0.5 * self.dim * math.log(2 * math.pi), deviation
        else:
            prior, seen = self.prior.potential(deviation + self.prior.mean), self.design @ deviation
        sites = 0.5 * jnp.sum(point.site_precision * seen**2)
        return -prior - sites + 0.5 * self.factorise(point).log_det

    def entropy(self, point: DualPoint) -> Scalar:
        """(log |2 pi e Sigma_0| - log |B|) / 2."""
        constant = 0.5 * self.dim * math.log(2 * math.pi * math.e)
        if self.design is None or self.prior is None:
            log_det = jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(in_full(self.gram)))))
        else:
            log_det = self.prior.log_det()
        return constant + log_det - 0.5 * self.factorise(point).log_det


def dual_gaussian(target: Any) -> DualGaussian:
    """The family of a Gaussian process, or of a linear model in N-space, K = X Sigma_0 X'."""
    if isinstance(target, GaussianProcess):
        mean = device_array(np.full(target.dim, np.asarray(target.mean)))
        root = None if target.likelihood.log_concave else covariance_root(target.gram)
        return DualGaussian(target.gram, mean, root=root)
    gram = _gram(target.design, target.prior)
    return DualGaussian(gram, target.prior.mean, target.design, target.prior)


def _agree(own: Any, other: Any) -> bool:
    """Equal, or the same computed on another machine: up to rounding."""
    if own is other:
        return True
    if isinstance(own, KernelRows) and isinstance(other, KernelRows):
        same = jax.tree.structure(own) == jax.tree.structure(other)
        return same and all(map(_agree, jax.tree.leaves(own), jax.tree.leaves(other)))
    if isinstance(own, KernelRows) or isinstance(other, KernelRows):
        return False
    own, other = np.asarray(own), np.asarray(other)
    if own.shape != other.shape or own.dtype != other.dtype:
        return False
    scale = float(np.abs(other).max(initial=0.0))
    return bool(np.abs(own - other).max(initial=0.0) <= 64 * np.finfo(own.dtype).eps * scale)


@instant_jit
def _gram(design: Any, prior: GaussianPrior) -> Matrix:
    scaled = prior.factor_transpose_times(design.T)  # F'X'
    gram = scaled.T @ scaled
    return (gram + gram.T) / 2
