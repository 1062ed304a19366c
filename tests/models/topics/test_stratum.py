"""Documents on the host in blocks, and the widths to which they are padded."""

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from provi.models.topics.corpus import Documents, bucket_documents, coarse_width, fine_width
from provi.models.topics.model import BLOCK, LocalPosterior, Stratum, in_blocks

SIZE, WIDTH, TOPICS = 70, 16, 3


def bucket(seed=0):
    """Padded to 80 documents, as `bucket_documents` does."""
    rng = np.random.default_rng(seed)
    words, counts = np.zeros((80, WIDTH), np.int32), np.zeros((80, WIDTH))
    words[:SIZE], counts[:SIZE] = rng.integers(0, 50, (SIZE, WIDTH)), rng.integers(1, 9, (SIZE, WIDTH))
    return Documents(jnp.asarray(words), jnp.asarray(counts))


def posterior(rows, diagonal=False):
    """Of a block, each document's made from its number."""
    mean, root = np.full((BLOCK, TOPICS), -1.0), np.full((BLOCK, TOPICS, TOPICS), -1.0)
    mean[: len(rows)], root[: len(rows)] = rows[:, None], 100 + rows[:, None, None]
    return LocalPosterior(jnp.asarray(mean), jnp.asarray(root[:, :, 0] if diagonal else root))


def test_blocks_have_all_rows_in_their_order():
    rows = np.random.default_rng(0).permutation(2 * BLOCK + 5)
    blocks = list(in_blocks(rows))
    assert [len(block) for block in blocks] == [BLOCK, BLOCK, 5]
    np.testing.assert_array_equal(np.concatenate(blocks), rows)
    assert not list(in_blocks(rows[:0]))


def test_a_block_has_the_documents_asked_for_and_empty_ones():
    documents, stratum = bucket(), Stratum(bucket(), SIZE)
    rows = np.asarray([69, 3, 11])
    words, counts = (np.asarray(part) for part in stratum.documents(rows))
    assert words.shape == counts.shape == (BLOCK, WIDTH) and words.dtype == np.int32
    np.testing.assert_array_equal(words[:3], np.asarray(documents.words)[rows])
    np.testing.assert_array_equal(counts[:3], np.asarray(documents.counts)[rows])
    assert not counts[3:].any() and not words[3:].any()
    assert stratum.words.shape == (SIZE, WIDTH)


def test_a_cold_stratum_keeps_nothing():
    stratum, rows = Stratum(bucket(), SIZE), np.arange(4)
    stratum.store(rows, posterior(rows))
    assert stratum.posterior(rows) is None and stratum.mean is None


def test_a_warm_stratum_gives_back_what_was_stored():
    """Only once all documents of a block have posteriors; what fills the block up repeats one of these."""
    for diagonal in (False, True):
        stratum = Stratum(bucket(), SIZE, warm=True)
        assert stratum.posterior(np.arange(2)) is None
        first, second = np.arange(BLOCK), np.arange(BLOCK, SIZE)
        stratum.store(first, posterior(first, diagonal))
        assert stratum.posterior(np.asarray([0, SIZE - 1])) is None
        stratum.store(second, posterior(second, diagonal))
        rows = np.asarray([SIZE - 1, 0, 7])
        found, expected = stratum.posterior(rows), posterior(rows, diagonal)
        assert found is not None and found.is_diagonal == diagonal
        for new, old in ((found.mean, expected.mean), (found.root, expected.root)):
            new, old = np.asarray(new), np.asarray(old)
            np.testing.assert_array_equal(new[:3], old[:3])
            np.testing.assert_array_equal(new[3:], np.broadcast_to(new[0], new[3:].shape))
        again = np.asarray([7])
        stratum.store(again, posterior(np.asarray([500]), diagonal))
        kept = stratum.posterior(rows)
        assert kept is not None
        np.testing.assert_array_equal(np.asarray(kept.mean)[:3, 0], [SIZE - 1, 0, 500])


def test_coarse_widths_are_few_wide_enough_and_monotone():
    """Powers of two and one and a half times these, from 16; the least that fits, so at most 3/2 of the length."""
    allowed = sorted({16} | {2**k for k in range(4, 18)} | {3 * 2**k for k in range(3, 17)})
    lengths = np.arange(1, 5000)
    widths = np.asarray([coarse_width(int(length)) for length in lengths])
    np.testing.assert_array_equal(widths, np.asarray(allowed)[np.searchsorted(allowed, lengths)])
    assert (np.diff(widths) >= 0).all() and (widths >= lengths).all()
    assert (widths[lengths > 16] <= 1.5 * lengths[lengths > 16]).all()
    assert coarse_width(0) == 16 and coarse_width(65_537) == 98_304
    fine = np.asarray([fine_width(int(length)) for length in lengths])
    assert (fine >= lengths).all() and (fine - lengths < np.maximum(16, lengths / 8)).all() and not (fine % 16).any()


def test_buckets_have_the_widths_asked_for_and_all_documents():
    rng = np.random.default_rng(0)
    counts = np.zeros((60, 200))
    for row, length in zip(counts, rng.integers(0, 150, 60), strict=True):
        row[rng.choice(200, length, replace=False)] = 1 + rng.integers(0, 5, length)
    corpus = bucket_documents(sp.csr_matrix(counts), rounded=coarse_width)
    np.testing.assert_array_equal(np.sort(np.concatenate(corpus.rows)), np.arange(60))
    for documents, size, rows in zip(*corpus, strict=True):
        assert documents.words.shape[1] == coarse_width(documents.words.shape[1])
        words, values = np.asarray(documents.words), np.asarray(documents.counts)
        assert size == len(rows) and not values[size:].any()
        for word, value, row in zip(words, values, rows, strict=False):
            np.testing.assert_array_equal(np.bincount(word, value, minlength=200), counts[row])
