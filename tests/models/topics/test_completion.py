"""Halves of documents, predictive probabilities and coherence, against loops and quadrature."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import softmax

from provi.models.topics.completion import (
    mean_shares,
    npmi_coherence,
    split_tokens,
    token_log_probabilities,
    umass_coherence,
)
from provi.models.topics.draws import normal_pairs
from provi.models.topics.model import LocalPosterior


def test_halves_add_up_and_are_random():
    """Halves of 2000 documents with counts (3, 1, 0, 2): the share of each word in the first half is 1/2.

    Each word's count in the first half is hypergeometric; false-alarm rate 1e-6 by the normal approximation.
    """
    counts = np.tile([3.0, 1.0, 0.0, 2.0], (2000, 1))
    first, second = (part.toarray() for part in split_tokens(sp.csr_matrix(counts), np.random.default_rng(0)))
    np.testing.assert_array_equal(first + second, counts)
    np.testing.assert_array_equal(first.sum(axis=1), 3)
    total = np.asarray([3, 1, 2])
    variance = 3 * (total / 6) * (1 - total / 6) * 3 / 5
    z = (first.mean(axis=0)[[0, 1, 3]] - total / 2) / np.sqrt(variance / 2000)
    assert np.abs(z).max() < 5.2 and first.std(axis=0)[1] > 0.4


def test_odd_words_go_first_and_other_documents_do_not_matter():
    counts = np.asarray([[0, 0, 0], [1, 0, 0], [2, 2, 1], [0, 7, 0]])
    first, second = split_tokens(counts, np.random.RandomState(0))
    np.testing.assert_array_equal(np.asarray(first.sum(axis=1)).ravel(), [0, 1, 3, 4])
    np.testing.assert_array_equal((first + second).toarray(), counts)
    with pytest.raises(ValueError, match="counts must be whole numbers"):
        split_tokens(np.asarray([[0.5, 1.0]]), np.random.RandomState(0))


@pytest.mark.parametrize("diagonal", [False, True])
def test_mean_shares_against_quadrature(diagonal):
    """Two topics, Gauss-Hermite with 40 nodes; 1e5 draws leave a standard error below 0.5 / sqrt(1e5)."""
    rng = np.random.default_rng(0)
    mean, roots = rng.normal(size=(11, 2)), np.tril(rng.normal(size=(11, 2, 2)))
    roots[:, [0, 1], [0, 1]] = np.abs(roots[:, [0, 1], [0, 1]])
    root = np.diagonal(roots, axis1=1, axis2=2) if diagonal else roots
    draws = normal_pairs(np.random.default_rng(1), (100_000, 2), np.float64)
    shares = np.asarray(mean_shares(LocalPosterior(jnp.asarray(mean), jnp.asarray(root)), draws))
    x, w = np.polynomial.hermite_e.hermegauss(40)
    points = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = np.outer(w, w).ravel() / (2 * np.pi)
    for d in range(11):
        matrix = np.diag(root[d]) if diagonal else root[d]
        expected = weights @ softmax(mean[d] + points @ matrix.T, axis=1)
        np.testing.assert_allclose(shares[d], expected, atol=5.2 * 0.5 / np.sqrt(1e5))


def test_log_probabilities_are_the_sum_over_words():
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 3, (5, 7)).astype(float)
    shares, components = rng.dirichlet(np.ones(3), 5), rng.dirichlet(np.ones(7), 3)
    total, words = token_log_probabilities(shares, components, sp.csr_matrix(counts))
    assert words == counts.sum()
    assert total == pytest.approx(np.sum(counts * np.log(shares @ components)), rel=1e-12)


def test_coherence_written_out():
    """Documents {0,1}, {0,1,2}, {0,2}, {0}, {3}: pairs of the topic 0, 1, 2, and a word that no document has."""
    counts = np.asarray([[2, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 3, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0]])
    umass = np.mean(np.log([(2 + 1) / 4, (2 + 1) / 4, (1 + 1) / 2]))
    assert umass_coherence(np.asarray([0, 1, 2]), counts) == pytest.approx(umass, rel=1e-12)
    pairs = [(0.4, 0.8, 0.4), (0.4, 0.8, 0.4), (0.2, 0.4, 0.4)]
    npmi = np.mean([np.log(joint / (a * b)) / -np.log(joint) for joint, a, b in pairs])
    for words in ([0, 1, 2], [0, 1, 4, 2]):
        assert npmi_coherence(np.asarray(words), sp.csr_matrix(counts)) == pytest.approx(npmi, rel=1e-12)
        assert umass_coherence(np.asarray(words), sp.csr_matrix(counts)) == pytest.approx(umass, rel=1e-12)
    assert npmi_coherence(np.asarray([0, 3]), counts) == -1
    assert npmi_coherence(np.asarray([0, 1]), counts[:2]) == 0
    assert np.isnan(npmi_coherence(np.asarray([4, 3]), counts)) and np.isnan(umass_coherence(np.asarray([4]), counts))
