r"""The delta method for the documents' posteriors (Wang and Blei 2013): the ELBO with a Taylor expansion inside.

In "Variational inference in nonconjugate models" (JMLR 14, 2013) each word's topic has a factor $\phi_u$ of its own,
and $E_q\log\sum e^z$ is replaced by its second-order expansion at m. With $C(m) = W(diag\,\pi-\pi\pi')$ maximised is

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
"""

from typing import Any

import jax.numpy as jnp

from provi.models.corpus import Documents
from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.models.topics.newton import Point, minimise, posterior_root, safe_root, word_terms


def infer_delta(
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None = None,
    *,
    tol: Any = 1e-3,
    max_steps: Any = 100,
) -> tuple[LocalPosterior, Any]:
    r"""The maximisers (m, V) of the expanded ELBO, and the number of steps for each document.

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
