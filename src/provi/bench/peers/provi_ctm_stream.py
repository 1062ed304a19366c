"""ProVI's `CorrelatedTopicModel.partial_fit` over a stream of `setting` batches: does its memory grow?"""

from typing import Any

import numpy as np

from provi.bench.peers.provi_ctm_passes import peak_mib
from provi.bench.protocol import Recorder, serve
from provi.bench.topics_problem import TopicsProblem
from provi.models.topics.correlated_topic_model import CorrelatedTopicModel

BATCH, GROWTH = 64, 10


def solve(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Batches drawn with replacement; the peak memory, and the documents so far, after a tenth of them and after all.

    Only one batch is held at a time. Making the batches is on the clock, and is little beside the rest.
    """
    generator, total = np.random.default_rng(problem.seed), int(setting)
    model = CorrelatedTopicModel(problem.num_topics, random_state=problem.seed)
    for batch in range(1, total + 1):
        model.partial_fit(problem.train[generator.integers(problem.train.shape[0], size=BATCH)])
        if batch in (total // GROWTH, total):
            record(peak_mib(), float(batch * BATCH), float(batch))
        if len(record.snapshots) == record.largest:
            break  # the run that times the compilation is over
    return {}


if __name__ == "__main__":
    serve(solve, TopicsProblem.load)
