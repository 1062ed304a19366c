"""All posteriors of small documents against importance sampling: log evidences, posterior means and the order of ELBOs.

What must hold: every ELBO is at most the log evidence; the full q, the best Gaussian, is above all the others; the
diagonal q, the best of its kind, is above the mean-field one. Whether the diagonal q is above Laplace's and the delta
method's, which have full covariances, is no theorem: on these documents Laplace's, at least, is above it.
"""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, multivariate_t, norm

from provi.models.topics.draws import base_draws
from provi.models.topics.e_step import document_elbos
from provi.models.topics.local_steps import infer
from provi.models.topics.model import LocalPosterior
from provi.models.topics.newton import infer_delta, infer_laplace, infer_mean_field, mean_field_bounds
from support.topic_documents import covariances, small_corpus

ALARM = norm.isf(1e-6)
TOPICS, LENGTHS = 5, (0, 1, 5, 15, 40, 100, 300)
DRAWS, ELBO_DRAWS = 100_000, 20_000
SLACK = 0.02
"""In nats: what the iterations may leave at their tolerance, and the error of their own draws."""


def log_weights(z, rows, counts, prior, proposal):
    shares = np.exp(z - logsumexp(z, axis=1, keepdims=True))
    joint = np.log(shares @ rows.T) @ counts + multivariate_normal(prior.mean, prior.covariance).logpdf(z)
    return joint - proposal.logpdf(z)


def reference(rows, counts, prior, mean, covariance, seed):
    """Log evidence, its standard error, posterior mean, its standard errors, covariance, by importance sampling.

    The proposal is a Student with five degrees of freedom, wider than the q it is placed by: its weights are bounded.
    """
    proposal = multivariate_t(mean, 1.3 * covariance, df=5, seed=seed)
    z = proposal.rvs(DRAWS)
    logs = log_weights(z, np.asarray(rows), np.asarray(counts), prior, proposal)
    weights = np.exp(logs - logs.max())
    evidence = logs.max() + np.log(weights.mean())
    error = weights.std() / weights.mean() / np.sqrt(DRAWS)
    weights = weights / weights.sum()
    centre = weights @ z
    spread = (z - centre).T @ (weights[:, None] * (z - centre))
    return evidence, error, centre, np.sqrt(weights**2 @ (z - centre) ** 2), spread


@cache
def answers(seed):
    """ELBOs and errors (methods, documents), the mean-field bounds, the references and the full posteriors."""
    documents, rows, prior = small_corpus(TOPICS, LENGTHS, seed=seed)
    draws = base_draws(np.random.default_rng(0), 20 * TOPICS, TOPICS)
    posteriors = {
        "full": infer(documents, rows, prior, draws=draws)[0],
        "diagonal": infer(documents, rows, prior, draws=draws, covariance="diagonal")[0],
        "laplace": infer_laplace(documents, rows, prior)[0],
        "laplace, assigned": infer_laplace(documents, rows, prior, curvature="assigned")[0],
        "delta": infer_delta(documents, rows, prior)[0],
        "mean field": infer_mean_field(documents, rows, prior)[0],
    }
    full = posteriors["full"]
    places = zip(
        np.asarray(documents.counts), np.asarray(full.mean), covariances(full), range(len(LENGTHS)), strict=True
    )
    references = tuple(map(np.stack, zip(*(reference(rows, c, prior, m, v, d) for c, m, v, d in places), strict=True)))
    posteriors["moments"] = LocalPosterior(*map(jnp.asarray, (references[2], np.linalg.cholesky(references[4]))))
    generator = np.random.default_rng(1)
    elbos = {name: document_elbos(documents, rows, prior, q, ELBO_DRAWS, generator) for name, q in posteriors.items()}
    bounds = np.asarray(mean_field_bounds(documents, rows, prior, posteriors["mean field"]))
    values = {name: np.asarray(value) for name, (value, _) in elbos.items()}
    errors = {name: np.asarray(error) for name, (_, error) in elbos.items()}
    return values, errors, bounds, references, full


@pytest.mark.parametrize("seed", [0, 1])
def test_every_elbo_is_below_the_log_evidence(seed):
    """Seven posteriors of seven documents, each with a false-alarm rate of 1e-6."""
    values, errors, bounds, (evidence, error, *_), _ = answers(seed)
    assert (error < 0.01).all(), error
    for name, elbo in values.items():
        assert (elbo <= evidence + ALARM * np.hypot(errors[name], error) + 1e-9).all(), name
    assert (bounds <= values["mean field"] + ALARM * errors["mean field"] + 1e-9).all()
    # Without words the posterior is the prior, and the bound tight.
    np.testing.assert_allclose([values[name][0] for name in ("full", "laplace", "delta")], 0, atol=1e-9)
    np.testing.assert_allclose(evidence[0], 0, atol=ALARM * error[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_the_full_gaussian_is_above_the_others(seed):
    """Also above the Gaussian with the mean and covariance of the posterior; alarm rates of 1e-6 each."""
    values, errors, *_ = answers(seed)
    best = values["full"]
    for name, elbo in values.items():
        assert (elbo <= best + ALARM * np.hypot(errors[name], errors["full"]) + SLACK).all(), (name, elbo - best)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_best_diagonal_gaussian_is_above_the_mean_field_one(seed):
    values, errors, *_ = answers(seed)
    margin = ALARM * np.hypot(errors["mean field"], errors["diagonal"]) + SLACK
    assert (values["mean field"] <= values["diagonal"] + margin).all()
    assert values["diagonal"].sum() > values["mean field"].sum()


@pytest.mark.parametrize("seed", [0, 1])
def test_laplaces_approximation_is_above_the_best_diagonal_gaussian(seed):
    """A finding, not a theorem: correlations are worth more here than the best marginals. False-alarm rate 1e-6."""
    values, errors, *_ = answers(seed)
    gain = values["laplace"].sum() - values["diagonal"].sum()
    assert gain > ALARM * np.sqrt((errors["laplace"] ** 2 + errors["diagonal"] ** 2).sum())


@pytest.mark.parametrize("seed", [0, 1])
def test_means_of_the_full_gaussian_are_near_the_posterior_means(seed):
    """Within a quarter of a posterior deviation, plus the sampling error at a false-alarm rate of 1e-6."""
    *_, (_, _, centre, error, spread), full = answers(seed)
    deviations = np.sqrt(np.diagonal(spread, axis1=1, axis2=2))
    assert (np.abs(np.asarray(full.mean) - centre) < deviations / 4 + ALARM * error).all()
