"""What can be asked of a fitted topic model."""

import abc
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from provi.core.checks import check_count
from provi.core.precision import double_precision
from provi.models.corpus import Documents, bucket_documents
from provi.models.topics.coherence import npmi_coherence, umass_coherence
from provi.models.topics.completion import mean_shares, token_log_probabilities
from provi.models.topics.e_step import find_posteriors
from provi.models.topics.elbo import document_elbos
from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.models.topics.options import read_options

_BLOCK, _ELBO_DRAWS, _SHARE_DRAWS = 4096, 64, 1024


class AbstractFittedTopics(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, abc.ABC):
    """The methods of `CorrelatedTopicModel` that read its attributes; `fit` sets these."""

    components_: Any
    topic_mean_: Any
    topic_covariance_: Any
    seen_words_: Any

    @abc.abstractmethod
    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit to the counts X, one document a row."""

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
        words = self._check_words(X)
        for rows, documents, posterior in self._posteriors(X):
            key = jax.random.key(1)
            values, _ = document_elbos(documents, self._topics(), self._prior(), posterior, _ELBO_DRAWS, key)
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
        """The n most probable words of each topic: from `vocabulary`, the columns' names at `fit`, or their numbers."""
        check_is_fitted(self)
        width = self.components_.shape[1]
        names = getattr(self, "feature_names_in_", np.arange(width)) if vocabulary is None else np.asarray(vocabulary)
        if len(names) != width:
            raise ValueError(f"vocabulary has {len(names)} words, but the topics have {width}.")
        return [list(names[row]) for row in self._best_words(n)]

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
        check_non_negative(X, "CorrelatedTopicModel: X holds counts of words, which")
        return X

    def _check_words(self, X, name="X"):
        words = float(X.sum(dtype=np.float64))
        if words == 0:
            raise ValueError(f"{name} has no words; at least one document must have some.")
        return words

    def _topics(self):
        return jnp.asarray(self.components_.T)

    def _prior(self):
        return TopicPrior(jnp.asarray(self.topic_mean_), jnp.asarray(self.topic_covariance_))

    def _shares(self, X):
        shares = np.empty((X.shape[0], len(self.components_)), X.dtype)
        for rows, _, posterior in self._posteriors(X):
            shares[rows] = np.asarray(mean_shares(posterior, _SHARE_DRAWS, jax.random.key(0)))[: len(rows)]
        return shares

    def _posteriors(self, X) -> Iterator[tuple[np.ndarray, Documents, LocalPosterior]]:
        """Rows, documents (padded beyond the rows) and their posteriors, in blocks: memory does not grow with X."""
        settings, topics, prior = read_options(self).converge, self._topics(), self._prior()
        for start in range(0, X.shape[0], _BLOCK):
            corpus = bucket_documents(X[start : start + _BLOCK])
            for rows, documents in zip(corpus.rows, corpus.buckets, strict=True):
                posterior = find_posteriors(documents, topics, prior, None, settings, jax.random.key(2))
                yield start + rows, documents, posterior

    def _best_words(self, n):
        n = min(check_count("n", n), self.components_.shape[1])
        return np.argsort(-self.components_, axis=1, kind="stable")[:, :n]
