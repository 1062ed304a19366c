"""scikit-learn's `LatentDirichletAllocation` (mean field, Hoffman et al. 2010), `setting` passes over all documents."""

from importlib import metadata
from typing import Any

from sklearn.decomposition import LatentDirichletAllocation

from provi.bench.protocol import Recorder, serve
from provi.bench.topics_problem import TopicsProblem

DOCUMENT_PRIOR, WORD_PRIOR = 0.1, 0.01


def fit_and_record(problem: TopicsProblem, setting: float, record: Recorder, **arguments: Any) -> dict[str, Any]:
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


def solve(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Coordinate ascent on all documents at once."""
    return fit_and_record(problem, setting, record, learning_method="batch")


if __name__ == "__main__":
    serve(solve, TopicsProblem.load)
