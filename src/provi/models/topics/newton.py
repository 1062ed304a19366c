r"""Damped Newton descent in the documents' means: the Laplace, delta and mean-field baselines.

Each of the three, once all that has a closed form is eliminated, minimises a function of a document's mean $m$ whose
main part is f of `likelihood` plus $\frac12(m-\mu)'\Sigma^{-1}(m-\mu)$. The Hessian of f is a difference,

$$\nabla^2f = \underbrace{W(diag\,\pi - \pi\pi')}_{complete} - \sum_uc_u(diag\,\phi_u - \phi_u\phi_u'),\qquad
\phi_{uk} = B_{uk}e^{m_k}/(B_u\cdot e^m),$$

the curvature that f would have if the words' topics were known less what is lost by not knowing them. The first
part is positive semi-definite and never smaller than the whole. So the steps are Newton's with the whole Hessian
where that, plus $\Sigma^{-1}$, is positive definite, and else with the first part: a descent direction always.

**Mean field** is the original bound of the correlated topic model. In "A correlated topic model of Science" (Blei and
Lafferty, Annals of Applied Statistics 1, 2007) q has independent topic weights $N(m_k, v_k)$ and a factor $\phi_u$ for
each word's topic, and the normaliser is bounded with a number $\zeta>0$,

$$E_q\log\sum_ke^{z_k} \le \log\zeta - 1 + \zeta^{-1}\sum_ke^{m_k+v_k/2}.$$

The bound of the log evidence is then

$$\sum_{uk}c_u\phi_{uk}(m_k+\log B_{uk}-\log\phi_{uk}) - W\Big(\log\zeta-1+\zeta^{-1}\sum_ke^{m_k+v_k/2}\Big)
- KL(q\|N(\mu,\Sigma)),$$

raised in turn in $\zeta = \sum_ke^{m_k+v_k/2}$, in $\phi_{uk}\propto B_{uk}e^{m_k}$, in each $v_k$ and in m. With the
best $\phi$ and $\zeta$ it is $\sum_uc_u\log(B_u\cdot e^m) - W\log\sum_ke^{m_k+v_k/2} - KL$. The step in m is Newton's
on that (the paper's: conjugate gradients with both fixed), which saves the slow turns between $\phi$, $\zeta$ and m.
The bound never falls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from provi.core.arguments import device_array
from provi.core.compilation import lean_jit
from provi.models.topics import likelihood
from provi.models.topics.corpus import Documents, in_chunks, out_of_chunks
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
    tol = tol if isinstance(tol, jax.Array) else device_array(np.asarray(tol, topics.dtype))
    max_steps = max_steps if isinstance(max_steps, jax.Array) else device_array(np.asarray(max_steps, np.int32))
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


def infer_delta(
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None = None,
    *,
    tol: Any = 1e-3,
    max_steps: Any = 100,
) -> tuple[LocalPosterior, Any]:
    r"""The delta method: maximisers (m, V) of the ELBO with a Taylor expansion inside, and each document's steps.

    In "Variational inference in nonconjugate models" (Wang and Blei, JMLR 14, 2013) each word's topic has a factor
    $\phi_u$ of its own, and $E_q\log\sum e^z$ is replaced by its second-order expansion at m. With
    $C(m) = W(diag\,\pi-\pi\pi')$ maximised is

    $$\sum_{uk}c_u\phi_{uk}(m_k + \log B_{uk} - \log\phi_{uk}) - W\log\sum_ke^{m_k} - \tfrac12tr(C(m)V)
    - KL(q\|N(\mu,\Sigma)).$$

    The best $\phi_{uk}\propto B_{uk}e^{m_k}$ turns the first sum into $\sum_uc_u\log(B_u\cdot e^m)$, so it is
    $-f(m) - \frac12tr(C(m)V) - KL$; the best V is $(\Sigma^{-1}+C(m))^{-1}$. What is left is to minimise in m

    $$f(m) + \tfrac12(m-\mu)'\Sigma^{-1}(m-\mu) + \tfrac12\log\det(I + \Sigma C(m)),$$

    with the gradient $\nabla f + \Sigma^{-1}(m-\mu) + \frac W2(diag\,\pi-\pi\pi')(diag\,V - 2V\pi)$: by the envelope
    theorem V counts as fixed, and $\partial\pi_j/\partial m_k = \pi_j(\delta_{jk}-\pi_k)$.

    With the topics of the words summed out, the expansion of f has $\nabla^2f$ in the place of C. That objective is not
    bounded: f is not convex, and where $\Sigma^{-1}+\nabla^2f(m)$ is indefinite it grows with V without limit. C is
    positive semi-definite, so that the objective above is at most $-\min f$; but it does not bound the evidence.

    The steps are Newton's but for the curvature of the log determinant, which is left out of the matrix (not of the
    gradient g). A document is finished when $\frac12g'M^{-1}g \le$ `tol` nats, M that matrix.

    **Arguments:**

    - `documents`, `topics`, `prior`: as for `local_steps.infer`.
    - `start`: posteriors of an earlier call, of which the means are used; default: the prior's mean.
    - `tol`, `max_steps`: when to stop.
    """
    return minimise(_expanded, documents, topics, prior, start, "full", tol, max_steps)


def _expanded(prior, mean, _, scaled, counts):
    terms = word_terms(mean, jnp.zeros_like(mean), scaled, counts)
    distance = prior.inverse_root @ (mean - prior.mean)
    root, shares = posterior_root(prior, terms.complete), terms.shares
    slopes = jnp.sum(root**2, axis=1) - 2 * (root @ (root.T @ shares))
    bent = jnp.sum(counts) / 2 * shares * (slopes - shares @ slopes)
    preconditioner = safe_root(prior, terms)
    white = preconditioner.T @ (terms.gradient + bent + prior.inverse_root.T @ distance)
    log_det = -jnp.sum(jnp.log(jnp.diagonal(root)))
    descent = jnp.sum(white**2)
    objective = terms.value + jnp.sum(distance**2) / 2 + log_det
    return Point(mean, root, objective, -(preconditioner @ white), descent, descent / 2)


def infer_laplace(
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None = None,
    *,
    curvature: str = "summed",
    tol: Any = 1e-3,
    max_steps: Any = 100,
) -> tuple[LocalPosterior, Any]:
    r"""Laplace's approximation: the modes, $V = (\Sigma^{-1} + H)^{-1}$ at each, and the number of Newton steps.

    $q = N(\hat z, V)$ with $\hat z$ a minimum of $F(z) = f(z) + \frac12(z-\mu)'\Sigma^{-1}(z-\mu)$ and $V$ the inverse
    of a curvature at it.

    Wang and Blei ("Variational inference in nonconjugate models", JMLR 14, 2013) keep the topic of each word as a
    variable with a factor $\phi_u$ of its own, and alternate: $\phi_{uk}\propto B_{uk}e^{\hat z_k}$ (their
    $E_q\log\pi_k$ differs from $\hat z_k$ by the same number for all k), then $\hat z$ maximises
    $n'z - W\log\sum e^z - \frac12(z-\mu)'\Sigma^{-1}(z-\mu)$ with $n_k = \sum_uc_u\phi_{uk}$. Where neither moves,
    $n - W\pi = \Sigma^{-1}(\hat z-\mu)$, and $W\pi - n$ is the gradient of f: their fixed points are the stationary
    points of F, which Newton's method finds sooner. Their curvature is that of the second problem,
    $\Sigma^{-1} + W(diag\,\pi-\pi\pi')$, `curvature="assigned"` here: it takes the topics of the words as known, and is
    never smaller than the Hessian of F itself, `curvature="summed"`, with the topics of the words summed out.

    A document is finished when $\frac12g'M^{-1}g \le$ `tol` nats, g the gradient of F and M the matrix of the Newton
    step. F is not convex: which of its minima is found depends on the start. Where $\Sigma^{-1} + \nabla^2f$ is not
    positive definite, which at a minimum can only be by rounding or for want of steps, both M and V have the
    `"assigned"` curvature, which always is.

    **Arguments:**

    - `documents`, `topics`, `prior`: as for `local_steps.infer`.
    - `start`: posteriors of an earlier call, of which the means are used; default: the prior's mean.
    - `curvature`: `"summed"`, or `"assigned"` for the covariance of Wang and Blei.
    - `tol`, `max_steps`: when to stop.
    """
    if curvature not in _EVALUATIONS:
        raise ValueError(f"curvature must be 'summed' or 'assigned', not {curvature!r}.")
    return minimise(_EVALUATIONS[curvature], documents, topics, prior, start, "full", tol, max_steps)


def _point(prior, mean, scaled, counts):
    """The `Point` with the Hessian's root, and the terms of the words."""
    terms = word_terms(mean, jnp.zeros_like(mean), scaled, counts)
    distance = prior.inverse_root @ (mean - prior.mean)
    root = safe_root(prior, terms)
    white = root.T @ (terms.gradient + prior.inverse_root.T @ distance)
    objective, descent = terms.value + jnp.sum(distance**2) / 2, jnp.sum(white**2)
    return Point(mean, root, objective, -(root @ white), descent, descent / 2), terms


def _summed(prior, mean, _, scaled, counts):
    return _point(prior, mean, scaled, counts)[0]


def _assigned(prior, mean, _, scaled, counts):
    point, terms = _point(prior, mean, scaled, counts)
    return point._replace(root=posterior_root(prior, terms.complete))


_EVALUATIONS = {"summed": _summed, "assigned": _assigned}


_VARIANCE_STEPS = 12


def infer_mean_field(
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None = None,
    *,
    tol: Any = 1e-3,
    max_steps: Any = 100,
) -> tuple[LocalPosterior, Any]:
    r"""The diagonal posteriors that maximise the bound, and the number of steps for each document.

    A document is finished when $\frac12g'M^{-1}g + \frac14\sum_k(v_k(\Sigma^{-1}_{kk}+W\pi_k)-1)^2 \le$ `tol` nats,
    with g the gradient in m, M the matrix of its Newton step and $\pi = softmax(m+v/2)$; the second term measures the
    gradient in v.

    **Arguments:**

    - `documents`, `topics`, `prior`: as for `local_steps.infer`.
    - `start`: posteriors of an earlier call (of a full q the means are used); default: `local_steps.cold_start`.
    - `tol`, `max_steps`: when to stop.
    """
    return minimise(_raised, documents, topics, prior, start, "diagonal", tol, max_steps)


@lean_jit
def mean_field_bounds(documents: Documents, topics: Any, prior: TopicPrior, posterior: LocalPosterior) -> Any:
    """The bound of each document's log evidence (documents,) at its best phi and zeta, in nats; for diagonal q.

    As in `document_elbos` the multinomial coefficient is left out.
    """
    factors = prior_factors(prior)

    def bound(words, counts, mean, root):
        scaled, logs = likelihood.scaled_rows(topics[words])
        terms = word_terms(mean, root**2 / 2, scaled, counts)
        constant = likelihood.log_scale(logs, counts) + mean.shape[0] / 2 - jnp.sum(jnp.log(jnp.diagonal(factors.root)))
        return constant - _objective(factors, mean, root, terms)

    arrays = documents.words, documents.counts.astype(topics.dtype), posterior.mean, posterior.root
    bounds = jax.lax.map(lambda chunk: jax.vmap(bound)(*chunk), in_chunks(arrays))
    return out_of_chunks(bounds, documents.words.shape[0])


def _raised(prior, mean, root, scaled, counts):
    """The best v for the zeta of (mean, root), and what there is at (mean, v)."""
    precision, total = jnp.sum(prior.inverse_root**2, axis=0), jnp.sum(counts)
    rates = total * jax.nn.softmax(mean + root**2 / 2) * jnp.exp(-(root**2) / 2)
    variance = _best_variance(precision, rates)
    root = jnp.sqrt(variance)
    terms = word_terms(mean, variance / 2, scaled, counts)
    preconditioner = safe_root(prior, terms)
    distance = prior.inverse_root @ (mean - prior.mean)
    white = preconditioner.T @ (terms.gradient + prior.inverse_root.T @ distance)
    excess = variance * (precision + total * terms.shares) - 1
    descent, objective = jnp.sum(white**2), _objective(prior, mean, root, terms)
    return Point(mean, root, objective, -(preconditioner @ white), descent, descent / 2 + jnp.sum(excess**2) / 4)


def _objective(prior, mean, root, terms):
    """Minus the bound, up to constants."""
    distance = prior.inverse_root @ (mean - prior.mean)
    spread = jnp.sum(prior.inverse_root**2, axis=0) @ root**2
    return terms.value + (jnp.sum(distance**2) + spread) / 2 - jnp.sum(jnp.log(root))


def _best_variance(precision, rates):
    r"""The root of $s(v) = v(p + ae^{v/2}) - 1$: where $\frac12\log v - \frac12pv - ae^{v/2}$, concave, is largest.

    s increases and is convex, so Newton's steps from the right come down to the root and never pass it. Two numbers
    right of it: $1/(p+a)$, and $\max(1, -2\log a)$, since for a root beyond 1 $ae^{v/2}\le1$. Here
    $a = We^{m_k}/\zeta$.
    """

    def step(_, v):
        pull = jnp.exp(v / 2 + jnp.log(rates))  # a product would be 0 times infinity without words and a wide prior
        return v - (v * (precision + pull) - 1) / (precision + pull * (1 + v / 2))

    start = jnp.minimum(1 / (precision + rates), jnp.maximum(1, -2 * jnp.log(rates)))
    return jax.lax.fori_loop(0, _VARIANCE_STEPS, step, start)
