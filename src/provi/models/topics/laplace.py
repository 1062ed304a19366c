r"""Laplace's approximation of the documents' posteriors (Wang and Blei 2013).

$q = N(\hat z, V)$ with $\hat z$ a minimum of $F(z) = f(z) + \frac12(z-\mu)'\Sigma^{-1}(z-\mu)$ and $V$ the inverse of a
curvature at it.

Wang and Blei ("Variational inference in nonconjugate models", JMLR 14, 2013) keep the topic of each word as a
variable with a factor $\phi_u$ of its own, and alternate: $\phi_{uk}\propto B_{uk}e^{\hat z_k}$ (their $E_q\log\pi_k$
differs from $\hat z_k$ by the same number for all k), then $\hat z$ maximises
$n'z - W\log\sum e^z - \frac12(z-\mu)'\Sigma^{-1}(z-\mu)$ with $n_k = \sum_uc_u\phi_{uk}$. Where neither moves,
$n - W\pi = \Sigma^{-1}(\hat z-\mu)$, and $W\pi - n$ is the gradient of f: their fixed points are the stationary points
of F, which Newton's method finds sooner. Their curvature is that of the second problem,
$\Sigma^{-1} + W(diag\,\pi-\pi\pi')$, `curvature="assigned"` here: it takes the topics of the words as known, and is
never smaller than the Hessian of F itself, `curvature="summed"`, with the topics of the words summed out.
"""

from typing import Any

import jax.numpy as jnp

from provi.models.corpus import Documents
from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.models.topics.newton import Point, minimise, posterior_root, safe_root, word_terms


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
    r"""The modes, and $V = (\Sigma^{-1} + H)^{-1}$ at each; and the number of Newton steps.

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
