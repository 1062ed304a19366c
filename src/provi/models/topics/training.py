"""Stochastic EM over a corpus that is at hand: the documents' posteriors are kept, and go on where they stopped."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.conjugate_svi import draw_batches, forgetting_rate
from provi.models.corpus import Corpus, Documents
from provi.models.topics.e_step import LocalSettings, visit_documents
from provi.models.topics.elbo import document_elbos
from provi.models.topics.global_steps import GlobalSettings, TopicStatistics, empty_statistics, update
from provi.models.topics.local_steps import cold_start
from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.runtime.progress import ProgressBar

PATIENCE = 3
"""Passes in a row with less gain than the tolerance after which the fit ends."""

_ELBO_DRAWS = 8

_cold_start = eqx.filter_jit(cold_start)


class Passes(NamedTuple):
    """How the corpus is gone through. `forgetting` is (offset, decay), `automatic` whether the rate is;
    `tolerance` is the gain of a pass, in nats, at which the fit ends."""

    number: int
    batch_size: int
    forgetting: tuple[float, float]
    automatic: bool
    tolerance: float
    progress: bool


class Fitted(NamedTuple):
    """The state at the end, the sum of the documents' ELBOs after each pass, the number of batches and how it ended."""

    statistics: TopicStatistics
    topics: Any
    prior: TopicPrior
    elbo: np.ndarray
    num_batches: int
    converged: bool


class _Stratum:
    """A bucket of documents and their posteriors, on the host: a batch is copied out, its posteriors are copied in."""

    def __init__(self, documents, size, prior, covariance):
        start = _cold_start(documents, prior, covariance=covariance)
        self.words, self.counts, self.size = np.asarray(documents.words), np.asarray(documents.counts), size
        self.mean, self.root = np.array(start.mean), np.array(start.root)

    def documents(self, rows=slice(None)):
        return Documents(jnp.asarray(self.words[rows]), jnp.asarray(self.counts[rows]))

    def posterior(self, rows=slice(None)):
        return LocalPosterior(jnp.asarray(self.mean[rows]), jnp.asarray(self.root[rows]))

    def store(self, rows, posterior):
        self.mean[rows], self.root[rows] = np.asarray(posterior.mean), np.asarray(posterior.root)


def stochastic_em(
    corpus: Corpus,
    topics: Any,
    prior: TopicPrior,
    local: LocalSettings,
    settings: GlobalSettings,
    passes: Passes,
    generator: Any,
    key: Any,
) -> Fitted:
    r"""Passes over the corpus in random order, in batches stratified by length; one batch is plain EM.

    The first batch replaces the start; batch k after it has the rate $\rho = (k_0+k)^{-\kappa}$. The automatic rate is
    the same, but stays at one over the number of batches in a pass once it is there: with less, old topics would be
    remembered for more than a pass, and EM crawls. A pass that then brings no gain is undone and the rate halved.
    `local.max_steps` is what a document gets at each visit: the ELBO holds even if its iteration has not converged.

    **Arguments:**

    - `topics` (vocabulary, topics), `prior`: the start. `generator`: NumPy's, for the order of documents; `key`: JAX's.
    """
    strata = [_Stratum(d, n, prior, local.covariance) for d, n in zip(corpus.buckets, corpus.sizes, strict=True)]
    state, steps, halvings, idle, values = (empty_statistics(topics), topics, prior), 0, 0, 0, []
    elbo_key, key = jax.random.split(key)
    with ProgressBar(passes.number, passes.progress) as bar:
        while len(values) < passes.number and idle < PATIENCE:
            batches = draw_batches(generator, corpus.sizes, passes.batch_size)
            rates = _rates(steps, len(batches[0]), halvings, passes)
            before = state
            for batch, rate in enumerate(rates):
                rows = [part[batch] for part in batches]
                state = _visit_batch(strata, rows, state, rate, local, settings, jax.random.fold_in(key, steps))
                steps += 1
            value = _corpus_elbo(strata, state, elbo_key)
            gain = value - values[-1] if values else np.inf
            if passes.automatic and not gain > 0:
                state, value, halvings = before, values[-1], halvings + 1
            idle = 0 if gain > passes.tolerance else idle + 1
            values.append(value)
            bar.update(len(values), value)
    return Fitted(*state, np.asarray(values), steps, idle == PATIENCE)


def _rates(steps, count, halvings, passes):
    if count == 1:
        return np.ones(1)
    rates = forgetting_rate(steps + np.arange(1, count + 1), *passes.forgetting)
    if passes.automatic:
        rates = np.maximum(rates, 1 / count) / 2**halvings
    return np.where(steps + np.arange(count) == 0, 1.0, rates)


def _visit_batch(strata, rows, state, rate, local, settings, key):
    statistics, topics, prior = state
    sums, weights = [], []
    for stratum, chosen in zip(strata, rows, strict=True):
        posterior, part = visit_documents(
            stratum.documents(chosen), topics, prior, stratum.posterior(chosen), local, key
        )
        stratum.store(chosen, posterior)
        sums.append(part)
        weights.append(stratum.size / len(chosen))
    whole = sum(stratum.size for stratum in strata)
    weights, rate = jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x, topics.dtype)), (tuple(w / whole for w in weights), rate)
    )
    return update(statistics, tuple(sums), weights, rate, settings)


def _corpus_elbo(strata, state, key):
    """With the same draws after each pass, so that what changes is the model."""
    _, topics, prior = state
    total = 0.0
    for number, stratum in enumerate(strata):
        draws = jax.random.fold_in(key, number)
        values, _ = document_elbos(stratum.documents(), topics, prior, stratum.posterior(), _ELBO_DRAWS, draws)
        total += float(np.sum(np.asarray(values, np.float64)[: stratum.size]))
    return total
