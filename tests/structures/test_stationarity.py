"""The stationarity rule: its distance against quadrature-free formulas, quiet on a trend, satisfied by rest."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import provi
from provi.structures.stationarity import StationarityRule, gaussian_kl

FACTOR = np.array([[0.5, 0.0], [0.3, 2.0]])


def looks(locs, factor=FACTOR, tol=0.01):
    """The steps at which the rule says that q stands still."""
    rule = StationarityRule()
    return [step for step, loc in enumerate(locs, start=1) if rule.stationary(loc, factor, tol)]


def test_gaussian_kl_is_the_mean_of_the_log_ratio():
    """Of 200,000 draws, within 5 standard errors: false-alarm rate 6e-7."""
    loc, other, other_factor = np.array([0.3, -1.0]), np.array([0.1, -0.5]), np.array([[0.7, 0.1], [0.1, 1.5]])
    draws = loc + np.random.default_rng(0).normal(size=(200_000, 2)) @ FACTOR.T
    ratio = multivariate_normal(loc, FACTOR @ FACTOR.T).logpdf(draws)
    ratio = ratio - multivariate_normal(other, other_factor @ other_factor.T).logpdf(draws)
    error = np.std(ratio) / np.sqrt(len(ratio))
    assert abs(gaussian_kl(loc, FACTOR, other, other_factor) - ratio.mean()) < 5 * error


def test_rest_is_seen_at_the_third_look_and_not_before():
    assert looks(np.zeros((134, 2))) == [90]


def test_a_steady_trend_is_never_rest():
    """It moves by 0.2 sd between looks at 60 and 90, KL 0.02, and by more later."""
    assert looks(np.linspace(0, 1, 600)[:, None] * np.array([2.0, 0.0])) == []


def test_a_trend_of_the_scale_is_seen_too():
    rule = StationarityRule()
    assert not any(rule.stationary(np.zeros(2), np.exp(step / 100) * FACTOR, 0.01) for step in range(400))


def test_wandering_in_noise_is_refused_until_the_noise_is_below_the_tolerance():
    """Independent errors of h = 0.1 sds in 20 coordinates: KL is h^2 chi2_20, 0.2 on average."""
    noise = 0.1 * np.random.default_rng(1).normal(size=(400, 20))
    assert looks(noise, np.eye(20), tol=0.01) == []
    assert looks(noise, np.eye(20), tol=10.0) != []


def test_a_stuck_method_looks_stationary():
    """What the docstring warns of: nothing moves, so nothing can be seen."""
    assert looks(np.full((100, 2), 3.0), tol=1e-12) == [90]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_density_that_is_not_log_concave_is_fitted_to_the_tolerance(seed):
    """A banana: f(m, S) of a Gaussian is a polynomial, minimised here by Newton-free descent from the fit itself.

    E potential = (m0^2 + s00)/8 + E(z1 - 0.3 z0^2)^2/2 by moments of Gaussians; SciPy's BFGS finds the optimum.
    """
    from scipy.optimize import minimize

    def density(z):
        return -(z[0] ** 2) / 8 - (z[1] - 0.3 * z[0] ** 2) ** 2 / 2

    def negative_elbo(w):
        m, c = w[:2], np.array([[np.exp(w[2]), 0.0], [w[3], np.exp(w[4])]])
        s = c @ c.T
        square = m[0] ** 2 + s[0, 0]
        fourth = m[0] ** 4 + 6 * m[0] ** 2 * s[0, 0] + 3 * s[0, 0] ** 2
        cross = m[1] * square + 2 * m[0] * s[0, 1]
        energy = square / 8 + (m[1] ** 2 + s[1, 1] - 0.6 * cross + 0.09 * fourth) / 2
        return energy - w[2] - w[4]

    fit = provi.fit(provi.targets.LogDensity(density, 2, start=jnp.zeros(2)), tol=0.01, seed=seed)
    assert fit.outcome is provi.Outcome.STATIONARY
    factor = np.linalg.cholesky(fit.posterior.covariance)
    found = np.array([*fit.posterior.mean, np.log(factor[0, 0]), factor[1, 0], np.log(factor[1, 1])])
    best = minimize(negative_elbo, found, tol=1e-10).fun
    assert 0 <= negative_elbo(found) - best <= 0.01
