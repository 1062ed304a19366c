"""The delta method against a search over all Gaussians for the objective as it is defined."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from provi.models.topics.model import TopicPrior
from provi.models.topics.newton import infer_delta
from support.topic_documents import (
    assert_close_posteriors,
    covariances,
    divergence,
    mean_and_root,
    negative_log_likelihood,
    negative_log_prior,
    padded,
    parameters,
    small_corpus,
)


def expanded(mean, covariance, rows, counts, prior):
    """-ELBO with E log sum e^z expanded at the mean; the Hessian of log-sum-exp by automatic differentiation."""
    bend = jnp.sum(counts) * jax.hessian(jax.nn.logsumexp)(mean)
    energy = negative_log_likelihood(mean, rows, counts) + jnp.trace(bend @ covariance) / 2
    return energy + divergence(mean, covariance, prior)


@jax.jit
@jax.value_and_grad
def of_parameters(x, rows, counts, prior):
    """`expanded` and its slope at `parameters`."""
    mean, root = mean_and_root(x, prior.mean.shape[0])
    return expanded(mean, root @ root.T, rows, counts, prior)


def search(rows, counts, prior):
    """The least value that SciPy finds over means and covariances, from the prior's mean."""
    start = parameters(np.asarray(prior.mean), np.eye(4) / np.sqrt(1 + float(counts.sum())))
    options = {"gtol": 1e-8, "maxiter": 1000}
    return minimize(
        lambda x: tuple(map(np.asarray, of_parameters(x, rows, counts, prior))), start, jac=True, options=options
    )


def potential(z, rows, counts, prior):
    return negative_log_likelihood(z, rows, counts) + negative_log_prior(z, prior)


slope = jax.jit(jax.grad(potential))
bend = jax.jit(jax.hessian(negative_log_likelihood))


def test_no_gaussian_has_a_better_objective():
    documents, rows, prior = small_corpus()
    posterior, steps = infer_delta(documents, rows, prior, tol=1e-18)
    assert (np.asarray(steps) < 30).all()
    for d, counts in enumerate(np.asarray(documents.counts)):
        best = search(rows, counts, prior)
        answer, root = np.asarray(posterior.mean)[d], np.asarray(posterior.root)[d]
        value, _ = of_parameters(parameters(answer, root), rows, counts, prior)
        assert value <= best.fun + 1e-9 * (1 + abs(best.fun)), (d, value - best.fun)
        assert np.abs(np.linalg.solve(root, best.x[:4] - answer)).max() < 1e-2, d


def test_few_steps_reach_the_default_tolerance():
    documents, rows, prior = small_corpus()
    posterior, steps = infer_delta(documents, rows, prior)
    exact, _ = infer_delta(documents, rows, prior, tol=1e-18)
    assert steps[0] == 0 and (np.asarray(steps) <= 15).all(), steps
    assert_close_posteriors(posterior, exact, 0.1)
    _, more = infer_delta(documents, rows, prior, posterior)
    assert (np.asarray(more) == 0).all()


def test_an_empty_document_has_the_prior():
    documents, rows, prior = small_corpus()
    posterior, _ = infer_delta(documents, rows, prior)
    np.testing.assert_allclose(posterior.mean[0], prior.mean, rtol=1e-12)
    np.testing.assert_allclose(covariances(posterior)[0], prior.covariance, rtol=1e-10)


def test_the_expansion_with_the_topics_summed_out_has_no_maximum():
    """Why this is not what is maximised: at a given mean it rises with V along an eigenvector, without end."""
    rows, counts = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([30.0, 1.0])
    mean, prior = np.array([-2.5, 2.5]), TopicPrior(np.zeros(2), np.eye(2))
    curvature = np.asarray(bend(mean, rows, counts))
    values, vectors = np.linalg.eigh(curvature + np.eye(2))
    assert values[0] < 0
    objectives = []
    for size in (1.0, 1e2, 1e4):
        covariance = np.eye(2) + size * np.outer(vectors[:, 0], vectors[:, 0])
        objectives.append(-np.trace(curvature @ covariance) / 2 - divergence(mean, covariance, prior))
    assert objectives[2] > objectives[1] + 100 > objectives[0] + 100


def test_the_mean_is_not_the_mode_but_near_it():
    """The log determinant pulls m away from the mode, by less than a standard deviation."""
    documents, rows, prior = small_corpus()
    posterior, _ = infer_delta(documents, rows, prior, tol=1e-14)
    counts, mean, roots = (np.asarray(x) for x in (documents.counts, posterior.mean, posterior.root))
    for d in (2, 3):
        gradient = roots[d].T @ np.asarray(slope(mean[d], rows, counts[d], prior))
        assert 1e-3 < np.linalg.norm(gradient) < 1


def test_single_precision_and_padding():
    documents, rows, prior = small_corpus()
    answer, _ = infer_delta(documents, rows, prior, tol=1e-9)
    same, _ = infer_delta(padded(documents), rows, prior, tol=1e-9)
    np.testing.assert_allclose(same.mean, answer.mean, rtol=1e-6)
    single, steps = infer_delta(*small_corpus(dtype=np.float32), tol=1e-5)
    assert single.mean.dtype == single.root.dtype == np.float32
    assert (np.asarray(steps) < 100).all()
    assert_close_posteriors(single, answer, 0.02)
