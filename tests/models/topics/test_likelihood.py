"""f of a document and its derivatives against automatic differentiation of log-sum-exps, and against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from scipy.special import logsumexp as numpy_logsumexp

from provi.models.topics import likelihood

value_gradient_hessian = jax.jit(likelihood.value_gradient_hessian)
TOPICS, WORDS, DRAWS = 5, 30, 7


def document(seed=0, topics=TOPICS, words=WORDS):
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(200, 0.1), topics).T[:words] + 1e-9
    return rows, rng.integers(0, 6, words).astype(float)


def plain(z, rows, counts):
    """f with one log-sum-exp for each word: the definition."""
    return -jnp.sum(counts * logsumexp(jax.nn.log_softmax(z)[None, :] + jnp.log(rows), axis=1))


@jax.jit
def means(draws, chances, rows, counts):
    """The mean gradient, Hessian, and diagonal of the Hessian over weighted draws."""
    scaled, _ = likelihood.scaled_rows(rows)
    weights = likelihood.word_weights(draws, scaled, counts)
    gradient = chances @ likelihood.gradients(weights, scaled, counts)
    full = likelihood.mean_hessian(weights, chances, likelihood.word_pairs(scaled), counts, gradient)
    return gradient, full, likelihood.mean_hessian_diagonal(weights, chances, scaled**2, counts, gradient)


def test_derivatives_are_those_of_the_definition():
    rows, counts = document()
    draws = 2 * np.random.default_rng(1).normal(size=(DRAWS, TOPICS))
    values, gradients, hessian = value_gradient_hessian(*map(jnp.asarray, (draws, rows, counts)))

    def expected(function):
        return jax.jit(jax.vmap(function, (0, None, None)))(draws, rows, counts)

    np.testing.assert_allclose(values, expected(plain), rtol=1e-13)
    np.testing.assert_allclose(gradients, expected(jax.grad(plain)), atol=1e-11)
    np.testing.assert_allclose(hessian, np.mean(expected(jax.hessian(plain)), axis=0), atol=1e-11)


def test_the_diagonal_is_that_of_the_full_hessian():
    rows, counts = map(jnp.asarray, document(2))
    draws = jnp.asarray(np.random.default_rng(3).normal(size=(DRAWS, TOPICS)))
    chances = jnp.asarray(np.random.default_rng(4).dirichlet(np.ones(DRAWS)))
    _, full, diagonal = means(draws, chances, rows, counts)
    np.testing.assert_allclose(diagonal, np.diag(full), atol=1e-11)


def test_means_are_the_derivatives_of_the_expectation():
    """Bonnet and Price: dE f/dm = E grad f, dE f/dV = E Hess f / 2; E f by 60 x 60 nodes in NumPy, differenced."""
    rows, counts = document(5, topics=2)
    mean, covariance = np.array([0.4, -0.3]), np.array([[0.5, 0.2], [0.2, 0.8]])
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    chances = np.outer(node_weights, node_weights).ravel() / (2 * np.pi)

    def draws(mean, covariance):
        return mean + grid @ np.linalg.cholesky(covariance).T

    def expectation(mean, covariance):
        z = draws(mean, covariance)
        shares = z - numpy_logsumexp(z, axis=1, keepdims=True)
        return -chances @ numpy_logsumexp(shares[:, None, :] + np.log(rows), axis=2) @ counts

    def difference(change_mean, change_covariance, step=1e-4):
        ends = [expectation(mean + s * change_mean, covariance + s * change_covariance) for s in (step, -step)]
        return (ends[0] - ends[1]) / (2 * step)

    gradient, hessian, _ = means(*map(jnp.asarray, (draws(mean, covariance), chances, rows, counts)))
    none, unit = np.zeros(2), np.eye(2)
    for k in range(2):
        np.testing.assert_allclose(gradient[k], difference(unit[k], 0 * unit), atol=1e-6)
        for j in range(2):
            both = (np.outer(unit[k], unit[j]) + np.outer(unit[j], unit[k])) / 2
            np.testing.assert_allclose(hessian[k, j] / 2, difference(none, both), atol=1e-6)


def test_padding_and_a_shift_of_z_change_nothing():
    rows, counts = document(6)
    draws = np.random.default_rng(7).normal(size=(DRAWS, TOPICS))
    answer = value_gradient_hessian(*map(jnp.asarray, (draws, rows, counts)))
    padded = np.concatenate([rows, rows[:4]]), np.concatenate([counts, np.zeros(4)])
    for other in (value_gradient_hessian(jnp.asarray(draws), *map(jnp.asarray, padded)),
                  value_gradient_hessian(*map(jnp.asarray, (draws + 500.0, rows, counts)))):  # fmt: skip
        for a, b in zip(answer, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_out_draws_and_long_documents_stay_finite(dtype):
    rows, counts = document(8)
    rows[:3, 1:] = 0  # Words of one topic only, which the draws all but exclude.
    draws = np.zeros((2, TOPICS))
    draws[:, 0] = [-1000, 30]
    answer = value_gradient_hessian(*(jnp.asarray(x.astype(dtype)) for x in (draws, rows, 1e5 * counts)))
    assert all(np.isfinite(x).all() and x.dtype == dtype for x in answer)


def test_an_impossible_word_says_nothing_of_the_topics():
    rows, counts = document(9)
    counts[0], draws = 3, np.random.default_rng(10).normal(size=(DRAWS, TOPICS))
    without = value_gradient_hessian(*map(jnp.asarray, (draws, rows[1:], counts[1:])))
    rows[0] = 0
    values, gradients, hessian = value_gradient_hessian(*map(jnp.asarray, (draws, rows, counts)))
    assert np.isposinf(values).all()
    np.testing.assert_allclose(gradients, without[1], atol=1e-11)
    np.testing.assert_allclose(hessian, without[2], atol=1e-11)
