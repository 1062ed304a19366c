r"""Quadrature for one coordinate of a spherical base.

By sphericity $a'u$ has the law of $|a|\,u_1$, so $E f(\eta + a'u)$ is a one-dimensional integral in any
dimension. The rules are sized for integrands like $\log(1 + e^{\eta + s t})$ with $s \le 10$, whose nearest
singularities are $\pi/10$ away from the real line: node spacings near 0.06 in the bulk leave errors near
$10^{-12}$ relative to $\max(1, |E f|)$. For larger $s$ the error grows; the caller has to guard it.
"""

import functools

import numpy as np
from scipy import linalg, special

from provi.families.bases import AbstractBase, Laplace, Normal, StudentT, Uniform

Rule = tuple[np.ndarray, np.ndarray]


@functools.singledispatch
def marginal_quadrature(base: AbstractBase, dim: int) -> Rule:
    r"""A quadrature rule for the law of the coordinate $u_1$ of `base` in dimension `dim`.

    **Arguments:**

    - `base`: the base; one of the four of `provi.families`.
    - `dim`: the dimension of u. The marginals of `Laplace` and `Uniform` depend on it.

    **Returns:**

    Nodes $t_j$, symmetric about zero, and weights $w_j > 0$ with sum 1, both NumPy float64:
    $E f(u_1) \approx \sum_j w_j f(t_j)$.
    """
    raise TypeError(f"There is no marginal rule for {type(base).__name__}; add one with marginal_quadrature.register.")


@marginal_quadrature.register(Normal)
def _normal(base: Normal, dim: int) -> Rule:
    half_nodes = 0.04 * np.arange(0.5, 300)
    return _symmetric_rule(half_nodes, np.exp(-(half_nodes**2) / 2))


@marginal_quadrature.register(Laplace)
def _laplace(base: Laplace, dim: int) -> Rule:
    """Trapezoid rule after t = log(1 + exp(v - exp(-v))).

    The map is double exponential towards t = 0, where the density is only `dim` - 1 times smooth, and linear
    for large t, where the singularities of the integrand are equally near everywhere.
    """
    v = np.arange(-4.0, 60.0, 0.06)
    exponent = v - np.exp(-v)
    t = np.log1p(np.exp(exponent))
    jacobian = (1 + np.exp(-v)) * special.expit(exponent)
    return _symmetric_rule(t, _laplace_density(t, dim) * jacobian)


def _laplace_density(t: np.ndarray, dim: int) -> np.ndarray:
    """The density of u_1, by u_1 = sqrt(G) g with G ~ Gamma(k, rate k), k = (d+1)/2, and g standard normal.

    (Both have the characteristic function (1 + x^2/(d+1))^-k.) The mixture is integrated over log G, where
    its integrand decays double exponentially on both sides. In closed form it is proportional to
    |t|^(d/2) K_{d/2}(sqrt(d+1) |t|), but that Bessel function overflows in high dimension.
    """
    shape = (dim + 1) / 2
    spacing = min(0.1, 0.6 / np.sqrt(shape))  # log G has standard deviation about 1/sqrt(k)
    log_g = np.arange(-90.0, 6.0, spacing)
    log_gamma = shape * (np.log(shape) + log_g - np.exp(log_g)) - special.gammaln(shape)
    log_normal = -0.5 * (np.exp(2 * np.log(t)[:, None] - log_g) + log_g + np.log(2 * np.pi))
    return spacing * np.exp(np.asarray(special.logsumexp(log_gamma + log_normal, axis=1)))


@marginal_quadrature.register(Uniform)
def _uniform(base: Uniform, dim: int) -> Rule:
    """Gauss-Gegenbauer rule for the density (1 - t^2/(d+2))^((d-1)/2), by the Golub-Welsch eigenproblem.

    The eigenvectors give normalised weights without any gamma function, hence in any dimension.
    """
    radius, alpha = np.sqrt(dim + 2), dim / 2
    num_nodes = 2 * int(20 + 17.5 * radius)
    j = np.arange(1, num_nodes)
    off_diagonal = np.sqrt(j * (j + 2 * alpha - 1) / (4 * (j + alpha) * (j + alpha - 1)))
    nodes, vectors = linalg.eigh_tridiagonal(np.zeros(num_nodes), off_diagonal)
    half = slice(num_nodes // 2, None)
    return _symmetric_rule(radius * nodes[half], vectors[0, half] ** 2)


@marginal_quadrature.register(StudentT)
def _student_t(base: StudentT, dim: int) -> Rule:
    """Trapezoid rule after t = c sinh(sinh(k v)/k): about equidistant in the bulk, sparse in the tail.

    Nodes end at |t| = 1e75, the fourth power of which is still finite: moments of an order within about 0.3
    of `df`, infinite or nearly so, are cut off there.
    """
    df, spacing, scale, growth = float(base.df), 0.004, 15.0, 0.6
    last = np.arcsinh(growth * np.arcsinh(1e75 / scale)) / growth
    v = np.arange(spacing / 2, last, spacing)
    inner = np.sinh(growth * v) / growth
    t = scale * np.sinh(inner)
    log_jacobian = np.log(np.cosh(inner)) + np.log(np.cosh(growth * v))
    return _symmetric_rule(t, np.exp(log_jacobian - 0.5 * (df + 1) * np.log1p(t**2 / (df - 2))))


def _symmetric_rule(half_nodes: np.ndarray, half_weights: np.ndarray) -> Rule:
    """The rule mirrored at zero, normalised, without nodes that even a fourth power does not notice."""
    half_weights = half_weights / (2 * half_weights.sum())
    keep = half_weights * np.maximum(1.0, half_nodes**4) > 1e-19
    half_nodes, half_weights = half_nodes[keep], half_weights[keep]
    weights = np.concatenate([half_weights[::-1], half_weights])
    return np.concatenate([-half_nodes[::-1], half_nodes]), weights / weights.sum()
