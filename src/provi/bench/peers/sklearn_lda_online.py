"""scikit-learn's `LatentDirichletAllocation`, online: `setting` passes in batches of 128 documents, its default."""

from typing import Any

from provi.bench.peers.sklearn_lda import fit_and_record
from provi.bench.protocol import Recorder, serve
from provi.bench.topics_problem import TopicsProblem


def solve(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Stochastic steps with its own decay of the step size."""
    return fit_and_record(problem, setting, record, learning_method="online", total_samples=problem.train.shape[0])


if __name__ == "__main__":
    serve(solve, TopicsProblem.load)
