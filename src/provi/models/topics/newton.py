r"""Damped Newton descent in the documents' means: what the Laplace, delta and mean-field baselines share.

Each of the three, once all that has a closed form is eliminated, minimises a function of a document's mean $m$ whose
main part is f of `likelihood` plus $\frac12(m-\mu)'\Sigma^{-1}(m-\mu)$. The Hessian of f is a difference,

$$\nabla^2f = \underbrace{W(diag\,\pi - \pi\pi')}_{complete} - \sum_uc_u(diag\,\phi_u - \phi_u\phi_u'),\qquad
\phi_{uk} = B_{uk}e^{m_k}/(B_u\cdot e^m),$$

the curvature that f would have if the words' topics were known less what is lost by not knowing them. The first
part is positive semi-definite and never smaller than the whole. So the steps are Newton's with the whole Hessian
where that, plus $\Sigma^{-1}$, is positive definite, and else with the first part: a descent direction always.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from provi.core.compilation import lean_jit
from provi.models.corpus import Documents
from provi.models.topics import likelihood
from provi.models.topics.chunks import in_chunks, out_of_chunks
from provi.models.topics.local_steps import cold_start
from provi.models.topics.model import LocalPosterior, TopicPrior

_ARMIJO, _ROUNDING = 1e-4, 10


class PriorFactors(NamedTuple):
    r"""$\mu$, the lower Cholesky factor of $\Sigma$ and its inverse."""

    mean: Any
    root: Any
    inverse_root: Any


class WordTerms(NamedTuple):
    """f at one point, its gradient, the complete-data part of its Hessian, the Hessian, and the shares."""

    value: Any
    gradient: Any
    complete: Any
    hessian: Any
    shares: Any


class Point(NamedTuple):
    """q, what is minimised, the step in the mean, minus the slope along it, and the distance from the optimum in nats.

    The slope is that of a full step.
    """

    mean: Any
    root: Any
    objective: Any
    direction: Any
    descent: Any
    decrement: Any


def prior_factors(prior: TopicPrior) -> PriorFactors:
    r"""The factors of $\Sigma$."""
    root = jnp.linalg.cholesky(prior.covariance)
    inverse = solve_triangular(root, jnp.eye(root.shape[0], dtype=root.dtype), lower=True)
    return PriorFactors(prior.mean, root, inverse)


def word_terms(mean: Any, tilt: Any, scaled: Any, counts: Any) -> WordTerms:
    r"""$-\sum_uc_u\log(B_u\cdot e^m) + W\log\sum_ke^{m_k+\tau_k}$ and its derivatives in m, for one document.

    Without the tilt $\tau$ this is f(m). The value is up to `likelihood.log_scale`; `scaled` from `scaled_rows`.
    """
    total = jnp.sum(counts)
    weights = likelihood.word_weights(mean[None, :], scaled, counts)
    owners = scaled * weights.topics / weights.words.T
    exponent = mean - jnp.max(mean) + tilt
    shares = jax.nn.softmax(exponent)
    value = total * jax.nn.logsumexp(exponent) - jnp.log(weights.words[0]) @ counts
    owned = counts @ owners
    complete = total * (jnp.diag(shares) - jnp.outer(shares, shares))
    hessian = complete - jnp.diag(owned) + owners.T @ (counts[:, None] * owners)
    # All is constant along (1, ..., 1): what rounding leaves there would compete with the prior.
    gradient, hessian = _centred(total * shares - owned), _centred(_centred(hessian).T)
    return WordTerms(value, gradient, _centred(_centred(complete).T), hessian, shares)


def posterior_root(prior: PriorFactors, hessian: Any) -> Any:
    r"""The lower Cholesky factor of $(\Sigma^{-1} + H)^{-1}$; not a number where that is not positive definite.

    With $\Sigma = LL'$ and $RR' = I + L'HL$, R upper triangular, it is $LR^{-T}$: nothing is inverted.
    """
    return _posterior_root(prior.root, hessian)


@jax.custom_batching.sequential_vmap
def _posterior_root(prior_root, hessian):
    """One document at a time, for the reason in `local_steps`."""
    middle = jnp.eye(hessian.shape[0], dtype=hessian.dtype) + prior_root.T @ hessian @ prior_root
    upper = jnp.linalg.cholesky(middle[::-1, ::-1])[::-1, ::-1]
    return solve_triangular(upper, prior_root.T, lower=False).T


def safe_root(prior: PriorFactors, terms: WordTerms) -> Any:
    """`posterior_root` of the Hessian where it exists, else of its complete-data part, which always does."""
    root = posterior_root(prior, terms.hessian)
    return jnp.where(jnp.all(jnp.isfinite(root)), root, posterior_root(prior, terms.complete))


def minimise(
    evaluate: Callable[..., Point],
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None,
    covariance: str,
    tol: Any,
    max_steps: Any,
) -> tuple[LocalPosterior, Any]:
    """The posteriors where the decrement of `evaluate` is at most `tol`, and the number of steps for each document.

    `evaluate(factors, mean, root, scaled, counts)` gives the `Point` of one document at `mean`; `root` is that of the
    point before, for a diagonal q at first the start's. A step is halved until the objective falls by the rule of
    Armijo, or stays the same within rounding with a smaller decrement.
    """
    # Arrays, since another Python number would be compiled anew.
    tol = tol if isinstance(tol, jax.Array) else jnp.asarray(np.asarray(tol, topics.dtype))
    max_steps = max_steps if isinstance(max_steps, jax.Array) else jnp.asarray(np.asarray(max_steps, np.int32))
    start = cold_start(documents, prior, covariance="diagonal") if start is None else start
    if covariance == "full":
        root = None  # that of the start is not looked at
    else:
        root = start.root if start.is_diagonal else cold_start(documents, prior, covariance="diagonal").root
    return _minimise(evaluate, documents, topics, prior, start.mean, root, tol, max_steps)


@lean_jit
def _minimise(evaluate, documents, topics, prior, mean, root, tol, max_steps):
    counts = documents.counts.astype(topics.dtype)
    root = jnp.zeros((*mean.shape, mean.shape[1]), mean.dtype) if root is None else root
    factors = prior_factors(prior)

    def visit(chunk):
        words, counts, mean, root = chunk
        scaled, _ = likelihood.scaled_rows(topics[words])

        def evaluate_all(mean, root):
            return jax.vmap(lambda *q: evaluate(factors, *q))(mean, root, scaled, counts)

        rounding = _ROUNDING * jnp.finfo(mean.dtype).eps * (1 + jnp.sum(counts, axis=1))
        return _descend(evaluate_all, mean, root, rounding, tol, max_steps)

    mean, root, steps = jax.lax.map(visit, in_chunks((documents.words, counts, mean, root)))
    mean, root, steps = (out_of_chunks(x, counts.shape[0]) for x in (mean, root, steps))
    return LocalPosterior(mean, root), steps


def _descend(evaluate, mean, root, rounding, tol, max_steps):
    """Steps for one chunk until each document has converged; one that has stays where it is."""

    def unfinished(carry):
        point, _, steps = carry
        return jnp.any(point.decrement > tol) & (jnp.max(steps) < max_steps)

    def iterate(carry):
        point, sizes, steps = carry
        active = point.decrement > tol
        new = evaluate(point.mean + sizes[:, None] * point.direction, point.root)
        gain = point.objective - new.objective
        as_good = (gain >= -rounding) & (new.decrement < point.decrement)
        taken = active & ((gain >= _ARMIJO * sizes * point.descent) | as_good)
        point = jax.tree.map(lambda a, b: jnp.where(taken.reshape(-1, *(1,) * (a.ndim - 1)), a, b), new, point)
        sizes = jnp.where(taken, jnp.minimum(2 * sizes, 1), sizes / 2)
        return point, sizes, steps + active

    # The first step has no direction and stays at the start; it is not counted.
    worst, still = jnp.full(mean.shape[:1], jnp.inf, mean.dtype), jnp.zeros(mean.shape[:1], mean.dtype)
    point = Point(mean, root, worst, jnp.zeros_like(mean), still, worst)
    carry = point, jnp.ones_like(worst), jnp.full(worst.shape, -1, jnp.int32)
    point, _, steps = jax.lax.while_loop(unfinished, iterate, carry)
    return point.mean, point.root, steps


def _centred(array):
    return array - jnp.mean(array, axis=-1, keepdims=True)
