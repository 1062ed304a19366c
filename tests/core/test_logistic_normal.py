"""Eight probits for the logistic: against fine quadrature of the softplus itself, and the errors that it states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from provi.targets.likelihoods.bernoulli import (
    DENSITY_ERROR,
    NARROW,
    SIGMOID_ERROR,
    SLOPES,
    VALUE_ERROR,
    WEIGHTS,
    density_moments,
    softplus_moments,
)

MEANS = np.array([-30.0, -11.0, -3.0, -0.4, 0.0, 0.7, 5.0, 30.0])
DEVIATIONS = np.array([0.01, 0.1, 1.0, 4.0, 30.0, 400.0])
MEAN, DEVIATION = (grid.ravel() for grid in np.meshgrid(MEANS, DEVIATIONS))


def softplus(z):
    return np.logaddexp(0.0, z)


def density(z):
    return special.expit(z) * special.expit(-z)


def gaussian_mean(function, mean, deviation):
    """E function(mean + deviation t), by adaptive quadrature with the bend of the softplus and the bulk as breaks."""

    def integrand(t):
        return function(mean + deviation * t, t) * np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi)

    bend = -mean / deviation + np.array([-40.0, -10.0, -3.0, 0.0, 3.0, 10.0, 40.0]) / deviation
    breaks = np.unique(np.r_[-38.0, -8.0, -3.0, 0.0, 3.0, 8.0, 38.0, bend[np.abs(bend) < 38.0]])
    pieces = zip(breaks[:-1], breaks[1:], strict=True)
    return sum(integrate.quad(integrand, a, b, epsabs=1e-13, epsrel=1e-13)[0] for a, b in pieces)


def test_moments_against_quadrature_within_the_stated_errors():
    found = softplus_moments(jnp.asarray(MEAN), jnp.asarray(DEVIATION**2))
    functions = (lambda z, t: softplus(z), lambda z, t: special.expit(z), lambda z, t: density(z))
    for moment, function, error in zip(
        (found.value, found.slope, found.weight), functions, (VALUE_ERROR, SIGMOID_ERROR, DENSITY_ERROR), strict=True
    ):
        truth = np.array([gaussian_mean(function, m, s) for m, s in zip(MEAN, DEVIATION, strict=True)])
        # Quadrature and rounding are 1e-13 of the size of the value.
        assert (np.abs(np.asarray(moment) - truth) <= error + 1e-12 * np.abs(truth)).all()
        # The errors are stated within a factor of 50 of what is seen: nothing is hidden by a generous constant.
        assert np.abs(np.asarray(moment) - truth).max() > error / 50


def test_curvature_moments_against_quadrature():
    found = density_moments(jnp.asarray(MEAN), jnp.asarray(DEVIATION))
    for power, moment in enumerate(found):
        truth = np.array(
            [gaussian_mean(lambda z, t, j=power: t**j * density(z), m, s) for m, s in zip(MEAN, DEVIATION, strict=True)]
        )
        assert (np.abs(np.asarray(moment) - truth) <= DENSITY_ERROR).all()


def test_series_for_narrow_gaussians_against_quadrature():
    """Within what the remainders of the heat equation's series are proven to be, at the widest and narrower."""
    mean, deviation = (x.ravel() for x in np.meshgrid(MEANS, [0.0, 0.1, 0.25, NARROW**0.5 * (1 - 1e-15)]))
    found = softplus_moments(jnp.asarray(mean), jnp.asarray(deviation**2))
    curved = density_moments(jnp.asarray(mean), jnp.asarray(deviation))
    functions = (lambda z, t: softplus(z), lambda z, t: special.expit(z), lambda z, t: density(z))
    powers = tuple(lambda z, t, j=j: t**j * density(z) for j in range(3))
    errors = (2e-10, 1.4e-10, 8e-10, 8e-10, 1.4e-9, 3.5e-9)
    largest = []
    for moment, function, error in zip(
        (found.value, found.slope, found.weight, *curved), functions + powers, errors, strict=True
    ):
        truth = [gaussian_mean(function, m, max(s, 1e-9)) for m, s in zip(mean, deviation, strict=True)]
        off = np.abs(np.asarray(moment) - np.array(truth))
        assert (off <= error).all()
        largest.append(off.max() / error)
    assert max(largest) > 0.05  # nothing is hidden by generous constants


