"""The correlated topic model with the scikit-learn interface, fitted by proximal-gradient steps and stochastic EM."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_random_state

from provi.algorithms.conjugate_svi import forgetting_rate
from provi.core.precision import double_precision
from provi.models.corpus import bucket_documents
from provi.models.topics.e_step import visit_documents
from provi.models.topics.fitted import AbstractFittedTopics
from provi.models.topics.global_steps import TopicStatistics, empty_statistics, update
from provi.models.topics.model import TopicPrior
from provi.models.topics.options import given_topics, global_settings, read_options
from provi.models.topics.start import starting_topics
from provi.models.topics.training import stochastic_em


class CorrelatedTopicModel(AbstractFittedTopics):
    r"""The topic model of Blei and Lafferty (2007) for a matrix of word counts, with correlated topics.

    A document has $z\sim N(\mu,\Sigma)$, and each of its words is v with probability $\sum_ksoftmax(z)_kB_{vk}$. The
    posterior of z is approximated by a Gaussian, with proximal-gradient steps (PG-SVI); B, mu and Sigma are found by
    stochastic EM.

    **Arguments:**

    - `n_components`: the number K of topics.
    - `inference`: of a document's posterior; `"pgsvi"`, or for comparison `"laplace"`, `"delta"`, `"mean-field"`.
    - `covariance`: of the posterior for PG-SVI, `"full"` or `"diagonal"`; the others have their own.
    - `max_iter`, `batch_size`: passes of `fit` at most, and documents in a batch; a batch of all documents is EM.
    - `tol`: the gain of a pass in nats *per word*; after three passes with less the fit ends.
    - `learning_rate`: `"decay"`, (`learning_offset` + k)^-`learning_decay` for batch k; or `"automatic"`, the same, but
      held at one over the batches in a pass, and halved when a pass brings no gain. `partial_fit` takes the former.
    - `num_draws`: for the expectations under a document's posterior; default 2 K.
    - `local_tol`, `max_local_iter`: when the iteration for a new document ends, in nats as in `infer`;
      `steps_per_visit`: steps that a document gets in each pass of `fit`, where it goes on from the last pass.
    - `topic_word_prior`: $\eta>0$, added to the expected counts of each word in each topic.
    - `covariance_shrinkage`: the part of Sigma that is a multiple of the identity.
    - `components_init`: start of `components_`; default: clusters of documents.
    - `total_samples`: for `partial_fit`, the number of documents that batches come from; default: those seen so far.
    - `progress`: whether to show a bar. `random_state`: of the start, the order of documents and the draws.

    **Attributes:** `components_`, p(word | topic), (topics, words); `topic_mean_`, `topic_covariance_`,
    `topic_correlation_`, of z; `elbo_`, the sum of the documents' ELBOs in nats after each pass of `fit`; `n_iter_`,
    `converged_`; `seen_words_`, which words the documents so far have.

    `fit` keeps the posterior of each document, K + K^2 numbers with full covariance; `partial_fit` keeps none.
    """

    # scikit-learn's rule: the constructor takes anything and stores it, `fit` checks. Hence no types here.
    def __init__(
        self,
        n_components: Any = 10,
        *,
        covariance: Any = "full",
        inference: Any = "pgsvi",
        max_iter: Any = 10,
        batch_size: Any = 128,
        tol: Any = 1e-4,
        learning_rate: Any = "automatic",
        learning_offset: Any = 1.0,
        learning_decay: Any = 0.7,
        num_draws: Any = None,
        local_tol: Any = 1e-3,
        max_local_iter: Any = 100,
        steps_per_visit: Any = 5,
        topic_word_prior: Any = 0.01,
        covariance_shrinkage: Any = 0.02,
        components_init: Any = None,
        total_samples: Any = None,
        progress: Any = False,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.covariance = covariance
        self.inference = inference
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.tol = tol
        self.learning_rate = learning_rate
        self.learning_offset = learning_offset
        self.learning_decay = learning_decay
        self.num_draws = num_draws
        self.local_tol = local_tol
        self.max_local_iter = max_local_iter
        self.steps_per_visit = steps_per_visit
        self.topic_word_prior = topic_word_prior
        self.covariance_shrinkage = covariance_shrinkage
        self.components_init = components_init
        self.total_samples = total_samples
        self.progress = progress
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any = None) -> "CorrelatedTopicModel":
        """Fit to the counts X, dense or sparse, one document a row; y is not used."""
        X = self._read(X, reset=True)
        options, words = read_options(self), float(X.sum(dtype=np.float64))
        generator = check_random_state(self.random_state)
        topics, prior = self._start(X, options, generator)
        size = min(options.passes.batch_size, X.shape[0])
        passes = options.passes._replace(batch_size=size, tolerance=options.passes.tolerance * words)
        corpus = bucket_documents(X, fewest=max(1, X.shape[0] // size))
        settings, key = global_settings(options, X.shape[0], X.dtype), _new_key(generator)
        fitted = stochastic_em(corpus, topics, prior, options.visit, settings, passes, generator, key)
        self._keep(fitted.statistics, fitted.topics, fitted.prior)
        self.elbo_, self.n_iter_, self.converged_ = fitted.elbo, len(fitted.elbo), fitted.converged
        self.n_batch_iter_, self.n_samples_seen_ = fitted.num_batches, X.shape[0]
        self.seen_words_ = np.asarray(X.sum(axis=0)).ravel() > 0
        return self

    @double_precision
    def partial_fit(self, X: Any, y: Any = None) -> "CorrelatedTopicModel":
        """One step of stochastic EM from the documents X as a batch, whose posteriors are iterated to convergence."""
        first = not hasattr(self, "components_")
        X = self._read(X, reset=first)
        options, generator = read_options(self), check_random_state(self.random_state)
        if first:
            topics, prior = self._start(X, options, generator)
            statistics = empty_statistics(topics)
            self.n_batch_iter_, self.n_samples_seen_, self.seen_words_ = 0, 0, np.zeros(X.shape[1], bool)
        else:
            self._check_words(X)
            topics, prior = self._topics(), self._prior()
            statistics = TopicStatistics(*(jnp.asarray(part) for part in self._statistics))
        key, sums = jax.random.fold_in(_new_key(generator), self.n_batch_iter_), []
        for documents in bucket_documents(X).buckets:
            sums.append(visit_documents(documents, topics, prior, None, options.converge, key)[1])
        self.n_batch_iter_ += 1
        self.n_samples_seen_ += X.shape[0]
        self.seen_words_ = self.seen_words_ | (np.asarray(X.sum(axis=0)).ravel() > 0)
        rate = 1.0 if first else forgetting_rate(self.n_batch_iter_ - 1, self.learning_offset, self.learning_decay)
        weight, rate = (jnp.asarray(np.asarray(x, X.dtype)) for x in (1 / X.shape[0], rate))
        total = self.n_samples_seen_ if options.total is None else options.total
        settings = global_settings(options, total, X.dtype)
        self._keep(*update(statistics, tuple(sums), (weight,) * len(sums), rate, settings))
        return self

    def _start(self, X, options, generator):
        """The topics and N(0, I) as a fit starts."""
        self._check_words(X)
        size = options.num_topics
        if self.components_init is None:
            topics = starting_topics(X, size, options.word_prior, generator)
        else:
            topics = given_topics(self.components_init, (size, X.shape[1]))
        topics, mean, covariance = (jnp.asarray(x.astype(X.dtype)) for x in (topics, np.zeros(size), np.eye(size)))
        return topics, TopicPrior(mean, covariance)

    def _keep(self, statistics, topics, prior):
        self._statistics = tuple(np.asarray(part) for part in statistics)
        self.components_ = np.ascontiguousarray(np.asarray(topics).T)
        self.topic_mean_, self.topic_covariance_ = np.asarray(prior.mean), np.asarray(prior.covariance)
        deviations = np.sqrt(np.diag(self.topic_covariance_))
        self.topic_correlation_ = self.topic_covariance_ / np.outer(deviations, deviations)


def _new_key(generator):
    return jax.random.key(int(generator.randint(2**31 - 1)))
