"""The steps for a document's posterior against the update written out, SciPy's optimum and quadrature."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from provi.models.topics.corpus import Documents
from provi.models.topics.draws import base_draws
from provi.models.topics.likelihood import value_gradient_hessian
from provi.models.topics.local_steps import cold_start, infer
from provi.models.topics.model import LocalPosterior, TopicPrior
from support.topic_documents import covariances, divergence, mean_and_root, negative_log_likelihood, parameters

MANY = base_draws(np.random.default_rng(0), 300, 3)
FEW = base_draws(np.random.default_rng(0), 12, 6)
"""The usual number, twice that of the topics."""

at_each_draw = jax.jit(jax.vmap(lambda z, rows, counts: value_gradient_hessian(z[None], rows, counts), (0, None, None)))
energies = jax.vmap(negative_log_likelihood, (0, None, None))


def problem(topics=6, documents=8, width=16, vocabulary=50, words=40, seed=0, dtype=np.float64):
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


@jax.jit
@jax.value_and_grad
def negative_elbo(x, kept, points, chances, rows, counts, prior):
    """-ELBO of one document at `parameters`, E f by the points and chances given; slopes where `kept` is one."""
    mean, root = mean_and_root(kept * x, prior.mean.shape[0])
    energy = chances @ energies(mean[None, :] + points @ root.T, rows, counts)
    return energy + divergence(mean, root @ root.T, prior)


def check_no_better_gaussian(mean, root, points, chances, rows, counts, prior, diagonal=False):
    """SciPy's least -ELBO over the mean and the Cholesky factor, from two starts, is not lower by 1e-3 nats."""
    size = len(mean)
    kept = np.concatenate([np.ones(size), (np.eye(size) if diagonal else np.ones((size, size)))[np.tril_indices(size)]])
    arguments = kept, points, chances, rows, counts, prior

    def objective(x):
        return tuple(map(np.asarray, negative_elbo(x, *arguments)))

    starts = (np.concatenate([m, np.zeros(len(kept) - size)]) for m in (np.zeros(size), np.asarray(prior.mean)))
    best = min(minimize(objective, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-7}).fun for start in starts)
    reached, _ = objective(parameters(mean, root))
    assert -1e-7 < reached - best < 1e-3, reached - best


def quadrature(nodes=16):
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(x, x, x, indexing="ij"), axis=-1).reshape(-1, 3)
    return grid, (w[:, None, None] * w[None, :, None] * w[None, None, :]).ravel() / (2 * np.pi) ** 1.5


def roots(posterior):
    return np.linalg.cholesky(covariances(posterior))


def deviations(posterior):
    return np.sqrt(np.diagonal(covariances(posterior), axis1=1, axis2=2))


def of_document(documents, topics, d):
    return np.asarray(topics)[np.asarray(documents.words)[d]], np.asarray(documents.counts)[d]


@cache
def converged(covariance):
    """The few documents of three topics, and their posteriors by many draws."""
    documents, topics, prior = problem(topics=3, documents=4)
    posterior, steps = infer(documents, topics, prior, draws=MANY, covariance=covariance, tol=1e-14, max_steps=300)
    return documents, topics, prior, posterior


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_the_answer_is_the_best_gaussian_of_quadrature(covariance):
    """Three topics, E f by 4096 nodes: no Gaussian has an ELBO that is better by 1e-3 nats."""
    documents, topics, prior, posterior = converged(covariance)
    means, factors = np.asarray(posterior.mean), roots(posterior)
    for d in range(2):
        arguments = *quadrature(), *of_document(documents, topics, d), prior
        check_no_better_gaussian(means[d], factors[d], *arguments, diagonal=covariance == "diagonal")


