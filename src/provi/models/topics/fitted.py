"""What can be asked of a fitted topic model."""

import abc
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_non_negative

from provi.core.arguments import check_count, double_precision
from provi.models.certified_estimator import validate_data
from provi.models.topics.completion import mean_shares, npmi_coherence, token_log_probabilities, umass_coherence
from provi.models.topics.corpus import Documents, bucket_documents, coarse_width
from provi.models.topics.draws import few_at_a_time, normal_pairs
from provi.models.topics.e_step import document_elbos, find_posteriors
from provi.models.topics.model import LocalPosterior, Stratum, TopicPrior, in_blocks
from provi.models.topics.options import read_options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SLICE, _ELBO_DRAWS, _SHARE_DRAWS = 4096, 64, 1024


class AbstractFittedTopics(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, abc.ABC):
    """The methods of `CorrelatedTopicModel` that read its attributes; `fit` sets these."""

    components_: Any
    topic_mean_: Any
    topic_covariance_: Any
    seen_words_: Any
    elbo_: Any
    n_iter_: Any
    converged_: Any

    @abc.abstractmethod
    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit to the counts X, one document a row."""

    @property
    def topic_correlation_(self) -> np.ndarray:
        r"""The correlations of z less its mean over the topics, (topics, topics): of $C\Sigma C$, $C = I - 11'/K$.

        The words depend on z by softmax(z), which a common shift of all $z_k$ does not change: how much of it is in
        `topic_covariance_` they do not say, and with it the correlations of z itself are arbitrary. For K independent
        topics of the same variance these are -1/(K - 1).
        """
        covariance = np.asarray(self.topic_covariance_, np.float64)
        if len(covariance) == 1:
            return np.ones((1, 1), self.topic_covariance_.dtype)
        inside = covariance - covariance.mean(axis=0, keepdims=True)
        inside = inside - inside.mean(axis=1, keepdims=True)
        deviations = np.sqrt(np.diag(inside))
        correlation = (inside + inside.T) / 2 / np.outer(deviations, deviations)
        np.fill_diagonal(correlation, 1)
        return np.clip(correlation, -1, 1).astype(self.topic_covariance_.dtype)

    @double_precision
    def transform(self, X: Any) -> np.ndarray:
        """The mean shares of the topics in each document, (documents, topics), by 1024 draws from its posterior."""
        check_is_fitted(self)
        return self._shares(self._read(X, reset=False))

    @double_precision
    def score(self, X: Any, y: Any = None) -> float:
        """The documents' ELBOs per word in nats, without the multinomial coefficients, for topics as fitted.

        A Monte-Carlo estimate with 64 draws a document, the same at each call.
        """
        check_is_fitted(self)
        X, total = self._read(X, reset=False), 0.0
        words, topics, prior, generator = self._check_words(X), self._topics(), self._prior(), np.random.default_rng(1)
        for rows, documents, posterior in self._posteriors(X):
            values, _ = document_elbos(documents, topics, prior, posterior, _ELBO_DRAWS, generator)
            total += float(np.sum(np.asarray(values, np.float64)[: len(rows)]))
        return total / words

    def perplexity(self, X: Any) -> float:
        """exp(-score): an upper bound of the perplexity given the topics, up to the error of the draws."""
        return float(np.exp(-self.score(X)))

    @double_precision
    def log_predictive(self, observed: Any, held_out: Any, *, seen_only: bool = False) -> float:
        """The mean log probability of the words of `held_out` given those of `observed`, row by row the same documents.

        `provi.models.topics.completion.split_tokens` makes the two. Words that no training document had count with the
        probability that `topic_word_prior` gives them; with `seen_only` they are left out of both.
        """
        check_is_fitted(self)
        observed, held_out = (self._read(X, reset=False) for X in (observed, held_out))
        if observed.shape[0] != held_out.shape[0]:
            raise ValueError(
                f"observed has {observed.shape[0]} rows and held_out {held_out.shape[0]}: pass both halves."
            )
        if seen_only:
            keep = scipy.sparse.diags(self.seen_words_.astype(observed.dtype))
            observed, held_out = (scipy.sparse.csr_matrix(X) @ keep for X in (observed, held_out))
        self._check_words(held_out, "held_out")
        total, words = token_log_probabilities(self._shares(observed), self.components_, held_out)
        return total / words

    def top_words(self, n: int = 10, vocabulary: Any = None) -> list[list]:
        """The n most probable words of each topic: from `vocabulary`, the columns' names at `fit`, or their numbers.

        **Arguments:** `vocabulary`: the words in the order of the columns, or the column of each word, as in
        `vocabulary_` of scikit-learn's `CountVectorizer`.
        """
        check_is_fitted(self)
        names = self._words(vocabulary)
        return [[names[word] for word in row] for row in self._best_words(n)]

    def plot_topics(self, n: int = 10, vocabulary: Any = None) -> "Figure":
        """The n most probable words of each topic and their probabilities: a matplotlib figure.

        With each topic stands its mean share in documents of the model. `vocabulary` as for `top_words`.
        """
        from provi.models.topics.plots import plot_topics

        words = self.top_words(n, vocabulary)
        weights = np.take_along_axis(self.components_, self._best_words(n), axis=1)
        return plot_topics(words, weights, shares=self._prior_shares())

    def plot_correlations(self, vocabulary: Any = None) -> "Figure":
        """The graph and the matrix of `topic_correlation_`, a topic named by its first words: a matplotlib figure.

        `vocabulary` as for `top_words`; without it and names of the columns at `fit` the topics have numbers only.
        """
        from provi.models.topics.plots import plot_correlations

        check_is_fitted(self)
        named = vocabulary is not None or hasattr(self, "feature_names_in_")
        labels = [", ".join(map(str, words)) for words in self.top_words(3, vocabulary)] if named else None
        return plot_correlations(self.topic_correlation_, labels, shares=self._prior_shares())

    def coherence(self, X: Any, n: int = 10, measure: str = "npmi") -> np.ndarray:
        """How well the n first words of each topic go together in the documents X: `"npmi"` or `"umass"`, (topics,)."""
        check_is_fitted(self)
        measures = {"npmi": npmi_coherence, "umass": umass_coherence}
        if measure not in measures:
            raise ValueError(f"measure must be 'npmi' or 'umass', not {measure!r}.")
        counts = scipy.sparse.csc_matrix(self._read(X, reset=False))
        return np.asarray([measures[measure](words, counts) for words in self._best_words(n)])

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
        check_non_negative(X, "CorrelatedTopicModel, where X holds counts of words")
        return X

    def _check_words(self, X, name="X"):
        words = float((X.data if scipy.sparse.issparse(X) else X).sum(dtype=np.float64))
        if words == 0:
            raise ValueError(f"{name} has no words; at least one document must have some.")
        return words

    def _topics(self):
        return jnp.asarray(self.components_.T)

    def _prior(self):
        return TopicPrior(jnp.asarray(self.topic_mean_), jnp.asarray(self.topic_covariance_))

    def _shares(self, X):
        shares = np.empty((X.shape[0], len(self.components_)), X.dtype)
        points = normal_pairs(np.random.default_rng(0), (_SHARE_DRAWS, len(self.components_)), X.dtype)
        for rows, _, posterior in self._posteriors(X):
            shares[rows] = np.asarray(mean_shares(posterior, points))[: len(rows)]
        return shares

    def _posteriors(self, X) -> Iterator[tuple[np.ndarray, Documents, LocalPosterior]]:
        """Rows, documents (filled up to a block) and their posteriors: memory does not grow with X.

        The draws are the same for all documents, whatever stands beside them.
        """
        settings, topics, prior = read_options(self).converge, self._topics(), self._prior()
        draws = settings.draws(np.random.default_rng(2), topics.shape[1], topics.dtype, shared=True)

        def blocks():
            for start in range(0, X.shape[0], _SLICE):
                corpus = bucket_documents(X[start : start + _SLICE], rounded=coarse_width)
                for rows, bucket in zip(corpus.rows, corpus.buckets, strict=True):
                    stratum = Stratum(bucket, len(rows))
                    for block in in_blocks(np.arange(len(rows))):
                        yield start + rows[block], stratum.documents(block)

        def find(block):
            rows, documents = block
            return rows, documents, find_posteriors(documents, topics, prior, None, settings, draws)

        yield from few_at_a_time(find, blocks())

    def _words(self, vocabulary):
        """The name of each column, its number if it has none."""
        width = self.components_.shape[1]
        if vocabulary is None:
            return np.asarray(getattr(self, "feature_names_in_", np.arange(width))).tolist()
        if isinstance(vocabulary, Mapping):
            vocabulary = sorted(vocabulary, key=lambda word: vocabulary[word])
        if len(vocabulary) != width:
            raise ValueError(f"vocabulary has {len(vocabulary)} words, but the topics have {width}.")
        return np.asarray(vocabulary).tolist()

    def _prior_shares(self):
        """E softmax(z) under the prior, (topics,), by draws that are the same at each call."""
        size = len(self.topic_mean_)
        root = np.linalg.cholesky(np.asarray(self.topic_covariance_, np.float64))
        points = np.random.default_rng(3).standard_normal((_SHARE_DRAWS, size))
        z = np.concatenate([points, -points]) @ root.T + self.topic_mean_[None, :]
        return softmax(z, axis=1).mean(axis=0)

    def _best_words(self, n):
        n = min(check_count("n", n), self.components_.shape[1])
        return np.argsort(-self.components_, axis=1, kind="stable")[:, :n]
