"""Likelihoods with tables of their own: against SciPy's laws and quadrature, for any choice of rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import provi
from provi.frontends.recognise.row_likelihoods import BinomialRows
from provi.targets.likelihoods import Poisson
from provi.targets.likelihoods.rows import RowLikelihood, row_numbers

RNG = np.random.default_rng(0)
OFFSET = RNG.normal(size=6)
TRIALS = np.array([1.0, 5.0, 40.0, 3.0, 1.0, 0.0])
HITS = np.array([1.0, 0.0, 31.0, 3.0, 0.0, 0.0])
COUNTS = np.array([0.0, 1.0, 20.0, 3.0, 7.0, 2.0])
ROWS = np.array([4, 2, 2, 0, 1, 3, 5])
ETA = RNG.normal(size=7)


def binomial():
    return BinomialRows(*(jnp.asarray(x) for x in (HITS, TRIALS - HITS, OFFSET)))


def poisson():
    return RowLikelihood(Poisson(), jnp.asarray(COUNTS), jnp.asarray(OFFSET))


def exact_potential(likelihood, eta, rows):
    x = eta + OFFSET[rows]
    if isinstance(likelihood, BinomialRows):
        return -stats.binom(TRIALS[rows], 1 / (1 + np.exp(-x))).logpmf(HITS[rows])
    return -stats.poisson(np.exp(x)).logpmf(COUNTS[rows])


@pytest.mark.parametrize("make", [binomial, poisson])
def test_potential_and_moments_of_any_rows(make):
    likelihood, y = make(), jnp.asarray(ROWS, float)
    variance = np.linspace(0.1, 4.0, 7)
    np.testing.assert_allclose(likelihood.potential(jnp.asarray(ETA), y), exact_potential(likelihood, ETA, ROWS), 1e-11)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    weights = weights / weights.sum()
    points = ETA[:, None] + np.sqrt(variance)[:, None] * nodes
    values = exact_potential(likelihood, points, np.broadcast_to(ROWS[:, None], points.shape))
    found = eqx.filter_jit(likelihood.moments)(jnp.asarray(ETA), jnp.asarray(variance), y)
    errors = eqx.filter_jit(likelihood.moment_errors)(jnp.asarray(ETA), jnp.asarray(variance), y)
    # The reference is exact to about 1e-8 for the logistic function, and much better for the exponential.
    assert (np.abs(found.value - values @ weights) <= errors.value + 1e-6).all()
    slope = (values * nodes) @ weights / np.sqrt(variance)  # Stein
    weight = (values * (nodes**2 - 1)) @ weights / variance
    np.testing.assert_allclose(found.slope, slope, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.weight, weight, rtol=1e-4, atol=1e-4)
    assert (np.asarray(errors.value) < 1e-6).all()


def test_curvature_of_binomial_rows():
    low, high = binomial().curvature
    assert (low, high) == (0.0, 10.0)
    second = jax.vmap(jax.grad(jax.grad(lambda eta, y: binomial().potential(eta[None], y[None])[0])))
    grid = jnp.linspace(-6, 6, 200)
    values = second(grid, jnp.full(200, 2.0))
    assert float(values.min()) >= 0 and 9.9 < float(values.max()) <= high


@pytest.mark.parametrize("make", [binomial, poisson])
def test_a_fit_is_certified(make):
    design = RNG.normal(size=(6, 2))
    target = provi.targets.GeneralisedLinearModel(design, row_numbers(6), make())
    fit = provi.fit(target, progress=False)
    assert fit.certificate.status == "proven" and fit.certificate.gap <= 0.01
    with pytest.raises(ValueError, match="row_numbers"):
        provi.targets.GeneralisedLinearModel(design, COUNTS, make())
    with pytest.raises(ValueError, match="mean_response"):
        make().mean_response(jnp.zeros(1), jnp.ones(1))
