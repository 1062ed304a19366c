"""Log-likelihoods and replicated data of the library's models, against SciPy and against their own potentials."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.targets import (
    GaussianProcess,
    GeneralisedLinearModel,
    HierarchicalLogisticRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
    SparseGaussianProcess,
)
from provi.targets.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    LogNormalSurvival,
    NegativeBinomial,
    OrdinalLogit,
    Poisson,
    StudentT,
    UserLikelihood,
    Weibull,
)
from support.statistics import assert_mean

RNG = np.random.default_rng(8)
X = RNG.normal(size=(12, 2))
LABELS, COUNTS, REALS = RNG.integers(0, 2, 12), RNG.poisson(2.0, 12), RNG.normal(size=12)
GROUPS = np.arange(12) % 3
Z = RNG.normal(size=(5, 2))

CUTS = np.array([-1.0, 0.5, 3.0])


def grades(eta):
    """The law of a grade with the cut points above, at each eta."""
    cumulative = np.c_[stats.logistic.cdf(CUTS[None] - eta[:, None]), np.ones(len(eta))]
    shares = np.diff(cumulative, axis=1, prepend=0)
    return Grades(shares, cumulative)


class Grades(NamedTuple):
    shares: np.ndarray
    cumulative: np.ndarray

    def mean(self):
        return self.shares @ np.arange(4)

    def var(self):
        return self.shares @ np.arange(4) ** 2 - self.mean() ** 2

    def median(self):
        return np.argmax(self.cumulative >= 0.5, axis=1)

    def cdf(self, grade):
        return np.take_along_axis(self.cumulative, grade[:, None], axis=1)[:, 0]


LAWS = [
    (BernoulliLogit(), lambda eta: stats.bernoulli(1 / (1 + np.exp(-eta)))),
    (BernoulliProbit(), lambda eta: stats.bernoulli(stats.norm.cdf(eta))),
    (GaussianNoise(0.7), lambda eta: stats.norm(eta, 0.7)),
    (StudentT(8.0, 0.7), lambda eta: stats.t(8, eta, 0.7)),
    (Poisson(), lambda eta: stats.poisson(np.exp(eta))),
    (NegativeBinomial(2.5), lambda eta: stats.nbinom(2.5, 2.5 / (2.5 + np.exp(eta)))),
    (OrdinalLogit(CUTS), grades),
    (Weibull(1.5), lambda eta: stats.weibull_min(1.5, scale=np.exp(-eta / 1.5))),
    (LogNormalSurvival(0.4), lambda eta: stats.lognorm(0.4, scale=np.exp(eta))),
]


@pytest.mark.parametrize(("likelihood", "law"), LAWS, ids=lambda item: getattr(item, "name", ""))
def test_draws_have_the_law_of_the_likelihood(likelihood, law):
    """Mean, variance and a probability of draws at three eta; false-alarm rate 1e-6 a test."""
    eta = np.array([-1.5, 0.2, 1.4])
    every = jnp.asarray(np.tile(eta, 20_000))
    drawn = np.asarray(eqx.filter_jit(likelihood.draw)(jax.random.key(0), every)).reshape(20_000, 3)
    expected = law(eta)
    assert_mean(drawn, expected.mean())
    assert_mean((drawn - expected.mean()) ** 2, expected.var())
    assert_mean((drawn <= expected.median()).astype(float), expected.cdf(expected.median()))


def test_counts_with_huge_means_do_not_overflow():
    rate = 1e12
    drawn = np.asarray(Poisson().draw(jax.random.key(0), jnp.full(2000, np.log(rate))))
    assert_mean((drawn - rate) / np.sqrt(rate), 0.0)
    assert (drawn > 0).all()


MODELS = [
    LogisticRegression(X, LABELS),
    ProbitRegression(X, LABELS),
    PoissonRegression(X, COUNTS),
    LinearRegression(X, REALS, 0.6),
    HierarchicalLogisticRegression(X, LABELS, GROUPS),
    GaussianProcess(X, LABELS),
]


@pytest.mark.parametrize("target", MODELS, ids=lambda target: type(target).__name__)
def test_log_likelihoods_add_up_to_the_potential(target):
    """log p(y | z) + log p(z) = -potential, and every model says what it knows in the same way."""
    z = np.random.default_rng(1).normal(size=(3, target.dim))
    values = target.log_likelihood(z)["y"]
    assert values.shape == (3, 12) and target.observed_data["y"].shape == (12,)
    both = jax.jit(lambda z: (jax.vmap(target.potential)(z), jax.vmap(target.prior_potential)(z)))
    whole, prior = both(jnp.asarray(z))
    np.testing.assert_allclose(np.asarray(prior) - values.sum(axis=1), np.asarray(whole), rtol=1e-10)
    assert target.predict(z, 0)["y"].shape == (3, 12)
    np.testing.assert_allclose(target.unconstrain(target.constrain(z[0])), z[0])
    leaves = jax.tree.leaves(target.constrain(z))
    np.testing.assert_array_equal(np.concatenate([leaf.reshape(3, -1) for leaf in leaves], axis=1), z)


def test_log_likelihood_against_scipy():
    expected = stats.poisson(np.exp(Z[:3] @ X.T)).logpmf(COUNTS)
    np.testing.assert_allclose(MODELS[2].log_likelihood(Z[:3])["y"], expected, rtol=1e-10)


def test_one_point_has_no_axis_of_draws():
    both = MODELS[0].log_likelihood(Z[:3])["y"]
    np.testing.assert_allclose(MODELS[0].log_likelihood(Z[0])["y"], both[0], rtol=1e-12)
    assert MODELS[0].predict(Z[0], 0)["y"].shape == (12,)


def test_hierarchical_variables_and_replicates():
    target = MODELS[4]
    z = np.random.default_rng(2).normal(size=target.dim)
    parts = target.constrain(z)
    assert parts["theta"].shape == (2,) and parts["z"].shape == (3, 2)
    assert {k: list(v) for k, v in target.axis_labels.items()} == {"theta": ["column"], "z": ["group", "column"]}
    eta = np.sum(X * parts["z"][GROUPS], axis=1)
    assert_mean(target.predict(np.tile(z, (5000, 1)), 0)["y"], 1 / (1 + np.exp(-eta)))


@pytest.mark.parametrize("stream", [True])
def test_sparse_process_integrates_its_own_noise(stream):
    """Given w, y_n ~ N(phi_n'w, kappa_n + s^2): data and densities, stored or streamed."""
    target = SparseGaussianProcess(X, REALS, 4, likelihood=GaussianNoise(0.5), stream=stream)
    stored = SparseGaussianProcess(X, REALS, 4, likelihood=GaussianNoise(0.5), stream=False)
    w = np.random.default_rng(3).normal(size=4)
    mean, deviation = np.asarray(stored.design) @ w, np.sqrt(np.asarray(stored.offset) + 0.25)
    np.testing.assert_allclose(target.log_likelihood(w)["y"], stats.norm(mean, deviation).logpdf(REALS), rtol=1e-9)
    drawn = target.predict(np.tile(w, (10_000, 1)), 0)["y"]
    assert_mean(drawn, mean)
    assert_mean((drawn - mean) ** 2, deviation**2)


def test_rows_in_several_blocks_are_the_rows_in_one(monkeypatch):
    target = MODELS[0]
    whole = target.log_likelihood(Z)["y"]
    monkeypatch.setattr("provi.targets.linear_model.block_size", lambda target: 5)
    np.testing.assert_allclose(target.log_likelihood(Z)["y"], whole, rtol=1e-12)
    drawn = target.predict(np.tile(Z[0], (5000, 1)), 0)["y"]
    assert_mean(drawn, 1 / (1 + np.exp(-X @ Z[0])))
    centred = drawn - 1 / (1 + np.exp(-X @ Z[0]))
    assert_mean(centred[:, 0] * centred[:, 5], 0.0)  # the first rows of two blocks are independent


def test_a_likelihood_that_cannot_draw():
    normal = UserLikelihood(lambda y, eta: -0.5 * (y - eta) ** 2, log_concave=True)
    target = GeneralisedLinearModel(X, REALS, normal)
    assert target.predict(Z, 0) == {} and target.log_likelihood(Z)["y"].shape == (5, 12)
