"""The correlated topic model with the scikit-learn interface, fitted by proximal-gradient steps and stochastic EM."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_random_state

from provi.algorithms.mirror.conjugate_svi import forgetting_rate
from provi.core.arguments import double_precision
from provi.models.topics.corpus import bucket_documents, coarse_width, with_words, word_totals
from provi.models.topics.draws import worker_pool
from provi.models.topics.fitted import AbstractFittedTopics
from provi.models.topics.global_steps import TopicStatistics, empty_statistics, starting_topics
from provi.models.topics.model import Stratum, TopicPrior
from provi.models.topics.options import check_memory, given_topics, global_settings, read_options
from provi.models.topics.training import stochastic_em, visit_batch


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
    - `tol`: the gain of a pass in nats *per word*; after three passes with less the fit ends; None: never before
      `max_iter`.
    - `learning_rate`: `"decay"`, (`learning_offset` + k)^-`learning_decay` for batch k; or `"automatic"`, the same, but
      held at two over the batches in a pass, and at one over them in the last two passes. `partial_fit`
      takes the former.
    - `num_draws`: for the expectations under a document's posterior; default 2 K.
    - `local_tol`, `max_local_iter`: when the iteration for a new document ends, in nats as in `infer`;
      `steps_per_visit`: steps that a document gets in each pass of `fit`, where it goes on from the last pass.
    - `topic_word_prior`: $\eta>0$, added to the expected counts of each word in each topic.
    - `covariance_shrinkage`: the part of Sigma that is a multiple of the identity.
    - `components_init`: start of `components_`; default: clusters of documents.
    - `total_samples`: for `partial_fit`, the number of documents that batches come from; default: those seen so far.
    - `warm_starts`: whether `fit` keeps the documents' posteriors from pass to pass; without, each visit iterates to
      convergence, and memory beyond the counts does not grow with their number.
    - `callback`: called as `callback(model)` after each pass of `fit`, with the attributes set; a true answer ends it.
    - `progress`: whether to show a bar. `random_state`: of the start, the order of documents and the draws.

    **Attributes:** `components_`, p(word | topic), (topics, words); `topic_mean_`, `topic_covariance_`, of z;
    `topic_correlation_`, of z less its mean over topics, which is what the words tell of; `elbo_`, the sum of the
    documents' ELBOs in nats in each pass of `fit`, each at its visit, *estimated* by a few points and a little too high
    (0.008 nats a word at worst in our trials): it shows progress, `score` is the unbiased estimate; `n_iter_`,
    `converged_`; `seen_words_`, which words the documents so far have; `n_batch_iter_`, `n_samples_seen_`, the batches
    and the documents so far.

    With `warm_starts` `fit` keeps the posterior of each document, K + K^2 numbers with full covariance; without, and in
    `partial_fit`, there are none but those of the batch. What does not fit in memory is refused with a `MemoryError`.

    **Example:**

        import numpy as np
        from provi.models import CorrelatedTopicModel

        words = "cell gene protein virus galaxy orbit planet star crop field seed soil".split()
        topics = np.kron(np.eye(3), np.full(4, 0.25))
        counts = np.random.default_rng(0).poisson(20 * np.repeat(topics, 20, axis=0))
        model = CorrelatedTopicModel(3, random_state=0).fit(counts)
        model.top_words(4, words)  # three groups, as above
        model.transform(counts)  # the shares of the topics in each document, (60, 3)
        model.plot_correlations(words)
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
        steps_per_visit: Any = 3,
        topic_word_prior: Any = 0.01,
        covariance_shrinkage: Any = 0.02,
        components_init: Any = None,
        total_samples: Any = None,
        warm_starts: Any = True,
        callback: Any = None,
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
        self.warm_starts = warm_starts
        self.callback = callback
        self.progress = progress
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any = None) -> "CorrelatedTopicModel":
        """Fit to the counts X, dense or sparse, one document a row; y is not used."""
        X = self._read(X, reset=True)
        options, words = read_options(self), self._check_words(X)
        size = min(options.passes.batch_size, X.shape[0])
        check_memory(options, X, size, options.passes.warm)
        generator = _generator(self.random_state)
        topics, prior = self._start(X, options, generator)
        seen, samples, X = word_totals(X) > 0, X.shape[0], with_words(X)  # documents without words tell nothing
        size = min(size, X.shape[0])
        passes = options.passes._replace(batch_size=size, tolerance=options.passes.tolerance * words)
        corpus = bucket_documents(X, max(1, X.shape[0] // size), coarse_width)
        settings = global_settings(options, X.shape[0], X.dtype)

        def keep(fitted):
            self._keep(fitted.statistics, fitted.topics, fitted.prior)
            self.elbo_, self.n_iter_, self.converged_ = fitted.elbo, len(fitted.elbo), fitted.converged
            self.n_batch_iter_, self.n_samples_seen_, self.seen_words_ = fitted.num_batches, samples, seen
            return self.callback is not None and self.callback(self)

        stochastic_em(corpus, topics, prior, options.visit, settings, passes, generator, keep)
        return self

    @double_precision
    def partial_fit(self, X: Any, y: Any = None) -> "CorrelatedTopicModel":
        """One step of stochastic EM from the documents X as a batch, whose posteriors are iterated to convergence.

        Its columns are the whole vocabulary, so that words may turn up later. After an error the model is as before.
        """
        first = not hasattr(self, "components_")
        X = self._read(X, reset=first)
        options = read_options(self)
        self._check_words(X)
        check_memory(options, X, X.shape[0], warm=False)
        if first:
            topics, prior = self._start(X, options, _generator(self.random_state))
            statistics, batches, samples, seen = empty_statistics(topics), 1, X.shape[0], word_totals(X) > 0
        else:
            if options.num_topics != len(self.components_):
                raise ValueError(f"n_components is {options.num_topics}, but the model has {len(self.components_)}.")
            topics, prior = self._topics(), self._prior()
            statistics = TopicStatistics(*(jnp.asarray(part) for part in self._statistics))
            batches, samples = self.n_batch_iter_ + 1, self.n_samples_seen_ + X.shape[0]
            seen = self.seen_words_ | (word_totals(X) > 0)
        rate = 1.0 if first else forgetting_rate(batches - 1, self.learning_offset, self.learning_decay)
        settings = global_settings(options, samples if options.total is None else options.total, X.dtype)
        corpus, generator = bucket_documents(X, rounded=coarse_width), _generator(self.random_state, batches)
        strata = [Stratum(d, n) for d, n in zip(corpus.buckets, corpus.sizes, strict=True)]
        rows, state = [np.arange(n) for n in corpus.sizes], (statistics, topics, prior)
        draws = options.converge.draws(generator, topics.shape[1], topics.dtype)
        with worker_pool() as pool:
            state, elbos = visit_batch(strata, rows, state, rate, options.converge, settings, draws, pool)
        if not np.isfinite(np.concatenate(elbos)).all():
            raise FloatingPointError("The ELBO is not finite; counts may be too large for the precision of X.")
        self._keep(*state)
        self.n_batch_iter_, self.n_samples_seen_, self.seen_words_ = batches, samples, seen
        return self

    def _start(self, X, options, generator):
        """The topics and N(0, I) as a fit starts."""
        size = options.num_topics
        if self.components_init is None:
            topics = starting_topics(X, size, options.word_prior, generator)
        else:
            topics = given_topics(self.components_init, (size, X.shape[1]))
        topics, mean, covariance = (jnp.asarray(x.astype(X.dtype)) for x in (topics, np.zeros(size), np.eye(size)))
        return topics, TopicPrior(mean, covariance)

    def _keep(self, statistics, topics, prior):
        components, mean, covariance = (np.asarray(part) for part in (topics, prior.mean, prior.covariance))
        # The ELBOs of a pass are from before its last M-step: they do not tell when the sums in that one overflow.
        sums = components.sum(axis=0, dtype=np.float64)
        if not ((np.abs(sums - 1) < 0.1).all() and np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise FloatingPointError("The topics are not finite; counts may be too large for the precision of X.")
        self._statistics = tuple(np.asarray(part) for part in statistics)
        self.components_ = np.ascontiguousarray(components.T)
        self.topic_mean_, self.topic_covariance_ = mean.copy(), covariance.copy()


def _generator(random_state, *more):
    """A `Generator` from what scikit-learn takes as a random state; `more` numbers make it another one."""
    return np.random.default_rng([int(check_random_state(random_state).randint(2**31 - 1)), *more])
