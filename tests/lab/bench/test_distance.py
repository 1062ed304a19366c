"""The oracle of `provi bench distance` against itself, in other ways, and what is counted of its rows."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate, stats

from provi_lab.bench.distance import below, distance_cells, distance_verdicts, missed, ratios
from provi_lab.bench.distance_oracle import (
    LinearPosterior,
    bend,
    grid_log_evidence,
    importance_truth,
    line_log_evidence,
    log_sobolev,
    mean_potential,
    pareto_shape,
    potential,
    slope,
    truth,
)

LINKS = {"logit": 1.0, "probit": 1.0, "poisson": 1.0, "binomial": 2.5, "gaussian": 0.7}


def posterior(link, dim, terms=15, sd=1.5):
    rng = np.random.default_rng(dim)
    design = rng.normal(size=(terms, dim))
    response = rng.integers(0, 2, terms) if link in ("logit", "probit") else rng.poisson(2.0, terms)
    return LinearPosterior(design, response.astype(float), link, np.full(dim, 0.2), sd**2 * np.eye(dim), LINKS[link])


@pytest.mark.parametrize("link", LINKS)
def test_terms_are_log_probabilities_with_their_derivatives(link):
    eta, parameter, step = np.linspace(-3, 3, 9), LINKS[link], 1e-5
    for y in (np.zeros(9), np.ones(9)):
        values = [potential(link, eta + move, y, parameter) for move in (-step, 0, step)]
        np.testing.assert_allclose(slope(link, eta, y, parameter), (values[2] - values[0]) / (2 * step), atol=1e-8)
        here = [slope(link, eta + move, y, parameter) for move in (-step, step)]
        np.testing.assert_allclose(bend(link, eta, y, parameter), (here[1] - here[0]) / (2 * step), atol=1e-8)
    laws = {
        "logit": lambda e: stats.bernoulli(1 / (1 + np.exp(-e))).logpmf(1),
        "probit": lambda e: stats.bernoulli(stats.norm.cdf(e)).logpmf(1),
        "poisson": lambda e: stats.poisson(np.exp(e)).logpmf(1),
        "binomial": lambda e: stats.nbinom(parameter, parameter / (parameter + np.exp(e))).logpmf(1),
        "gaussian": lambda e: stats.norm(e, parameter).logpdf(1.0),
    }
    np.testing.assert_allclose(-potential(link, eta, np.ones(9), parameter), laws[link](eta), rtol=1e-10)


@pytest.mark.parametrize("deviation", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("link", LINKS)
def test_means_on_a_line(link, deviation):
    """Against adaptive quadrature, told where the term bends."""
    if link == "poisson" and deviation > 1:
        pytest.skip("the mean of exp is astronomical")
    found = mean_potential(link, np.asarray([1.3]), np.asarray([deviation]), np.ones(1), LINKS[link])[0]

    def integrand(v):
        return potential(link, np.asarray([1.3 + deviation * v]), np.ones(1), LINKS[link])[0] * stats.norm.pdf(v)

    bends = sorted({float(np.clip((x - 1.3) / deviation, -11, 11)) for x in (-20.0, -2.0, 0.0, 2.0, 20.0)})
    exact = integrate.quad(integrand, -12, 12, points=bends, limit=2000, epsabs=0, epsrel=1e-11)[0]
    assert found == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("link", LINKS)
def test_ways_to_the_evidence_agree(link):
    one, two = posterior(link, 1), posterior(link, 2)
    mean, covariance = two.mode()
    sampled, grid = importance_truth(two, mean, 1.1 * covariance, 60_000, 0), grid_log_evidence(two, 20)
    assert abs(sampled.log_evidence - grid) <= 5 * sampled.error + 1e-8
    if link == "gaussian":
        assert line_log_evidence(one) == pytest.approx(one.exact_log_evidence(), abs=1e-9)
        assert grid == pytest.approx(two.exact_log_evidence(), abs=1e-9)
        exact = truth(two, mean, covariance)
        assert abs(exact.kl) < 1e-10 and exact.how == "closed form"
    else:
        line = integrate.quad(lambda z: np.exp(one.log_joint(np.asarray([[z]]))[0]), -12, 12, limit=500, epsabs=0)[0]
        assert line_log_evidence(one) == pytest.approx(np.log(line), abs=1e-7)


def test_the_old_bound_is_above_the_divergence():
    chosen = posterior("logit", 2)
    mean, covariance = chosen.mode()
    assert log_sobolev(chosen, mean, covariance) > truth(chosen, mean, covariance).kl > 0


def test_heavy_weights_are_called_unreliable():
    rng = np.random.default_rng(0)
    assert pareto_shape(1.5 * rng.exponential(size=100_000)) > 1.2
    assert pareto_shape(0.3 * rng.exponential(size=100_000)) < 0.5
    assert pareto_shape(np.zeros(1000)) == -np.inf


ROW = {
    "problem": "a",
    "group": "ordinary",
    "d": 2,
    "N": 9,
    "kl": 0.1,
    "error": 0.01,
    "reliable": True,
    "bound": 0.3,
    "status": "proven",
    "second": 0.31,
    "second_status": "proven",
    "old": 4.0,
    "seconds": 0.2,
    "log_evidence": -5.0,
    "lower": -5.1,
    "upper": -4.8,
}


def test_what_is_counted():
    low, out = {**ROW, "bound": 0.05, "second": 0.06}, {**ROW, "upper": -5.05}
    assert [below(row, "bound") for row in (ROW, low, {**low, "reliable": False})] == [False, True, False]
    assert [missed(row) for row in (ROW, out)] == [False, True]
    assert ratios([ROW, {**ROW, "kl": 5.0}], "ordinary") == pytest.approx([3.0])
    failed = {"problem": "b", "group": "other", "d": None, "N": None, "status": "failed", "note": "why"}
    lines = "\n".join(distance_verdicts([ROW, low, out, failed]))
    assert "1 of 3 proven" in lines and "outside its bracket: 1 of 3" in lines and "Without a bound: b" in lines
    assert "median bound / KL 3 " in lines and "the old bound 40" in lines
    names, cells = distance_cells([ROW, failed])
    assert all(len(line) == len(names) for line in cells) and cells[0][3] == "0.1 ± 0.01"


def test_the_oracles_elbo_is_exact_where_rows_and_covariance_cancel():
    """Case 544 of the soak in small: rows of 1e6 along which a covariance of condition 1e10 is narrow.

    tr(X'X S) in rational numbers; a factor's rounding times (1e6)^2 is what a plain Cholesky factor is off by.
    """
    design = np.array([[-1.5123975694671860e06, 2.0244248834148876e06], [1.3, -1.35]])
    narrow = np.array([[2.0244248834148876e06, 1.5123975694671860e06]]) / 2.5e6
    covariance = 0.04 * narrow.T @ narrow + 1e-12 * np.eye(2)
    response, noise = np.array([0.03, 0.06]), 17.5
    posterior = LinearPosterior(design, response, "gaussian", np.zeros(2), 0.0024 * np.eye(2), noise)
    mean = np.array([1e-7, -2e-7])
    rows, spread = ([[Fraction(float(x)) for x in row] for row in table] for table in (design, covariance))
    variance = [sum(row[i] * spread[i][j] * row[j] for i in range(2) for j in range(2)) for row in rows]
    det = spread[0][0] * spread[1][1] - spread[0][1] * spread[1][0]
    energy = sum(0.5 * ((y - row @ mean) ** 2 + float(v)) for y, row, v in zip(response, design, variance, strict=True))
    prior = 0.5 * (np.trace(covariance) + mean @ mean) / 0.0024
    expected = 0.5 * math.log(det) + 1 - prior - math.log(0.0024)
    expected -= energy / noise**2 + 2 * math.log(noise) + math.log(2 * math.pi)
    assert posterior.elbo(mean, covariance) == pytest.approx(expected, abs=1e-10)
    plain = np.linalg.norm(design @ np.linalg.cholesky(covariance), axis=1)
    assert np.abs(plain**2 - [float(v) for v in variance]).max() / noise**2 > 1e-9
