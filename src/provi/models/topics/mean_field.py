r"""The original mean-field bound of the correlated topic model (Blei and Lafferty 2007).

In "A correlated topic model of Science" (Annals of Applied Statistics 1, 2007) q has independent topic weights
$N(m_k, v_k)$ and a factor $\phi_u$ for each word's topic, and the normaliser is bounded with a number $\zeta>0$,

$$E_q\log\sum_ke^{z_k} \le \log\zeta - 1 + \zeta^{-1}\sum_ke^{m_k+v_k/2}.$$

The bound of the log evidence is then

$$\sum_{uk}c_u\phi_{uk}(m_k+\log B_{uk}-\log\phi_{uk}) - W\Big(\log\zeta-1+\zeta^{-1}\sum_ke^{m_k+v_k/2}\Big)
- KL(q\|N(\mu,\Sigma)),$$

raised in turn in $\zeta = \sum_ke^{m_k+v_k/2}$, in $\phi_{uk}\propto B_{uk}e^{m_k}$, in each $v_k$ and in m. With the
best $\phi$ and $\zeta$ it is $\sum_uc_u\log(B_u\cdot e^m) - W\log\sum_ke^{m_k+v_k/2} - KL$. The step in m is Newton's
on that (the paper's: conjugate gradients with both fixed), which saves the slow turns between $\phi$, $\zeta$ and m.
The bound never falls.
"""

from typing import Any

import jax
import jax.numpy as jnp

from provi.core.compilation import lean_jit
from provi.models.topics import likelihood
from provi.models.topics.corpus import Documents, in_chunks, out_of_chunks
from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.models.topics.newton import Point, minimise, prior_factors, safe_root, word_terms

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
