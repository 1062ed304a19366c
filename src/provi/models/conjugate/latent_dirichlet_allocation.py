r"""Latent Dirichlet allocation with the scikit-learn interface, fitted by natural-gradient steps.

As a conditionally conjugate model: topics $\beta_k\sim Dir(\eta)$ over words; for each document $\theta\sim
Dir(\alpha)$ over topics; each word has a topic $z\sim\theta$ and is drawn from $\beta_z$. $q(\beta_k) =
Dir(\lambda_k)$, $q(\theta) = Dir(\gamma)$, $q(z) = \phi$. With $\phi_{wk}\propto e^{E\log\theta_k + E\log\beta_{kw}}$
put in, a document needs only $\gamma$, which solves

$$\gamma_k = \alpha + \sum_wc_w\phi_{wk} = \alpha + e_k\Big(\frac{c}{Be}\,B\Big)_k,\qquad
e = e^{E\log\theta},\; B_{wk} = e^{E\log\beta_{kw}}:$$

two products of a (words, topics) matrix with a vector for each iteration, and $\phi$ is never formed.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_non_negative

from provi.algorithms.mirror.conjugate_svi import (
    AbstractConjugateModel,
    LocalAnswer,
    answer_batch,
    elbo,
    forgetting_rate,
)
from provi.core.arguments import check_count, check_positive, device_array, double_precision
from provi.models.certified_estimator import validate_data
from provi.models.conjugate.ascent import coordinate_ascent, stochastic_ascent
from provi.models.conjugate.expectations import dirichlet_expected_log, dirichlet_kl, forgetting_option
from provi.models.topics.corpus import CHUNK, Documents, bucket_documents


class ChunkAnswer(NamedTuple):
    """For a few documents: gamma, the expected counts c phi of each word and topic, and the local ELBO."""

    gamma: Any
    expected_counts: Any
    bound: Any


def _weights(gamma):
    """exp(E log theta) up to a factor, which cancels in phi; kept off zero, so that no word is ever lost."""
    expected = dirichlet_expected_log(gamma)
    return _bounded_exp(expected - jnp.max(expected, axis=-1, keepdims=True))


def _bounded_exp(exponent):
    """exp, but at least the fourth root of the smallest float: the product of two is far from underflow."""
    return jnp.exp(jnp.maximum(exponent, jnp.log(jnp.finfo(exponent.dtype).tiny) / 4))


class TopicModel(AbstractConjugateModel):
    """The prior eta as a (topics, words) array, alpha, and when the iteration for a document ends.

    It ends when gamma changes by less than `local_tolerance` on average over topics, or after `local_limit` updates.
    """

    prior: Any
    document_prior: Any
    local_tolerance: Any
    local_limit: Any

    def local_step(self, natural, rows):
        log_topics = dirichlet_expected_log(natural).T

        def visit(sums, documents):
            answer = self._documents(log_topics, documents)
            return sums.at[documents.words].add(answer.expected_counts), answer.bound

        sums, bounds = jax.lax.scan(visit, jnp.zeros_like(log_topics), _in_chunks(rows))
        return LocalAnswer(sums.T, jnp.sum(bounds))

    def divergence(self, natural):
        return jnp.sum(dirichlet_kl(natural, self.prior))

    def document_parameters(self, natural: Any, documents: Documents) -> Any:
        """gamma of each document, (documents, topics)."""
        log_topics = dirichlet_expected_log(natural).T
        gamma = jax.lax.map(lambda chunk: self._documents(log_topics, chunk).gamma, _in_chunks(documents))
        return gamma.reshape(-1, gamma.shape[-1])[: documents.words.shape[0]]

    def _documents(self, log_topics, documents):
        """The fixed point for one chunk; a document that has converged stays where it is."""
        matrices = _scaled_topics(log_topics, documents)
        transposed, counts = jnp.swapaxes(matrices, 1, 2), documents.counts

        def ratios(topics):
            return counts / _product(matrices, topics)

        def unfinished(carry):
            _, active, iteration = carry
            return jnp.any(active) & (iteration < self.local_limit)

        def iterate(carry):
            gamma, active, iteration = carry
            topics = _weights(gamma)
            new = self.document_prior + topics * _product(transposed, ratios(topics))
            change = jnp.mean(jnp.abs(new - gamma), axis=1)
            gamma = jnp.where(active[:, None], new, gamma)
            return gamma, active & (change >= self.local_tolerance), iteration + 1

        shape = (counts.shape[0], log_topics.shape[1])
        start = jnp.ones(shape, counts.dtype), jnp.ones(shape[0], bool), jnp.zeros((), self.local_limit.dtype)
        gamma, _, _ = jax.lax.while_loop(unfinished, iterate, start)
        topics = _weights(gamma)
        expected = ratios(topics)[:, :, None] * topics[:, None, :] * matrices
        return ChunkAnswer(gamma, expected, self._bound(log_topics, documents, gamma))

    def _bound(self, log_topics, documents, gamma):
        r"""$\sum_wc_w\log\sum_ke^{E\log\theta_k+E\log\beta_{kw}} - KL(Dir(\gamma)\|Dir(\alpha))$, for any gamma."""
        joint = dirichlet_expected_log(gamma)[:, None, :] + log_topics[documents.words]
        words = jnp.sum(documents.counts * logsumexp(joint, axis=2))
        return words - jnp.sum(dirichlet_kl(gamma, jnp.full_like(gamma, self.document_prior)))


def _scaled_topics(log_topics, documents):
    """B for the words of each document, (documents, words, topics), the largest entry of each word being one."""
    logs = log_topics[documents.words]
    return _bounded_exp(logs - jnp.max(logs, axis=2, keepdims=True))


def _product(matrices, vectors):
    """One matrix-vector product a document; as `dot_general` it was twice as fast as sums of products."""
    return jax.lax.dot_general(matrices, vectors[:, :, None], (((2,), (1,)), ((0,), (0,))))[:, :, 0]


def _in_chunks(documents):
    """Leaves (chunks, CHUNK, words), filled up with documents of no words."""
    count = documents.words.shape[0]
    extra = -count % CHUNK
    return jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, extra), (0, 0))).reshape(-1, CHUNK, leaf.shape[1]), documents)


@eqx.filter_jit
def document_parameters(model: TopicModel, natural: Any, buckets: tuple) -> tuple:
    """gamma of each document of each bucket."""
    return tuple(model.document_parameters(natural, documents) for documents in buckets)


_START_SHAPE = 100.0


class LatentDirichletAllocation(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Mean-field posterior of the topic model of Blei, Ng and Jordan (2003) for a matrix of word counts.

    **Arguments:**

    - `n_components`: the number of topics.
    - `doc_topic_prior`, `topic_word_prior`: entries $\alpha, \eta$ of the Dirichlet priors; default 1 / n_components.
    - `solver`: `"coordinate"`, full-batch steps with r = 0; or `"stochastic"`, batches of `batch_size` documents,
      stratified by length.
    - `learning_rate`: of the stochastic solver. `"automatic"` halves the rate when a pass brings no gain; `"decay"` is
      (`learning_offset` + k)^-`learning_decay` for batch k. `partial_fit` always takes the latter.
    - `max_iter`, `tol`: passes at most, and the gain of a pass in nats *per word* at which the fit ends.
    - `local_tol`, `max_local_iter`: the iteration for a document ends when its parameters change by less than
      `local_tol` on average.
    - `components_init`: start of `components_`; default: Gamma(100, 1/100) draws.
    - `total_samples`: for `partial_fit`, the number of documents that batches come from; default: those seen so far.

    **Attributes:** `components_`, the Dirichlet parameters (topics, words); `elbo_`, the ELBO at the start and after
    each pass in nats, valid whether or not the documents' iterations have converged; `n_iter_`, `converged_`.
    """

    # scikit-learn's rule: the constructor takes anything and stores it, `fit` checks. Hence no types here.
    def __init__(
        self,
        n_components: Any = 10,
        *,
        doc_topic_prior: Any = None,
        topic_word_prior: Any = None,
        solver: Any = "coordinate",
        batch_size: Any = 256,
        learning_rate: Any = "automatic",
        learning_offset: Any = 10.0,
        learning_decay: Any = 0.7,
        max_iter: Any = 30,
        tol: Any = 1e-4,
        local_tol: Any = 1e-3,
        max_local_iter: Any = 100,
        components_init: Any = None,
        total_samples: Any = None,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.solver = solver
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_offset = learning_offset
        self.learning_decay = learning_decay
        self.max_iter = max_iter
        self.tol = tol
        self.local_tol = local_tol
        self.max_local_iter = max_local_iter
        self.components_init = components_init
        self.total_samples = total_samples
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any = None) -> "LatentDirichletAllocation":
        """Fit to the counts X, dense or sparse, one document a row; y is not used."""
        X = self._read(X, reset=True)
        forgetting = forgetting_option(self)
        generator = check_random_state(self.random_state)
        model, natural = self._model(X), self._start(X, generator)
        passes, tolerance = check_count("max_iter", self.max_iter), float(self.tol * X.sum())
        if self.solver == "coordinate":
            ascent = coordinate_ascent(model, natural, bucket_documents(X).buckets, passes, tolerance)
        else:
            size = min(check_count("batch_size", self.batch_size), X.shape[0])
            corpus = bucket_documents(X, fewest=X.shape[0] // size)
            ascent = stochastic_ascent(
                model, natural, corpus.buckets, corpus.sizes, generator, size, passes, tolerance, forgetting
            )
        self.components_ = np.asarray(ascent.natural)
        self.elbo_, self.converged_, self.n_iter_ = ascent.elbo, ascent.converged, len(ascent.elbo) - 1
        return self

    @double_precision
    def partial_fit(self, X: Any, y: Any = None) -> "LatentDirichletAllocation":
        """One natural-gradient step from the documents X as a batch."""
        first = not hasattr(self, "components_")
        X = self._read(X, reset=first)
        forgetting_option(self)
        if first:
            self.components_ = np.asarray(self._start(X, check_random_state(self.random_state)))
        self.n_batch_iter_ = getattr(self, "n_batch_iter_", 0) + 1
        self.n_samples_seen_ = getattr(self, "n_samples_seen_", 0) + X.shape[0]
        total = self.n_samples_seen_ if self.total_samples is None else self.total_samples
        rate = forgetting_rate(self.n_batch_iter_, self.learning_offset, self.learning_decay)
        scale, rate = (device_array(np.asarray(x, X.dtype)) for x in (total / X.shape[0], rate))
        documents = bucket_documents(X).buckets
        self.components_ = np.asarray(answer_batch(self._model(X), self._natural(), documents, scale, rate))
        return self

    @double_precision
    def transform(self, X: Any, *, normalize: bool = True) -> np.ndarray:
        """The mean topic weights of each document, or with `normalize=False` their Dirichlet parameters."""
        check_is_fitted(self)
        X = self._read(X, reset=False)
        corpus = bucket_documents(X)
        answer = np.empty((X.shape[0], len(self.components_)), X.dtype)
        parameters = document_parameters(self._model(X), self._natural(), corpus.buckets)
        for rows, gamma in zip(corpus.rows, parameters, strict=True):
            answer[rows] = np.asarray(gamma)[: len(rows)]
        return answer / answer.sum(axis=1, keepdims=True) if normalize else answer

    @double_precision
    def score(self, X: Any, y: Any = None) -> float:
        """The ELBO with X as the data: the documents' bounds minus the divergence of the topics from their prior."""
        check_is_fitted(self)
        X = self._read(X, reset=False)
        return float(elbo(self._model(X), self._natural(), bucket_documents(X).buckets))

    def perplexity(self, X: Any) -> float:
        """exp(-score / number of words): an upper bound of the perplexity when X is what was fitted."""
        score, words = self.score(X), float(self._read(X, reset=False).sum())
        if words == 0:
            raise ValueError("X has no words: its perplexity is not defined.")
        return float(np.exp(-score / words))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self):
        return len(self.components_)

    def _read(self, X, reset) -> Any:
        dtype = [np.float64, np.float32] if reset else self.components_.dtype
        X = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=dtype)
        check_non_negative(X, "LatentDirichletAllocation, where X holds counts of words")
        return X

    def _prior(self, name):
        given = getattr(self, name)
        return check_positive(name, 1 / self.n_components if given is None else given)

    def _model(self, X):
        """The model with this estimator's priors, its numbers as arrays."""
        shape = (check_count("n_components", self.n_components), X.shape[1])
        topic_word, doc_topic = self._prior("topic_word_prior"), self._prior("doc_topic_prior")
        limit = check_count("max_local_iter", self.max_local_iter)
        if not self.local_tol >= 0:
            raise ValueError(f"local_tol must not be negative, but is {self.local_tol}.")
        numbers = (np.full(shape, topic_word), np.asarray(doc_topic), np.asarray(self.local_tol))
        prior, document_prior, tolerance = (jnp.asarray(x.astype(X.dtype)) for x in numbers)
        return TopicModel(prior, document_prior, tolerance, device_array(np.asarray(limit)))

    def _start(self, X, generator):
        shape = (check_count("n_components", self.n_components), X.shape[1])
        if self.components_init is None:
            return jnp.asarray(generator.gamma(_START_SHAPE, 1 / _START_SHAPE, shape).astype(X.dtype))
        given = np.asarray(self.components_init, X.dtype)
        if given.shape != shape or not (given > 0).all():
            raise ValueError(f"components_init must be positive numbers of shape {shape}, not of shape {given.shape}.")
        return jnp.asarray(given)

    def _natural(self):
        return jnp.asarray(self.components_)
