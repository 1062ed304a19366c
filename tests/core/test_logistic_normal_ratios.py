"""Means of the sigmoid and their derivatives against the trapezoid rule, which converges geometrically here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from provi.core.normal_cdf import SMALL_VARIANCE, sigmoid_mean_ratios

MEANS = np.linspace(-60, 60, 161)
ratios_of_order_two = jax.jit(sigmoid_mean_ratios)
ratios_of_order_four = jax.jit(lambda mean, variance, label: sigmoid_mean_ratios(mean, variance, label, order=4))


def sigmoid_derivatives(x):
    s, c = expit(x), expit(-x)
    return np.stack([s, s * c, s * c * (c - s), s * c * (1 - 6 * s * c), s * c * (c - s) * (1 - 12 * s * c)])


def integrals(v, variance):
    """E of the k-th derivative of the sigmoid, and of its absolute value, under N(v, variance)."""
    if variance == 0:
        return sigmoid_derivatives(v), np.abs(sigmoid_derivatives(v))
    s = np.sqrt(variance)
    # The integrand is largest near v or, with the factor exp(x) of the sigmoid's tail, near v + variance.
    x = np.arange(v - 12 * s, v + variance + 12 * s, min(0.05, 0.1 * s))
    weights = np.exp(-0.5 * (x - v) ** 2 / variance)
    # Normalised on its own grid, which is exact to rounding, so that a grid of spacing 1e-3 s loses no digits.
    values = sigmoid_derivatives(x) * weights * (x[1] - x[0]) / (s * np.sqrt(2 * np.pi))
    return values.sum(axis=1), np.abs(values).sum(axis=1)


def check_errors(variance, label, mean_error, derivative_errors):
    size = np.full(MEANS.shape, variance)
    ours = ratios_of_order_four(jnp.asarray(MEANS), jnp.asarray(size), jnp.full(MEANS.shape, label))
    stacked = np.stack([ours.first, ours.second, ours.third, ours.fourth])
    oracle, scale = (np.stack(x, axis=1) for x in zip(*(integrals(label * m, variance) for m in MEANS), strict=True))
    signs = label ** np.arange(1, 5)
    np.testing.assert_allclose(np.exp(ours.log_mean), oracle[0], rtol=mean_error)
    error = np.abs(stacked * oracle[:1] - signs[:, None] * oracle[1:])
    assert np.all(error <= derivative_errors * scale[1:] + 1e-300)


@pytest.mark.parametrize("label", [-1.0, 1.0])
@pytest.mark.parametrize("variance", [0.0, 0.01, 0.1, SMALL_VARIANCE])
def test_small_variances_are_exact_to_nine_digits(variance, label):
    check_errors(variance, label, 1e-12, 1e-9)


@pytest.mark.parametrize("variance", [SMALL_VARIANCE + 1e-4, 0.5, 1.0, 3.0, 10.0])
def test_moderate_variances_have_eight_digits_and_seven_in_high_derivatives(variance):
    check_errors(variance, 1.0, 5e-9, np.array([8e-9, 8e-9, 7e-8, 7e-8])[:, None])


@pytest.mark.parametrize("variance", [20.0, 50.0, 100.0])
def test_large_variances_have_at_least_four_digits_in_the_tail(variance):
    check_errors(variance, -1.0, 1e-5, 2e-5)


def test_without_variance_the_sigmoid_itself():
    mean = jnp.asarray([-800.0, -3.0, 0.0, 2.0, 30.0])
    ours = ratios_of_order_two(mean, jnp.zeros(5), jnp.ones(5))
    np.testing.assert_allclose(ours.log_mean, -np.logaddexp(0, -np.asarray(mean)), rtol=1e-13)
    np.testing.assert_allclose(ours.first, expit(-np.asarray(mean)), rtol=1e-13)


def test_the_log_mean_can_be_differentiated_twice():
    points = jnp.asarray([[-30.0, 0.0], [0.3, 0.0], [-1.0, 0.2], [2.0, 5.0], [-9.0, 4.0], [-300.0, 50.0]])
    label = jnp.asarray(-1.0)

    def log_mean(x):
        return sigmoid_mean_ratios(x[0], x[1], label).log_mean

    gradient = jax.jit(jax.vmap(jax.grad(log_mean)))(points)
    hessian = jax.jit(jax.vmap(jax.hessian(log_mean)))(points)
    r = ratios_of_order_four(points[:, 0], points[:, 1], jnp.full(6, -1.0))
    np.testing.assert_allclose(gradient, np.stack([r.first, r.second / 2], 1), rtol=1e-12)
    across = (r.third - r.first * r.second) / 2
    expected = [[r.second - r.first**2, across], [across, (r.fourth - r.second**2) / 4]]
    np.testing.assert_allclose(hessian, np.moveaxis(np.array(expected), 2, 0), rtol=1e-9, atol=1e-14)


def test_gradients_equal_finite_differences_of_the_integral():
    for mean, variance in ((-1.0, 0.2), (2.0, 5.0), (-9.0, 4.0)):
        ours = ratios_of_order_two(*(jnp.asarray(x) for x in (mean, variance, 1.0)))
        log_integral = lambda m, v: np.log(integrals(m, v)[0][0])  # noqa: E731
        along_mean = (log_integral(mean + 1e-5, variance) - log_integral(mean - 1e-5, variance)) / 2e-5
        along_variance = (log_integral(mean, variance + 1e-5) - log_integral(mean, variance - 1e-5)) / 2e-5
        np.testing.assert_allclose([ours.first, ours.second / 2], [along_mean, along_variance], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_arguments_stay_finite(dtype):
    grid = np.array([-1e6, -1e4, -500, -90, -5, 0, 5, 90, 500, 1e4, 1e6])
    mean, variance = (jnp.asarray(x.ravel(), dtype) for x in np.meshgrid(grid, np.abs(grid)))
    ours = ratios_of_order_two(mean, variance, jnp.ones_like(mean))
    for leaf in (ours.log_mean, ours.first, ours.second):
        assert leaf.dtype == dtype
        assert np.all(np.isfinite(leaf))
    assert np.all(np.asarray(ours.log_mean) <= 0)
    assert np.all((np.asarray(ours.first) >= 0) & (np.asarray(ours.first) <= 1 + 1e-6))


def test_single_precision_agrees_with_double():
    mean, variance = (x.ravel() for x in np.meshgrid(np.linspace(-20, 20, 41), [0.0, 0.1, 1.0, 9.0]))
    double = ratios_of_order_two(jnp.asarray(mean), jnp.asarray(variance), jnp.ones(len(mean)))
    single = ratios_of_order_two(*(jnp.asarray(x, "float32") for x in (mean, variance, np.ones(len(mean)))))
    np.testing.assert_allclose(single.log_mean, double.log_mean, rtol=1e-5)
    np.testing.assert_allclose(single.first, double.first, rtol=1e-4)


def test_other_orders_are_refused():
    with pytest.raises(ValueError, match="order must be 2 or 4"):
        sigmoid_mean_ratios(jnp.zeros(1), jnp.ones(1), jnp.ones(1), order=3)
