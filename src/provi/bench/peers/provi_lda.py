"""ProVI's `LatentDirichletAllocation` by coordinate ascent, at most `setting` passes."""

from typing import Any

from provi.bench.protocol import Recorder, serve
from provi.bench.topics_problem import TopicsProblem
from provi.models import LatentDirichletAllocation

DOCUMENT_PRIOR, WORD_PRIOR = 0.1, 0.01
"""The same as for the other libraries' LDA."""


def solve(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the counts to the posterior mean of the topics."""
    model = LatentDirichletAllocation(
        problem.num_topics,
        doc_topic_prior=DOCUMENT_PRIOR,
        topic_word_prior=WORD_PRIOR,
        max_iter=int(setting),
        random_state=problem.seed,
    )
    model.fit(problem.train)
    with record.off_the_clock():
        shares = model.transform(problem.observed)
    record(model.components_ / model.components_.sum(axis=1, keepdims=True), shares, float(model.n_iter_))
    return {"passes": int(model.n_iter_), "converged": bool(model.converged_)}


if __name__ == "__main__":
    serve(solve, TopicsProblem.load)
