r"""Covariances of low rank plus a diagonal, $\Omega = \Lambda\Lambda' + \Psi$: maximum likelihood by Newton's method.

Given $\Psi$ the best $\Lambda$ is known (Joreskog 1967). With the eigenvalues $\lambda_1 \ge \lambda_2 \ge \dots$ and
eigenvectors $u_m$ of $\Psi^{-1/2}S\Psi^{-1/2}$, $\Lambda = \Psi^{1/2}[\sqrt{\lambda_k - 1}\,u_k]_{k \in T}$, where $T$
are those of the first `rank` that exceed 1, and what remains is a function of $x = \log\psi$ alone:
$$f(x) = \log|\Omega| + \mathrm{tr}(\Omega^{-1}S)
 = \sum_jx_j + \sum_{k\in T}(1 + \log\lambda_k) + \sum_{m\notin T}\lambda_m.$$
From $\partial\lambda_m/\partial x_j = -\lambda_mu_{jm}^2$ and the derivatives of the eigenvectors (Clarke 1970),
$$g_j = \sum_{m\notin T}(1 - \lambda_m)u_{jm}^2,\qquad H = \Bigl(\sum_{m\notin T}\lambda_mu_mu_m'\Bigr)\circ
\Bigl(\sum_{m\notin T}u_mu_m'\Bigr) + \sum_{k\in T,\,m\notin T}
\frac{(1 - \lambda_m)(\lambda_k + \lambda_m)}{\lambda_k - \lambda_m}\,(u_ku_k')\circ(u_mu_m'),$$
$\circ$ entry by entry. No eigenvalue is divided by and none but those in $T$ has its logarithm taken, so $S$ may be
singular (fewer rows than columns). The likelihood often grows as some $\psi_j \to 0$ (a Heywood case): $\psi_j$ is held
above a small share of $S_{jj}$, by a projected Newton step.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

SMALLEST_SHARE = 0.005
"""The least share of a column's variance that its own noise keeps; also what R's factanal holds it at."""

_GAP, _MOST_EVALUATIONS = 1e-10, 200
"""Stop when half the squared Newton decrement, the gap to the minimum that the quadratic model sees, is this small."""

_LARGEST_MOVE = 2.0
"""The most log(psi) moves at once: where the quadratic model is poor, a longer step only costs halvings."""


class Factors(eqx.Module):
    r"""$\Lambda$ (fixed up to a rotation) and the diagonal $\psi$ of $\Psi$."""

    loadings: Float[Array, "p r"]
    uniquenesses: Float[Array, " p"]

    @property
    def covariance(self) -> Float[Array, "p p"]:
        r"""$\Lambda\Lambda' + \Psi$."""
        return self.loadings @ self.loadings.T + jnp.diag(self.uniquenesses)


class _Point(eqx.Module):
    """x with f, the gradient, and a Newton direction that leaves bounded entries where they are."""

    x: Float[Array, " p"]
    value: Float[Array, ""]
    gradient: Float[Array, " p"]
    direction: Float[Array, " p"]


class _Search(eqx.Module):
    best: _Point
    step: Float[Array, ""]
    count: Int[Array, ""]


def factor_covariance(S: Float[Array, "p p"], rank: int) -> Float[Array, "p p"]:
    r"""The $\Omega = \Lambda\Lambda' + \Psi$ that maximises $-\log|\Omega| - \mathrm{tr}(\Omega^{-1}S)$."""
    return fit_factors(S, rank).covariance


