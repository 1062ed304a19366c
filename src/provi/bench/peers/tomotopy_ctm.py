"""tomotopy's `CTModel` (Gibbs sampling; Mimno et al. 2008), `setting` iterations on two cores."""

from typing import Any

import tomotopy  # pyright: ignore[reportMissingImports]

from provi.bench.peers.tomotopy_lda import WORD_PRIOR, train_and_record
from provi.bench.protocol import Recorder, serve
from provi.bench.topics_problem import TopicsProblem


def solve(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Its own settings, but for the prior of the topics, which is that of all the others."""
    model = tomotopy.CTModel(k=problem.num_topics, eta=WORD_PRIOR, seed=problem.seed)
    return train_and_record(problem, model, setting, record)


if __name__ == "__main__":
    serve(solve, TopicsProblem.load)
