"""The same few passes of ProVI's `CorrelatedTopicModel` at any size, for throughput; `setting` as for `provi_ctm`."""

import resource
import sys
from typing import Any

from provi.bench.peers.provi_ctm import covariance_of
from provi.bench.protocol import Recorder, serve
from provi.bench.topics_problem import TopicsProblem
from provi.models.topics.correlated_topic_model import CorrelatedTopicModel

PASSES = 2


def peak_mib() -> float:
    """The most memory that this process has had, in MiB; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def solve(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`PASSES` passes, which no tolerance ends, its start included; the snapshot holds the peak memory."""
    model = CorrelatedTopicModel(
        problem.num_topics,
        covariance=covariance_of(setting),
        max_iter=PASSES,
        tol=0.0,
        random_state=problem.seed,
    )
    model.fit(problem.train)
    record(peak_mib(), 0.0, float(model.n_iter_))
    return {"tokens": problem.num_tokens}


if __name__ == "__main__":
    serve(solve, TopicsProblem.load)
