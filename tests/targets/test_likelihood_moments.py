"""Gaussian means of every likelihood: against Gauss-Legendre panels, finite differences and their stated errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from provi.targets.likelihoods.moments import LARGEST_DEVIATION
from support.likelihoods import (
    EXPONENTIAL,
    MEMBERS,
    RESPONSES,
    TIMES,
    WIDTH,
    bend,
    everything,
    gaussian_mean,
    grid,
    log_density,
    slope,
)
from support.members import quick_jit

members = pytest.mark.parametrize("name", MEMBERS)


def test_the_oracle_itself():
    """Against SciPy's adaptive quadrature."""
    for mean, deviation in ((0.3, 0.2), (-2.0, 5.0), (40.0, 60.0)):
        points = np.unique(np.clip([-5.0, 0, 5, mean, mean + 3 * deviation], mean - 12 * deviation, None))
        true = integrate.quad(
            lambda eta, m=mean, s=deviation: -special.log_ndtr(eta) * stats.norm.pdf(eta, m, s),
            mean - 12 * deviation,
            mean + 12 * deviation,
            points=points,
            epsabs=0,
            epsrel=1e-12,
            limit=400,
        )[0]
        found = gaussian_mean(lambda eta: -special.log_ndtr(eta), mean, deviation, 0.0, 1.0)
        assert found == pytest.approx(true, rel=1e-11)


@members
def test_moments_are_within_their_stated_errors(name):
    """The stated errors hold, and are below 1e-8 up to a spread of 100 widths.

    2e-8 for the eight probits, twice for two cut points; 1e-4 where convexity alone brackets the mean.
    """
    mean, deviation, y = grid(name)
    moments, errors, _ = everything(MEMBERS[name], *(jnp.asarray(x) for x in (mean, deviation**2, y)))
    probits = {"logit": 2.1e-8, "share": 2.1e-8, "ordinal": 4.2e-8, "wide ordinal": 4.2e-8}
    limit = {**probits, "user": 1e-4}.get(name, 1e-8)
    for row, (m, s, response) in enumerate(zip(mean, deviation, y, strict=True)):

        def integrands(eta, m=m, s=s, response=response):
            tilt = slope(name, eta, response)
            # E t'' = E[t' (eta - m)]/s^2, less what cancels.
            bent = (tilt - slope(name, m, response)) * (eta - m) / s**2
            return np.array([-log_density(name, eta, response), tilt, bent])

        true = gaussian_mean(integrands, m, s, *bend(name, response))
        own = 3e-14 * (1 + np.abs(true) + np.array([0, 0, np.abs(true[1]) / s]))
        for moment, error, truth, slack in zip(
            jax.tree.leaves(moments), jax.tree.leaves(errors), true, own, strict=True
        ):
            assert abs(float(moment[row]) - truth) <= float(error[row]) + slack
        assert float(errors.value[row]) <= limit * (1 + abs(true[0]))
        assert abs(float(moments.value[row]) - true[0]) <= MEMBERS[name].value_error * (1 + abs(true[0]))


@members
def test_slope_and_weight_are_derivatives_of_the_value(name):
    """Bonnet's and Price's theorems, by central differences."""
    mean, deviation, y = grid(name, 30.0)
    deviation = np.maximum(deviation, 0.05 * WIDTH.get(name, 1.0))
    variance, step = deviation**2, 1e-4 * deviation

    def value(m, v):
        return np.asarray(everything(MEMBERS[name], jnp.asarray(m), jnp.asarray(v), jnp.asarray(y))[0].value)

    moments = everything(MEMBERS[name], *(jnp.asarray(x) for x in (mean, variance, y)))[0]
    found = (value(mean + step, variance) - value(mean - step, variance)) / (2 * step)
    size = 1 + np.abs(value(mean, variance))
    # Truncation, 1e-8 s^2 E t''' / 6, and rounding.
    allowed = 1e-7 * (np.abs(found) + 1 / WIDTH.get(name, 1.0)) + 1e-13 * size / step
    assert (np.abs(found - np.asarray(moments.slope)) <= allowed).all()
    change = 1e-4 * variance
    found = (value(mean, variance + change) - value(mean, variance - change)) / change
    assert (np.abs(found - np.asarray(moments.weight)) <= 1e-6 * np.abs(found) + 1e-11 * size / change).all()