@pytest.mark.parametrize("mean", [0.0, 1e-17, -1e-17, 0.4, -7.0])
def test_derivatives_of_the_series_are_its_own_means(mean):
    """Also where its pieces meet, at 0, where the start of a search is."""
    value = lambda m: softplus_moments(m, jnp.full(1, 0.05)).value[0]  # noqa: E731
    at, own = jnp.full(1, mean), softplus_moments(jnp.full(1, mean), jnp.full(1, 0.05))
    np.testing.assert_allclose(jax.grad(value)(at), own.slope, rtol=1e-8)
    np.testing.assert_allclose(jax.hessian(value)(at)[0], own.weight, rtol=1e-6)


def test_the_series_keeps_its_digits_in_both_tails_in_single_precision():
    means = np.array([-30.0, -12.0, 12.0, 30.0])
    found = softplus_moments(jnp.asarray(means, jnp.float32), jnp.full(4, 0.01, jnp.float32)).weight
    truth = [gaussian_mean(lambda z, t: density(z), m, 0.1) for m in means]
    np.testing.assert_allclose(found, truth, rtol=1e-5)


@pytest.mark.parametrize(
    ("truth", "mixture", "stated"),
    [
        (softplus, lambda z: z * special.ndtr(z) + np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi), VALUE_ERROR),
        (special.expit, special.ndtr, SIGMOID_ERROR),
        (density, lambda z: np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi), DENSITY_ERROR),
    ],
    ids=["value", "sigmoid", "density"],
)
def test_uniform_error_of_the_mixture(truth, mixture, stated):
    """On a grid of spacing 1e-4; between its nodes the error, with second derivative at most 0.3, moves by 3.8e-10.

    The errors are even or odd, so the positive half is enough.
    """
    z = np.arange(0.0, 60.0, 1e-4)
    power = {VALUE_ERROR: -1, SIGMOID_ERROR: 0, DENSITY_ERROR: 1}[stated]
    approximation = sum(w * c**power * mixture(c * z) for w, c in zip(WEIGHTS, SLOPES, strict=True))
    error = truth(z) - approximation
    # The second differences of both parts bound the second derivative, up to rounding (1e-16 / 1e-8).
    for part in (truth(z)[:200_000:10], approximation[:200_000:10]):
        assert np.abs(np.diff(part, 2)).max() / 1e-6 < 0.26
    assert np.abs(np.diff(error[:200_000:10], 2)).max() / 1e-6 < 0.01
    assert np.abs(error).max() + 0.3 * 1e-8 / 8 < stated
    assert sum(WEIGHTS) == pytest.approx(1.0, abs=1e-15)


def test_tails_are_exact():
    far = jnp.asarray([-60.0, 60.0, 200.0])
    zero = jnp.zeros(3)
    found = softplus_moments(far, zero)
    np.testing.assert_allclose(found.value, [0.0, 60.0, 200.0], atol=1e-25)
    np.testing.assert_allclose(found.slope, [0.0, 1.0, 1.0], atol=1e-25)


@pytest.mark.parametrize("deviation", [0.5, 7.0])
def test_slope_and_weight_are_derivatives_of_the_value(deviation):
    """d/dmean E = slope, 2 d/dvariance E = weight: central differences, whose error is about step^2."""
    mean, variance, step = jnp.asarray(MEANS), jnp.full(len(MEANS), deviation**2), 1e-4
    found = softplus_moments(mean, variance)
    up, down = softplus_moments(mean + step, variance), softplus_moments(mean - step, variance)
    np.testing.assert_allclose(found.slope, (up.value - down.value) / (2 * step), atol=1e-8)
    wide, narrow = softplus_moments(mean, variance + step), softplus_moments(mean, variance - step)
    np.testing.assert_allclose(found.weight, (wide.value - narrow.value) / step, atol=1e-8)
    np.testing.assert_allclose(found.weight, (up.slope - down.slope) / (2 * step), atol=1e-8)


def test_derivatives_stay_finite_and_right_under_autodiff():
    def value(mean, variance):
        return softplus_moments(mean[None], variance[None]).value[0]

    mean, variance = jnp.asarray(1.3), jnp.asarray(2.0)
    found = softplus_moments(mean[None], variance[None])
    slope, half_weight = jax.grad(value, argnums=(0, 1))(mean, variance)
    np.testing.assert_allclose([slope, 2 * half_weight], [found.slope[0], found.weight[0]], rtol=1e-12)


def test_single_precision():
    found = softplus_moments(jnp.asarray(MEAN, jnp.float32), jnp.asarray(DEVIATION**2, jnp.float32))
    double = softplus_moments(jnp.asarray(MEAN), jnp.asarray(DEVIATION**2))
    assert found.value.dtype == jnp.float32
    np.testing.assert_allclose(found.value, double.value, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(found.weight, double.weight, rtol=2e-5, atol=1e-7)
