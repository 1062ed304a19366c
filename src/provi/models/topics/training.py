"""Stochastic EM over a corpus that is at hand.

The passes and batches are a loop of the host, not of `runtime`: each batch is a few chunks of documents, with draws
made by NumPy, whose E-steps run in a pool of threads, one compiled call a chunk, and whose posteriors stay on the host.
"""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from provi.algorithms.mirror.conjugate_svi import forgetting_rate
from provi.core.arguments import device_array, double_precision
from provi.models.topics.corpus import Corpus
from provi.models.topics.draws import BaseDraws, base_draws, worker_pool
from provi.models.topics.e_step import LocalSettings, contribute, find_posteriors, quick_elbos
from provi.models.topics.global_steps import (
    GlobalSettings,
    TopicStatistics,
    accumulate,
    empty_statistics,
    update,
)
from provi.models.topics.model import Stratum, TopicPrior, in_blocks
from provi.runtime.record import ProgressBar

PATIENCE = 3
"""Passes in a row with less gain than the tolerance after which the fit settles and ends."""


SETTLING = 2
"""Passes at the end of a fit with the automatic rate in which it is halved."""

_ELBO_SEED = 0


class Passes(NamedTuple):
    """How the corpus is gone through. `forgetting` is (offset, decay), `automatic` whether the rate is;
    `tolerance` is the gain of a pass, in nats, at which the fit ends; `warm` whether posteriors are kept;
    `fixed_topics` whether mu and Sigma alone are learned."""

    number: int
    batch_size: int
    forgetting: tuple[float, float]
    automatic: bool
    tolerance: float
    progress: bool
    warm: bool
    fixed_topics: bool = False


class Fitted(NamedTuple):
    """The state, the sum of the documents' ELBOs in each pass so far, the number of batches and whether it has ended
    by the tolerance."""

    statistics: TopicStatistics
    topics: Any
    prior: TopicPrior
    elbo: np.ndarray
    num_batches: int
    converged: bool


def stochastic_em(
    corpus: Corpus,
    topics: Any,
    prior: TopicPrior,
    local: LocalSettings,
    settings: GlobalSettings,
    passes: Passes,
    generator: Any,
    on_pass: Callable[[Fitted], Any] = lambda fitted: None,
) -> Fitted:
    r"""Passes over the corpus in random order, in batches stratified by length; one batch is plain EM.

    The first batch replaces the start; batch k after it has the rate $\rho = (k_0+k)^{-\kappa}$. The automatic rate is
    the same, but stays at two over the number of batches in a pass once it is there, and at one over it in the last two
    passes: with less, old topics would be remembered for more than a pass, and EM crawls.
    `local.max_steps` is what a document gets at each visit: the ELBO holds even if its iteration has not converged.

    The ELBOs of a pass are those of each document at its visit, with the topics of that time, by the same draws in all
    passes: what changes is the model. A pass in which one is not finite ends the fit, with a warning and the state
    before it.

    **Arguments:**

    - `topics` (vocabulary, topics), `prior`: the start.
    - `generator`: NumPy's `Generator`, for the order of documents and the draws.
    - `on_pass`: told the state after each pass; a true answer ends the fit.
    """
    strata = [Stratum(d, n, passes.warm) for d, n in zip(corpus.buckets, corpus.sizes, strict=True)]
    state, steps, idle, values = (empty_statistics(topics), topics, prior), 0, 0, []
    end, converged = passes.number, False
    order, chances = generator.spawn(2)  # so that methods with and without draws have the same batches
    with np.errstate(over="ignore"):  # counts too large for the precision are found out in the first pass
        words = sum(float(stratum.counts.sum(dtype=np.float64)) for stratum in strata)
    with ProgressBar(passes.number, passes.progress, "passes", "ELBO per word") as bar, worker_pool() as pool:
        while len(values) < end:
            batches = _draw_batches(order, corpus.sizes, passes.batch_size)
            rates = _rates(steps, len(batches), passes, len(values) >= end - SETTLING)
            elbos = [np.empty(size) for size in corpus.sizes]
            for rows, rate in zip(batches, rates, strict=True):
                draws = local.draws(chances, topics.shape[1], topics.dtype)
                state, parts = visit_batch(strata, rows, state, rate, local, settings, draws, pool)
                state = (state[0], topics, state[2]) if passes.fixed_topics else state
                for whole, chosen, part in zip(elbos, rows, parts, strict=True):
                    whole[chosen] = part
                steps += 1
            if not all(np.isfinite(part).all() for part in elbos):
                _stop_or_warn(len(values))
                break
            value = sum(float(part.sum()) for part in elbos)
            gain = value - values[-1] if values else np.inf
            idle = idle if converged else 0 if gain > passes.tolerance else idle + 1
            values.append(value)
            bar.update(len(values), values[-1] / words)
            if idle == PATIENCE and not converged:
                converged, end = True, min(end, len(values) + (SETTLING if passes.automatic else 0))
            fitted = Fitted(*state, np.asarray(values), steps, converged)
            if on_pass(fitted):
                break
    return fitted


