"""The steps for a document's posterior against the update written out, SciPy's optimum and quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from provi.models.corpus import Documents
from provi.models.topics.draws import base_draws
from provi.models.topics.likelihood import value_gradient_hessian
from provi.models.topics.local_steps import cold_start, infer
from provi.models.topics.model import LocalPosterior, TopicPrior

KEY = jax.random.key(0)


def problem(topics=3, documents=4, width=16, vocabulary=50, words=40, seed=0, dtype=np.float64):
    """Documents from the model itself, the topics and the prior."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(vocabulary, 0.2), topics).T
    factor = rng.normal(size=(topics, topics))
    covariance = factor @ factor.T / topics + 0.5 * np.eye(topics)
    mean = rng.normal(size=topics) / 2
    numbers, counts = np.zeros((documents, width), np.int32), np.zeros((documents, width))
    for d in range(documents):
        z = rng.multivariate_normal(mean, covariance)
        chances = rows @ np.exp(z - logsumexp(z))
        numbers[d] = np.sort(rng.choice(vocabulary, width, replace=False, p=chances))
        part = chances[numbers[d]] / chances[numbers[d]].sum()
        counts[d] = rng.multinomial(words, part)
    arrays = (jnp.asarray(x.astype(dtype)) for x in (counts, rows, mean, covariance))
    counts, rows, mean, covariance = arrays
    return Documents(jnp.asarray(numbers), counts), rows, TopicPrior(mean, covariance)


def negative_elbo(mean, root, z_weights, rows, counts, prior):
    """-ELBO of one document in NumPy, E f by the points and weights given."""
    points, weights = z_weights
    z = mean + points @ root.T
    shares = z - logsumexp(z, axis=1, keepdims=True)
    energy = -weights @ logsumexp(shares[:, None, :] + np.log(rows), axis=2) @ counts
    precision, difference = np.linalg.inv(prior.covariance), mean - prior.mean
    divergence = np.trace(precision @ root @ root.T) + difference @ precision @ difference - len(mean)
    log_det = np.linalg.slogdet(prior.covariance)[1] - 2 * np.log(np.abs(np.diag(root))).sum()
    return energy + (divergence + log_det) / 2


def best_elbo(z_weights, rows, counts, prior, diagonal=False):
    """SciPy's least -ELBO over the mean and the Cholesky factor, from two starts."""
    size = len(prior.mean)
    lower = np.diag_indices(size) if diagonal else np.tril_indices(size)

    def objective(x):
        root = np.zeros((size, size))
        root[lower] = x[size:]
        root[np.diag_indices(size)] = np.exp(np.diag(root))
        return negative_elbo(x[:size], root, z_weights, rows, counts, prior)

    starts = (np.concatenate([m, np.zeros(len(lower[0]))]) for m in (np.zeros(size), np.asarray(prior.mean)))
    return min(minimize(objective, start, method="L-BFGS-B", options={"gtol": 1e-7}).fun for start in starts)


def quadrature(nodes=40):
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    return grid, np.outer(w, w).ravel() / (2 * np.pi)


def matrix(root):
    return np.diag(root) if root.ndim == 1 else np.asarray(root)


def of_document(documents, topics, d):
    return np.asarray(topics)[np.asarray(documents.words[d])], np.asarray(documents.counts[d])


def test_draws_have_the_moments_of_a_normal():
    points, chances = base_draws(KEY, 16, 4)
    np.testing.assert_allclose(chances.sum(), 1, rtol=1e-14)
    for one in np.asarray(points):
        np.testing.assert_allclose(chances @ one, 0, atol=1e-13)
        np.testing.assert_allclose(one.T @ (one * np.asarray(chances)[:, None]), np.eye(4), atol=1e-13)
        np.testing.assert_allclose(chances @ np.sum(one**2, axis=1) ** 2, 4 * 6, rtol=1e-13)
    assert np.abs(points[0] - points[1]).max() > 0.1


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_the_answer_is_the_best_gaussian_of_quadrature(covariance):
    """Two topics, E f by 1600 nodes: no Gaussian has an ELBO that is better by 1e-3 nats."""
    documents, topics, prior = problem(topics=2)
    posterior, _ = infer(documents, topics, prior, covariance=covariance, num_draws=400, tol=1e-10, key=KEY)
    for d in range(2):
        arguments = quadrature(), *of_document(documents, topics, d), prior
        reached = negative_elbo(np.asarray(posterior.mean[d]), matrix(posterior.root[d]), *arguments)
        gap = reached - best_elbo(*arguments, diagonal=covariance == "diagonal")
        assert -1e-7 < gap < 1e-3, gap


