r"""PG-SVI on the correlated topic model as paper 002 runs it: equations (9) and (12), a constant step, few documents.

The f of (9) is a sum over the documents, h the sum of their divergences to the prior, and (12) weights a batch of M of
the D documents by D/M. So (9) moves *all* posteriors in each step: with $r = 1/(1+\beta)$, in natural parameters and
the A-form, a document in the batch by

$$P_+ = rP + (1-r)\big(\Sigma^{-1} + \tfrac DM\hat H\big), \qquad
  P_+m_+ = rPm + (1-r)\big(\Sigma^{-1}\mu + \tfrac DM(\hat Hm - \hat g)\big),$$

$\hat g$ and $\hat H$ means of $\nabla f_d$ and $\nabla^2f_d$ over fresh draws of $q_d$, and every other document a
little towards the prior, $\hat g = \hat H = 0$: what k such steps do is done at once, with $r^k$, at its next visit.
With the paper's $\beta = 0.001$ and $M = 2$ a visit moves a document by $\beta D/M$: 0.56 on AP, 0.375 on NIPS, once a
pass.

**What the paper does not say, and is chosen here:** the draws (twice the number of topics; of derivatives, where its
section 3.2 has the score function, which is noisier); the M-step (that of `CorrelatedTopicModel`, its statistics moved
by $1-r$ in each step from those of the starting topics); what to do where $P_+$ is not positive definite, as f is not
convex: as printed, most documents are there in the first pass (`refused` counts them), and no such q exists. With
$\Delta = P_+-P$ it is then $P+\Delta+\Delta P^{-1}\Delta/2$, which always is, the rule of `models.topics.local_steps`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.scipy.linalg import cho_solve, solve_triangular

from provi.models.topics import likelihood
from provi.models.topics.global_steps import GlobalSettings, TopicStatistics, maximise
from provi.models.topics.model import TopicPrior

STEP, BATCH = 0.001, 2
"""The paper's beta and M."""


class Natural(NamedTuple):
    """Pm (documents, topics) and P (documents, topics, topics) after each document's last visit, and the step after."""

    linear: Any
    precision: Any
    last: Any


class State(NamedTuple):
    """`step` counts batches, `refused` visits whose precision by (9) would not have been positive definite."""

    posteriors: Natural
    statistics: TopicStatistics
    topics: Any
    prior: TopicPrior
    step: Any
    refused: Any


class Table(NamedTuple):
    """Word numbers and counts (documents, widest); padding has the count zero."""

    words: Any
    counts: Any


def table_of(counts: Any) -> Table:
    """The rows of a sparse matrix of counts that have words."""
    matrix = scipy.sparse.csr_matrix(counts)
    lengths = np.diff(matrix.indptr)
    matrix, lengths = matrix[lengths > 0], lengths[lengths > 0]
    filled = np.arange(lengths.max())[None, :] < lengths[:, None]
    words, values = np.zeros(filled.shape, np.int32), np.zeros(filled.shape)
    words[filled], values[filled] = matrix.indices, matrix.data
    return Table(jnp.asarray(words), jnp.asarray(values))


def first_state(table: Table, topics: Any, prior: TopicPrior) -> State:
    """Every q the prior; statistics that give `topics` and `prior`."""
    documents, size = table.words.shape[0], topics.shape[1]
    length = jnp.sum(table.counts) / documents
    second = prior.covariance + prior.mean[:, None] * prior.mean[None, :]
    statistics = TopicStatistics(topics * length / size, prior.mean, second, jnp.ones(()))
    precision = jnp.linalg.inv(prior.covariance)
    posteriors = Natural(
        jnp.tile(precision @ prior.mean, (documents, 1)),
        jnp.tile(precision, (documents, 1, 1)),
        jnp.zeros(documents, int),
    )
    return State(posteriors, statistics, topics, prior, jnp.zeros((), int), jnp.zeros((), int))


