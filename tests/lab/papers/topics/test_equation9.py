"""PG-SVI with the paper's step and batches: a step at a time against equation (9) for every document by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from provi.models.topics.global_steps import GlobalSettings
from provi.models.topics.model import TopicPrior
from provi_lab.papers.topics import equation9

RNG = np.random.default_rng(3)
COUNTS = RNG.poisson(1.5, (3, 5)) + np.eye(3, 5, dtype=int)
TOPICS = jnp.asarray(RNG.dirichlet(np.ones(5), 2).T)
PRIOR = TopicPrior(jnp.asarray([0.3, -0.1]), jnp.asarray([[0.5, 0.1], [0.1, 0.4]]))
SETTINGS = GlobalSettings(*(jnp.asarray(x) for x in (0.01, 0.1, 3.0)))
BETA, DRAWS = 0.05, 6


def term(z, counts):
    return -jnp.sum(counts * jnp.log(TOPICS @ jnp.exp(z))) + jnp.sum(counts) * jnp.log(jnp.sum(jnp.exp(z)))


def by_hand(visits, keys):
    """All documents in every step; those that are not in the batch go towards the prior."""
    r, own = 1 / (1 + BETA), np.linalg.inv(PRIOR.covariance)
    natural = [(own @ np.asarray(PRIOR.mean), own) for _ in COUNTS]
    for document, key in zip(visits, keys, strict=True):
        for number, (linear, precision) in enumerate(natural):
            slope, bend = np.zeros(2), np.zeros((2, 2))
            mean = np.linalg.solve(precision, linear)
            if number == document:
                root = np.linalg.inv(np.linalg.cholesky(precision)).T
                draws = mean + np.asarray(jax.random.normal(key, (2, 1, DRAWS, 2)))[0, 0] @ root.T
                counts = jnp.asarray(COUNTS[number], float)
                slope = 3 * np.mean([jax.grad(term)(jnp.asarray(z), counts) for z in draws], axis=0)
                bend = 3 * np.mean([jax.hessian(term)(jnp.asarray(z), counts) for z in draws], axis=0)
            new = r * precision + (1 - r) * (own + bend)
            if np.linalg.eigvalsh(new)[0] <= 0:
                change = new - precision
                new = new + change @ np.linalg.solve(precision, change) / 2
                moved = mean - (1 - r) * np.linalg.solve(new, own @ (mean - np.asarray(PRIOR.mean)) + slope)
                natural[number] = new @ moved, new
            else:
                pull = own @ np.asarray(PRIOR.mean) + bend @ mean - slope
                natural[number] = r * linear + (1 - r) * pull, new
    return natural


def test_steps_are_equation_9_for_all_documents():
    table = equation9.table_of(scipy.sparse.csr_matrix(COUNTS))
    first = state = equation9.first_state(table, TOPICS, PRIOR)
    visits, keys = [0, 1, 0, 2], [jax.random.key(number) for number in range(4)]
    for document, key in zip(visits, keys, strict=True):
        # Topics and prior stay: the M-step has tests of its own, and by hand they are fixed.
        state = state._replace(topics=TOPICS, prior=PRIOR)
        state = equation9.one_step(key, state, table, jnp.asarray([document]), SETTINGS, jnp.asarray(BETA), DRAWS)
    share, expected = 1 / (1 + BETA), by_hand(visits, keys)
    own = np.linalg.inv(PRIOR.covariance)
    for number, (linear, precision) in enumerate(expected):
        idle = share ** int(state.step - state.posteriors.last[number])
        found = idle * state.posteriors.precision[number] + (1 - idle) * own
        np.testing.assert_allclose(found, precision, rtol=1e-9)
        pull = idle * state.posteriors.linear[number] + (1 - idle) * own @ PRIOR.mean
        np.testing.assert_allclose(pull, linear, rtol=1e-9, atol=1e-12)
    assert int(state.step) == 4 and int(first.step) == 0
    # The comparison sees the visits: they moved the precision by a million times its tolerance.
    assert np.abs(np.asarray(state.posteriors.precision[0]) / own - 1).max() > 1e-3


def test_the_first_statistics_give_the_first_topics_back():
    state = equation9.first_state(equation9.table_of(scipy.sparse.csr_matrix(COUNTS)), TOPICS, PRIOR)
    topics, prior = equation9.maximise(state.statistics, SETTINGS._replace(word_prior=0.0, shrinkage=0.0))
    np.testing.assert_allclose(topics, TOPICS, rtol=1e-12)
    np.testing.assert_allclose(prior.mean, PRIOR.mean)
    np.testing.assert_allclose(prior.covariance, PRIOR.covariance, rtol=1e-12)