@members
def test_automatic_derivatives_agree(name):
    """What learns hyperparameters differentiates through the moments; also where there is no variance."""
    mean, deviation, y = (jnp.asarray(x) for x in grid(name, 30.0))
    variance = (deviation**2).at[3].set(0.0)

    def total(likelihood, mean, variance):
        return jnp.sum(likelihood.moments(mean, variance, y).value)

    moments = everything(MEMBERS[name], mean, variance, y)[0]
    tilt, half = quick_jit(jax.grad(total, argnums=(1, 2)))(MEMBERS[name], mean, variance)
    np.testing.assert_allclose(tilt, moments.slope, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(2 * half, moments.weight, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ["probit", "cauchy"])
def test_no_error_is_stated_beyond_what_was_measured(name):
    variance = jnp.asarray(np.resize([0.99, 1.01], 20)) * (LARGEST_DEVIATION * WIDTH.get(name, 1.0)) ** 2
    for error in jax.tree.leaves(everything(MEMBERS[name], jnp.zeros(20), variance, jnp.ones(20))[1]):
        assert np.isfinite(error[0]) and np.isinf(error[1])


@members
def test_no_spread_and_very_far_means(name):
    """Without spread: the potential and its derivatives at the mean. Far out: finite, and of the right size."""
    likelihood, y = MEMBERS[name], jnp.asarray(np.resize(RESPONSES[name] if name in TIMES else [0.0, 1.0], 20))
    eta = np.linspace(-5, 5, 20)
    moments, errors, predictive = everything(likelihood, jnp.asarray(eta), jnp.zeros(20), y)
    np.testing.assert_allclose(moments.value, -log_density(name, eta, np.asarray(y)), rtol=1e-11, atol=3e-8)
    np.testing.assert_allclose(moments.slope, slope(name, eta, np.asarray(y)), rtol=1e-9, atol=1e-8)
    change = 1e-6 * WIDTH.get(name, 1.0)
    bent = (slope(name, eta + change, np.asarray(y)) - slope(name, eta - change, np.asarray(y))) / (2 * change)
    np.testing.assert_allclose(moments.weight, bent, rtol=1e-6, atol=3e-8)
    np.testing.assert_allclose(predictive, log_density(name, eta, np.asarray(y)), rtol=1e-9, atol=1e-9)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(errors))
    far = np.resize([-500.0, 5.0] if name in EXPONENTIAL else [-1e5, 1e5], 20)
    variance = np.repeat([1e-12, 100.0], 10)
    moments, _, predictive = everything(likelihood, jnp.asarray(far), jnp.asarray(variance), y)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((moments, predictive)))
    # Where the variance is nothing, the log predictive is the log density: at y = 1 and 0 alike.
    np.testing.assert_allclose(predictive[:10], log_density(name, far[:10], np.asarray(y)[:10]), rtol=1e-9, atol=1e-9)


def test_a_variance_that_rounding_made_negative():
    moments = everything(MEMBERS["probit"], jnp.zeros(20), jnp.full(20, -1e-17), jnp.ones(20))[0]
    assert float(moments.weight[0]) == pytest.approx(2 / np.pi, rel=1e-8)


def test_values_in_single_precision():
    mean, deviation, y = grid("t", 30.0)
    found = everything(MEMBERS["t"], *(jnp.asarray(x, jnp.float32) for x in (mean, deviation**2, y)))
    true = everything(MEMBERS["t"], *(jnp.asarray(x) for x in (mean, deviation**2, y)))
    for single, double, error in zip(
        jax.tree.leaves(found[0]), jax.tree.leaves(true[0]), jax.tree.leaves(found[1]), strict=True
    ):
        # The arguments themselves are rounded: eps times mean times slope or weight, below 1e-5 here.
        assert (np.abs(np.asarray(single) - np.asarray(double)) <= np.asarray(error) + 1e-5).all()
    np.testing.assert_allclose(found[2], true[2], rtol=1e-5, atol=1e-5)
