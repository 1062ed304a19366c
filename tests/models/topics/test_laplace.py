"""Laplace's approximation against SciPy's modes and Hessians by automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax

from provi.models.topics.model import LocalPosterior, TopicPrior
from provi.models.topics.newton import infer_laplace
from support.topic_documents import (
    LENGTHS,
    assert_close_posteriors,
    covariances,
    negative_log_likelihood,
    negative_log_prior,
    padded,
    small_corpus,
)


def potential(z, rows, counts, prior):
    return negative_log_likelihood(z, rows, counts) + negative_log_prior(z, prior)


slope = jax.jit(jax.value_and_grad(potential))
bend = jax.jit(jax.hessian(potential))


def test_modes_are_scipys_and_the_covariance_is_the_inverse_hessian():
    documents, rows, prior = small_corpus()
    posterior, steps = infer_laplace(documents, rows, prior, tol=1e-20)
    assert (np.asarray(steps) < 20).all()
    modes, roots, counts = (np.asarray(x) for x in (posterior.mean, posterior.root, documents.counts))
    for mode, root, count in zip(modes, roots, counts, strict=True):
        arguments = rows, count, prior
        best = minimize(lambda z, a=arguments: tuple(map(np.asarray, slope(z, *a))), np.asarray(prior.mean), jac=True)
        value, gradient = slope(mode, *arguments)
        assert value <= best.fun + 1e-9 * abs(best.fun)
        np.testing.assert_allclose(root.T @ np.asarray(gradient), 0, atol=1e-7)
        assert np.abs(np.linalg.solve(root, best.x - mode)).max() < 1e-3
        np.testing.assert_array_equal(root, np.tril(root))
        np.testing.assert_allclose(root @ root.T, np.linalg.inv(bend(mode, *arguments)), rtol=1e-6)


def test_few_steps_reach_the_default_tolerance():
    documents, rows, prior = small_corpus()
    posterior, steps = infer_laplace(documents, rows, prior)
    exact, _ = infer_laplace(documents, rows, prior, tol=1e-20)
    assert steps[0] == 0 and (np.asarray(steps) <= 15).all(), steps
    # 1e-3 nats are 0.045 standard deviations.
    assert_close_posteriors(posterior, exact, 0.05)
    _, more = infer_laplace(documents, rows, prior, posterior)
    assert (np.asarray(more) == 0).all()


def test_the_covariance_of_wang_and_blei():
    """The same modes; V^-1 = Sigma^-1 + W (diag pi - pi pi'), never wider than the other."""
    documents, rows, prior = small_corpus()
    summed, _ = infer_laplace(documents, rows, prior, tol=1e-16)
    assigned, _ = infer_laplace(documents, rows, prior, curvature="assigned", tol=1e-16)
    np.testing.assert_allclose(assigned.mean, summed.mean, rtol=1e-8)
    wide, narrow = covariances(summed), covariances(assigned)
    for d, length in enumerate(LENGTHS):
        shares = softmax(np.asarray(assigned.mean)[d])
        expected = np.linalg.inv(prior.covariance) + length * (np.diag(shares) - np.outer(shares, shares))
        np.testing.assert_allclose(np.linalg.inv(narrow[d]), expected, rtol=1e-7, atol=1e-9 * (1 + length))
        assert np.linalg.eigvalsh(wide[d] - narrow[d])[0] > -1e-9


def test_from_a_start_where_the_hessian_is_indefinite():
    """There V, without any step, has the other curvature; with steps the mode is found.

    Two topics that explain the words and two that do not, in documents of the shape of the other tests.
    """
    documents, rows, _ = small_corpus()
    topics, counts = np.full(rows.shape, 1e-3), np.zeros(documents.counts.shape)
    topics[:2, :2], counts[0, :2] = [[0.9, 0.1], [0.1, 0.9]], [30.0, 1.0]
    documents, topics = documents._replace(counts=jnp.asarray(counts)), jnp.asarray(topics)
    prior = TopicPrior(jnp.asarray(np.zeros(4)), jnp.asarray(np.eye(4)))
    mean = np.tile([-2.5, 2.5, -1.0, -1.0], (5, 1))
    start = LocalPosterior(jnp.asarray(mean), jnp.asarray(np.tile(0.5 * np.eye(4), (5, 1, 1))))
    arguments = topics, counts[0], prior
    assert np.linalg.eigvalsh(bend(mean[0], *arguments))[0] < 0
    there, none = infer_laplace(documents, topics, prior, start, max_steps=0)
    assert none[0] == 0
    np.testing.assert_array_equal(there.mean, mean)
    shares = softmax(mean[0])
    expected = np.eye(4) + 31 * (np.diag(shares) - np.outer(shares, shares))
    np.testing.assert_allclose(np.linalg.inv(covariances(there)[0]), expected, rtol=1e-10, atol=1e-12)
    found = np.asarray(infer_laplace(documents, topics, prior, start, tol=1e-16)[0].mean)[0]
    np.testing.assert_allclose(slope(found, *arguments)[1], 0, atol=1e-7)
    assert np.linalg.eigvalsh(bend(found, *arguments))[0] > 0


def test_an_empty_document_has_the_prior_wherever_it_starts():
    documents, rows, prior = small_corpus()
    mean = 3 * np.random.default_rng(1).normal(size=(5, 4))
    start = LocalPosterior(jnp.asarray(mean), jnp.asarray(np.ones((5, 4, 4))))
    empty = documents._replace(counts=jnp.asarray(np.zeros(documents.counts.shape)))
    posterior, steps = infer_laplace(empty, rows, prior, start)
    assert (np.asarray(steps) == 1).all()
    for d in range(5):
        np.testing.assert_allclose(np.asarray(posterior.mean)[d], prior.mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(covariances(posterior)[d], prior.covariance, rtol=1e-10)


@pytest.mark.parametrize("curvature", ["summed", "assigned"])
def test_single_precision_and_padding(curvature):
    documents, rows, prior = small_corpus()
    answer, _ = infer_laplace(documents, rows, prior, curvature=curvature, tol=1e-9)
    same, _ = infer_laplace(padded(documents), rows, prior, curvature=curvature, tol=1e-9)
    np.testing.assert_allclose(same.mean, answer.mean, rtol=1e-6)
    single, steps = infer_laplace(*small_corpus(dtype=np.float32), curvature=curvature, tol=1e-5)
    assert single.mean.dtype == single.root.dtype == np.float32
    assert (np.asarray(steps) < 100).all()
    assert_close_posteriors(single, answer, 0.02)


def test_an_unknown_curvature_is_refused():
    with pytest.raises(ValueError, match="curvature must be 'summed' or 'assigned', not 'exact'"):
        infer_laplace(*small_corpus(), curvature="exact")