def _stop_or_warn(passes):
    message = "a document's ELBO is not finite; counts may be too large for the precision of X"
    if passes == 0:
        raise FloatingPointError(f"In the first pass {message}.")
    warnings.warn(
        f"In pass {passes + 1} {message}. The state after pass {passes} is kept.", RuntimeWarning, stacklevel=4
    )


def visit_batch(
    strata: list[Stratum],
    rows: Sequence[np.ndarray],
    state: tuple[TopicStatistics, Any, TopicPrior],
    rate: Any,
    local: LocalSettings,
    settings: GlobalSettings,
    draws: BaseDraws,
    pool: Executor,
) -> tuple[tuple[TopicStatistics, Any, TopicPrior], list[np.ndarray]]:
    """The state after a batch, and the ELBOs of its documents, stratum by stratum.

    **Arguments:** `rows` are the batch's documents in each of the `strata`; `state` the statistics, topics and prior.
    """
    statistics, topics, prior = state
    size, dtype = topics.shape[1], topics.dtype
    others = base_draws(np.random.default_rng(_ELBO_SEED), 2 * size, size, dtype, shared=True)

    def visit(stratum, block):
        documents = stratum.documents(block)
        posterior = find_posteriors(documents, topics, prior, stratum.posterior(block), local, draws)
        part = contribute(documents, topics, posterior, draws)
        elbos = quick_elbos(documents, topics, prior, posterior, others)
        return posterior, part, np.asarray(elbos, float)[: len(block)]

    blocks = [(i, block) for i, chosen in enumerate(rows) for block in in_blocks(chosen)]
    visits = list(pool.map(double_precision(lambda pair: visit(strata[pair[0]], pair[1])), blocks))
    batch, whole = empty_statistics(topics), sum(stratum.size for stratum in strata)
    elbos = [[] for _ in strata]
    for (i, block), (posterior, part, values) in zip(blocks, visits, strict=True):
        strata[i].store(block, posterior)
        weight = strata[i].size / len(rows[i]) / whole
        batch = accumulate((part, device_array(np.asarray(weight, dtype))), batch)
        elbos[i].append(values)
    state = update(statistics, batch, device_array(np.asarray(rate, dtype)), settings)
    return state, [np.concatenate(parts) for parts in elbos]


def _draw_batches(generator, sizes, batch_size):
    """The batches of a pass, each a tuple of row numbers for each stratum; every document is in one of them.

    Stratified: whatever the number of rows of a stratum in a batch, they stand for all of it.
    """
    number = max(1, min(sum(sizes) // batch_size, *sizes))
    return list(zip(*(np.array_split(generator.permutation(size), number) for size in sizes), strict=True))


def _rates(steps, count, passes, settling):
    if count == 1:
        return np.ones(1)
    rates = forgetting_rate(steps + np.arange(1, count + 1), *passes.forgetting)
    if passes.automatic:
        rates = np.maximum(rates, min(1, (1 if settling else 2) / count))
    return np.where(steps + np.arange(count) == 0, 1.0, rates)
