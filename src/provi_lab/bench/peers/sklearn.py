"""scikit-learn: LDA (mean field, Hoffman et al. 2010), and logistic regression after mean imputation."""

from importlib import metadata
from typing import Any

import numpy as np
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.linear_model import LogisticRegression

from provi_lab.bench.problems import MissingProblem, TopicsProblem
from provi_lab.bench.protocol import Recorder

DOCUMENT_PRIOR, WORD_PRIOR = 0.1, 0.01


def lda(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`setting` passes of coordinate ascent on all documents at once."""
    return _fit_lda(problem, setting, record, learning_method="batch")


def lda_online(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`setting` passes of stochastic steps with its own decay, in batches of 128 documents, its default."""
    return _fit_lda(problem, setting, record, learning_method="online", total_samples=problem.train.shape[0])


def _fit_lda(problem: TopicsProblem, setting: float, record: Recorder, **arguments: Any) -> dict[str, Any]:
    """From the counts to the posterior mean of the topics."""
    model = LatentDirichletAllocation(
        problem.num_topics,
        doc_topic_prior=DOCUMENT_PRIOR,
        topic_word_prior=WORD_PRIOR,
        max_iter=int(setting),
        random_state=problem.seed,
        **arguments,
    )
    model.fit(problem.train)
    with record.off_the_clock():
        shares = model.transform(problem.observed)
    record(model.components_ / model.components_.sum(axis=1, keepdims=True), shares, setting)
    return {"passes": int(model.n_iter_), "versions": {"scikit-learn": metadata.version("scikit-learn")}}


def mean_imputation(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Missing entries replaced by the column's mean, then a fit without a penalty: what most people do.

    Mean and covariance are those of the filled table. `setting` is the solver's `tol`.
    """
    filled = np.where(np.isnan(problem.features), np.nanmean(problem.features, axis=0), problem.features)
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=setting).fit(filled, problem.response)
    coefficients = np.concatenate([model.intercept_, model.coef_[0]])
    record(np.concatenate([coefficients, filled.mean(axis=0)]), np.cov(filled.T, bias=True))
    return {"versions": {"scikit-learn": metadata.version("scikit-learn")}}
