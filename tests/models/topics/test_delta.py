"""The delta method against a search over all Gaussians for the objective as it is defined."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from provi.models.topics.delta import infer_delta
from provi.models.topics.model import TopicPrior
from support.topic_documents import (
    LENGTHS,
    assert_close_posteriors,
    covariances,
    divergence,
    negative_log_likelihood,
    negative_log_prior,
    padded,
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
    """`expanded` at a mean and a Cholesky factor with the logarithms of its diagonal."""
    size = prior.mean.shape[0]
    lower = jnp.zeros((size, size)).at[np.tril_indices(size)].set(x[size:])
    root = jnp.tril(lower, -1) + jnp.diag(jnp.exp(jnp.diagonal(lower)))
    return expanded(x[:size], root @ root.T, rows, counts, prior)


def search(rows, counts, prior):
    """The least value that SciPy finds over means and covariances, from the prior's mean."""
    size = prior.mean.shape[0]
    root = -np.log(1 + float(counts.sum())) / 2 * np.eye(size)
    start = np.concatenate([prior.mean, root[np.tril_indices(size)]])
    options = {"gtol": 1e-8, "maxiter": 1000}
    return minimize(
        lambda x: tuple(map(np.asarray, of_parameters(x, rows, counts, prior))), start, jac=True, options=options
    )


def test_no_gaussian_has_a_better_objective():
    documents, rows, prior = small_corpus()
    posterior, steps = infer_delta(documents, rows, prior, tol=1e-18)
    assert (np.asarray(steps) < 30).all()
    for d in range(len(LENGTHS)):
        arguments = rows, documents.counts[d], prior
        best = search(*arguments)
        answer, covariance = np.asarray(posterior.mean[d]), covariances(posterior)[d]
        value = expanded(posterior.mean[d], jnp.asarray(covariance), *arguments)
        assert value <= best.fun + 1e-9 * (1 + abs(best.fun)), (d, value - best.fun)
        gap = np.linalg.solve(np.linalg.cholesky(covariance), best.x[:4] - answer)
        assert np.abs(gap).max() < 1e-2, d


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
    rows, counts = jnp.asarray(np.array([[0.9, 0.1], [0.1, 0.9]])), jnp.asarray(np.array([30.0, 1.0]))
    mean, prior = jnp.asarray(np.array([-2.5, 2.5])), TopicPrior(jnp.zeros(2), jnp.eye(2))
    bend = jax.hessian(negative_log_likelihood)(mean, rows, counts)
    values, vectors = np.linalg.eigh(bend + np.eye(2))
    assert values[0] < 0
    objectives = []
    for size in (1.0, 1e2, 1e4):
        covariance = jnp.asarray(np.eye(2) + size * np.outer(vectors[:, 0], vectors[:, 0]))
        objectives.append(-jnp.trace(bend @ covariance) / 2 - divergence(mean, covariance, prior))
    assert objectives[2] > objectives[1] + 100 > objectives[0] + 100


def test_the_mean_is_not_the_mode_but_near_it():
    """The log determinant pulls m away from the mode, by less than a standard deviation."""
    documents, rows, prior = small_corpus()
    posterior, _ = infer_delta(documents, rows, prior, tol=1e-14)
    for d in (2, 3):

        def potential(z, counts=documents.counts[d]):
            return negative_log_likelihood(z, rows, counts) + negative_log_prior(z, prior)

        gradient = np.asarray(posterior.root[d]).T @ np.asarray(jax.grad(potential)(posterior.mean[d]))
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