@eqx.filter_jit
def fit_factors(S: Float[Array, "p p"], rank: int, start: Factors | None = None) -> Factors:
    r"""Minimise $\log|\Omega| + \mathrm{tr}(\Omega^{-1}S)$ over $\Omega = \Lambda\Lambda' + \Psi$.

    The value never rises above that of `start`, so a covariance step of EM that begins at the present covariance
    keeps EM ascending. A local minimum: factor models can have several.

    **Arguments:**

    - `S`: a sample covariance (second moments about the mean), possibly singular; its diagonal positive.
    - `rank`: the number of factors, from 1 to p - 1.
    - `start`: where to begin; only its $\psi$ matters.
    """
    p = S.shape[0]
    if not 1 <= rank < p:
        raise ValueError(f"rank must lie between 1 and {p - 1}, the columns less one, not {rank}")
    # On the scale of correlations: the result is equivariant, and the bound is one number.
    deviation = jnp.sqrt(jnp.diagonal(S))
    correlation = S / deviation[:, None] / deviation[None]
    lowest = jnp.log(jnp.asarray(SMALLEST_SHARE, S.dtype))
    share = _first_shares(correlation, rank) if start is None else start.uniquenesses / deviation**2
    x = jnp.maximum(jnp.log(share), lowest)
    # Not below what rounding of f leaves visible.
    tol = max(_GAP, 4 * p * float(jnp.finfo(S.dtype).eps))

    def unfinished(search: _Search) -> Bool[Array, ""]:
        gap = -0.5 * search.best.gradient @ search.best.direction
        return (gap > tol) & (search.step > 1e-8) & (search.count < _MOST_EVALUATIONS)

    def advance(search: _Search) -> _Search:
        best = search.best
        trial = _evaluate(correlation, jnp.maximum(best.x + search.step * best.direction, lowest), rank, lowest)
        better = trial.value <= best.value + 1e-4 * best.gradient @ (trial.x - best.x)
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), trial, best)
        return _Search(kept, jnp.where(better, 1, search.step / 2), search.count + 1)

    first = _Search(_evaluate(correlation, x, rank, lowest), jnp.ones((), S.dtype), jnp.zeros((), int))
    x = jax.lax.while_loop(unfinished, advance, first).best.x
    eigenvalues, vectors = _eigen(correlation, x)
    lengths = jnp.sqrt(jnp.maximum(eigenvalues[:rank] - 1, 0))
    loadings = (deviation * jnp.exp(x / 2))[:, None] * vectors[:, :rank] * lengths[None]
    return Factors(loadings, deviation**2 * jnp.exp(x))


def _first_shares(correlation: Float[Array, "p p"], rank: int) -> Float[Array, " p"]:
    """Joreskog's start: the share of a column's variance that the others do not explain, a little less."""
    p = correlation.shape[0]
    identity = jnp.eye(p, dtype=correlation.dtype)
    # The small multiple of the identity is for singular matrices.
    inverse = jnp.linalg.inv(correlation + 0.01 * identity)
    return (1 - 0.5 * rank / p) / jnp.diagonal(inverse)


def _eigen(correlation: Float[Array, "p p"], x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
    scale = jnp.exp(-x / 2)
    eigenvalues, vectors = jnp.linalg.eigh(correlation * scale[:, None] * scale[None])
    return eigenvalues[::-1], vectors[:, ::-1]


def _evaluate(correlation: Float[Array, "p p"], x: Float[Array, " p"], rank: int, lowest: Float[Array, ""]) -> _Point:
    """f, its gradient and the projected Newton direction at x."""
    eigenvalues, vectors = _eigen(correlation, x)
    top, basis = eigenvalues[:rank], vectors[:, :rank]
    taken = jnp.concatenate([top > 1, jnp.zeros(x.shape[0] - rank, bool)])
    rest = jnp.where(taken, 0, eigenvalues)
    logs = jnp.where(taken[:rank], 1 + jnp.log(jnp.maximum(top, 1)), 0)
    value = jnp.sum(x) + jnp.sum(logs) + jnp.sum(rest)
    slack = jnp.where(taken, 0, 1 - eigenvalues)
    gradient = vectors**2 @ slack

    left = vectors * ~taken[None]
    projection = left @ left.T
    hessian = (left * rest[None]) @ left.T * projection
    for k in range(rank):
        gap = jnp.where(taken, 1, top[k] - eigenvalues)
        share = jnp.where(taken[k], slack * (top[k] + eigenvalues) / jnp.where(gap > 0, gap, jnp.inf), 0)
        hessian = hessian + basis[:, k, None] * basis[None, :, k] * ((left * share[None]) @ left.T)

    held = (x <= lowest) & (gradient > 0)
    newton = _solve_free(hessian, gradient, held)
    # Positive semidefinite always: the Hessian's mean if the model holds (all remaining eigenvalues 1).
    identity = jnp.eye(x.shape[0], dtype=x.dtype)
    scoring = _solve_free(projection**2 + 1e-3 * identity, gradient, held)
    direction = -jnp.where(jnp.all(jnp.isfinite(newton)), newton, scoring)
    direction = direction * jnp.minimum(1, _LARGEST_MOVE / jnp.maximum(jnp.max(jnp.abs(direction)), 1e-30))
    return _Point(x, value, gradient, direction)


def _solve_free(
    matrix: Float[Array, "p p"], gradient: Float[Array, " p"], held: Bool[Array, " p"]
) -> Float[Array, " p"]:
    """matrix^-1 gradient in the entries that are not held, zero in the others; NaN unless positive definite."""
    identity = jnp.eye(gradient.shape[0], dtype=gradient.dtype)
    either = held[:, None] | held[None]
    factor = jnp.linalg.cholesky(jnp.where(either, identity, matrix))
    return cho_solve((factor, True), jnp.where(held, 0, gradient))
