"""The bound of Blei and Lafferty against its definition, SciPy's maximum, and the ELBO that it bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.stats import norm

from provi.models.topics.e_step import document_elbos
from provi.models.topics.model import LocalPosterior
from provi.models.topics.newton import _best_variance, infer_mean_field, mean_field_bounds
from support.topic_documents import LENGTHS, assert_close_posteriors, divergence, padded, small_corpus

ALARM = norm.isf(1e-6)


@jax.jit
def bound(mean, variance, phi, zeta, rows, counts, prior):
    """The bound for one document as the paper has it."""
    words = counts @ jnp.sum(phi * (mean[None, :] + jnp.log(rows) - jnp.log(phi)), axis=1)
    normaliser = jnp.log(zeta) - 1 + jnp.sum(jnp.exp(mean + variance / 2)) / zeta
    return words - jnp.sum(counts) * normaliser - divergence(mean, jnp.diag(variance), prior)


@jax.jit
def best_phi_zeta(mean, variance, rows):
    phi = rows * jnp.exp(mean - jnp.max(mean))[None, :]
    return phi / jnp.sum(phi, axis=1, keepdims=True), jnp.sum(jnp.exp(mean + variance / 2))


@jax.jit
@jax.value_and_grad
def negative_best(x, rows, counts, prior):
    """Minus the bound at a mean and logarithms of variances, with its best phi and zeta."""
    mean, variance = x[: prior.mean.shape[0]], jnp.exp(x[prior.mean.shape[0] :])
    return -bound(mean, variance, *best_phi_zeta(mean, variance, rows), rows, counts, prior)


def test_bounds_are_those_of_the_paper_at_the_best_phi_and_zeta():
    documents, rows, prior = small_corpus()
    rng = np.random.default_rng(1)
    mean, root = rng.normal(size=(5, 4)), 0.2 + rng.random((5, 4))
    posterior = LocalPosterior(jnp.asarray(mean), jnp.asarray(root))
    answers = np.asarray(mean_field_bounds(documents, rows, prior, posterior))
    for d, counts in enumerate(np.asarray(documents.counts)):
        phi, zeta = map(np.asarray, best_phi_zeta(mean[d], root[d] ** 2, rows))
        fixed = rows, counts, prior
        np.testing.assert_allclose(answers[d], bound(mean[d], root[d] ** 2, phi, zeta, *fixed), rtol=1e-11)
        for other in (0.9 * phi + 0.1 / 4, phi**1.2 / np.sum(phi**1.2, axis=1, keepdims=True)):
            assert bound(mean[d], root[d] ** 2, other, 1.1 * zeta, *fixed) <= answers[d] + 1e-10


def test_the_answer_is_scipys_maximum():
    documents, rows, prior = small_corpus()
    posterior, steps = infer_mean_field(documents, rows, prior, tol=1e-18)
    assert (np.asarray(steps) < 30).all()
    reached = np.asarray(mean_field_bounds(documents, rows, prior, posterior))
    all_counts, means, roots = (np.asarray(x) for x in (documents.counts, posterior.mean, posterior.root))
    for d, length in enumerate(LENGTHS):
        start = np.concatenate([prior.mean, np.full(4, -np.log(1 + length))])
        arguments = rows, all_counts[d], prior
        best = minimize(lambda x, a=arguments: tuple(map(np.asarray, negative_best(x, *a))), start, jac=True)
        assert reached[d] >= -best.fun - 1e-9 * (1 + abs(best.fun)), (d, reached[d] + best.fun)
        gap = (best.x[:4] - means[d]) / roots[d]
        assert np.abs(gap).max() < 1e-2, d


@pytest.mark.parametrize("far", [False, True])
def test_the_bound_never_falls(far):
    documents, rows, prior = small_corpus()
    rng = np.random.default_rng(2)
    start = LocalPosterior(*map(jnp.asarray, (4 * rng.normal(size=(5, 4)), np.full((5, 4), 2.0)))) if far else None
    runs = [infer_mean_field(documents, rows, prior, start, tol=1e-14, max_steps=n)[0] for n in range(15)]
    bounds = np.stack([mean_field_bounds(documents, rows, prior, run) for run in runs])
    assert (np.diff(bounds, axis=0) >= -1e-11 * (1 + np.abs(bounds[-1]))[None, :]).all()
    assert (bounds[-1, 1:] - bounds[0, 1:] > 0.01).all()
    if start is not None:
        assert (bounds[0] >= mean_field_bounds(documents, rows, prior, start)).all()


def test_few_steps_reach_the_default_tolerance():
    documents, rows, prior = small_corpus()
    posterior, steps = infer_mean_field(documents, rows, prior)
    exact, _ = infer_mean_field(documents, rows, prior, tol=1e-18)
    assert steps[0] == 0 and (np.asarray(steps) <= 15).all(), steps
    assert_close_posteriors(posterior, exact, 0.15)
    _, more = infer_mean_field(documents, rows, prior, exact)
    assert (np.asarray(more) == 0).all()
    # Of a full q the means are used: here, with the variances of a cold start, they are most of the way.
    full = LocalPosterior(exact.mean, jnp.asarray(np.tile(np.eye(4), (5, 1, 1))))
    again, fewer = infer_mean_field(documents, rows, prior, full)
    assert_close_posteriors(again, exact, 0.15)
    assert np.sum(fewer) < np.sum(steps)


def test_the_bound_is_below_the_elbo():
    """And by more than rounding where there are words; false-alarm rate 1e-6 for each of five documents."""
    documents, rows, prior = small_corpus()
    posterior, _ = infer_mean_field(documents, rows, prior)
    elbos, errors = document_elbos(documents, rows, prior, posterior, 10_000, np.random.default_rng(0))
    gaps = np.asarray(elbos) - np.asarray(mean_field_bounds(documents, rows, prior, posterior))
    assert (gaps >= -ALARM * np.asarray(errors) - 1e-12).all()
    assert (gaps[1:4] > 0.01).all()


def test_an_empty_document_has_the_best_diagonal_of_the_prior():
    documents, rows, prior = small_corpus()
    posterior, _ = infer_mean_field(documents, rows, prior)
    np.testing.assert_allclose(np.asarray(posterior.mean)[0], prior.mean, rtol=1e-12)
    np.testing.assert_allclose(
        np.asarray(posterior.root)[0] ** -2, np.diag(np.linalg.inv(prior.covariance)), rtol=1e-10
    )


def test_variances_solve_their_equation():
    precision, rates = (x.ravel() for x in np.meshgrid(np.logspace(-4, 3, 15), np.append(0, np.logspace(-8, 6, 15))))
    answers = jax.jit(_best_variance)(jnp.asarray(precision), jnp.asarray(rates))
    for p, a, answer in zip(precision, rates, answers, strict=True):
        excess = lambda log_v, p=p, a=a: np.log(p + a * np.exp(np.exp(log_v) / 2)) + log_v  # noqa: E731
        expected = np.exp(brentq(excess, -20, min(-np.log(p), 6) + 1e-9)) if a > 0 else 1 / p
        np.testing.assert_allclose(answer, expected, rtol=1e-9)


def test_single_precision_and_padding():
    documents, rows, prior = small_corpus()
    answer, _ = infer_mean_field(documents, rows, prior, tol=1e-9)
    same, _ = infer_mean_field(padded(documents), rows, prior, tol=1e-9)
    np.testing.assert_allclose(same.mean, answer.mean, rtol=1e-6)
    single, steps = infer_mean_field(*small_corpus(dtype=np.float32), tol=1e-5)
    assert single.mean.dtype == single.root.dtype == np.float32
    assert (np.asarray(steps) < 100).all()
    assert_close_posteriors(single, answer, 0.02)
