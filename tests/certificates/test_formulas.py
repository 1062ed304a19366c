"""Small formulas of the certificates, each against numbers worked out apart: changes of them that no other test saw.

What `python -m provi_lab.mutation` found to survive.
"""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from provi.certificates.distance import dual_bound
from provi.certificates.distance.marginals import marginal_distances
from provi.certificates.dual import bounds as dual
from provi.certificates.monte_carlo import finite_sample
from provi.certificates.monte_carlo.check_values import Unseen
from provi.families import Gaussian
from provi.targets import LinearRegression
from provi.targets.likelihoods import BernoulliLogit, Poisson


def test_marginal_distances_are_above_those_of_two_gaussians():
    """W_1 of two Gaussians on a line is the integral of a difference of quantiles; here the posterior is Gaussian."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(12, 2))
    target = LinearRegression(features, features @ [1.0, -1.0] + rng.normal(size=12), prior_scale=1.0, noise_scale=1.0)
    precision = features.T @ features + np.eye(2)
    covariance = np.linalg.inv(precision)
    mean = covariance @ (features.T @ np.asarray(target.observed_data["y"]))
    family, sds = Gaussian(2), np.sqrt(np.diag(covariance))
    for shift, stretch in (([0.3, 0.0], 1.0), ([0.0, -0.1], 1.2)):
        point = family.point_from_covariance(mean + sds * shift, stretch**2 * covariance, np.float64)
        away, wide = np.asarray(shift) / stretch, 1 / stretch  # of the posterior, in q's deviations
        kl = 0.5 * (
            2 * stretch**2 - 2 - 4 * math.log(stretch) + float(np.array(shift) * sds @ precision @ (sds * shift))
        )
        truth = [
            integrate.quad(lambda p, a=a, w=wide: abs(a + (1 - w) * stats.norm.ppf(p)), 0, 1, limit=200)[0]
            for a in away
        ]
        found = marginal_distances(target, family, point, kl=kl, confidence=0.9999, seed=1)
        assert np.all(found >= np.asarray(truth)) and np.all(found <= np.asarray(truth) + 3 * math.sqrt(2 * kl))


def test_what_no_draw_hit_is_granted_by_the_rule_of_three():
    location, covariance = Unseen(0.1, 0.2, 50).slack(4.0, 9, 0.01)
    assert location == pytest.approx(0.1 + math.log(100) / 50 * 2)
    assert covariance == pytest.approx(0.2 + math.log(100) / 50 * 2 * 3)
    assert Unseen(0.0, 0.0, 50).slack(0.01, 4, 0.1)[0] == pytest.approx(math.log(10) / 50)  # a draw is of size 1


def test_the_slope_of_the_odd_part_by_brute_force():
    """The largest |v'(D - S)v| over K_0 <= D <= K_1 and unit v is at an end of the interval."""
    rng = np.random.default_rng(1)
    half = rng.normal(size=(2, 3, 3))
    low = 0.1 * half[0] @ half[0].T
    high, centre = low + half[1] @ half[1].T, np.diag([0.3, -0.2, 0.1])
    v = rng.normal(size=(20_000, 3))
    v /= np.linalg.norm(v, axis=1, keepdims=True)

    def along(matrix):
        return np.einsum("ni,ij,nj->n", v, matrix, v)

    seen = np.eye(3) + centre
    truth = max(np.max(along(high - seen)), np.max(along(seen - low)))
    found = finite_sample.Slopes(low, high, np.eye(3), 1.0, "").odd(centre)
    assert truth <= found <= 1.001 * truth
    exact = max(np.linalg.eigvalsh(high - seen)[-1], np.linalg.eigvalsh(seen - low)[-1])
    assert found - exact == pytest.approx(finite_sample._slack(high) + finite_sample._slack(seen), rel=0.2)
    numbers = finite_sample.Slopes(np.array([0.5]), np.array([4.0]), np.eye(2), 1.0, "")
    assert numbers.odd(np.array([0.5, -0.25])) == 4.0 - 0.75 and numbers.odd(np.array([9.0, 3.0])) == 10 - 0.5


def test_moved_sites_are_within_their_errors():
    """Of E f'(m + sqrt(v) x) and E f'': the largest change over means and variances within the errors, on a grid."""
    x, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    mean, variance, error, moved = 0.4, 0.5, 0.05, 0.03
    grid = [(mean + a * moved, variance + b * error) for a in np.linspace(-1, 1, 9) for b in np.linspace(-1, 1, 9)]
    curves = {
        "poisson": (np.exp, np.exp, Poisson(), math.inf),
        "logit": (
            lambda t: 1 / (1 + np.exp(-t)), lambda t: np.exp(-t) / (1 + np.exp(-t)) ** 2, BernoulliLogit(), 0.25,
        ),
    }  # fmt: skip
    for slope, weight, likelihood, largest in curves.values():
        means = [[float(f(m + math.sqrt(v) * x) @ weights) for f in (slope, weight)] for m, v in grid]
        now = [float(f(mean + math.sqrt(variance) * x) @ weights) for f in (slope, weight)]
        true = np.abs(np.asarray(means) - now).max(axis=0)
        arrays = [np.array([number]) for number in (now[1], variance, error, moved)]
        found = np.concatenate(dual._moved(likelihood, largest, *arrays))
        assert np.all(true <= found * (1 + 1e-9)) and np.all(found <= 10 * true)
    assert found[0] > 0 and np.concatenate(dual._moved(Poisson(), math.inf, *arrays))[0] == pytest.approx(
        now[1] * math.expm1(0.5 * error + moved)
    )


def test_the_scale_of_an_error_is_the_bound_that_it_is_added_to():
    values = np.array([2.0, 2.0, 2.0, 1e9])  # one huge value counts for nothing
    usual = -math.log(0.75 * math.exp(-2.0))
    assert dual_bound._scale(values, 0.5, 1.0) == pytest.approx(1.5 + usual)
    assert dual_bound._scale(values[:3], 0.5, None) == pytest.approx(2.0)
    assert dual_bound._scale(values[:3], -1.0, -1.0) == 1e-6
