"""tomotopy: Gibbs sampling for LDA (collapsed) and for the correlated topic model (Mimno et al. 2008), on two cores."""

from collections.abc import Iterator
from importlib import metadata
from typing import Any

# Where the library is not installed, pyright takes this module for it.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
import numpy as np
import tomotopy  # pyright: ignore[reportMissingImports]

from provi_lab.bench.problems import TopicsProblem, snapshot_steps
from provi_lab.bench.protocol import Recorder

DOCUMENT_PRIOR, WORD_PRIOR, WORKERS = 0.1, 0.01, 2


def lda(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`setting` iterations of `LDAModel`; it goes on to optimise the Dirichlet prior of the shares, as by default."""
    model = tomotopy.LDAModel(k=problem.num_topics, alpha=DOCUMENT_PRIOR, eta=WORD_PRIOR, seed=problem.seed)
    return _train_and_record(problem, model, setting, record)


def ctm(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`setting` iterations of `CTModel`, with its own settings but for the prior of the topics: all have the same."""
    model = tomotopy.CTModel(k=problem.num_topics, eta=WORD_PRIOR, seed=problem.seed)
    return _train_and_record(problem, model, setting, record)


def _train_and_record(problem: TopicsProblem, model: Any, setting: float, record: Recorder) -> dict[str, Any]:
    """Sampling alone is timed: the documents are handed over off the clock."""
    with record.off_the_clock():
        for words in _documents(problem.train):
            model.add_doc(words)
    done, total = 0, int(setting)
    for step in snapshot_steps(total):
        model.train(step - done, workers=WORKERS)
        done = step
        with record.off_the_clock():
            shares = _shares(problem, model) if done == total else problem.no_shares()
            topics = _topics(problem, model)
        record(topics, shares, float(done))
        if len(record.snapshots) == record.largest:
            break  # the run that times the compilation, of which there is none
    return {"iterations": done, "versions": {"tomotopy": metadata.version("tomotopy")}, "instructions": tomotopy.isa}


def _documents(counts: Any) -> Iterator[list[str]]:
    """The rows of a sparse matrix as lists of words; a word is called by its number."""
    for start, end in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        yield [str(word) for word in np.repeat(counts.indices[start:end], counts.data[start:end].astype(int))]


def _topics(problem, model):
    """p(word | topic), in the order of the count matrix."""
    place = np.array([int(word) for word in model.used_vocabs])
    topics = np.zeros((problem.num_topics, problem.train.shape[1]))
    for number in range(problem.num_topics):
        topics[number, place] = model.get_topic_word_dist(number)
    return topics


def _shares(problem, model):
    """Its own answer for the observed halves, with its default number of iterations."""
    halves = [model.make_doc(words) for words in _documents(problem.observed)]
    shares, _ = model.infer(halves, workers=WORKERS)
    return np.array(shares)
