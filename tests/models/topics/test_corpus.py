"""Odd corpora: one document far longer than the others, none of them touched, and many topics in two threads."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from provi.models.topics.corpus import bucket_documents, coarse_width, with_words, word_totals

MANY_TOPICS = """
import numpy as np
from provi.models import CorrelatedTopicModel
counts = np.random.default_rng(0).poisson(0.3, (128, 300)).astype(float)
model = CorrelatedTopicModel(40, max_iter=2, steps_per_visit=2, random_state=0).fit(counts)
print(np.isfinite(model.elbo_).all())
"""

NOT_STARTED = """
import jax
import provi
jax.config.update("jax_num_cpu_devices", 2)  # an error once JAX has started
"""


def counts_of(lengths, words=300):
    return sp.csr_matrix(np.arange(words)[None, :] < np.asarray(lengths)[:, None], dtype=float)


@pytest.mark.parametrize("fewest", [1, 5, 8, 30])
def test_one_long_document_widens_few_others(fewest):
    lengths = np.concatenate([np.random.default_rng(0).integers(5, 40, 99), [290]])
    corpus = bucket_documents(counts_of(lengths), fewest, coarse_width)
    assert sum(corpus.sizes) == 100 and min(corpus.sizes) >= fewest
    assert corpus.sizes[-1] == max(1, fewest) and corpus.buckets[-1].words.shape[1] == 384
    np.testing.assert_array_equal(np.sort(np.concatenate(corpus.rows)), np.arange(100))
    for rows, bucket in zip(corpus.rows, corpus.buckets, strict=True):
        found = (np.asarray(bucket.counts) > 0).sum(axis=1)[: len(rows)]
        np.testing.assert_array_equal(found, lengths[rows])


@pytest.mark.parametrize("number", [2, 3, 7])
def test_buckets_are_never_too_small(number):
    rng = np.random.default_rng(number)
    for _ in range(20):
        lengths = rng.integers(0, 2 ** rng.integers(1, 9, 30))
        assert min(bucket_documents(counts_of(lengths), number, coarse_width).sizes) >= number


def test_sums_and_empty_rows_without_touching_the_matrix():
    """SciPy's own sums sort the indices of a matrix in place."""
    data, indices, indptr = np.array([3.0, 1, 0, 2]), np.array([2, 0, 1, 1]), np.array([0, 0, 2, 3, 4, 4])
    matrix = sp.csr_matrix((data.copy(), indices.copy(), indptr), shape=(5, 4))
    np.testing.assert_array_equal(word_totals(matrix), [1, 2, 3, 0])
    np.testing.assert_array_equal(with_words(matrix).toarray(), matrix.toarray()[[1, 3]])
    np.testing.assert_array_equal(matrix.indices, indices)
    np.testing.assert_array_equal(word_totals(matrix.toarray()), [1, 2, 3, 0])
    np.testing.assert_array_equal(with_words(matrix.toarray()), matrix.toarray()[[1, 3]])


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_forty_topics_in_two_threads_end():
    """Batches of Cholesky factorisations in two threads at once waited for each other for ever with jaxlib 0.10."""
    answer = run(MANY_TOPICS)
    assert answer.stdout.strip() == "True", answer.stderr


def test_importing_provi_does_not_start_jax():
    answer = run(NOT_STARTED)
    assert answer.returncode == 0, answer.stderr