def test_the_fixed_point_maximises_the_sampled_elbo():
    """Three topics, SciPy on (m, chol V) with the same draws.

    The slope in m vanishes there exactly; in V the Hessian takes the place of the slope of the sampled expectation,
    which is the same up to the error of the draws, hence 1e-3 nats and not 0.
    """
    documents, topics, prior = problem(topics=3, documents=1)
    posterior, _ = infer(documents, topics, prior, num_draws=300, tol=1e-14, max_steps=300, key=KEY)
    draws = base_draws(KEY, 300, 3)
    mean, root = np.asarray(posterior.mean[0]), np.asarray(posterior.root[0])
    rows, counts = of_document(documents, topics, 0)
    slopes = value_gradient_hessian(*map(jnp.asarray, (mean + np.asarray(draws.points[0]) @ root.T, rows, counts)))[1]
    slope = draws.chances @ slopes + np.linalg.solve(prior.covariance, mean - prior.mean)
    np.testing.assert_allclose(root.T @ slope, 0, atol=1e-6)
    arguments = (np.asarray(draws.points[0]), np.asarray(draws.chances)), rows, counts, prior
    gap = negative_elbo(mean, root, *arguments) - best_elbo(*arguments)
    assert -1e-7 < gap < 1e-3, gap


def test_one_step_is_the_retraction_where_the_plain_update_is_indefinite():
    """A wide q over two topics that explain the words equally well: f is concave there, and P + t Delta indefinite."""
    topics = jnp.asarray(np.array([[0.9, 0.1], [0.1, 0.9]]))
    documents = Documents(jnp.asarray(np.array([[0, 1]], np.int32)), jnp.asarray(np.array([[30.0, 1.0]])))
    prior = TopicPrior(jnp.zeros(2), jnp.eye(2))
    start = LocalPosterior(jnp.asarray([[-2.5, 2.5]]), 0.5 * jnp.eye(2)[None])
    moved, steps = infer(documents, topics, prior, start, step=3.0, num_draws=4, tol=0.0, max_steps=1, key=KEY)
    points, chances = base_draws(KEY, 4, 2)
    mean, root, t = np.asarray(start.mean[0]), np.asarray(start.root[0]), 0.75
    each = [value_gradient_hessian(jnp.asarray(z[None]), topics, documents.counts[0])[1:]
            for z in mean + np.asarray(points[0]) @ root.T]  # fmt: skip
    gradient = sum(c * np.asarray(g[0]) for c, (g, _) in zip(np.asarray(chances), each, strict=True))
    hessian = sum(c * np.asarray(h) for c, (_, h) in zip(np.asarray(chances), each, strict=True))
    precision = np.linalg.inv(root @ root.T)
    delta = np.eye(2) + hessian - precision
    assert np.linalg.eigvalsh(precision + t * delta)[0] < 0, "the plain update should fail here"
    new = precision + t * delta + t**2 / 2 * delta @ root @ root.T @ delta
    expected = mean - t * np.linalg.solve(new, mean + gradient)
    assert steps[0] == 1
    np.testing.assert_allclose(moved.mean[0], expected, rtol=1e-9)
    np.testing.assert_allclose(moved.root[0] @ moved.root[0].T, np.linalg.inv(new), rtol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_padding_and_other_documents_change_nothing(covariance):
    documents, topics, prior = problem(documents=3)
    options = dict(covariance=covariance, key=KEY)
    alone, steps = infer(documents, topics, prior, **options)
    wider = Documents(*(jnp.pad(x, ((0, 7), (0, 5))) for x in documents))
    among, more = infer(wider, topics, prior, **options)
    np.testing.assert_allclose(among.mean[:3], alone.mean, rtol=1e-8)
    np.testing.assert_allclose(among.root[:3], alone.root, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(more, np.concatenate([steps, np.zeros(7)]))
    precision = np.linalg.inv(prior.covariance)
    expected = np.asarray(prior.covariance) if covariance == "full" else np.diag(1 / np.diag(precision))
    for d in range(3, 10):
        np.testing.assert_allclose(among.mean[d], prior.mean)
        np.testing.assert_allclose(matrix(among.root[d]) @ matrix(among.root[d]).T, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_converged_answer_stays_and_a_warm_start_is_shorter(covariance):
    documents, topics, prior = problem(topics=6, documents=8)
    options = dict(covariance=covariance, key=KEY)
    rough, steps = infer(documents, topics, prior, **options)
    assert (np.asarray(steps) < 100).all()
    exact, more = infer(documents, topics, prior, rough, tol=1e-12, max_steps=1000, **options)
    assert (np.asarray(more) < 1000).all()
    again, none = infer(documents, topics, prior, exact, **options)
    assert (np.asarray(none) == 0).all()
    np.testing.assert_allclose(again.mean, exact.mean, rtol=0, atol=1e-12)
    # The default tolerance of 1e-3 nats is 0.045 standard deviations of one topic weight.
    deviations = np.sqrt(np.stack([np.diag(matrix(r) @ matrix(r).T) for r in exact.root]))
    assert (np.abs(rough.mean - exact.mean) / deviations).max() < 0.2
    shifted = TopicPrior(prior.mean + 0.05, prior.covariance)
    cold = infer(documents, topics, shifted, **options)[1]
    warm = infer(documents, topics, shifted, rough, **options)[1]
    assert warm.sum() < cold.sum() / 2


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_single_precision_agrees(covariance):
    answers = []
    for dtype in (np.float64, np.float32):
        documents, topics, prior = problem(topics=4, words=100_000, documents=2, dtype=dtype)
        # Many draws, since the draws themselves differ between the precisions.
        posterior, steps = infer(documents, topics, prior, covariance=covariance, num_draws=64, key=KEY)
        assert posterior.mean.dtype == posterior.root.dtype == dtype
        assert (np.asarray(steps) < 100).all()
        answers.append(posterior)
    deviations = np.sqrt(np.stack([np.diag(matrix(r) @ matrix(r).T) for r in answers[0].root]))
    assert (np.abs(answers[0].mean - answers[1].mean) / deviations).max() < 0.2


def test_many_topics_many_words_and_a_document_of_one_word():
    rng = np.random.default_rng(5)
    topics = rng.gamma(0.1, size=(100_000, 100)) + 1e-8
    topics = jnp.asarray(topics / topics.sum(axis=0))
    words = np.zeros((2, 8), np.int32)
    words[0, 0], words[1] = 99_999, np.arange(8)
    counts = np.zeros((2, 8))
    counts[0, 0], counts[1] = 1, 12_500
    prior = TopicPrior(jnp.zeros(100), jnp.eye(100))
    posterior, steps = infer(Documents(*map(jnp.asarray, (words, counts))), topics, prior, num_draws=64, key=KEY)
    assert np.isfinite(posterior.mean).all() and (np.asarray(steps) < 100).all()
    assert np.argmax(posterior.mean[0]) == np.argmax(topics[99_999])
    variances = np.linalg.eigvalsh(np.asarray(posterior.root[0]) @ np.asarray(posterior.root[0]).T)
    assert variances[0] > 0.3 and variances[-1] < 1.5


def test_bad_arguments():
    documents, topics, prior = problem(documents=1)
    with pytest.raises(ValueError, match="covariance must be"):
        infer(documents, topics, prior, covariance="banded", key=KEY)
    with pytest.raises(ValueError, match=r"start\.root has 2 axes"):
        infer(documents, topics, prior, cold_start(documents, prior, covariance="diagonal"), key=KEY)