@eqx.filter_jit
def one_pass(
    key: Any, state: State, table: Table, settings: GlobalSettings, step_size: Any, batch: int, num_draws: int
) -> State:
    """Every document once, in a random order, `batch` at a time; those left over at the end belong to none."""
    documents = table.words.shape[0]
    order_key, noise_key = jax.random.split(key)
    order = jax.random.permutation(order_key, documents)[: documents // batch * batch].reshape(-1, batch)

    def go_on(state: State, rows: Any) -> tuple[State, None]:
        noise = jax.random.fold_in(noise_key, state.step)
        return one_step(noise, state, table, rows, settings, step_size, num_draws), None

    return jax.lax.scan(go_on, state, order)[0]


def one_step(
    key: Any, state: State, table: Table, rows: Any, settings: GlobalSettings, step_size: Any, num_draws: int
) -> State:
    """(9) for the documents `rows`, and the M-step."""
    share, weight = 1 / (1 + step_size), table.words.shape[0] / rows.shape[0]
    words, counts = table.words[rows], table.counts[rows]
    old = state.posteriors
    idle = share ** (state.step - old.last[rows]).astype(state.topics.dtype)
    noise = jax.random.normal(key, (2, rows.shape[0], num_draws, state.topics.shape[1]))
    visit = jax.vmap(lambda *document: _visit(state, share, weight, *document))
    found = visit(words, counts, old.linear[rows], old.precision[rows], idle, noise[0], noise[1])
    linear, precision, part, first, second, refused = found
    new = Natural(
        old.linear.at[rows].set(linear),
        old.precision.at[rows].set(precision),
        old.last.at[rows].set(state.step + 1),
    )
    own = 1 / rows.shape[0]
    statistics = state.statistics
    statistics = TopicStatistics(
        (share * statistics.words).at[words].add((1 - share) * own * part),
        share * statistics.first + (1 - share) * jnp.mean(first, axis=0),
        share * statistics.second + (1 - share) * jnp.mean(second, axis=0),
        statistics.worded,
    )
    topics, prior = maximise(statistics, settings)
    return State(new, statistics, topics, prior, state.step + 1, state.refused + jnp.sum(refused))


def moments_of(linear: Any, precision: Any) -> tuple[Any, Any]:
    """Mean and a root of the covariance."""
    lower = jnp.linalg.cholesky(precision)
    return cho_solve((lower, True), linear), solve_triangular(lower, jnp.eye(len(linear)), lower=True).T


def _visit(
    state: State,
    share: Any,
    weight: Any,
    words: Any,
    counts: Any,
    linear: Any,
    precision: Any,
    idle: Any,
    fresh: Any,
    again: Any,
) -> tuple[Any, ...]:
    """The new Pm and P of a document, what the M-step needs of it, and whether (9) as printed gave no Gaussian."""
    scaled, _ = likelihood.scaled_rows(state.topics[words])
    chances = jnp.full(fresh.shape[0], 1 / fresh.shape[0])
    prior = jnp.linalg.inv(state.prior.covariance)
    prior = (prior + prior.T) / 2
    precision = idle * precision + (1 - idle) * prior
    linear = idle * linear + (1 - idle) * prior @ state.prior.mean
    mean, root = moments_of(linear, precision)
    weights = likelihood.word_weights(mean[None, :] + fresh @ root.T, scaled, counts)
    slope = chances @ likelihood.gradients(weights, scaled, counts)
    bend = likelihood.mean_hessian(weights, chances, likelihood.word_pairs(scaled), counts, slope)
    change = (1 - share) * (prior + weight * (bend + bend.T) / 2 - precision)
    lost = ~(jnp.linalg.eigvalsh(precision + change)[0] > 0)
    half = root.T @ change
    precision = precision + change + jnp.where(lost, half.T @ half / 2, 0)
    slope = prior @ (mean - state.prior.mean) + weight * slope
    linear = precision @ mean - (1 - share) * slope
    mean, root = moments_of(linear, precision)
    weights = likelihood.word_weights(mean[None, :] + again @ root.T, scaled, counts)
    part = scaled * (weights.ratios.T @ (chances[:, None] * weights.topics))
    return linear, precision, part, mean, root @ root.T + mean[:, None] * mean[None, :], lost


def run_passes(
    table: Table,
    topics: Any,
    prior: TopicPrior,
    settings: GlobalSettings,
    seed: int,
    passes: Sequence[int],
    **more: Any,
) -> Any:
    """Yields (passes made, state) after each of `passes`; `more`: `step_size`, `batch`, `num_draws`."""
    state, done = first_state(table, topics, prior), 0
    step_size = jnp.asarray(more.get("step_size", STEP))
    batch, draws = more.get("batch", BATCH), more.get("num_draws", 2 * topics.shape[1])
    for wanted in passes:
        for number in range(done, wanted):
            key = jax.random.fold_in(jax.random.key(seed), number)
            state = one_pass(key, state, table, settings, step_size, batch, draws)
        done = wanted
        yield done, jax.block_until_ready(state)
