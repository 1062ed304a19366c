"""ProVI's `CorrelatedTopicModel` with its defaults; full covariance where `setting` is 1, diagonal where it is 0."""

from typing import Any

from provi.bench.protocol import Recorder, serve
from provi.bench.topics_problem import TopicsProblem, snapshot_steps
from provi.models.topics.correlated_topic_model import CorrelatedTopicModel


def covariance_of(setting: float) -> str:
    """The name that the estimator has for it."""
    return "full" if setting else "diagonal"


def solve(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the counts to the topics; a snapshot after some of the passes, and one when the fit has ended by itself."""
    passes = []

    def look(model: CorrelatedTopicModel) -> bool:
        passes.append(len(passes) + 1)
        if passes[-1] in steps:
            record(model.components_, problem.no_shares(), float(passes[-1]))
        return len(record.snapshots) == record.largest  # the run that times the compilation is over

    model = CorrelatedTopicModel(
        problem.num_topics, covariance=covariance_of(setting), callback=look, random_state=problem.seed
    )
    steps = snapshot_steps(int(model.max_iter))[:-1]
    model.fit(problem.train)
    if len(record.snapshots) != record.largest:
        with record.off_the_clock():
            shares = model.transform(problem.observed)
        record(model.components_, shares, float(passes[-1]))
    return {
        "passes": passes[-1],
        "converged": bool(model.converged_),
        "elbo_a_word": float(model.elbo_[-1]) / problem.num_tokens,
    }


if __name__ == "__main__":
    serve(solve, TopicsProblem.load)