def test_the_fixed_point_maximises_the_sampled_elbo():
    """Three topics, SciPy on (m, chol V) with the same draws.

    The slope in m vanishes there exactly; in V the Hessian takes the place of the slope of the sampled expectation,
    which is the same up to the error of the draws, hence 1e-3 nats and not 0.
    """
    documents, topics, prior, posterior = converged("full")
    mean, root = np.asarray(posterior.mean)[0], np.asarray(posterior.root)[0]
    points, chances = np.asarray(MANY.points)[0], np.asarray(MANY.chances)
    rows, counts = of_document(documents, topics, 0)
    slopes = np.asarray(at_each_draw(mean + points @ root.T, rows, counts)[1])[:, 0]
    slope = chances @ slopes + np.linalg.solve(prior.covariance, mean - prior.mean)
    np.testing.assert_allclose(root.T @ slope, 0, atol=1e-6)
    check_no_better_gaussian(mean, root, points, chances, rows, counts, prior)


def test_one_step_is_the_retraction_where_the_plain_update_is_indefinite():
    """A wide q over topics that explain the words equally well: f is concave there, and P + t Delta indefinite."""
    documents, topics, _ = problem(topics=3, documents=4)
    words, counts, rows = np.zeros((4, 16), np.int32), np.zeros((4, 16)), np.full(topics.shape, 1e-3)
    words[:, 1], counts[:, :2], rows[:2, :2] = 1, [30.0, 1.0], [[0.9, 0.1], [0.1, 0.9]]
    prior = TopicPrior(jnp.asarray(np.zeros(3)), jnp.asarray(np.eye(3)))
    mean, root, t = np.array([-2.5, 2.5, -1.0]), 0.5 * np.eye(3), 0.75
    start = LocalPosterior(jnp.asarray(np.tile(mean, (4, 1))), jnp.asarray(np.tile(root, (4, 1, 1))))
    documents, topics = Documents(jnp.asarray(words), jnp.asarray(counts)), jnp.asarray(rows)
    moved, steps = infer(documents, topics, prior, start, draws=MANY, step=3.0, tol=0.0, max_steps=1)
    points, chances = np.asarray(MANY.points)[0], np.asarray(MANY.chances)
    _, slopes, bends = map(np.asarray, at_each_draw(mean + points @ root.T, *of_document(documents, topics, 0)))
    gradient, hessian = chances @ slopes[:, 0], np.einsum("s,sij->ij", chances, bends)
    precision = np.linalg.inv(root @ root.T)
    delta = np.eye(3) + hessian - precision
    assert np.linalg.eigvalsh(precision + t * delta)[0] < 0, "the plain update should fail here"
    new = precision + t * delta + t**2 / 2 * delta @ root @ root.T @ delta
    expected = mean - t * np.linalg.solve(new, mean + gradient)
    assert np.asarray(steps)[0] == 1
    np.testing.assert_allclose(np.asarray(moved.mean)[0], expected, rtol=1e-9)
    np.testing.assert_allclose(covariances(moved)[0], np.linalg.inv(new), rtol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_padding_and_other_documents_change_nothing(covariance):
    documents, topics, prior = problem()
    options = dict(covariance=covariance, draws=FEW)
    alone, steps = infer(documents, topics, prior, **options)
    wider = Documents(*(jnp.asarray(np.pad(x, ((0, 2), (0, 5)))) for x in documents))
    among, more = infer(wider, topics, prior, **options)
    means, factors = np.asarray(among.mean), np.asarray(among.root)
    np.testing.assert_allclose(means[:8], alone.mean, rtol=1e-8)
    np.testing.assert_allclose(factors[:8], alone.root, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(more, np.concatenate([steps, np.zeros(2)]))
    precision = np.linalg.inv(prior.covariance)
    expected = np.asarray(prior.covariance) if covariance == "full" else np.diag(1 / np.diag(precision))
    for d in (8, 9):
        np.testing.assert_allclose(means[d], prior.mean)
        np.testing.assert_allclose(covariances(among)[d], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_with_shared_draws_neither_the_place_nor_the_neighbours_matter(covariance):
    documents, topics, prior = problem()
    draws = base_draws(np.random.default_rng(0), 12, 6, shared=True)
    answer, steps = infer(documents, topics, prior, draws=draws, covariance=covariance)
    order = np.array([5, 0, 3, 1, 7, 2, 6, 4])
    others, _, _ = problem(seed=1)
    for places in (slice(None), slice(1, 7)):
        words, counts = (np.array(part) for part in others)
        words[places] = np.asarray(documents.words)[order][places]
        counts[places] = np.asarray(documents.counts)[order][places]
        moved = Documents(jnp.asarray(words), jnp.asarray(counts))
        found, again = infer(moved, topics, prior, draws=draws, covariance=covariance)
        np.testing.assert_array_equal(np.asarray(again)[places], np.asarray(steps)[order][places])
        for new, old in ((found.mean, answer.mean), (found.root, answer.root)):
            np.testing.assert_allclose(np.asarray(new)[places], np.asarray(old)[order][places], rtol=0, atol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_converged_answer_stays_and_a_warm_start_is_shorter(covariance):
    documents, topics, prior = problem()
    options = dict(covariance=covariance, draws=FEW)
    rough, steps = infer(documents, topics, prior, **options)
    assert (np.asarray(steps) < 100).all()
    exact, more = infer(documents, topics, prior, rough, tol=1e-12, max_steps=1000, **options)
    assert (np.asarray(more) < 1000).all()
    again, none = infer(documents, topics, prior, exact, **options)
    assert (np.asarray(none) == 0).all()
    np.testing.assert_allclose(again.mean, exact.mean, rtol=0, atol=1e-12)
    # The default tolerance of 1e-3 nats is 0.045 standard deviations of one topic weight.
    assert (np.abs(np.asarray(rough.mean) - np.asarray(exact.mean)) / deviations(exact)).max() < 0.2
    shifted = TopicPrior(jnp.asarray(np.asarray(prior.mean) + 0.05), prior.covariance)
    cold = infer(documents, topics, shifted, **options)[1]
    warm = infer(documents, topics, shifted, rough, **options)[1]
    assert np.sum(warm) < np.sum(cold) / 2


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_single_precision_agrees(covariance):
    answers = []
    for dtype in (np.float64, np.float32):
        documents, topics, prior = problem(words=100_000, dtype=dtype)
        draws = base_draws(np.random.default_rng(0), 12, 6, dtype)
        posterior, steps = infer(documents, topics, prior, draws=draws, covariance=covariance)
        assert posterior.mean.dtype == posterior.root.dtype == dtype
        assert (np.asarray(steps) < 100).all()
        answers.append(posterior)
    gap = np.abs(np.asarray(answers[0].mean) - np.asarray(answers[1].mean)) / deviations(answers[0])
    assert gap.max() < 0.2


def test_many_topics_many_words_and_a_document_of_one_word():
    rng = np.random.default_rng(5)
    used = np.append(np.arange(8), 99_999)
    topics = np.full((100_000, 100), 1e-5)
    topics[used] = 1e-4 * rng.gamma(0.1, size=(9, 100)) + 1e-8
    topics = jnp.asarray(topics / topics.sum(axis=0))
    words = np.zeros((2, 8), np.int32)
    words[0, 0], words[1] = 99_999, np.arange(8)
    counts = np.zeros((2, 8))
    counts[0, 0], counts[1] = 1, 12_500
    prior = TopicPrior(jnp.asarray(np.zeros(100)), jnp.asarray(np.eye(100)))
    draws = base_draws(np.random.default_rng(0), 64, 100)
    posterior, steps = infer(Documents(*map(jnp.asarray, (words, counts))), topics, prior, draws=draws)
    mean = np.asarray(posterior.mean)
    assert np.isfinite(mean).all() and (np.asarray(steps) < 100).all()
    assert np.argmax(mean[0]) == np.argmax(np.asarray(topics)[99_999])
    variances = np.linalg.eigvalsh(covariances(posterior)[0])
    assert variances[0] > 0.3 and variances[-1] < 1.5


def test_bad_arguments():
    documents, topics, prior = problem()
    with pytest.raises(ValueError, match="covariance must be"):
        infer(documents, topics, prior, draws=FEW, covariance="banded")
    with pytest.raises(ValueError, match=r"start\.root has 2 axes"):
        infer(documents, topics, prior, cold_start(documents, prior, covariance="diagonal"), draws=FEW)
