r"""Proximal-gradient steps for the posterior $q(z_d) = N(m, V)$ of each document's topic weights.

Maximised is $-E_qf(z) - KL(q\|N(\mu,\Sigma))$, f as in `likelihood`. With $g = E_q\nabla f$, $H = E_q\nabla^2f$,
$P = V^{-1}$ and $t = \beta/(1+\beta)$ the step is the natural-gradient one ("A-form") with a second-order term,

$$\Delta = \Sigma^{-1} + H - P,\qquad P_+ = P + t\Delta + \tfrac{t^2}{2}\Delta P^{-1}\Delta,\qquad
m_+ = m - tP_+^{-1}\big(\Sigma^{-1}(m-\mu) + g\big).$$

f is not convex, so $P + t\Delta$ may be indefinite; with $V = LL'$ and $D = L'\Delta L$ the new precision is
$L^{-T}(I + tD + t^2D^2/2)L^{-1}$, whose middle has eigenvalues of at least 1/2. The fixed points are the same, the
stationary points of the ELBO (the rule of Lin, Schmidt and Khan 2020, "Handling the positive-definite constraint in the
Bayesian learning rule"). For a diagonal q all of this is taken entry by entry, and the best shift of all $z_k$ added.

Expectations are means over $z_s = m + L\epsilon_s$ with $\epsilon$ (`base_draws`) kept during the iteration, so that it
has a fixed point.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from provi.core.arguments import device_array
from provi.core.compilation import lean_jit
from provi.models.topics import likelihood
from provi.models.topics.corpus import Documents, in_chunks, out_of_chunks
from provi.models.topics.draws import BaseDraws, draws_from
from provi.models.topics.model import LocalPosterior, TopicPrior

LARGEST_STEP = 2.0
"""The step beta grows to this. On the AP corpus 1 to 5 take 19 to 14 steps; with 10 some documents never converge."""

_GROWTH, _WORD_PRECISION = 1.3, 0.1


class _Prior(NamedTuple):
    """mu, the inverse of the lower Cholesky factor of Sigma, and Sigma^-1."""

    mean: Any
    inverse_root: Any
    precision: Any


class _Point(NamedTuple):
    """q, the sampled negative ELBO, its gradient in m, D, and half the squared length of the natural gradient."""

    mean: Any
    root: Any
    objective: Any
    gradient: Any
    excess: Any
    decrement: Any


def cold_start(documents: Documents, prior: TopicPrior, *, covariance: str = "full") -> LocalPosterior:
    r"""$m = \mu$, $V^{-1} = \Sigma^{-1} + W/10$: for W words far narrower than the prior, without words the prior.

    From the prior itself the first ten steps wander, with draws from all over the simplex.
    """
    # From the sums, on the host: one program for documents of all widths.
    return _start(device_array(np.asarray(documents.counts).sum(axis=1)), prior, covariance)


@lean_jit
def _start(totals, prior, covariance):
    inverse = _read_prior(prior)
    words = _WORD_PRECISION * totals.astype(prior.mean.dtype)
    if covariance == "full":
        identity = jnp.eye(prior.mean.shape[0], dtype=prior.mean.dtype)
        root = jax.vmap(lambda w: _inverse_root(inverse.precision + w * identity, identity))(words)
    else:
        root = 1 / jnp.sqrt(jnp.diagonal(inverse.precision)[None, :] + words[:, None])
    return LocalPosterior(jnp.broadcast_to(prior.mean, (words.shape[0], prior.mean.shape[0])), root)


def infer(
    documents: Documents,
    topics: Any,
    prior: TopicPrior,
    start: LocalPosterior | None = None,
    *,
    draws: BaseDraws,
    covariance: str = "full",
    step: Any = 2.0,
    tol: Any = 1e-3,
    max_steps: Any = 100,
) -> tuple[LocalPosterior, Any]:
    r"""The posteriors of the documents, and the number of steps taken for each.

    A document is finished when $\frac12|L'\nabla_m|^2 + \frac14|D|_F^2 \le$ `tol`: half the squared length of the
    natural gradient, in nats. With few topics the ELBO can still gain a few times that; with 40, up to some nats where
    steps are small against the distance left, and for a diagonal q some documents end at `max_steps`. A step that
    raises both this and the sampled negative ELBO is not taken, and $t$ is halved; after others it grows by 1.3.

    **Arguments:**

    - `documents`: padded, as from `bucket_documents`; one without words gets the prior.
    - `topics`: p(word | topic), (vocabulary, topics); only the rows of a document's words are read.
    - `start`: posteriors of an earlier call, of the same `covariance`; default: `cold_start`.
    - `draws`: from `base_draws`; numbers of draws that are multiples of twice the number of topics are best.
    - `covariance`: `"full"` or `"diagonal"`.
    - `step`: beta of the first step. `tol`, `max_steps`: when to stop.
    """
    if covariance not in ("full", "diagonal"):
        raise ValueError(f"covariance must be 'full' or 'diagonal', not {covariance!r}.")
    if start is not None and start.is_diagonal != (covariance == "diagonal"):
        raise ValueError(f"start.root has {start.root.ndim} axes, which does not fit covariance={covariance!r}.")
    start = cold_start(documents, prior, covariance=covariance) if start is None else start
    step, tol = (x if isinstance(x, jax.Array) else device_array(np.asarray(x, topics.dtype)) for x in (step, tol))
    max_steps = max_steps if isinstance(max_steps, jax.Array) else device_array(np.asarray(max_steps, np.int32))
    return _infer(documents, topics, prior, start, draws, step, tol, max_steps)


@lean_jit
def _infer(documents, topics, prior, start, draws, step, tol, max_steps):
    counts = documents.counts.astype(topics.dtype)
    inverse = _read_prior(prior)
    full = not start.is_diagonal
    evaluate, move = (_evaluate_full, _move_full) if full else (_evaluate_diagonal, _move_diagonal)

    def visit(chunk):
        words, counts, mean, root = chunk
        scaled, _ = likelihood.scaled_rows(topics[words])
        squares = likelihood.word_pairs(scaled) if full else scaled**2

        def evaluate_all(mean, root):
            arrays = (mean, root, draws.points, scaled, squares, counts)
            return jax.vmap(lambda *q: evaluate(inverse, draws.chances, *q))(*arrays)

        def move_all(point, sizes):
            return jax.vmap(lambda *q: move(inverse, *q))(point, sizes)

        worded = jnp.sum(counts, axis=1) > 0
        return _iterate(evaluate_all, move_all, mean, root, worded, step / (1 + step), tol, max_steps)

    mean, root, steps = jax.lax.map(visit, in_chunks((documents.words, counts, start.mean, start.root)))
    mean, root, steps = (out_of_chunks(x, counts.shape[0]) for x in (mean, root, steps))
    worded = jnp.sum(counts, axis=1) > 0
    empty = _prior_root(inverse, full)
    return LocalPosterior(_select(worded, mean, prior.mean[None]), _select(worded, root, empty[None])), steps


def _iterate(evaluate, move, mean, root, active, size, tol, max_steps):
    """Steps for one chunk until each document has converged; one that has stays where it is."""
    largest = jnp.maximum(size, LARGEST_STEP / (1 + LARGEST_STEP))

    def unfinished(carry):
        _, _, active, steps = carry
        return jnp.any(active) & (jnp.max(steps) < max_steps)

    def iterate(carry):
        point, sizes, active, steps = carry
        new = evaluate(*move(point, sizes))
        better = (new.objective <= point.objective) | (new.decrement <= point.decrement)
        taken = active & better & jnp.isfinite(new.objective)
        point = jax.tree.map(lambda a, b: _select(taken, a, b), new, point)
        sizes = jnp.where(taken, jnp.minimum(_GROWTH * sizes, largest), sizes / 2)
        return point, sizes, active & (point.decrement > tol), steps + active

    # Without slopes the first step stays at the start, and is not counted: one copy of `evaluate` less to compile.
    worst = jnp.full(active.shape, jnp.inf, mean.dtype)
    point = _Point(mean, root, worst, jnp.zeros_like(mean), jnp.zeros_like(root), worst)
    carry = point, jnp.full_like(worst, size / _GROWTH), active, jnp.full(active.shape, -1, jnp.int32)
    point, _, _, steps = jax.lax.while_loop(unfinished, iterate, carry)
    return point.mean, point.root, jnp.maximum(steps, 0)


def _evaluate_full(prior, chances, mean, root, draws, scaled, squares, counts):
    weights = likelihood.word_weights(draws_from(mean, root, draws), scaled, counts)
    # f is constant along (1, ..., 1): rounding would leave a slope there, against the wide posterior in that direction.
    gradient = _centred(chances @ likelihood.gradients(weights, scaled, counts))
    hessian = likelihood.mean_hessian(weights, chances, squares, counts, gradient)
    hessian = _centred(_centred(hessian).T)
    distance, spread = prior.inverse_root @ (mean - prior.mean), prior.inverse_root @ root
    excess = root.T @ hessian @ root + spread.T @ spread - jnp.eye(mean.shape[0], dtype=mean.dtype)
    gradient = gradient + prior.inverse_root.T @ distance
    divergence = (jnp.sum(distance**2) + jnp.sum(spread**2)) / 2 - jnp.sum(jnp.log(jnp.diagonal(root)))
    objective = chances @ likelihood.values(weights, counts) + divergence
    decrement = jnp.sum((root.T @ gradient) ** 2) / 2 + jnp.sum(excess**2) / 4
    return _Point(mean, root, objective, gradient, excess, decrement)


def _move_full(_, point, size):
    identity = jnp.eye(point.mean.shape[0], dtype=point.mean.dtype)
    plain = identity + size * point.excess
    root = _inverse_root((identity + plain @ plain) / 2, point.root)
    return point.mean - size * (root @ (root.T @ point.gradient)), root


def _evaluate_diagonal(prior, chances, mean, root, draws, scaled, squares, counts):
    weights = likelihood.word_weights(draws_from(mean, root, draws), scaled, counts)
    gradient = _centred(chances @ likelihood.gradients(weights, scaled, counts))
    hessian = likelihood.mean_hessian_diagonal(weights, chances, squares, counts, gradient)
    distance, precision = prior.inverse_root @ (mean - prior.mean), jnp.diagonal(prior.precision)
    excess = root**2 * (hessian + precision) - 1
    gradient = gradient + prior.inverse_root.T @ distance
    divergence = (jnp.sum(distance**2) + jnp.sum(precision * root**2)) / 2 - jnp.sum(jnp.log(root))
    objective = chances @ likelihood.values(weights, counts) + divergence
    decrement = jnp.sum((root * gradient) ** 2) / 2 + jnp.sum(excess**2) / 4
    return _Point(mean, root, objective, gradient, excess, decrement)


def _move_diagonal(prior, point, size):
    root = point.root * jnp.sqrt(2 / (1 + (1 + size * point.excess) ** 2))
    mean = point.mean - size * root**2 * point.gradient
    # f is constant along (1, ..., 1), where the prior alone decides: the best shift at once. Steps of the size of the
    # standard deviations, which for a diagonal q are small in all directions, would take thousands.
    pull = jnp.sum(prior.precision, axis=0)
    return mean - (pull @ (mean - prior.mean)) / jnp.sum(pull), root


@jax.custom_batching.sequential_vmap
def _inverse_root(precision, root):
    """root C with C lower triangular and C C' the inverse of `precision`; from R R' = precision, R upper: C = R^-T.

    One document at a time: jaxlib 0.10 hands the parts of a batch of factorisations to its pool of threads and waits
    for them in that same pool, where two such programs at once (from 40 topics on) waited for each other for ever.
    """
    upper = jnp.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]
    return solve_triangular(upper, root.T, lower=False).T


def _read_prior(prior):
    inverse_root = solve_triangular(
        jnp.linalg.cholesky(prior.covariance), jnp.eye(prior.mean.shape[0], dtype=prior.mean.dtype), lower=True
    )
    return _Prior(prior.mean, inverse_root, inverse_root.T @ inverse_root)


def _prior_root(prior, full):
    """The root of the best q of a document without words: the prior, or the independent one nearest to it."""
    if not full:
        return 1 / jnp.sqrt(jnp.diagonal(prior.precision))
    return _inverse_root(prior.precision, jnp.eye(prior.mean.shape[0], dtype=prior.mean.dtype))


def _centred(array):
    return array - jnp.mean(array, axis=-1, keepdims=True)


def _select(condition, new, old):
    return jnp.where(condition.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
